"""The keyed artefact: the stored state of one step on one worker, in full or as changes (a delta), in blocks by slot.

An artefact is a header (magic and version, full or delta, number of blocks, length of the note, checksum of header,
index and note), an index (slot, entries, length, checksum of each block, slots ascending), the note of the step, and
the blocks. A block is a table of lengths (of key and entry, per entry), then the keys, then the entries. An empty entry
is a tombstone, in deltas only: the key has been dropped. In a delta, a block whose number of entries has its highest
bit set, and which may have none, replaces the slot: keys that only older artefacts have are gone. Numbers are
little-endian, checksums are XXH3 of 64 bits.

An entry is as `malstrom_py.state.entries` says.

A block may instead hold Arrow columns (`column_image`). An artefact with such a block has version 2: its index also has
the form of each block (0: rows), and its note is the stored form of a list of the note and the forms.

Rules. A key has the same bytes all along a chain, so that chains are merged, and slots selected, without decoding. Data
is used only after its checksum was verified. Only the newest entry of a key is decoded, and only of requested slots.
Blocks of columns are merged as columns with those of the same form, and as rows with others: both say the same.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress, pairwise, repeat
from itertools import chain as in_turn
from operator import is_, itemgetter
from typing import Any, Final, NamedTuple

import xxhash

from malstrom_py.codec import Codec
from malstrom_py.codec.encoding_errors import decode_error
from malstrom_py.data.equality import first_reading, hold_no_moments
from malstrom_py.errors import CodecError, SnapshotError
from malstrom_py.state.column_image import (
    ColumnImage,
    Form,
    column_blocks,
    damaged,
    merge_images,
    read_blocks,
    states_of,
)
from malstrom_py.state.entries import NO_TIMES, Times, decoded_entries

_MAGIC: Final = b"mskeyed"
_ROWS: Final = b"\x01"
_COLUMNS: Final = b"\x02"
_FULL: Final = b"F"
_DELTA: Final = b"D"
_HEAD: Final = struct.Struct("<7sccIIQ")  # magic, version, kind, blocks, bytes of the note, checksum
_INDEX: Final = {
    _ROWS: struct.Struct("<IIQQ"),  # slot, entries, bytes, checksum
    _COLUMNS: struct.Struct("<IIQQI"),  # and the number of the form, from 1; 0: rows
}
_UNSUMMED: Final = _HEAD.size - 8
_REPLACES: Final = 1 << 31

Rows = tuple[Sequence[bytes], Sequence[bytes]]
"""Keys, and their entries."""

NamedRows = tuple[Sequence[Any], list[bytes], list[bytes]]
"""Keys as Python values, their stored forms, and their entries."""


@dataclass(frozen=True, slots=True)
class Block:
    """The block of one slot: its number of entries with the bit, where its bytes start and end, and its form (None:
    rows).
    """

    slot: int
    count: int
    start: int
    end: int
    checksum: int
    form: Form | None = None

    @property
    def entries(self) -> int:
        """The number of entries."""
        return self.count & ~_REPLACES

    @property
    def replaces(self) -> bool:
        """Whether the slot has no other keys than those of this block and of newer ones."""
        return self.count >= _REPLACES


Written = tuple[int, int, bytes, Form | None]
"""A block to write: its slot, its number of entries with the bit, its bytes, and its form."""


def artefact(
    rows: Mapping[int, Rows], *, delta: bool, note: bytes = b"", replaced: Collection[int] = frozenset()
) -> bytes:
    """Encode ``rows``, slot -> keys and entries. A ``delta`` may have tombstones, which are empty entries, and may have
    ``replaced`` slots (`Block.replaces`).

    >>> data = artefact({7: ([b"a", b"b"], [b"1", b""])}, delta=True)
    >>> is_delta(data), [(slot, list(zip(*rows))) for slot, rows in contents(data)]
    (True, [(7, [(b'a', b'1'), (b'b', b'')])])
    """
    return assembled(row_blocks(rows, replaced), delta=delta, note=note)


def row_blocks(
    rows: Mapping[int, tuple[Collection[bytes], Collection[bytes]]], replaced: Collection[int]
) -> list[Written]:
    """Return the blocks of these slots, and those of ``replaced`` slots, in order."""
    slots = sorted({*rows, *replaced})
    return [row_block(slot, *rows.get(slot, ((), ())), replaces=slot in replaced) for slot in slots]


def row_block(slot: int, keys: Collection[bytes], entries: Collection[bytes], *, replaces: bool = False) -> Written:
    """Return the block of a slot, for `assembled`. ``replaces``: see `Block.replaces`; in deltas only."""
    lengths = in_turn.from_iterable(zip(map(len, keys), map(len, entries), strict=True))
    count = len(keys) | _REPLACES if replaces else len(keys)
    return slot, count, b"".join((struct.pack(f"<{2 * len(keys)}I", *lengths), *keys, *entries)), None


def column_artefact(image: ColumnImage, *, delta: bool, note: bytes = b"") -> bytes:
    """Encode a `storable` image. A ``delta`` may have keys that are gone.

    >>> import numpy as np, pyarrow as pa
    >>> image = ColumnImage(pa.array(["a", "b"], pa.large_string()), np.array([7, 7]), [pa.array([3, 5])], 0)
    >>> [(entry.slot, entry.key, entry.value) for entry in entries_in([column_artefact(image, delta=False)], Codec())]
    [(7, 'a', 3), (7, 'b', 5)]
    """
    form = image.form
    return assembled([(*block, form) for block in column_blocks(image)], delta=delta, note=note)


def is_delta(data: bytes) -> bool:
    """Whether an artefact is a delta. `SnapshotError` if ``data`` is not an artefact."""
    return Opened(data).delta


def contents(data: bytes, slots: Collection[int] | None = None) -> Iterator[tuple[int, Rows]]:
    """Yield each slot with its keys and entries, ascending; only ``slots``, if given."""
    opened = Opened(data)
    for slot, block in opened.blocks.items():
        if slots is None or slot in slots:
            rows = opened.rows(block)
            yield slot, (list(rows), list(rows.values()))


def newest(chain: Sequence[Opened], slot: int, *, with_gone: bool = False) -> dict[bytes, bytes]:
    """Return key -> entry of a slot from the last artefact of the chain that has the key, without dropped keys."""
    found: dict[bytes, bytes] = {}
    gone = False
    for opened in chain:
        block = opened.blocks.get(slot)
        if block is not None:
            rows = opened.rows(block)
            if block.replaces:
                found, gone = {}, False
            gone = gone or (opened.delta and b"" in rows.values())
            found.update(rows)
    return {key: entry for key, entry in found.items() if entry} if gone and not with_gone else found


def without(keys: Iterable[Any], others: Iterable[Any]) -> list[Any]:
    """Return the rest of ``keys``, in their order."""
    left_out = set(others)
    return [key for key in keys if key not in left_out]


def with_state(keys: Sequence[Any], values: list[Any], times: Mapping[Any, Times]) -> tuple[Sequence[Any], list[Any]]:
    """Return those of ``keys`` that have a value, of ``values``, or times; and their values."""
    if not any(map(is_, values, repeat(None))):
        return keys, values
    held = [value is not None or key in times for key, value in zip(keys, values, strict=True)]
    return list(compress(keys, held)), list(compress(values, held))


def opened_chain(chain: Sequence[bytes]) -> list[Opened]:
    """Open the artefacts of a chain, oldest first. `SnapshotError` unless they are a full one and its deltas."""
    opened = [Opened(data) for data in chain]
    if not opened or [one.delta for one in opened] != [False] + [True] * (len(opened) - 1):
        got = ", ".join("a delta" if one.delta else "a full one" for one in opened) or "nothing"
        raise SnapshotError(f"a chain of keyed state is one full artefact followed by deltas, got {got}")
    return opened


def merged(chain: Sequence[bytes]) -> bytes:
    """Merge ``chain``, a full artefact and its deltas, into one full artefact (S2: compaction).

    Works slot by slot, without decoding; a slot that no delta has is copied unchanged.

    >>> base = artefact({1: ([b"a", b"b"], [b"1", b"2"]), 4: ([b"z"], [b"9"])}, delta=False)
    >>> delta = artefact({1: ([b"a", b"c"], [b"", b"3"])}, delta=True)
    >>> [(slot, list(zip(*rows))) for slot, rows in contents(merged([base, delta]))]
    [(1, [(b'b', b'2'), (b'c', b'3')]), (4, [(b'z', b'9')])]
    """
    opened = opened_chain(chain)
    base, *deltas = opened
    blocks: list[Written] = []
    changed: list[int] = []
    for slot in {slot for one in opened for slot in one.blocks}:
        block = base.blocks.get(slot)
        if block is not None and not any(slot in delta.blocks for delta in deltas):
            blocks.append(base.written(block))
        else:
            changed.append(slot)
    for form, slots in by_form(opened, changed).items():
        if form is not None:
            blocks += ((*block, form) for block in column_blocks(_newest_columns(opened, form, slots)))
            continue
        for slot in slots:
            found = newest(opened, slot)
            if found:
                blocks.append(row_block(slot, found, found.values()))
    return assembled(sorted(blocks, key=itemgetter(0)), delta=False, note=opened[-1].note)


def columns_in(chain: Sequence[Opened], slots: Collection[int] | None = None) -> ColumnImage | None:
    """Return the state of all slots of a chain, or of ``slots``, as columns; None unless all are columns of one form.

    Raises:
        SnapshotError: a block is damaged.
    """
    there = {slot for one in chain for slot in one.blocks}
    forms = by_form(chain, there if slots is None else there.intersection(slots))
    form, *others = forms or [None]
    return None if form is None or others else _newest_columns(chain, form, forms[form])


def by_form(chain: Sequence[Opened], slots: Iterable[int]) -> dict[Form | None, list[int]]:
    """Return the form in which each of ``slots`` is merged -> these slots, ascending. None: as rows."""
    found: dict[Form | None, list[int]] = {}
    for slot in sorted(slots):
        form, *others = {one.blocks[slot].form for one in chain if slot in one.blocks}
        found.setdefault(None if others else form, []).append(slot)
    return found


def _newest_columns(chain: Sequence[Opened], form: Form, slots: Sequence[int]) -> ColumnImage:
    return merge_images([one.image(form, slots) for one in chain])


class Opened:
    """An artefact with verified header and index: its ``blocks`` by slot, each of which is verified when read.

    Raises:
        SnapshotError: the bytes are not an artefact of this version, or are damaged.
    """

    __slots__ = ("_data", "blocks", "delta", "note")

    def __init__(self, data: bytes) -> None:
        self._data = data
        head = data[: _HEAD.size]
        self.delta, self.note, self.blocks = _index(head, data[_HEAD.size : _index_end(head, len(data))], len(data))

    @property
    def replaced(self) -> list[int]:
        """The slots of which older artefacts say nothing."""
        return [slot for slot, block in self.blocks.items() if block.replaces]

    def checked(self, block: Block) -> bytes:
        """Return the bytes of a block after verifying its checksum."""
        data = self._data[block.start : block.end]
        if xxhash.xxh3_64_intdigest(data) != block.checksum:
            raise damaged(f"the checksum of slot {block.slot} is wrong")
        return data

    def written(self, block: Block) -> Written:
        """Return a block to write it elsewhere, after verifying its checksum."""
        return block.slot, block.count, self.checked(block), block.form

    def image(self, form: Form, slots: Sequence[int]) -> ColumnImage:
        """Return the state of those of ``slots`` that are here, whose blocks are columns of ``form``."""
        blocks = [self.blocks[slot] for slot in slots if slot in self.blocks]
        image = read_blocks(form, ((block.slot, block.entries, self.checked(block)) for block in blocks))
        if image.gone is not None and not self.delta:
            raise damaged("it holds a key without state")
        return image

    def rows(self, block: Block) -> dict[bytes, bytes]:
        """Return key -> entry of a block."""
        if block.form is not None:
            return _as_rows(self.image(block.form, [block.slot]))
        data, count = self.checked(block), block.entries
        table = 8 * count
        if table > len(data):
            raise damaged(f"slot {block.slot} ends too soon")
        lengths = struct.unpack_from(f"<{2 * count}I", data)
        of_entries = lengths[1::2]
        ends = list(accumulate(lengths[::2] + of_entries, initial=table))
        if ends[-1] != len(data):
            raise damaged(f"slot {block.slot} has another length than its entries")
        pieces = [data[start:end] for start, end in pairwise(ends)]
        rows = dict(zip(pieces, pieces[count:], strict=False))
        if len(rows) != count or (not self.delta and 0 in of_entries):
            raise damaged(f"slot {block.slot} holds a key twice, or one without state")
        return rows


def _as_rows(image: ColumnImage) -> dict[bytes, bytes]:
    """Return key -> entry of an image: what a block of rows would hold. Columns hold no classes of the job."""
    codec = Codec()
    merge_images([image])  # it finds keys that are there twice
    keys, states = states_of(image)
    gone = [] if image.gone is None else image.gone.to_pylist()
    forms = codec.encode_each_at_rest([*keys, *gone], step="", keys=[])
    entries = codec.encode_each_at_rest(states, step="", keys=keys)
    return dict(zip(forms, [*entries, *repeat(b"", len(gone))], strict=True))


Read = Callable[[Sequence[tuple[int, int]]], Sequence[bytes]]
"""Returns the bytes of ranges of a stored artefact."""


class StoredArtefact:
    """A stored artefact of ``size`` bytes, of which only the index has been read: its ``blocks`` by slot.

    ``read`` returns the bytes of ranges. `SnapshotError` if the index is damaged.

    >>> data = artefact({1: ([b"a"], [b"1"]), 4: ([b"z"], [b"9"])}, delta=False)
    >>> stored = StoredArtefact(lambda ranges: [data[start:end] for start, end in ranges], len(data))
    >>> list(contents(stored.part({4, 5}))), list(stored.blocks)
    ([(4, ([b'z'], [b'9']))], [1, 4])
    """

    __slots__ = ("_read", "_size", "blocks", "delta", "note")

    def __init__(self, read: Read, size: int) -> None:
        (head,) = read([(0, min(_HEAD.size, size))])
        (rest,) = read([(_HEAD.size, _index_end(head, size))])
        self._read, self._size = read, size
        self.delta, self.note, self.blocks = _index(head, rest, size)

    def part(self, slots: Collection[int]) -> bytes:
        """Return the blocks of ``slots`` as an artefact. They are verified when they are used."""
        wanted = [block for slot, block in self.blocks.items() if slot in slots]
        if len(wanted) == len(self.blocks):
            return self._read([(0, self._size)])[0]
        index = [(one.slot, one.count, one.end - one.start, one.checksum, one.form) for one in wanted]
        runs: list[tuple[int, int]] = []
        for block in wanted:
            if runs and runs[-1][1] == block.start:
                runs[-1] = (runs[-1][0], block.end)
            else:
                runs.append((block.start, block.end))
        return b"".join(framed(index, self._read(runs) if runs else (), delta=self.delta, note=self.note))


def _index_end(head: bytes, size: int) -> int:
    """Return where the index and the note of an artefact of ``size`` bytes end."""
    version = head[len(_MAGIC) : len(_MAGIC) + 1]
    if len(head) < _HEAD.size or head[: len(_MAGIC)] != _MAGIC or version not in _INDEX:
        raise damaged("it is not a keyed artefact of a version that is supported here")
    _, _, _, count, note_bytes, _ = _HEAD.unpack(head)
    end: int = _HEAD.size + count * _INDEX[version].size + note_bytes
    if end > size:
        raise damaged("it ends too soon")
    return end


def _index(head: bytes, rest: bytes, size: int) -> tuple[bool, bytes, dict[int, Block]]:
    """Return whether an artefact of ``size`` bytes is a delta, its note, and its blocks; ``rest``: index and note."""
    _, version, kind, count, _, checksum = _HEAD.unpack(head)
    if kind not in (_FULL, _DELTA) or _sum_of(head[:_UNSUMMED], rest) != checksum:
        raise damaged("the checksum of its index is wrong")
    layout = _INDEX[version]
    note, forms = _opened_note(version, rest[count * layout.size :])
    blocks: dict[int, Block] = {}
    last, start = -1, _HEAD.size + len(rest)
    for slot, entries, length, checksum, *form in layout.iter_unpack(rest[: count * layout.size]):
        replaced = entries & _REPLACES and (kind == _FULL or any(form))
        if slot <= last or not entries or replaced or (form and form[0] >= len(forms)):
            raise damaged("its index is out of order")
        blocks[slot] = Block(slot, entries, start, start + length, checksum, forms[form[0]] if form else None)
        last, start = slot, start + length
    if start != size:
        raise damaged("it has another length than its index says")
    return kind == _DELTA, note, blocks


def _opened_note(version: bytes, data: bytes) -> tuple[bytes, list[Form | None]]:
    """Return the note of the step, and the forms of blocks by their numbers."""
    if version == _ROWS:
        return data, [None]
    try:
        note, *forms = Codec().decode_at_rest(data)
    except (CodecError, TypeError, ValueError) as error:
        raise damaged("its note is invalid") from error
    if type(note) is not bytes:
        raise damaged("its note is invalid")
    return note, [None, *map(Form.read, forms)]


def by_slot(slots: Sequence[int], keys: Sequence[bytes], entries: Sequence[bytes]) -> dict[int, Rows]:
    """Group ``keys`` and ``entries`` by ``slots``, one each, in order.

    >>> by_slot([3, 1, 3], [b"a", b"b", b"c"], [b"1", b"2", b"3"])
    {1: ([b'b'], [b'2']), 3: ([b'a', b'c'], [b'1', b'3'])}
    """
    order = sorted(range(len(slots)), key=slots.__getitem__)
    keys, entries = list(map(keys.__getitem__, order)), list(map(entries.__getitem__, order))
    dealt: dict[int, Rows] = {}
    start = 0
    for slot, count in sorted(Counter(slots).items()):
        end = start + count
        dealt[slot] = (keys[start:end], entries[start:end])
        start = end
    return dealt


def laid_over(older: Iterable[tuple[int, dict[bytes, bytes]]], newer: Mapping[int, Rows]) -> dict[int, Rows]:
    """Return the slots of ``older``, which come in pieces, with the entries of ``newer`` in place of theirs.

    >>> laid_over([(3, {b"a": b"1"}), (3, {b"b": b"2"}), (4, {b"c": b"3"})], {3: ([b"a"], [b""]), 5: ([b"d"], [b"4"])})
    {3: ([b'a', b'b'], [b'', b'2']), 4: ([b'c'], [b'3'])}
    """
    found: dict[int, dict[bytes, bytes]] = {}
    for slot, some in older:
        found.setdefault(slot, {}).update(some)
    for slot, rows in found.items():
        rows.update(zip(*newer.get(slot, ((), ())), strict=True))
    return {slot: (list(rows), list(rows.values())) for slot, rows in found.items()}


def assembled(blocks: Sequence[Written], *, delta: bool, note: bytes = b"") -> bytes:
    """Return the artefact of ``blocks``, whose slots ascend."""
    return b"".join(in_pieces(blocks, delta=delta, note=note))


def in_pieces(blocks: Sequence[Written], *, delta: bool, note: bytes = b"") -> list[bytes]:
    """Return the artefact of ``blocks``, whose slots ascend, in pieces: to join them takes a second for a gigabyte."""
    return framed(list(map(indexed, blocks)), [data for _, _, data, _ in blocks], delta=delta, note=note)


Indexed = tuple[int, int, int, int, Form | None]
"""What the index says of a block: slot, entries with the bit, bytes, checksum and form."""


def indexed(block: Written) -> Indexed:
    """Return what the index says of ``block``."""
    slot, count, data, form = block
    return slot, count, len(data), xxhash.xxh3_64_intdigest(data), form


def framed(index: Sequence[Indexed], pieces: Iterable[bytes], *, delta: bool, note: bytes = b"") -> list[bytes]:
    """Put ``pieces`` below the ``index`` of their blocks."""
    numbers: dict[Form | None, int] = {None: 0}
    for *_, form in index:
        numbers.setdefault(form, len(numbers))
    version = _ROWS if len(numbers) == 1 else _COLUMNS
    if version == _COLUMNS:
        note = Codec().encode_at_rest([note, *(form.stored() for form in numbers if form)], step="")
        packed = (_INDEX[version].pack(*one, numbers[form]) for *one, form in index)
    else:
        packed = (_INDEX[version].pack(*one) for *one, _ in index)
    below = b"".join((*packed, note))
    head = _HEAD.pack(_MAGIC, version, _DELTA if delta else _FULL, len(index), len(note), 0)[:_UNSUMMED]
    return [head, _sum_of(head, below).to_bytes(8, "little"), below, *pieces]


def _sum_of(head: bytes, rest: bytes) -> int:
    return xxhash.xxh3_64_intdigest(head + rest)


class SlotImage(NamedTuple):
    """The keys of a slot, their values (None: the key has only timers), and the times of those that have some."""

    slot: int
    keys: list[Any]
    values: list[Any]
    times: dict[Any, Times]

    def migrated(self, migrate: Callable[[Any, Any], Any]) -> SlotImage:
        """Return the image with migrated values. A key that has only timers is unchanged."""
        states = [
            None if value is None else migrate(key, value) for key, value in zip(self.keys, self.values, strict=True)
        ]
        kept = [new is not None or old is None for new, old in zip(states, self.values, strict=True)]
        stay = dict.fromkeys(compress(self.keys, kept))
        times = {key: at for key, at in self.times.items() if key in stay}
        return SlotImage(self.slot, list(stay), list(compress(states, kept)), times)


class KeyedEntry(NamedTuple):
    """One key with its state: its ``value`` (None: the key has only timers), and its ``times``."""

    slot: int
    key: Any
    value: Any
    times: Times


_TOGETHER: Final = 8192
_BYTES_TOGETHER: Final = 1 << 19
"""About how many keys are decoded together, and how many bytes of their states."""


def runs_in(
    chain: Sequence[bytes],
    codec: Codec,
    *,
    slots: Collection[int] | None = None,
    step: str = "",
    take: Callable[[Sequence[Any], Sequence[bytes]], Sequence[bool]] | None = None,
) -> Iterator[tuple[list[tuple[int, int]], SlotImage]]:
    """Yield the slots of a worker's chain, a full artefact and its deltas, ascending, several together; only ``slots``,
    if given: each slot of the run with its number of keys, and the run as the image of its first slot.

    ``take`` gets the keys and entries of a run, and returns which are left: the others are not decoded.

    Raises:
        SnapshotError: the artefacts are not such a chain, or are damaged.
        CodecError: they hold a class that is not registered; names ``step``.
    """
    opened = opened_chain(chain)
    wanted = {slot for one in opened for slot in one.blocks}
    sizes: list[tuple[int, int]] = []
    names: list[bytes] = []
    entries: list[bytes] = []
    room = _BYTES_TOGETHER
    order = sorted(wanted if slots is None else wanted.intersection(slots))
    for slot in order:
        found = newest(opened, slot)
        sizes.append((slot, len(found)))
        names += found
        entries += found.values()
        room -= sum(map(len, found.values()))
        if len(names) < _TOGETHER and room > 0 and slot != order[-1]:
            continue
        keys = codec.decode_each_at_rest(names, step=step)
        try:
            set(keys)
        except TypeError as error:
            raise decode_error("a key in it cannot be hashed", step=step) from error
        keys = _settled(keys, step)
        if take is not None:
            left = take(keys, entries)
            keys, entries = list(compress(keys, left)), list(compress(entries, left))
        values, times = decoded_entries(codec, keys, entries, step=step)
        yield sizes, SlotImage(sizes[0][0], keys, values, times)
        sizes, names, entries, room = [], [], [], _BYTES_TOGETHER


def _settled(keys: list[Any], step: str) -> list[Any]:
    """Return stored keys, of which an earlier version may have made some, as this one has them."""
    if hold_no_moments(keys):
        return keys
    settled = list(map(first_reading, keys))
    if len(set(settled)) < len(set(keys)):
        raise SnapshotError(
            f"step {step!r}: the state to restore, of an earlier version, has one instant as two keys: in UTC, and in "
            "a zone where its hour comes twice. Rename the step, which then starts without state"
        )
    return settled


def entries_in(
    chain: Sequence[bytes], codec: Codec, *, slots: Collection[int] | None = None, step: str = ""
) -> Iterator[KeyedEntry]:
    """Yield the entries of a worker's chain, as of `runs_in`, key by key, in no order within a slot.

    >>> from malstrom_py.data.messages import AbsBarrier
    >>> from malstrom_py.state.keyed_state import KeyedState
    >>> state = KeyedState("count", Codec())
    >>> state.track(lambda keys: [0] * len(keys))
    >>> state.values["ant"] = 3
    >>> list(entries_in([state.artefact(AbsBarrier("s1", None))], Codec()))
    [KeyedEntry(slot=0, key='ant', value=3, times=Times(timers=(), by_clock=(), until=None))]
    """
    for sizes, (_, keys, values, times) in runs_in(chain, codec, slots=slots, step=step):
        of_keys = in_turn.from_iterable(repeat(slot, size) for slot, size in sizes)
        for slot, key, value in zip(of_keys, keys, values, strict=True):
            yield KeyedEntry(slot, key, value, times.get(key, NO_TIMES))
