"""The keyed artefact: the stored state of one step on one worker, in full or as changes (a delta), in blocks by slot.

An artefact is a header (magic and version, full or delta, number of blocks, length of the note, checksum of header,
index and note), an index (slot, entries, length, checksum of each block, slots ascending), the note of the step, and
the blocks. A block is a table of lengths (of key and entry, per entry), then the keys, then the entries. An empty entry
is a tombstone, in deltas only: the key has been dropped. Numbers are little-endian, checksums are XXH3 of 64 bits.

An entry is the stored form (S8) of the value, whose first byte is 0x10 or more; or, if the key has timers, the byte
0x01 and the stored form of ``[value, times]``, where the value is None if the key has only timers. A key with timers of
the runtime's clock, or whose state expires, has the byte 0x02 and ``[value, times, times by the clock, until]``.

Rules. A key has the same bytes all along a chain, so that chains are merged, and slots selected, without decoding. Data
is used only after its checksum was verified. Only the newest entry of a key is decoded, and only of requested slots.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from itertools import chain as in_turn
from typing import Any, Final, NamedTuple

import xxhash

from malstrom_py.codec import Codec
from malstrom_py.codec.encoding_errors import decode_error
from malstrom_py.errors import SnapshotError

_TIMED: Final = b"\x01"
_DATED: Final = b"\x02"


class Times(NamedTuple):
    """The times of a key: its ``timers``, those ``by_clock`` of the runtime, and ``until`` when its state lasts."""

    timers: Sequence[int] = ()
    by_clock: Sequence[int] = ()
    until: int | None = None


NO_TIMES: Final = Times()


def encoded_entries(
    codec: Codec, keys: Sequence[Any], values: Sequence[Any], times: Mapping[Any, Times], *, step: str
) -> list[bytes]:
    r"""Encode the entries of ``keys``, with their ``values``, and ``times`` of some. `CodecError` names the key of one
    that cannot be stored.

    >>> encoded_entries(Codec(), ["a", "b"], [7, None], {"b": Times([9])}, step="s")
    [b'\x10\x07', b'\x01\x10\x92\xc0\x91\t']
    """
    if not times:
        return codec.encode_each_at_rest(values, step=step, keys=keys)
    held = [times.get(key) for key in keys]
    forms = [value if found is None else _form(value, found) for value, found in zip(values, held, strict=True)]
    entries = codec.encode_each_at_rest(forms, step=step, keys=keys)
    for place, found in enumerate(held):
        if found is not None:
            entries[place] = (_DATED if found.by_clock or found.until is not None else _TIMED) + entries[place]
    return entries


def _form(value: Any, times: Times) -> list[Any]:
    timers, by_clock, until = times
    if by_clock or until is not None:
        return [value, list(timers), list(by_clock), until]
    return [value, list(timers)]


def decoded_entries(
    codec: Codec, keys: Sequence[Any], entries: Sequence[bytes], *, step: str
) -> tuple[list[Any], dict[Any, Times]]:
    r"""Decode ``entries``: the values of ``keys``, and the times of those that have some.

    Raises:
        CodecError: an entry is not valid.

    >>> decoded_entries(Codec(), ["a", "b"], [b"\x10\x07", b"\x01\x10\x92\xc0\x91\t"], step="s")
    ([7, None], {'b': Times(timers=[9], by_clock=(), until=None)})
    """
    timed = [place for place, entry in enumerate(entries) if entry[:1] in (_TIMED, _DATED)]
    forms = list(entries)
    for place in timed:
        forms[place] = entries[place][1:]
    values = codec.decode_each_at_rest(forms, step=step, keys=keys)
    times: dict[Any, Times] = {}
    for place in timed:
        values[place], times[keys[place]] = _timed(values[place], entries[place][:1], step, keys[place])
    return values, times


def _timed(form: Any, kind: bytes, step: str, key: Any) -> tuple[Any, Times]:
    if type(form) is list and len(form) == (2 if kind == _TIMED else 4):
        value, timers, by_clock, until = form if kind == _DATED else [*form, [], None]
        if type(timers) is list and type(by_clock) is list:
            found = [*timers, *by_clock, *(() if until is None else (until,))]
            if set(map(type, found)) == {int}:
                return value, Times(timers, by_clock or (), until)
    raise decode_error("it should be a value and times, and is not", step=step, key=key)


_MAGIC: Final = b"mskeyed\x01"
_FULL: Final = b"F"
_DELTA: Final = b"D"
_HEAD: Final = struct.Struct("<8scIIQ")  # magic and version, kind, blocks, bytes of the note, checksum
_INDEX: Final = struct.Struct("<IIQQ")  # slot, entries, bytes, checksum
_UNSUMMED: Final = _HEAD.size - 8

Rows = tuple[Sequence[bytes], Sequence[bytes]]
"""Keys, and their entries."""


@dataclass(frozen=True, slots=True)
class Block:
    """The block of one slot: its number of entries, and where its bytes start and end."""

    slot: int
    entries: int
    start: int
    end: int
    checksum: int


def artefact(rows: Mapping[int, Rows], *, delta: bool, note: bytes = b"") -> bytes:
    """Encode ``rows``, slot -> keys and entries. A ``delta`` may have tombstones, which are empty entries.

    >>> data = artefact({7: ([b"a", b"b"], [b"1", b""])}, delta=True)
    >>> is_delta(data), [(slot, list(zip(*rows))) for slot, rows in contents(data)]
    (True, [(7, [(b'a', b'1'), (b'b', b'')])])
    """
    blocks = [(slot, len(rows[slot][0]), _block(*rows[slot])) for slot in sorted(rows)]
    return _assembled(blocks, delta=delta, note=note)


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


def newest(chain: Sequence[Opened], slot: int) -> dict[bytes, bytes]:
    """Return key -> entry of a slot from the last artefact of the chain that has the key, without dropped keys."""
    found: dict[bytes, bytes] = {}
    gone = False
    for opened in chain:
        block = opened.blocks.get(slot)
        if block is not None:
            rows = opened.rows(block)
            gone = gone or (opened.delta and b"" in rows.values())
            found.update(rows)
    return {key: entry for key, entry in found.items() if entry} if gone else found


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
    blocks: list[tuple[int, int, bytes]] = []
    for slot in sorted({slot for one in opened for slot in one.blocks}):
        block = base.blocks.get(slot)
        if block is not None and not any(slot in delta.blocks for delta in deltas):
            blocks.append((slot, block.entries, base.checked(block)))
            continue
        found = newest(opened, slot)
        if found:
            blocks.append((slot, len(found), _block(found, found.values())))
    return _assembled(blocks, delta=False, note=opened[-1].note)


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

    def checked(self, block: Block) -> bytes:
        """Return the bytes of a block after verifying its checksum."""
        data = self._data[block.start : block.end]
        if xxhash.xxh3_64_intdigest(data) != block.checksum:
            raise _damaged(f"the checksum of slot {block.slot} is wrong")
        return data

    def rows(self, block: Block) -> dict[bytes, bytes]:
        """Return key -> entry of a block."""
        data, count = self.checked(block), block.entries
        table = 8 * count
        if table > len(data):
            raise _damaged(f"slot {block.slot} ends too soon")
        lengths = struct.unpack_from(f"<{2 * count}I", data)
        of_entries = lengths[1::2]
        ends = list(accumulate(lengths[::2] + of_entries, initial=table))
        if ends[-1] != len(data):
            raise _damaged(f"slot {block.slot} has another length than its entries")
        pieces = [data[start:end] for start, end in pairwise(ends)]
        rows = dict(zip(pieces, pieces[count:], strict=False))
        if len(rows) != count or (not self.delta and 0 in of_entries):
            raise _damaged(f"slot {block.slot} holds a key twice, or one without state")
        return rows


class Selection(NamedTuple):
    """A part of an artefact, as an artefact: ``taken`` of its blocks, without the ``left`` others."""

    data: bytes
    taken: int
    left: int


def selected(
    read: Callable[[Sequence[tuple[int, int]]], Sequence[bytes]], size: int, slots: Collection[int]
) -> Selection:
    """Return the blocks of ``slots`` of an artefact of ``size`` bytes.

    ``read`` returns the bytes of ranges; only the index and these blocks are read. The blocks are verified when they
    are used. `SnapshotError` if the index is damaged.

    >>> data = artefact({1: ([b"a"], [b"1"]), 4: ([b"z"], [b"9"])}, delta=False)
    >>> part = selected(lambda ranges: [data[start:end] for start, end in ranges], len(data), {4, 5})
    >>> list(contents(part.data)), part.taken, part.left
    ([(4, ([b'z'], [b'9']))], 1, 1)
    """
    (head,) = read([(0, min(_HEAD.size, size))])
    (rest,) = read([(_HEAD.size, _index_end(head, size))])
    delta, note, blocks = _index(head, rest, size)
    wanted = [block for slot, block in blocks.items() if slot in slots]
    runs: list[tuple[int, int]] = []
    for block in wanted:
        if runs and runs[-1][1] == block.start:
            runs[-1] = (runs[-1][0], block.end)
        else:
            runs.append((block.start, block.end))
    index = b"".join(_INDEX.pack(one.slot, one.entries, one.end - one.start, one.checksum) for one in wanted)
    data = _framed(index, len(wanted), read(runs) if runs else (), delta=delta, note=note)
    return Selection(data, len(wanted), len(blocks) - len(wanted))


def _index_end(head: bytes, size: int) -> int:
    """Return where the index and the note of an artefact of ``size`` bytes end."""
    if len(head) < _HEAD.size or head[: len(_MAGIC)] != _MAGIC:
        raise _damaged("it is not a keyed artefact of a version that is supported here")
    _, _, count, note_bytes, _ = _HEAD.unpack(head)
    end: int = _HEAD.size + count * _INDEX.size + note_bytes
    if end > size:
        raise _damaged("it ends too soon")
    return end


def _index(head: bytes, rest: bytes, size: int) -> tuple[bool, bytes, dict[int, Block]]:
    """Return whether an artefact of ``size`` bytes is a delta, its note, and its blocks; ``rest``: index and note."""
    _, kind, count, _, checksum = _HEAD.unpack(head)
    if kind not in (_FULL, _DELTA) or _sum_of(head[:_UNSUMMED], rest) != checksum:
        raise _damaged("the checksum of its index is wrong")
    blocks: dict[int, Block] = {}
    last, start, index_size = -1, _HEAD.size + len(rest), count * _INDEX.size
    for slot, entries, length, checksum in _INDEX.iter_unpack(rest[:index_size]):
        if slot <= last or not entries:
            raise _damaged("its index is out of order")
        blocks[slot] = Block(slot, entries, start, start + length, checksum)
        last, start = slot, start + length
    if start != size:
        raise _damaged("it has another length than its index says")
    return kind == _DELTA, rest[index_size:], blocks


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


def _block(keys: Collection[bytes], entries: Collection[bytes]) -> bytes:
    lengths = in_turn.from_iterable(zip(map(len, keys), map(len, entries), strict=True))
    return b"".join((struct.pack(f"<{2 * len(keys)}I", *lengths), *keys, *entries))


def _assembled(blocks: Sequence[tuple[int, int, bytes]], *, delta: bool, note: bytes) -> bytes:
    """Assemble ``blocks``: slot, number of entries, and the bytes of each."""
    index = b"".join(
        _INDEX.pack(slot, entries, len(data), xxhash.xxh3_64_intdigest(data)) for slot, entries, data in blocks
    )
    return _framed(index, len(blocks), [data for _, _, data in blocks], delta=delta, note=note)


def _framed(index: bytes, count: int, pieces: Sequence[bytes], *, delta: bool, note: bytes) -> bytes:
    """Join ``pieces`` below the ``index`` of their ``count`` blocks."""
    head = _HEAD.pack(_MAGIC, _DELTA if delta else _FULL, count, len(note), 0)[:_UNSUMMED]
    checksum = _sum_of(head, index + note).to_bytes(8, "little")
    return b"".join((head, checksum, index, note, *pieces))


def _sum_of(head: bytes, rest: bytes) -> int:
    return xxhash.xxh3_64_intdigest(head + rest)


def _damaged(why: str) -> SnapshotError:
    return SnapshotError(f"an artefact of keyed state cannot be read: {why}. Restore an older snapshot")


class SlotImage(NamedTuple):
    """The keys of a slot, their values (None: the key has only timers), and the times of those that have some."""

    slot: int
    keys: list[Any]
    values: list[Any]
    times: dict[Any, Times]


class KeyedEntry(NamedTuple):
    """One key with its state: its ``value`` (None: the key has only timers), and its ``times``."""

    slot: int
    key: Any
    value: Any
    times: Times


def slots_in(
    chain: Sequence[bytes], codec: Codec, *, slots: Collection[int] | None = None, step: str = ""
) -> Iterator[SlotImage]:
    """Yield the slots of a worker's chain, a full artefact and its deltas, ascending; only ``slots``, if given.

    Raises:
        SnapshotError: the artefacts are not such a chain, or are damaged.
        CodecError: they hold a class that is not registered; names ``step``.
    """
    opened = opened_chain(chain)
    wanted = {slot for one in opened for slot in one.blocks}
    for slot in sorted(wanted if slots is None else wanted.intersection(slots)):
        found = newest(opened, slot)
        keys = codec.decode_each_at_rest(list(found), step=step)
        try:
            set(keys)
        except TypeError as error:
            raise decode_error("a key in it cannot be hashed", step=step) from error
        values, times = decoded_entries(codec, keys, list(found.values()), step=step)
        yield SlotImage(slot, keys, values, times)


def entries_in(
    chain: Sequence[bytes], codec: Codec, *, slots: Collection[int] | None = None, step: str = ""
) -> Iterator[KeyedEntry]:
    """Yield the entries of `slots_in`, key by key, in no order within a slot.

    >>> from malstrom_py.data.messages import AbsBarrier
    >>> from malstrom_py.state.keyed_state import KeyedState
    >>> state = KeyedState("count", Codec())
    >>> state.track(lambda keys: [0] * len(keys))
    >>> state.values["ant"] = 3
    >>> list(entries_in([state.artefact(AbsBarrier("s1", None))], Codec()))
    [KeyedEntry(slot=0, key='ant', value=3, times=Times(timers=(), by_clock=(), until=None))]
    """
    for slot, keys, values, times in slots_in(chain, codec, slots=slots, step=step):
        for key, value in zip(keys, values, strict=True):
            yield KeyedEntry(slot, key, value, times.get(key, NO_TIMES))
