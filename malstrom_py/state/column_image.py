"""State of many keys as Arrow columns, and its form in a block of a keyed artefact: no Python object per key.

A row is a key, the pane if the state is kept by pane, and the columns of the state. The *shape* says how the columns of
a row make the value that steps on rows keep: a number is the value of that column, a tuple or list of shapes a tuple or
list of values, ``{"record": {name: shape, …}}`` a dict of values, and ``{"where": n, "is": shape, "else": () or None}``
the value of the shape where column n is not null, otherwise the constant. ``{"listed": […]}`` is a list of the values
of shapes of that last kind, without those where column n is null. With panes the state of a key is a dict, pane ->
value.

A block has the number of its rows and the number of its keys without state (deltas only), the keys of both, the panes,
and the columns of the state. A column has a byte that says whether values may be null, then if so a byte per value (1:
not null), then the values if they have one size, or else their lengths and the values. Numbers are little-endian.

Rules. The unit is the key, as in blocks of rows: the newest artefact with a key has all its rows. Only types whose
values are one to one with values of Python are stored as columns, and as keys only such that equal keys have equal
stored forms. Every claim of the bytes is checked before it is used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from malstrom_py.data.row_form import python_values
from malstrom_py.errors import SnapshotError
from malstrom_py.state.group_index import NotColumnar

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Numbers = np.ndarray[Any, np.dtype[Any]]

Shape = int | tuple[Any, ...] | list[Any] | dict[str, Any]
"""How the columns of a row make a value, see above."""

_DEPTH_MAX: Final = 16
_COLUMNS_MAX: Final = 1024
_COUNTS: Final = struct.Struct("<II")  # rows, keys without state


class ColumnImage(NamedTuple):
    """The state of keys in rows: ``keys``, their ``slots``, ``panes`` if there are any, and the columns of ``states``.

    ``gone`` and ``gone_slots``: the keys that no longer have state, in a delta. Slots are vectors of numpy.
    """

    keys: pa.Array[Any]
    slots: Numbers
    states: Sequence[pa.Array[Any]]
    shape: Shape
    panes: pa.Array[Any] | None = None
    gone: pa.Array[Any] | None = None
    gone_slots: Numbers | None = None

    @property
    def form(self) -> Form:
        """The types of the columns, and the shape."""
        return Form(
            self.keys.type, tuple(column.type for column in self.states), self.shape, by_pane=self.panes is not None
        )

    @property
    def all_keys(self) -> pa.Array[Any]:
        """The key of each row, then the keys without state."""
        import pyarrow as pa

        return self.keys if self.gone is None else pa.concat_arrays([self.keys, self.gone])

    def take(self, rows: Any) -> ColumnImage:
        """Return the rows at the indices ``rows``, a vector, without keys that have no state."""
        panes = None if self.panes is None else self.panes.take(rows)
        states = [column.take(rows) for column in self.states]
        return ColumnImage(self.keys.take(rows), self.slots[rows], states, self.shape, panes)

    def without_absent(self) -> ColumnImage:
        """Return the image with rows whose state is None, which means no state, as keys that are gone."""
        import numpy as np
        import pyarrow as pa

        shape = self.shape
        if isinstance(shape, dict) and "where" in shape and shape["else"] is None:
            shape = shape["where"]
        if self.panes is not None or not isinstance(shape, int) or not self.states[shape].null_count:
            return self
        there = self.states[shape].is_valid().to_numpy(zero_copy_only=False)
        kept, lost = self.take(np.flatnonzero(there)), np.flatnonzero(~there)
        gone, gone_slots = self.keys.take(lost), self.slots[lost]
        if self.gone is not None and self.gone_slots is not None:
            gone = pa.concat_arrays([self.gone, gone])
            gone_slots = np.concatenate([self.gone_slots, gone_slots])
        return kept._replace(gone=gone, gone_slots=gone_slots)


@dataclass(frozen=True)
class Form:
    """The types and the shape of an image. Images of one form are merged as columns."""

    key: pa.DataType
    states: tuple[pa.DataType, ...]
    shape: Shape
    by_pane: bool = False

    def __hash__(self) -> int:
        return hash((len(self.states), self.by_pane))  # cheap: it is asked for each block; and a shape may be a list

    def stored(self) -> tuple[bytes, Shape]:
        """Return what an artefact keeps: an Arrow schema, as a message of Arrow IPC, and the shape."""
        import pyarrow as pa

        names = ["key", *(["pane"] if self.by_pane else ()), *map(str, range(len(self.states)))]
        types = [self.key, *([pa.int64()] if self.by_pane else ()), *self.states]
        schema = pa.schema(list(zip(names, types, strict=True)))
        return schema.serialize().to_pybytes(), self.shape

    @classmethod
    def read(cls, stored: Any) -> Form:
        """Return the form that an artefact keeps. `SnapshotError` if it is not one."""
        import pyarrow as pa

        if type(stored) is not tuple or len(stored) != 2 or type(stored[0]) is not bytes:
            raise damaged("the form of its columns is invalid")
        data, shape = stored
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(data))
            names, (key, *types) = schema.names, schema.types
        except Exception as error:
            raise damaged("the form of its columns is invalid") from error
        by_pane = names[1:2] == ["pane"]
        panes = [types.pop(0)] if by_pane else []
        states = tuple(types)
        known = is_key(key) and all(map(is_state, states)) and panes in ([], [pa.int64()])
        expected = ["key", *(["pane"] if by_pane else ()), *map(str, range(len(states)))]
        if not known or names != expected or not _fits(shape, len(states)):
            raise damaged("the form of its columns is invalid")
        return cls(key, states, shape, by_pane=by_pane)


def _fits(shape: Any, columns: int, depth: int = 0) -> bool:
    if type(shape) is int:
        return 0 <= shape < columns <= _COLUMNS_MAX
    if depth == _DEPTH_MAX:
        return False
    if type(shape) is dict and set(shape) == {"listed"}:
        parts: Any = shape["listed"]
        chosen = type(parts) is list and all(type(part) is dict and "where" in part for part in parts)
        return chosen and all(_fits(part, columns, depth + 1) for part in parts)
    if type(shape) is dict and set(shape) == {"where", "is", "else"}:
        chosen = type(shape["where"]) is int and _fits(shape["where"], columns)
        return chosen and shape["else"] in ((), None) and _fits(shape["is"], columns, depth + 1)
    if type(shape) is dict:
        fields: Any = shape.get("record")
        named = set(shape) == {"record"} and type(fields) is dict and all(type(name) is str for name in fields)
        return named and all(_fits(part, columns, depth + 1) for part in fields.values())
    return type(shape) in (tuple, list) and all(_fits(part, columns, depth + 1) for part in shape)


def is_key(kind: pa.DataType) -> bool:
    """Whether keys of an Arrow type are stored as columns, once `storable` has cast them."""
    import pyarrow as pa

    return kind in (pa.int64(), pa.uint64(), pa.large_string(), pa.large_binary())


def is_state(kind: pa.DataType) -> bool:
    """Whether a column of a state may have an Arrow type, once `storable` has cast it."""
    import pyarrow as pa

    of = pa.types
    return (
        of.is_integer(kind)
        or kind in (pa.float32(), pa.float64(), pa.bool_(), pa.large_string(), pa.large_binary(), pa.date32())
        or ((of.is_timestamp(kind) or of.is_duration(kind)) and kind.unit != "ns")
        or of.is_decimal128(kind)
    )


def storable(image: ColumnImage) -> ColumnImage | None:
    """Return ``image`` with the types that are stored; None if one of its types is not stored as a column.

    >>> import numpy as np, pyarrow as pa
    >>> image = ColumnImage(pa.array(["a", "b"]), np.array([1, 0]), [pa.array([3, 5], pa.int32())], 0)
    >>> str(storable(image).keys.type), storable(image._replace(keys=pa.array([1.5, 2.5]))) is None
    ('large_string', True)
    """
    import pyarrow as pa

    states = [widened(column) for column in image.states]
    gone = None if image.gone is None or not len(image.gone) else widened(image.gone)
    keys = widened(image.keys if gone is None or not pa.types.is_null(image.keys.type) else image.keys.cast(gone.type))
    if pa.types.is_integer(keys.type) and keys.type != pa.uint64():
        keys = keys.cast(pa.int64())
    if gone is not None and gone.null_count == len(gone):
        gone = pa.nulls(len(gone), keys.type)
    if gone is not None and gone.type != keys.type:
        return None
    if not is_key(keys.type) or not all(is_state(column.type) for column in states):
        return None
    panes = None if image.panes is None else image.panes.cast(pa.int64())
    gone_slots = None if gone is None else image.gone_slots
    return ColumnImage(keys, image.slots, states, image.shape, panes, gone, gone_slots)


def widened(column: pa.Array[Any]) -> pa.Array[Any]:
    """Return text and bytes in the types that are stored, and other columns unchanged, without a dictionary."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_null(kind):
        return column.cast(pa.large_binary())  # keys that are all None
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if kind in (pa.string(), pa.string_view()):
        return column.cast(pa.large_string())
    return column.cast(pa.large_binary()) if kind in (pa.binary(), pa.binary_view()) else column


