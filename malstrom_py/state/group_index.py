"""Keys of columns as dense numbers: `GroupIndex` gives each distinct key an id, in the order of first arrival.

Rule: keys that are equal in Python have one id (F4), so integers of all widths are one kind. An index holds keys of
one kind: integers that fit 64 bits, text, or bytes; None beside any of them; or tuples of these, which are a record
batch with a column for each place. What it does not take raises `NotColumnar`, and the caller continues with rows, to
which the same rules apply. Without the accelerator it takes no key: then rows are the way of every step, with the same
results (docs/design/0056).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from malstrom_py import accelerator
from malstrom_py.data.row_form import TUPLES
from malstrom_py.data.schema import ColumnKind, kind_of
from malstrom_py.errors import InternalError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Ids = np.ndarray[tuple[int], np.dtype[np.int32]]
    Keys: TypeAlias = pa.Array | pa.RecordBatch

ROWS_OF_CODES: Final = 1 << 16
"""As many groups are sorted by radix."""

_SEEDS: Final = tuple(int.from_bytes(os.urandom(8), "little") for _ in range(2))

_KINDS: Final = {ColumnKind.INT: int, ColumnKind.STR: str, ColumnKind.BYTES: bytes}


class NotColumnar(Exception):
    """Keys, values or states that arrays do not hold as Python would; nothing has changed. Rows can take them."""


class GroupedRows:
    """The ids of the rows of a batch: ``ids``, one per row.

    ``which`` are its distinct ids; ``codes`` has the place in ``which`` of each row. Both are made when they are first
    asked for. ``only``: the id of all rows, None if they have several. ``arrived``: the number of each row in the order
    of arrival, if that counts.
    """

    __slots__ = ("_codes", "_ids", "_rows", "_which", "arrived", "only")

    def __init__(self, ids: Ids, codes: Any = None, which: Any = None, *, rows: int | None = None) -> None:
        """``codes`` and ``which``, if they are known; ``rows``: how many have the one id of ``ids``."""
        self._ids = ids
        self._rows = len(ids) if rows is None else rows
        self._codes = codes
        self._which = which if rows is None else ids
        self.only = None if rows is None else int(ids[0])
        self.arrived: Any = None

    def __len__(self) -> int:
        return self._rows

    @property
    def ids(self) -> Ids:
        """The id of each row."""
        if len(self._ids) < self._rows:
            self._ids = self._ids.repeat(self._rows)
        return self._ids

    @property
    def which(self) -> Any:
        """The distinct ids, each once."""
        import numpy as np

        ids = self.ids
        if self._which is None and len(ids) and ids.max() >= max(ROWS_OF_CODES, 4 * len(ids)):
            self._which, self._codes = np.unique(ids, return_inverse=True)
        elif self._which is None:
            self._which = np.flatnonzero(np.bincount(ids))
        return self._which

    @property
    def touched(self) -> Any:
        """The distinct ids, each at least once: `which`, unless that must be made."""
        return self.ids if self._which is None else self._which

    @property
    def codes(self) -> Any:
        """The place in ``which`` of each row."""
        import numpy as np

        which = self.which
        if self._codes is None:
            places = np.empty(int(which.max()) + 1 if len(which) else 0, np.int32)
            places[which] = np.arange(len(which))
            self._codes = places[self.ids]
        return self._codes

    def first_rows(self, since: int) -> Any:
        """Return the first row of each id from ``since`` on, which all have rows, by id."""
        import numpy as np

        rows = np.flatnonzero(self.ids >= since)[::-1]
        ids = self.ids[rows] - since
        firsts = np.empty(int(ids.max()) + 1 if len(ids) else 0, np.int64)
        firsts[ids] = rows  # of equal ids the last one counts
        return firsts


class GroupIndex:
    """The ids of the distinct keys of columns, dense from 0 on, in the order of first arrival.

    >>> import pyarrow as pa
    >>> index = GroupIndex()
    >>> index.ids(pa.array(["ann", "bob", None, "ann"])).tolist(), len(index)
    ([0, 1, 2, 0], 3)
    >>> index.find(pa.array(["bob", "eve"])).tolist(), index.keys().to_pylist()
    ([1, -1], ['ann', 'bob', None])
    """

    __slots__ = ("_index", "_kind", "_null", "_parts")

    def __init__(self, kind: ColumnKind | None = None) -> None:
        """``kind``: of the keys, if it is known."""
        self._kind = kind
        self._index: Any = None  # made with the first key that is not None
        self._null = False  # until then: whether None has the id 0
        # Of tuples: the ids of the first values, and of the rest. The key of ``_index`` is one of each.
        self._parts: tuple[GroupIndex, GroupIndex] | None = None

    @staticmethod
    def supports(type_: pa.DataType) -> bool:
        """Return whether keys of an Arrow type may have ids: integers, text and bytes, also as a dictionary."""
        return accelerator.library() is not None and _plain_kind(type_) is not None

    def __len__(self) -> int:
        return int(self._null) if self._index is None else len(self._index)

    @property
    def has_tuples(self) -> bool:
        """Whether the keys are tuples."""
        return self._parts is not None

    def ids(self, column: Keys) -> Ids:
        """Return the id of each key of ``column``, as int32; new keys get the next ones.

        Raises:
            NotColumnar: the column's type has no ids, is of another kind than earlier keys, or has a key that Python
                cannot hold, or an integer beyond 64 bits.
        """
        return self.group(column).ids

    def group(self, column: Keys) -> GroupedRows:
        """Return the rows of ``column``, whose keys have ids from now on. Raises like `ids`."""
        return self._rows(column, add=True)

    def fresh(self) -> GroupIndex:
        """Return an empty index."""
        return GroupIndex()

    def raw(self, ids: Any) -> Keys:
        """Return what `group` takes for the keys of ``ids``."""
        return self.keys(ids)

    def find(self, column: Keys) -> Ids:
        """Return the id of each key of ``column``, as int32; -1 for a key without one. Raises like `ids`."""
        return self._rows(column, add=False).ids

    def keys(self, ids: Any = None) -> Keys:
        """Return the keys of ``ids``, None: of all, as an int64, large_string, large_binary or null column."""
        import pyarrow as pa

        if self._index is None or self._kind is None:
            return pa.nulls(int(self._null) if ids is None else len(ids))
        keys: pa.Array = self._index.keys(_types()[self._kind], ids)
        return keys if self._parts is None else self._tuples(keys.to_numpy(), *self._parts)

    def _tuples(self, pairs: Any, first: GroupIndex, rest: GroupIndex) -> pa.RecordBatch:
        """Return the keys of pairs of ids."""
        import pyarrow as pa

        others: Any = rest.keys(pairs & _HALF)
        columns = [first.keys(pairs >> 32), *(others.columns if isinstance(others, pa.RecordBatch) else [others])]
        return pa.RecordBatch.from_arrays(columns, names=list(map(str, range(len(columns)))))

    def _paired(self, keys: Keys, *, add: bool) -> pa.Array:
        """Return tuples as pairs of ids: of their first values, and of the rest. None has one without an id."""
        import numpy as np
        import pyarrow as pa

        if not isinstance(keys, pa.RecordBatch) or (self._parts is None and len(self)):
            raise NotColumnar("keys of which some are tuples")
        parts = self._parts or (GroupIndex(), GroupIndex())
        rest = keys.column(1) if keys.num_columns == 2 else keys.select(range(1, keys.num_columns))
        ids = [part._rows(column, add=add).ids for part, column in zip(parts, (keys.column(0), rest), strict=True)]
        if add:
            self._parts = parts
        missing = np.minimum(*ids) < 0
        return pa.array((ids[0].astype(np.int64) << 32) | ids[1], mask=missing if missing.any() else None)

    def _rows(self, column: Keys, *, add: bool) -> GroupedRows:
        import numpy as np
        import pyarrow as pa

        if self._parts is not None or isinstance(column, pa.RecordBatch):
            column = self._paired(column, add=add)
        column, kind = plain_keys(column, self._kind)
        if self._index is None:
            if add and accelerator.library() is None:
                raise NotColumnar("no accelerator")
            nulls = column.null_count
            if nulls == len(column) or not add:
                self._null = self._null or (add and nulls > 0)
                missing = column.is_null().to_numpy(zero_copy_only=False)
                return GroupedRows(np.where(missing & self._null, 0, -1).astype(np.int32))
            self._kind = kind
            self._index = NativeIndex(is_text=kind is not ColumnKind.INT, is_utf8=kind is ColumnKind.STR)
            if self._null:
                self._index.rows(pa.nulls(1, column.type), add=True)
        rows: GroupedRows = self._index.rows(column, add=add)
        return rows


class NativeIndex:
    """The ids of int64 keys or, ``is_text``, of bytes, which may have to be text (``is_utf8``); and of null."""

    __slots__ = ("_is_text", "_library", "_pointer")

    def __init__(self, *, is_text: bool, is_utf8: bool) -> None:
        native: Any = accelerator.library()
        self._library = native
        self._is_text = is_text
        self._pointer = native.ms_index_new(is_text + is_utf8, *_SEEDS)
        if not self._pointer:
            raise MemoryError

    def __del__(self) -> None:
        if getattr(self, "_pointer", None):
            self._library.ms_index_free(self._pointer)

    def __len__(self) -> int:
        return int(self._library.ms_index_len(self._pointer))

    def rows(self, column: pa.Array, *, add: bool) -> GroupedRows:
        """Return the rows of ``column``; a key without an id gets the next if ``add``, else its rows have -1."""
        import numpy as np

        ids = np.empty(len(column), np.int32)
        if not len(column):
            return GroupedRows(ids)
        valid, *data = (None if buffer is None else buffer.address for buffer in column.buffers())
        if not column.null_count:
            valid = None
        rest = (valid, column.offset, len(column), ids.ctypes.data, add)
        if self._is_text:
            offsets, text = data
            wide = column.type.id in _wide_types()
            failed = self._library.ms_index_text_ids(self._pointer, text, offsets, wide, *rest)
        else:
            failed = self._library.ms_index_numbers_ids(self._pointer, data[0], *rest)
        if failed == _NO_MEMORY:
            raise MemoryError
        if failed == _NOT_TEXT:
            raise NotColumnar("a key that is not UTF-8")
        if failed:
            raise InternalError("an index of keys holds 2^31 keys at most")
        return GroupedRows(ids)

    def keys(self, type_: pa.DataType, ids: Any = None) -> pa.Array:
        """Return the keys of ``ids``, None: of all by id, as an array of ``type_``, whose offsets have 64 bits."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        n, null = len(self), int(self._library.ms_index_null(self._pointer))
        numbers = self._seen(self._library.ms_index_numbers(self._pointer), 8 * n)
        ends = np.frombuffer(numbers, np.int64)
        places = np.arange(n) if ids is None else np.asarray(ids, np.int64)
        missing = places == null if null >= 0 else None
        if not self._is_text:
            return pa.array(ends.copy() if ids is None else ends[places], type_, mask=missing)
        text = self._seen(self._library.ms_index_bytes(self._pointer), int(ends[-1]) if n else 0)
        if ids is None or n <= _FEW * len(places):
            offsets = pa.py_buffer(np.concatenate([np.zeros(1, np.int64), ends]))
            there = pa.py_buffer(np.packbits(np.arange(n) != null, bitorder="little"))
            kept = text if ids is not None else pa.py_buffer(text.to_pybytes())
            whole = pa.Array.from_buffers(type_, n, [None if null < 0 else there, offsets, kept])
            return whole if ids is None else whole.take(pa.array(places))
        # A key starts where the one before it ends: all but the first are an array, of which nothing is copied.
        rest = pa.Array.from_buffers(type_, max(n - 1, 0), [None, numbers, text])
        is_first = places == 0
        taken: pa.Array = rest.take(pa.array(places - 1, mask=is_first if missing is None else is_first | missing))
        if null != 0 and is_first.any():
            first = pa.scalar(text[: ends[0]].to_pybytes(), pa.large_binary()).cast(type_)
            taken = pc.call_function("if_else", [pa.array(is_first), first, taken])
        return taken

    def _seen(self, address: int | None, size: int) -> pa.Buffer:
        """Return the memory at ``address``, which the next new key may move."""
        import pyarrow as pa

        return pa.foreign_buffer(address, size, base=self) if address and size else pa.py_buffer(b"")


