"""State that is packed ahead of a barrier, between batches, so that the barrier packs only what has changed since (S2).

Rule: a round packs what a barrier would write at its beginning, and is to the next round as a snapshot to the one after
it: what changes from its beginning on is noted and belongs to the next round, of which the barrier's own is the last.
So the newest entry of a key, of all rounds and the barrier, is its state at the barrier, also if it changed between
two steps of a round. The rounds end when little is left, or when they do not become smaller. While the barrier waits
for other workers, or passes other steps, small ones continue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from malstrom_py.state.artefact import (
    NamedRows,
    Opened,
    StoredArtefact,
    Written,
    assembled,
    by_form,
    column_artefact,
    in_pieces,
    is_delta,
    newest,
    row_block,
    row_blocks,
)
from malstrom_py.state.artefact_parts import BlockFile, as_stored, merged_in_parts
from malstrom_py.state.change_log import Changes, alike
from malstrom_py.state.cold import SlotRows
from malstrom_py.state.column_image import ColumnImage, column_blocks, distinct
from malstrom_py.state.group_index import NotColumnar
from malstrom_py.state.many_values import ManyValues

if TYPE_CHECKING:
    import pyarrow as pa

_KEYS: Final = 2048
_COLUMN_KEYS: Final = 1 << 15
_BYTES: Final = 1 << 20
"""So much of rows, or of arrays, is packed between two batches, and so many bytes: some milliseconds."""

_LISTED: Final = 1 << 14
"""So many keys are put to their slots between two batches."""

_LEFT: Final = 1
"""What is left to the barrier is at most as much as is packed between so many batches."""

_ROUNDS: Final = 12
"""With so many rounds packing has ended, but for small ones."""

_FEW: Final = 4
"""A round is small if it takes at most so many steps."""

_LATER_BYTES: Final = 32 << 20
"""More changes than so many bytes go to a file, where there is one."""

_COLUMN_ROUNDS: Final = 48
"""So many rounds of columns at most, because each is in memory until the snapshot has been written."""

RowsBySlot = dict[int, dict[bytes, bytes]]
"""Slot -> stored form of a key -> its entry."""


class PackedPart(NamedTuple):
    """What one round has packed: changes (``is_delta``), or all state. ``made`` returns the artefact in pieces, in any
    thread, at each call. ``file``: where it is, unless it is in memory.
    """

    is_delta: bool
    made: Callable[[], Iterable[bytes]]
    file: BlockFile | None = None

    @classmethod
    def of(cls, file: BlockFile) -> PackedPart:
        """Return what is in ``file``."""
        return cls(file.delta, file.pieces, file)

    def stored(self) -> StoredArtefact:
        """Return the artefact as one that is stored."""
        return as_stored(b"".join(self.made())) if self.file is None else self.file.stored()


class Packable(Protocol):
    """The interface of keyed state whose changes are tracked."""

    @property
    def changes(self) -> Changes:
        """The log of changes."""
        ...

    @property
    def size(self) -> int:
        """About how many keys have state."""
        ...

    def due(self, parent: str | None, *, listed: bool = True) -> tuple[list[Any] | pa.Array, bool]:
        """Return the keys that a barrier with ``parent`` would write, and whether these are all keys with state.

        Unless ``listed`` all are maybe some without state too, and without those on disk or with timers alone.
        """
        ...

    def on_disk(self, slots: Iterable[int] | None = None) -> Iterator[SlotRows]:
        """Return the slots on disk at the time of the call, ascending and in pieces, with keys and entries.

        ``slots``: only these.
        """
        ...

    def file(self, *, delta: bool) -> BlockFile | None:
        """Return a file for what is packed; None if memory has room for it."""
        ...

    def named(self, rows: dict[bytes, bytes]) -> dict[bytes, bytes] | None:
        """Return rows of `on_disk` with the keys as the chain names them; None if it does not."""
        ...

    def columns(self) -> ManyValues | None:
        """Return the values if they are in arrays, and there are no times of keys."""
        ...

    def timed_keys(self) -> Iterable[Any]:
        """Return the keys that have timers, maybe twice."""
        ...

    def without_values(self, keys: list[Any]) -> list[Any]:
        """Return those of ``keys`` that have no value."""
        ...

    def note_flagged(self) -> None:
        """Note the changes that values have flagged, and that were not noted."""
        ...

    def round_begun(self, name: str) -> None:
        """Note what changes from now on as changed since ``name``."""
        ...

    def rows_of(self, keys: list[Any], *, is_full: bool, is_first: bool) -> NamedRows | None:
        """Return ``keys`` as the chain names them, their stored forms and their entries; None if it does not."""
        ...

    def image_of(self, keys: pa.Array | None, *, is_full: bool) -> ColumnImage | None:
        """Return a `storable` image of ``keys``; None if rows must be written."""
        ...

    def sampled_bytes(self, keys_max: int, bytes_max: int) -> tuple[int, int]:
        """Return of how many keys the states were encoded, and how many bytes they took."""
        ...


class AheadOfBarrier:
    """Packs ``state`` ahead of the barrier of ``snapshot``, relative to ``parent``. ``keys_max``: of one step.

    ``is_behind``: state changes about as fast as this packs it, so packing has to come before batches.
    """

    def __init__(self, state: Packable, snapshot: str, parent: str | None, *, keys_max: int | None = None) -> None:
        self._state = state
        self._snapshot = snapshot
        self._parent = parent
        self._keys = keys_max or _KEYS
        self._column_keys = keys_max or _COLUMN_KEYS
        self._at_once = self._keys
        keys, size = state.sampled_bytes(8, 1 << 16)
        self._bytes_per_key = size // keys if keys else 0
        self._sizes: list[int] = []
        self._steps = self._idle = 0  # of the last round; turns since
        self._has_passed = False
        # What comes after the parts: changes in rows, and about how many bytes they have.
        self._later: RowsBySlot = {}
        self._replaced: set[int] = set()
        self._later_bytes = 0
        self._later_max = _LATER_BYTES if keys_max is None else keys_max << 8
        self._parts: list[PackedPart] = []
        self.is_behind = False
        self._round: Iterator[None] | None = self._packed()

    @property
    def parts(self) -> list[PackedPart]:
        """What the rounds have packed, oldest first."""
        if not (self._later or self._replaced):
            return self._parts
        return [*self._parts, PackedPart(True, partial(_delta_of, self._later, self._replaced))]

    @property
    def under_way(self) -> bool:
        """Whether something is to be packed before the barrier."""
        return not self._has_passed and (self._round is not None or self._pays_again())

    @property
    def in_arrays(self) -> bool:
        """Whether the last round found state in arrays."""
        return self._at_once != self._keys

    @property
    def rounds(self) -> int:
        """How many rounds have ended."""
        return len(self._sizes) - (self._round is not None)

    def keep_small(self) -> None:
        """Begin a round if what has changed since the last one has become much: the barrier waits for others.

        Rounds that were given up restart if few keys have changed, or if as many turns have passed as the last one had
        steps: more and more keys may change, and others may take minutes. State that has come since there was little
        gets its first round.
        """
        if self._round is not None or self._has_passed:
            return
        self._idle += 1
        self._note_listed()
        changed = self._changed
        if self._state.changes.noted is None:
            if len(self._sizes) < _ROUNDS and self._is_much(self._state.size):
                self._round = self._packed()
        elif self._is_much(changed) and (not self.parts or self._is_little(changed) or self._pays_by_now):
            self._round = self._packed()

    def _note_listed(self) -> None:
        """Let what has changed in arrays that list it count in `_changed`."""
        values = self._state.columns()
        if values is None or not values.sweeps:
            self._state.note_flagged()

    @property
    def _changed(self) -> int:
        """About how many keys have changed since the last round."""
        values = self._state.columns()
        return self._state.changes.count + (0 if values is None else values.count_changed())

    def _pays_again(self) -> bool:
        """Whether a next round has much to do; and less than the last one, if that came before batches."""
        sizes = self._sizes
        if not self.parts or len(sizes) >= _ROUNDS or not self._is_much(changed := self._changed):
            return False
        return self._state.changes.noted is not None and not (self.is_behind and 4 * changed > 3 * sizes[-1])

    def _is_much(self, keys: int) -> bool:
        return keys > _LEFT * (self._at_once - 1) or keys * self._bytes_per_key > _LEFT * _BYTES

    @property
    def _pays_by_now(self) -> bool:
        return not self.in_arrays and self._idle > self._steps

    def _is_little(self, keys: int) -> bool:
        goes_on = not self.in_arrays or len(self._sizes) < _COLUMN_ROUNDS
        return goes_on and keys <= _FEW * self._at_once and keys * self._bytes_per_key <= _FEW * _BYTES

    def next(self) -> None:
        """Pack the next keys. Requires `under_way`."""
        if self._round is None:
            self._round = self._packed()
        self._steps, self._idle = self._steps + 1, 0
        for _ in self._round:
            return
        self._round = None

    def finish(self) -> str | None:
        """Finish the last round, and return the snapshot or round that the barrier's own changes are relative to."""
        while self._round is not None:
            self.next()
        self._has_passed = True  # the next changes belong to the next snapshot
        return self._parent

    def _packed(self) -> Iterator[None]:
        """Pack one round, step by step."""
        values, moved = self._state.columns(), self._state.changes.due_slots(self._parent)
        if values is not None and values.sweeps and not moved and (noted := self._noted()) is not None:
            yield from self._swept(values, *noted)
            return
        keys, is_full = self._state.due(self._parent, listed=False)
        self._at_once = self._keys if isinstance(keys, list) else self._column_keys
        if not self._begins(self._state.size if is_full else len(keys) + self._state.changes.moved, is_full):
            return
        if isinstance(keys, list):
            there = [slot for slot, one in moved.items() if one.on_disk]
            on_disk = self._state.on_disk(None if is_full else there)
            yield from self._rows(keys, is_full, on_disk, {slot for slot, one in moved.items() if one.left})
        else:
            yield from self._columns(self._slices(keys), is_full)

    def _begins(self, size: int, is_full: bool) -> bool:
        """Begin a round of about ``size`` keys; return False if that is little."""
        if not self._is_much(size):
            return False
        self._parent = f"{self._snapshot} {len(self._sizes)}"
        self._state.round_begun(self._parent)
        self.is_behind = self.is_behind or (bool(self._sizes) and 2 * size > self._sizes[-1])
        self._sizes.append(size)
        self._steps = 0
        if is_full:  # what was packed before is older than all of this
            self._parts = []
            self._empty_later()
        return True

    def _empty_later(self) -> None:
        self._later, self._replaced, self._later_bytes = {}, set(), 0

    def _noted(self) -> tuple[list[pa.Array], bool] | None:
        """Return the noted keys that are due, as a column if there are any, and whether all state is.

        None if they must be rows.
        """
        changes = self._state.changes
        try:
            noted = changes.due_column(self._parent)
        except NotColumnar:
            return None
        is_full = noted is None
        return ([noted] if noted else [], is_full) if changes.as_columns(full=is_full) else None

    def _swept(self, values: ManyValues, noted: list[pa.Array], is_full: bool) -> Iterator[None]:
        """Pack the ``noted`` keys and those that ``values`` have flagged, or all, which no one step lists.

        A key may be among both: what is packed later counts.
        """
        self._at_once = self._column_keys
        if self._begins(self._state.size if is_full else sum(map(len, noted), values.count_changed()), is_full):
            swept = values.sweep(self._column_keys, of_all=is_full)
            for columns in (*map(self._slices, noted), *swept):
                yield from self._columns(columns, is_full)
                is_full = False

    def _slices(self, keys: pa.Array) -> Iterator[pa.Array]:
        return (keys.slice(start, self._column_keys) for start in range(0, len(keys), self._column_keys))

    def _rows(
        self,
        keys: list[Any],
        is_full: bool,
        on_disk: Iterable[SlotRows] = (),
        replaced: Collection[int] = frozenset(),
    ) -> Iterator[None]:
        """Pack keys slot by slot, and ``on_disk``. If the chain has no names for them the barrier writes all state.

        ``replaced``: see `Block.replaces`.
        """
        changes = self._state.changes
        by_slot, mixed = yield from self._by_slot(keys, is_full)
        if is_full:
            changes.begin_names(mixed=mixed)
        one_form = changes.as_columns(full=False)
        made = _Made(self._state.file(delta=False)) if is_full else None
        room = [self._keys, _BYTES]
        listed = ((slot, by_slot.pop(slot, [])) for slot in sorted({*by_slot, *replaced}))
        for slot, found in groupby(merge(on_disk, listed, key=itemgetter(0)), itemgetter(0)):
            rows: dict[bytes, bytes] = {}
            for _, some in found:
                if isinstance(some, dict):
                    packed = some if one_form else self._state.named(some)
                    yield
                else:
                    packed = yield from self._packed_rows(list(dict.fromkeys(some)), is_full, room)
                if packed is None:
                    changes.forget()
                    return
                rows.update(packed)
            if made is None:
                self._put_later(slot, rows, replaces=slot in replaced)
            else:
                made.put(slot, rows)
        if made is not None:
            self._parts.append(made.part())

    def _packed_rows(
        self, left: list[Any], is_full: bool, room: list[int]
    ) -> Generator[None, None, dict[bytes, bytes] | None]:
        """Pack keys of a slot, and return them; None if the chain has no names for them. ``room``: of this step, for
        keys and bytes.
        """
        rows: dict[bytes, bytes] = {}
        while left:
            fitting = max(1, min(room[0], room[1] // max(1, self._bytes_per_key)))
            some, left = left[:fitting], left[fitting:]
            packed = self._state.rows_of(some, is_full=is_full, is_first=False)
            if packed is None:
                return None
            rows.update(zip(packed[1], packed[2], strict=True))
            size = sum(map(len, packed[2]))
            self._bytes_per_key = max(1, size // len(some))
            room[:] = room[0] - len(some), room[1] - size
            if room[0] <= 0 or room[1] <= 0:
                room[:] = self._keys, _BYTES
                yield
        return rows

    def _put_later(self, slot: int, rows: dict[bytes, bytes], *, replaces: bool) -> None:
        """Put changes after the parts. Rounds of changes are together, so that no key is in memory once for each."""
        if replaces:
            self._later.pop(slot, None)
            self._replaced.add(slot)
        if rows:
            self._later.setdefault(slot, {}).update(rows)
        self._later_bytes += sum(map(len, rows)) + sum(map(len, rows.values()))
        file = self._state.file(delta=True) if self._later_bytes > self._later_max else None
        if file is not None:
            file.add(_blocks_of(self._later, self._replaced))
            self._parts.append(PackedPart.of(file))
            self._empty_later()

    def _by_slot(self, keys: list[Any], is_full: bool) -> Generator[None, None, tuple[dict[int, list[Any]], bool]]:
        """Return by slot ``keys``, if ``is_full`` also those with timers alone; and whether they are not `alike`.

        A key that loses its value between two steps may come twice.
        """
        slots_of, mixed = self._state.changes.slots_of, False
        by_slot: dict[int, list[Any]] = defaultdict(list)
        for only_timers in (False, True) if is_full else (False,):
            if only_timers:
                keys = list(self._state.timed_keys())
                yield
            for start in range(0, len(keys), _LISTED):
                some = keys[start : start + _LISTED]
                if only_timers:
                    some = self._state.without_values(some)
                for slot, key in zip(slots_of(some), some, strict=True):
                    by_slot[slot].append(key)
                mixed = mixed or not alike(some)
                yield
        return by_slot, mixed

    def _columns(self, columns: Iterator[pa.Array], is_full: bool) -> Iterator[None]:
        """Pack columns of keys; the rest as rows if the state is no longer in arrays, or its parts differ in type."""
        images: list[ColumnImage] = []
        rest: list[Any] = []
        for keys in columns:
            image = self._state.image_of(keys, is_full=is_full)
            if image is None or (images and image.form != images[0].form):
                rest = [key for column in (keys, *columns) for key in column.to_pylist()]
                break
            images.append(image)
            yield
        self._note_listed()  # so that it is known whether another round pays
        if images or not rest:
            self._parts = self.parts
            self._empty_later()
            self._parts.append(PackedPart(not is_full, partial(_joined_artefact, images, not is_full)))
        if rest:
            self._at_once = self._keys
            yield from self._rows(rest, is_full and not images)


class _Made:
    """All state that a round has packed: in ``file``, or in memory."""

    def __init__(self, file: BlockFile | None) -> None:
        self._file = file
        self._blocks: list[Written] = []

    def put(self, slot: int, rows: dict[bytes, bytes]) -> None:
        """Add the next slot."""
        blocks = [row_block(slot, rows.keys(), rows.values())] if rows else []
        if self._file is None:
            self._blocks += blocks
        else:
            self._file.add(blocks)

    def part(self) -> PackedPart:
        """Return what was added."""
        if self._file is None:
            return PackedPart(False, partial(in_pieces, self._blocks, delta=False))
        return PackedPart.of(self._file)


def split(parts: Sequence[PackedPart], state: bytes) -> list[PackedPart]:
    """Return the artefacts of ``parts`` and of the barrier's own ``state``: a full one, a delta, or one and the other.

    The delta after a full one is left out if nothing has changed.
    """
    full = [part for part in parts if not part.is_delta]
    deltas = [part for part in parts if part.is_delta]
    if full and not deltas and _is_blank(state):
        return full
    files = [part.file for part in deltas if part.file is not None]
    if files:
        chain = [*(part.stored() for part in deltas), as_stored(state)]
        return [*full, PackedPart.of(merged_in_parts(merged_deltas, chain, folder=files[0].folder))]
    last = merged_deltas([*(b"".join(part.made()) for part in deltas), state]) if deltas else state
    return [*full, PackedPart(is_delta(last), lambda: [last])]


def _delta_of(rows: RowsBySlot, replaced: Collection[int]) -> list[bytes]:
    return in_pieces(_blocks_of(rows, replaced), delta=True)


def _blocks_of(rows: RowsBySlot, replaced: Collection[int]) -> list[Written]:
    return row_blocks({slot: (found.keys(), found.values()) for slot, found in rows.items()}, replaced)


def _is_blank(data: bytes) -> bool:
    opened = Opened(data)
    return not opened.blocks and not opened.note


def _joined_artefact(images: Sequence[ColumnImage], delta: bool) -> list[bytes]:
    return [column_artefact(join_images(images), delta=delta)] if images else in_pieces([], delta=delta)


def merged_deltas(deltas: Sequence[bytes]) -> bytes:
    """Merge ``deltas`` that follow each other, oldest first, into one.

    >>> from malstrom_py.state.artefact import artefact, contents
    >>> older = artefact({1: ([b"a", b"b"], [b"1", b"2"])}, delta=True)
    >>> newer = artefact({1: ([b"a"], [b""]), 4: ([b"z"], [b"9"])}, delta=True)
    >>> [(slot, list(zip(*rows))) for slot, rows in contents(merged_deltas([older, newer]))]
    [(1, [(b'a', b''), (b'b', b'2')]), (4, [(b'z', b'9')])]
    """
    opened = list(map(Opened, deltas))
    blocks: list[Written] = []
    for form, slots in by_form(opened, {slot for one in opened for slot in one.blocks}).items():
        if form is None:
            rows = {slot: newest(opened, slot, with_gone=True) for slot in slots}
            blocks += _blocks_of(rows, {slot for one in opened for slot in one.replaced}.intersection(slots))
        else:
            image = latest_image([one.image(form, slots) for one in opened])
            blocks += ((*block, form) for block in column_blocks(image))
    return assembled(sorted(blocks, key=itemgetter(0)), delta=True, note=opened[-1].note)


def join_images(images: Sequence[ColumnImage]) -> ColumnImage:
    """Return the rows and keys without state of ``images``, of one form, of which no two have the same key."""
    import numpy as np
    import pyarrow as pa

    first = images[0]
    gone = [(one.gone, one.gone_slots) for one in images if one.gone is not None and one.gone_slots is not None]
    return ColumnImage(
        pa.concat_arrays([image.keys for image in images]),
        np.concatenate([image.slots for image in images]),
        [pa.concat_arrays(columns) for columns in zip(*(image.states for image in images), strict=True)],
        first.shape,
        None if first.panes is None else pa.concat_arrays([one.panes for one in images if one.panes is not None]),
        pa.concat_arrays([keys for keys, _ in gone]) if gone else None,
        np.concatenate([slots for _, slots in gone]) if gone else None,
    )


def latest_image(images: Sequence[ColumnImage]) -> ColumnImage:
    """Merge the images of deltas, oldest first, of one form: of each key the newest, also if it is gone there.

    >>> import numpy as np, pyarrow as pa
    >>> older = ColumnImage(pa.array([1, 2, 3]), np.zeros(3, int), [pa.array([10, 20, 30])], 0)
    >>> newer = ColumnImage(pa.array([2]), np.zeros(1, int), [pa.array([21])], 0, None, pa.array([3]), np.zeros(1, int))
    >>> latest = latest_image([older, newer])
    >>> latest.keys.to_pylist(), latest.states[0].to_pylist(), latest.gone.to_pylist()
    ([1, 2], [10, 21], [3])
    """
    import numpy as np
    import pyarrow as pa

    codes = distinct(pa.concat_arrays([image.all_keys for image in images]))[1]
    parts = np.split(codes, np.cumsum([len(image.all_keys) for image in images[:-1]]))
    newest_in = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    for number, part in enumerate(parts):
        newest_in[part] = number
    kept = []
    for number, (image, part) in enumerate(zip(images, parts, strict=True)):
        stays, rows = newest_in[part] == number, len(image.keys)
        left = image.take(np.flatnonzero(stays[:rows]))
        if image.gone is not None and image.gone_slots is not None:
            gone = stays[rows:]
            left = left._replace(gone=image.gone.filter(pa.array(gone)), gone_slots=image.gone_slots[gone])
        kept.append(left)
    return join_images(kept)