# As bytes


def column_blocks(image: ColumnImage) -> Iterator[tuple[int, int, bytes]]:
    """Yield the slots of a `storable` image, ascending, each with its number of rows and keys without state, and its
    block.
    """
    import numpy as np

    order, ends = _by_slot(image.slots)
    counts: Any = np.diff(ends, prepend=0)
    gone = np.zeros_like(counts)
    keys, slots, key_order, key_ends = image.all_keys, image.slots, order, ends
    if image.gone_slots is not None:
        # Below the keys of its rows each slot has its keys without state.
        slots = np.concatenate([image.slots, image.gone_slots])
        after = np.concatenate([image.slots * 2, image.gone_slots * 2 + 1])
        key_order, key_ends = np.argsort(after, kind="stable"), _ends(slots)
        gone = _padded(np.bincount(image.gone_slots), len(key_ends))
        counts = _padded(counts, len(key_ends))
        ends = np.cumsum(counts)
    columns = [_Sections(keys.take(key_order), key_ends)]
    rows = [*([image.panes] if image.panes is not None else ()), *image.states]
    columns += [_Sections(column.take(order), ends) for column in rows]
    for slot in np.flatnonzero(counts + gone).tolist():
        rows_here, gone_here = int(counts[slot]), int(gone[slot])
        pieces: list[bytes | memoryview] = [_COUNTS.pack(rows_here, gone_here)]
        for column in columns:
            pieces += column.of(slot)
        yield slot, rows_here + gone_here, b"".join(pieces)