_HALF: Final = (1 << 32) - 1
_FEW: Final = 4
"""Of at most so many keys for each that is asked for, all are made an array."""

_NO_MEMORY: Final = -1
_NOT_TEXT: Final = -3


def _wide_types() -> set[int]:
    import pyarrow as pa

    return {pa.large_string().id, pa.large_binary().id}


def _types() -> dict[ColumnKind, pa.DataType]:
    import pyarrow as pa

    return {ColumnKind.INT: pa.int64(), ColumnKind.STR: pa.large_string(), ColumnKind.BYTES: pa.large_binary()}


def plain_keys(column: Keys, known: ColumnKind | None) -> tuple[pa.Array, ColumnKind | None]:
    """Return a column of keys as int64, text or bytes, and its kind, which must be the ``known`` one.

    Raises:
        NotColumnar: it is of another kind, or of a type whose keys have no ids.
    """
    import pyarrow as pa

    column = _one_array(column)
    if known is ColumnKind.INT and pa.types.is_int64(column.type):
        return column, known
    kind = _plain_kind(column.type)
    if kind is ColumnKind.NULL or (kind is not None and known is not None and column.null_count == len(column)):
        # None alone does not say of which type the other keys are.
        return pa.nulls(len(column), pa.int64() if known is ColumnKind.INT else pa.large_binary()), None
    if kind is None or (known is not None and kind is not known):
        raise NotColumnar(f"keys of Arrow type {column.type}")
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        if kind is ColumnKind.INT:
            column = column.cast(pa.int64())
        elif pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
            column = column.cast(pa.large_string() if kind is ColumnKind.STR else pa.large_binary())
        elif pa.types.is_fixed_size_binary(column.type):
            column = column.cast(pa.binary())
    except pa.ArrowInvalid:
        raise NotColumnar("an integer key beyond 64 bits") from None
    return column, kind