def _by_slot(slots: Numbers) -> tuple[Numbers, Numbers]:
    """Return the order of rows by slot, and per slot the end of its rows in that order."""
    import numpy as np

    # Numbers of 16 bits are sorted by radix, which is several times faster.
    small = len(slots) == 0 or int(slots.max()) < 1 << 16
    order = np.argsort(slots.astype(np.uint16) if small else slots, kind="stable")
    return order, _ends(slots)


def _ends(slots: Numbers) -> Numbers:
    import numpy as np

    return np.cumsum(np.bincount(slots)) if len(slots) else np.zeros(0, np.int64)


def _padded(counts: Numbers, size: int) -> Numbers:
    import numpy as np

    return np.concatenate([counts, np.zeros(size - len(counts), counts.dtype)])


class _Sections:
    """A column in the order of slots, as the bytes of each slot. ``ends``: where the values of each slot end."""

    __slots__ = ("_bytes", "_ends", "_lengths", "_offsets", "_valid", "_width")

    def __init__(self, column: pa.Array[Any], ends: Numbers) -> None:
        import numpy as np
        import pyarrow as pa

        self._ends = [*ends.tolist(), 0]  # slot -1 ends at 0
        self._valid: memoryview | None = None
        if column.null_count:
            self._valid = column.is_valid().cast(pa.uint8()).to_numpy().data
        self._width = _width(column.type)
        self._lengths = self._offsets = None
        if not self._width:
            offsets = np.frombuffer(column.buffers()[1], np.int64, len(column) + 1, 8 * column.offset)
            self._lengths = memoryview(np.diff(offsets).astype("<u4").tobytes())
            self._offsets = offsets[[*self._ends[:-1], 0]].tolist()
            self._bytes = memoryview(column.buffers()[2] or b"")
        else:
            plain = column.cast(pa.uint8()) if pa.types.is_boolean(column.type) else column
            start = plain.offset * self._width
            self._bytes = memoryview(plain.buffers()[1] or b"")[start : start + len(plain) * self._width]

    def of(self, slot: int) -> Iterator[bytes | memoryview]:
        start, end, width = self._ends[slot - 1], self._ends[slot], self._width
        valid = self._valid
        yield b"\0" if valid is None else b"\1"
        if valid is not None:
            yield valid[start:end]
        if width:
            yield self._bytes[start * width : end * width]
        elif self._lengths is not None and self._offsets is not None:
            yield self._lengths[4 * start : 4 * end]
            yield self._bytes[self._offsets[slot - 1] : self._offsets[slot]]