def _one_array(column: Any) -> pa.Array:
    import pyarrow as pa

    if isinstance(column, pa.RecordBatch):
        raise NotColumnar("keys that are tuples")
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def keys_as_column(keys: Sequence[Any]) -> pa.Array:
    """Return Python ``keys`` as a column. `NotColumnar` unless all are int, str or bytes, or None.

    >>> keys_as_column([3, None]).type, keys_as_column(["a"]).type
    (DataType(int64), DataType(large_string))
    """
    kinds = set(map(type, keys)) - {type(None)}
    for kind, of_python in _KINDS.items():
        if kinds == {of_python}:
            return keys_column(keys, kind)
    if kinds:
        raise NotColumnar(f"keys of {', '.join(sorted(one.__name__ for one in kinds))}")
    return keys_column(keys, None)


def keys_as_columns(keys: Sequence[Any]) -> Keys:
    """Return Python ``keys`` as `keys_as_column` does; tuples with as many of such keys each as a column per place.

    >>> keys_as_columns([(3, "a"), (4, None)]).column("1").to_pylist()
    ['a', None]
    """
    import pyarrow as pa

    if set(map(type, keys)) != {tuple}:
        return keys_as_column(keys)
    widths = set(map(len, keys))
    if len(widths) > 1 or min(widths) < 2:
        raise NotColumnar("keys that are tuples of another length")
    return pa.RecordBatch.from_arrays(
        list(map(keys_as_column, zip(*keys, strict=True))), names=list(map(str, range(*widths)))
    )