def _width(kind: pa.DataType) -> int:
    """Return the bytes of a value; 0 if values have different sizes."""
    import pyarrow as pa

    if pa.types.is_boolean(kind):
        return 1
    try:
        width: int = kind.bit_width // 8
    except ValueError:
        return 0
    return width


def read_blocks(form: Form, blocks: Iterable[tuple[int, int, bytes]]) -> ColumnImage:
    """Return the image of the ``blocks`` of one artefact, each with its slot and number of rows and keys.

    Raises:
        SnapshotError: a block is damaged. `merge_images` finds out whether a key is there twice.
    """
    import numpy as np
    import pyarrow as pa

    kinds = [form.key, *([pa.int64()] if form.by_pane else ()), *form.states]
    columns = [_Column(kind) for kind in kinds]
    slots: list[int] = []
    counts: list[tuple[int, int]] = []
    for slot, entries, data in blocks:
        if len(data) < _COUNTS.size:
            raise damaged(f"slot {slot} ends too soon")
        rows, gone = _COUNTS.unpack_from(data)
        if rows + gone != entries:
            raise damaged(f"slot {slot} has another number of keys than its index says")
        view, at = memoryview(data), _COUNTS.size
        for number, column in enumerate(columns):
            at = column.take(view, at, rows if number else rows + gone, slot)
        if at != len(data):
            raise damaged(f"slot {slot} has another length than its entries")
        slots.append(slot)
        counts.append((rows, gone))
    keys, *others = (column.array() for column in columns)
    of_rows, of_gone = np.array(counts, np.int64).reshape(-1, 2).T
    numbers = np.array(slots, np.int64)
    panes = others.pop(0) if form.by_pane else None
    image = ColumnImage(keys, np.repeat(numbers, of_rows), others, form.shape, panes)
    if of_gone.any():
        last = np.repeat(np.tile([False, True], len(counts)), np.stack([of_rows, of_gone], 1).ravel())
        gone_slots = np.repeat(numbers, of_gone)
        gone, keys = keys.filter(pa.array(last)), keys.filter(pa.array(~last))
        image = image._replace(keys=keys, gone=gone, gone_slots=gone_slots)
    return image


class _Column:
    """The values of one column, read block by block."""

    __slots__ = ("_bytes", "_count", "_kind", "_lengths", "_nulls", "_valid", "_width")

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._width = _width(kind)
        self._bytes: list[memoryview] = []
        self._lengths: list[Numbers] = []
        self._valid: list[bytes | memoryview] = []
        self._nulls = False
        self._count = 0

    def take(self, data: memoryview, at: int, count: int, slot: int) -> int:
        """Take ``count`` values that begin ``at`` a byte of a block, and return where they end."""
        import numpy as np

        flag, at = bytes(data[at : at + 1]), at + 1
        if flag == b"\1":
            self._nulls = True
            self._valid.append(data[at : at + count])
            at += count
        elif flag == b"\0":
            self._valid.append(b"\1" * min(count, len(data)))
        else:
            raise damaged(f"slot {slot} ends too soon, or has a column of a kind that is unknown here")
        size = self._width * count
        if not self._width:
            if at + 4 * count > len(data):
                raise damaged(f"slot {slot} ends too soon")
            lengths = np.frombuffer(data, "<u4", count, at)
            self._lengths.append(lengths)
            at, size = at + 4 * count, int(lengths.sum(dtype=np.int64))
        if at + size > len(data):
            raise damaged(f"slot {slot} ends too soon")
        self._bytes.append(data[at : at + size])
        self._count += count
        return at + size

    def array(self) -> pa.Array[Any]:
        """Return all values. `SnapshotError` if one is not valid."""
        import numpy as np
        import pyarrow as pa

        count, values = self._count, pa.py_buffer(b"".join(self._bytes))
        kind, buffers = self._kind, [None, values]
        if pa.types.is_boolean(kind):
            kind = pa.uint8()
        elif not self._width:
            ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *self._lengths]), dtype=np.int64)
            buffers = [None, pa.py_buffer(ends), values]
        if self._nulls:
            valid = np.frombuffer(b"".join(self._valid), np.uint8)
            if valid.max(initial=0) > 1:
                raise damaged("a column has a value that is neither null nor not null")
            buffers[0] = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
        array = pa.Array.from_buffers(kind, count, buffers)
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise damaged("a column has a value that is not of its type") from error
        return array.cast(self._kind)


def distinct(keys: pa.Array[Any]) -> tuple[int, Numbers]:
    """Return the number of distinct keys, and per key the number of its value, from 0."""
    encoded = keys.dictionary_encode(null_encoding="encode")
    return len(encoded.dictionary), encoded.indices.to_numpy()


def merge_images(images: Sequence[ColumnImage]) -> ColumnImage:
    """Merge the images of a chain, oldest first, of one form: the newest with a key has all rows of the key.

    >>> import numpy as np, pyarrow as pa
    >>> base = ColumnImage(pa.array([1, 2, 3]), np.zeros(3, int), [pa.array([10, 20, 30])], 0)
    >>> delta = ColumnImage(pa.array([2]), np.zeros(1, int), [pa.array([21])], 0, None, pa.array([3]), np.zeros(1, int))
    >>> merged = merge_images([base, delta])
    >>> merged.keys.to_pylist(), merged.states[0].to_pylist()
    ([1, 2], [10, 21])
    """
    import numpy as np
    import pyarrow as pa

    first = images[0]
    several = pa.concat_arrays([image.keys for image in images])
    number, codes = distinct(pa.concat_arrays([several, *(image.gone for image in images if image.gone is not None)]))
    numbers = np.arange(len(images))
    of_row = np.repeat(numbers, [len(image.keys) for image in images])
    of_gone = np.repeat(numbers, [0 if image.gone is None else len(image.gone) for image in images])
    panes = None
    if first.panes is not None:
        panes = pa.concat_arrays([image.panes for image in images if image.panes is not None])
    _check(of_row * number + codes[: len(several)], of_gone * number + codes[len(several) :], panes)
    if len(images) == 1 and not len(of_gone):
        return first
    newest = np.full(number, -1)
    np.maximum.at(newest, codes[len(several) :], of_gone)
    np.maximum.at(newest, codes[: len(several)], of_row)
    stays = np.flatnonzero(newest[codes[: len(several)]] == of_row)
    states = [pa.concat_arrays(columns) for columns in zip(*(image.states for image in images), strict=True)]
    slots = np.concatenate([image.slots for image in images])
    return ColumnImage(several, slots, states, first.shape, panes).take(stays)


def _check(rows: Numbers, gone: Numbers, panes: pa.Array[Any] | None) -> None:
    """Raise `SnapshotError` if an artefact has a key twice: in two rows, of one pane if there are panes, or also gone.

    ``rows`` and ``gone``: a number for each artefact and key.
    """
    import numpy as np

    size = int(max(rows.max(initial=-1), gone.max(initial=-1))) + 1
    times, gone_times = np.bincount(rows, minlength=size), np.bincount(gone, minlength=size)
    if panes is not None:
        if panes.null_count:
            raise damaged("a row has no pane")
        places = np.unique(panes.to_numpy(), return_inverse=True)[1]
        several = len(np.unique(rows * (len(panes) + 1) + places)) < len(rows)
    else:
        several = times.max(initial=0) > 1
    if several or gone_times.max(initial=0) > 1 or ((times > 0) & (gone_times > 0)).any():
        raise damaged("it holds a key twice")