def listed_keys(keys: Keys) -> list[Any]:
    """Return ``keys`` as a list of Python's values."""
    import pyarrow as pa

    found: list[Any] = TUPLES.rows(keys) if isinstance(keys, pa.RecordBatch) else keys.to_pylist()
    return found


def type_of_keys(keys: Keys) -> Any:
    """Return what is equal for ``keys`` of the same types."""
    return keys.schema if hasattr(keys, "schema") else keys.type


def joined_keys(parts: Sequence[Keys]) -> Keys:
    """Return ``parts`` of the same types as one."""
    import pyarrow as pa

    return pa.concat_batches(parts) if isinstance(parts[0], pa.RecordBatch) else pa.concat_arrays(parts)


def keys_column(keys: Iterable[Any], kind: ColumnKind | None) -> pa.Array:
    """Return Python ``keys`` of one kind as a column. `NotColumnar` if one does not fit Arrow."""
    import pyarrow as pa

    try:
        return pa.array(list(keys), pa.null() if kind is None else _types()[kind])
    except (OverflowError, ValueError):  # an integer beyond 64 bits; text that is not UTF-8
        raise NotColumnar("a key that no column holds") from None


def ids_of(find: Callable[[Keys], Any], keys: Sequence[Any]) -> Any:
    """Return the id of each of Python ``keys``, each that of the plain key that it equals; -1 of those without.

    ``find``: returns the id of each key of a column, -1 of those without; raises `NotColumnar`.
    """
    import numpy as np

    try:
        return find(keys_as_columns(keys)) if keys else np.zeros(0, np.int64)
    except NotColumnar:
        return np.array([_id_of(find, key) for key in keys], np.int64)


def _id_of(find: Callable[[Keys], Any], key: Any) -> int:
    try:
        return int(find(keys_as_columns([plain_key(key)]))[0])
    except NotColumnar:
        return -1


def plain_key(key: Any) -> Any:
    """Return the int, str or bytes that equals ``key``, or a tuple of these, if there is one."""
    if isinstance(key, tuple):
        return tuple(map(plain_key, key)) if type(key).__eq__ is tuple.__eq__ else key
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, bytes):
        return bytes(memoryview(key))
    try:
        whole = int(key)
        return whole if whole == key else key
    except (TypeError, ValueError, OverflowError):
        return key


def _plain_kind(type_: pa.DataType) -> ColumnKind | None:
    import pyarrow as pa

    kind = kind_of(type_)
    if pa.types.is_dictionary(type_):
        kind = kind_of(type_.value_type)
    return kind if kind in _KINDS or kind is ColumnKind.NULL else None