# As Python values


def states_of(image: ColumnImage) -> tuple[list[Any], list[Any]]:
    """Return the keys of an image, each once, and their states, as steps on rows keep them.

    >>> import numpy as np, pyarrow as pa
    >>> counts = ColumnImage(pa.array(["a", "b"]), np.zeros(2, int), [pa.array([2, 3]), pa.array([0.5, 1.5])], (0, 1))
    >>> states_of(counts)
    (['a', 'b'], [(2, 0.5), (3, 1.5)])
    >>> states_of(counts._replace(keys=pa.array(["a", "a"]), panes=pa.array([10, 20])))
    (['a'], [{10: (2, 0.5), 20: (3, 1.5)}])
    """
    keys = image.keys.to_pylist()
    values = list(values_of(image.shape, [python_values(column, "a state") for column in image.states], len(keys)))
    if image.panes is None:
        return keys, values
    by_key: dict[Any, dict[int, Any]] = {}
    for key, pane, value in zip(keys, image.panes.to_pylist(), values, strict=True):
        by_key.setdefault(key, {})[pane] = value
    return list(by_key), list(by_key.values())


def values_of(shape: Shape, columns: Sequence[list[Any]], count: int) -> Iterable[Any]:
    """Return ``count`` values of a shape, made of ``columns``."""
    if isinstance(shape, int):
        return columns[shape]
    if isinstance(shape, dict) and "record" in shape:
        names, fields = list(shape["record"]), values_of(tuple(shape["record"].values()), columns, count)
        return [dict(zip(names, row, strict=True)) for row in fields]
    if isinstance(shape, dict) and "listed" in shape:
        wheres = [columns[part["where"]] for part in shape["listed"]]
        found = [
            zip(where, values_of(part["is"], columns, count), strict=True)
            for where, part in zip(wheres, shape["listed"], strict=True)
        ]
        return [[value for there, value in row if there is not None] for row in zip(*found, strict=True)]
    if isinstance(shape, dict):
        values, absent = values_of(shape["is"], columns, count), shape["else"]
        return [
            absent if there is None else value for there, value in zip(columns[shape["where"]], values, strict=True)
        ]
    if not shape:
        return [type(shape)() for _ in range(count)]
    parts = zip(*(values_of(part, columns, count) for part in shape), strict=True)
    return map(list, parts) if isinstance(shape, list) else parts


def parts_of(shape: Shape, values: list[Any]) -> list[list[Any]]:
    """Return the columns of which `values_of` makes ``values``. Shapes of records and lists are not taken apart.

    Raises:
        NotColumnar: a value has another shape.

    >>> parts_of({"where": 1, "is": (0,), "else": None}, [(5,), None])
    [[5, None], [True, None]]
    """
    found = _parts(shape, values)
    return [found[number] for number in sorted(found)]


def _parts(shape: Any, values: list[Any]) -> dict[int, list[Any]]:
    """Return the number of each column of ``shape`` -> its values."""
    if isinstance(shape, int):
        return {shape: values}
    if isinstance(shape, tuple):
        if any(type(value) is not tuple or len(value) != len(shape) for value in values):
            raise NotColumnar("a state of another shape")
        columns = [_parts(part, [value[place] for value in values]) for place, part in enumerate(shape)]
        return {number: column for some in columns for number, column in some.items()}
    there = [value is not None and value != () for value in values]
    found = _parts(shape["is"], list(compress(values, there)))
    spread = {number: iter(column) for number, column in found.items()}
    columns_there = {number: [next(left) if is_in else None for is_in in there] for number, left in spread.items()}
    return {shape["where"]: [is_in or None for is_in in there], **columns_there}


def damaged(why: str) -> SnapshotError:
    """Return the error of an artefact that cannot be read."""
    return SnapshotError(f"an artefact of keyed state cannot be read: {why}. Restore an older snapshot")
