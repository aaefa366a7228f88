"""The states of one step that are on disk, by key.

Rule: a state is in memory or here, never in both, so neither has to be kept up to date. A key is found by a form that
all keys equal to it have. What is stored for it: four bytes, of which the highest four bits say by which of the
indexes the key is due and the rest how long its name is; the times at which it is due, one for each of these; its name
and its entry, both as an artefact has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, timedelta
from itertools import chain, compress, groupby, islice, repeat, takewhile
from operator import add
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from malstrom_py.codec import Codec
from malstrom_py.state.change_log import SlotsOf
from malstrom_py.state.due_index import AT, DueIndex, stored_times, times_of
from malstrom_py.state.entries import (
    ENDS,
    NEEDED,
    NO_TIMES,
    Held,
    Times,
    decoded_entries,
    encoded_entries,
    with_ends,
    without_ends,
)

if TYPE_CHECKING:
    from malstrom_py.state.disk import Disk

KeyForm = Callable[[Any], bytes]
"""Returns the same bytes for keys that are equal, such as 1 and True."""

_LENGTH: Final = 4
_NAME: Final = (1 << 28) - 1
_BITS: Final = 28
_FLAGS: Final = _LENGTH - 1
_IN_BYTE: Final = 4
_INDEXES: Final = [[kind for kind in range(4) if flags >> kind & 1] for flags in range(16)]
_ONE_INDEX: Final = {1 << kind: kind for kind in range(4)}

_TOGETHER: Final = 1024
"""So many entries are decoded together."""

_NO_END: Final = -1 << 63
"""When a state that expires and has no end yet is due: immediately, to get one."""

_SLOT: Final = 3
"""So many bytes has a slot, which comes before the form of a key: what is stored is in the order of slots."""

_INT: Final = b"\x01"
_TEXT: Final = b"\x05"
_OF_TEXT: Final = len(_TEXT) + 8
"""A form begins with its kind; text then has its length."""

_TOLD_APART: Final = frozenset((str, int, bytes, type(None), date, timedelta, UUID))

_PLAIN: Final = frozenset((str, int))

_INT_MAX: Final = 1 << 63


def can_be_cold(key: Any) -> bool:
    """Return whether no other key has the form of ``key``. Of large integers and fractions only a remainder is in it.

    >>> can_be_cold(("a", 7)), can_be_cold(1 << 70), can_be_cold(0.5)
    (True, False, False)
    """
    kind = type(key)
    if kind is tuple:
        return all(map(can_be_cold, key))
    return kind in _TOLD_APART and (kind is not int or -_INT_MAX <= key < _INT_MAX)


def in_one_slot(keys: Sequence[Any]) -> list[int]:
    """Return the slots of the keys of a step outside a job."""
    return [0] * len(keys)


SlotRows = tuple[int, dict[bytes, bytes]]
"""A slot, and the stored forms of some of its keys with their entries."""

Stored = dict[bytes, bytes]
"""What is stored for keys, by slot and form."""

_Noting = Callable[[DueIndex, list[bytes], list[bytes]], list[bytes]]


class ColdStates:
    """The states of ``step`` on ``disk``, which is opened when it is first used. ``prefix``: of the keys of this step.

    >>> from malstrom_py.rescale.keys.key_hash import encode_key
    >>> from malstrom_py.state.disk import RocksDisk
    >>> from malstrom_py.state.entries import TIMERS, Times
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> disk = RocksDisk(folder)
    >>> cold = ColdStates(lambda: disk, b"s", Codec(), "count", encode_key)
    >>> cold.slots_of = lambda keys: [2 if key == "xy" else 3 for key in keys]
    >>> cold.put(Held(["ann", 7], [{"n": 1}, {"n": 2}], {"ann": Times([5])}))
    >>> cold.take([7.0, "bob"]), cold.peek(["ann", 7]).values, len(cold)
    (Held(keys=[7], values=[{'n': 2}], times={}, ends=None), [{'n': 1}, None], 1)
    >>> cold.take_due(TIMERS, 4)[0].keys, cold.take_due(TIMERS, 5)[0].times, len(cold)
    ([], {'ann': Times(timers=[5], by_clock=(), until=None)}, 0)
    >>> cold.put(Held(["eve", "bob", "xy"], [1, 2, 3], {}))
    >>> list(cold.keys()), len(cold.take_stored(3, 1)), len(cold.take_stored(3, 100)), len(cold.take_stored(3, 100))
    (['xy', 'bob', 'eve'], 1, 1, 0)
    >>> disk.close()
    """

    __slots__ = ("_codec", "_count", "_disk", "_form", "_prefix", "_step", "bytes", "indexes", "slots_of")

    def __init__(self, disk: Callable[[], Disk], prefix: bytes, codec: Codec, step: str, form: KeyForm) -> None:
        self._disk = disk
        self._prefix = prefix + b"\x00"
        self._codec = codec
        self._step = step
        self._form = form
        self.slots_of: SlotsOf = in_one_slot
        """Returns the slots of keys. It does not change while states are here."""
        self._count = 0
        self.indexes = [DueIndex(disk, prefix + bytes([1 + kind])) for kind in range(4)]
        """When keys are due, by `TIMERS`, `BY_CLOCK`, `ENDS` and `NEEDED`."""
        self.bytes = 0
        """How many bytes are stored."""

    def __len__(self) -> int:
        return self._count

    def put(self, held: Held, *, needed: Callable[[Any, Any], int | None] | None = None, expires: bool = False) -> None:
        """Store the states of keys, one at least, of which none is here.

        ``needed`` returns when a key with its state is due for the step. ``expires``: a state without an end is due
        immediately. `CodecError` if a state cannot be stored.
        """
        keys, values, _, ends = held
        codec, step = self._codec, self._step
        names = codec.encode_each_at_rest(keys, step=step, keys=keys)
        told = None if needed is None else list(map(needed, keys, values))
        entries = None
        if ends and told is None:
            entries = with_ends(codec.encode_each_at_rest(values, step=step, keys=keys), ends)
        if ends and entries is None:
            held = held._replace(times={key: Times(until=end) for key, end in zip(keys, ends, strict=True)}, ends=None)
        if entries is None:
            entries = encoded_entries(codec, keys, values, held.times, step=step)
        forms = self._forms(keys)
        heads, due = self._heads(held, names, forms, told, expires)
        self._write(forms, names, heads, entries, due)

    def put_entries(self, keys: Sequence[Any], entries: Sequence[bytes]) -> None:
        """Store the states of ``keys``, of which none is here, in the form that an artefact has, without times."""
        names = self._codec.encode_each_at_rest(keys, step=self._step, keys=keys)
        heads = [len(name).to_bytes(_LENGTH, "little") for name in names]
        self._write(self._forms(keys), names, heads, entries, ())

    def _write(
        self,
        forms: Sequence[bytes],
        names: Sequence[bytes],
        heads: Sequence[bytes],
        entries: Sequence[bytes],
        due: Sequence[bytes],
    ) -> None:
        self._put(forms, [head + name + entry for head, name, entry in zip(heads, names, entries, strict=True)], due)

    def _put(self, forms: Sequence[bytes], stored: Sequence[bytes], due: Sequence[bytes]) -> None:
        written = list(zip(forms, stored, strict=True))
        written += zip(due, repeat(b""))
        self._disk().write(written)
        self._count += len(forms)
        self.bytes += sum(map(len, stored))

    def _heads(
        self, held: Held, names: list[bytes], forms: list[bytes], needed: list[int | None] | None, expires: bool
    ) -> tuple[list[bytes], list[bytes]]:
        """Return what is stored before the names of keys, and their entries in indexes."""
        keys, _, times, ends = held
        known = needed if ends is None else ends
        if not times and known is None and not expires:
            return [len(name).to_bytes(_LENGTH, "little") for name in names], []
        if times or known is None or (expires and ends is None) or None in known:
            moments = map(_moments, map(times.get, keys, repeat(NO_TIMES)), needed or repeat(None), repeat(expires))
            heads = list(map(_head, names, moments))
            return heads, self._each_due(forms, heads, DueIndex.added)
        kind, at = NEEDED if ends is None else ENDS, stored_times([one for one in known if one is not None])
        flag = 1 << kind + _BITS
        lengths = [(flag | len(name)).to_bytes(_LENGTH, "little") for name in names]
        return list(map(add, lengths, at)), self.indexes[kind].added(at, self._without_prefix(forms))

    def take(self, keys: Sequence[Any]) -> Held:
        """Remove the states of ``keys``, which differ, and return those that were here."""
        if not (self._count and keys):
            return Held([], [], {})
        forms = self._forms(keys)
        found = self._disk().get(forms)
        there = [one is not None for one in found]
        stored = list(filter(None, found))
        return self._taken(list(compress(forms, there)), stored, self._as_put(list(compress(keys, there)), stored))

    def take_stored(self, slot: int, bytes_max: int) -> Stored:
        """Remove states of ``slot``, and return them in their stored form: once they have ``bytes_max`` no others."""
        stored, size, begins = Stored(), 0, len(self._prefix)
        for form, one in self._disk().scan(self._of_slot(slot)):
            stored[form[begins:]] = one
            size += len(form) + len(one)
            if size >= bytes_max:
                break
        if stored:
            self._removed([self._prefix + form for form in stored], list(stored.values()))
        return stored

    def put_stored(self, stored: Stored) -> None:
        """Store what `take_stored` has returned, maybe elsewhere."""
        forms = [self._prefix + form for form in stored]
        self._put(forms, list(stored.values()), self._due(forms, list(stored.values()), DueIndex.added))

    def here_too(self, stored: Stored) -> list[Any]:
        """Return the keys of ``stored`` that are here: few are between them, of those that came as rows."""
        if not (self._count and stored):
            return []
        begins, last = len(self._prefix), self._prefix + max(stored)
        there = self._disk().scan(self._prefix, first=self._prefix + min(stored))
        found = takewhile(lambda entry: entry[0] <= last, there)
        return self._keys_of([one for form, one in found if form[begins:] in stored])

    @staticmethod
    def slots_in(stored: Stored) -> Counter[int]:
        """Return how many keys of each slot are among what is stored."""
        return Counter(int.from_bytes(form[:_SLOT], "big") for form in stored)

    def keys_of(self, stored: Stored) -> list[Any]:
        """Return the keys of what is stored."""
        return self._keys_of(list(stored.values()))

    def take_due(self, kind: int, reached: int, since: bytes | None = None) -> tuple[Held, bytes | None]:
        """Remove some states, the first that are due, by time. Return them, and where others begin; None: nowhere.

        ``since``: where to begin. Those of `ENDS` come without values, except where an entry has more than an end.
        """
        forms, rest = self.indexes[kind].first(reached, _TOGETHER, since)
        if not forms:
            return Held([], [], {}), rest
        forms = [self._prefix + form for form in forms]
        stored = [one for one in self._disk().get(forms) if one is not None]
        return self._taken(forms, stored, self._keys_of(stored), values=kind != ENDS), rest

    def _taken(self, forms: list[bytes], stored: list[bytes], keys: list[Any], *, values: bool = True) -> Held:
        if not forms:
            return Held([], [], {})
        held = self._decoded(stored, keys, values=values)
        self._removed(forms, stored)
        return held

    def _removed(self, forms: list[bytes], stored: list[bytes]) -> None:
        self._disk().write((), forms + self._due(forms, stored, DueIndex.removed))
        self._count -= len(forms)
        self.bytes -= sum(map(len, stored))

    def _due(self, forms: list[bytes], stored: list[bytes], how: _Noting) -> list[bytes]:
        """Return the entries in indexes of what is stored, as `DueIndex.added` or `DueIndex.removed`."""
        kinds = {one[_FLAGS] >> _IN_BYTE for one in stored}
        if len(kinds) == 1 and (kind := _ONE_INDEX.get(*kinds)) is not None:
            return how(self.indexes[kind], [one[_LENGTH : _LENGTH + AT] for one in stored], self._without_prefix(forms))
        return [] if kinds <= {0} else self._each_due(forms, stored, how)

    def _as_put(self, keys: list[Any], stored: Sequence[bytes]) -> list[Any]:
        """Return ``keys`` as they were put: one that cannot be here equals one that can, as True and 1."""
        if not _PLAIN.issuperset(map(type, keys)):
            others = [place for place, key in enumerate(keys) if not can_be_cold(key)]
            for place, key in zip(others, self._keys_of([stored[place] for place in others]), strict=True):
                keys[place] = key
        return keys

    def peek(self, keys: Sequence[Any]) -> Held:
        """Return the states of ``keys``, None as the value of a key that is not here."""
        if not (self._count and keys):
            return Held(list(keys), [None] * len(keys), {})
        stored = self._disk().get(self._forms(keys))
        there = [one is not None for one in stored]
        found, states, times, ends = self._decoded(list(filter(None, stored)), list(compress(keys, there)))
        of_keys = iter(states)
        times = times if ends is None else {key: Times(until=end) for key, end in zip(found, ends, strict=True)}
        return Held(keys, [next(of_keys) if is_there else None for is_there in there], times)

    def keys(self) -> Iterator[Any]:
        """Return the keys that are here at the time of the call."""
        return chain.from_iterable(map(self._keys_of, self._pieces()))

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Return each key that is here at the time of the call with its value."""
        return chain.from_iterable(map(self._items_of, self._pieces()))

    def rows(self, slots: Iterable[int] | None = None) -> Iterator[SlotRows]:
        """Return the slots that are here at the time of the call, ascending, with what an artefact has of their keys.

        A slot comes in several pieces. They are copied from disk when they are wanted, without decoding. ``slots``:
        only these.
        """
        prefixes = [self._prefix] if slots is None else map(self._of_slot, sorted(slots))
        return self._rows_in(self._disk().scan(*prefixes))

    def _rows_in(self, found: Iterator[tuple[bytes, bytes]]) -> Iterator[SlotRows]:
        begins, ends = len(self._prefix), len(self._prefix) + _SLOT
        for slot, entries in groupby(found, lambda entry: entry[0][begins:ends]):
            while rows := dict(split(stored) for _, stored in islice(entries, _TOGETHER)):
                yield int.from_bytes(slot, "big"), rows

    def _of_slot(self, slot: int) -> bytes:
        return self._prefix + slot.to_bytes(_SLOT, "big")

    def _pieces(self) -> Iterator[list[bytes]]:
        found = self._disk().scan(self._prefix) if self._count else iter(())
        return iter(lambda: [stored for _, stored in islice(found, _TOGETHER)], [])

    def _keys_of(self, stored: Sequence[bytes]) -> list[Any]:
        return self._codec.decode_each_at_rest([split(one)[0] for one in stored], step=self._step)

    def _items_of(self, stored: Sequence[bytes]) -> Iterator[tuple[Any, Any]]:
        keys = self._keys_of(stored)
        return zip(keys, self._decoded(stored, keys).values, strict=True)

    def _decoded(self, stored: Sequence[bytes], keys: Sequence[Any], *, values: bool = True) -> Held:
        """Return the states of ``keys``; unless ``values`` are asked for, maybe with None as each value."""
        codec, step = self._codec, self._step
        kinds = {one[_FLAGS] >> _IN_BYTE for one in stored}
        if kinds <= {0}:
            forms = [one[_LENGTH + int.from_bytes(one[:_LENGTH], "little") :] for one in stored]
            return Held(keys, codec.decode_each_at_rest(forms, step=step, keys=keys), {})
        skipped = [_LENGTH + AT * len(_INDEXES[one[_FLAGS] >> _IN_BYTE]) for one in stored] if len(kinds) > 1 else []
        start = _LENGTH + AT * len(_INDEXES[min(kinds)])
        entries = [
            one[at + (int.from_bytes(one[:_LENGTH], "little") & _NAME) :]
            for at, one in zip(skipped or repeat(start), stored, strict=False)
        ]
        if kinds == {1 << ENDS}:
            ends = times_of([one[_LENGTH : _LENGTH + AT] for one in stored])
            without = without_ends(entries, ends)
            if without is not None:
                known = codec.decode_each_at_rest(without, step=step, keys=keys) if values else [None] * len(keys)
                return Held(keys, known, {}, ends)
        return Held(keys, *decoded_entries(codec, keys, entries, step=step))

    def _forms(self, keys: Sequence[Any]) -> list[bytes]:
        prefix, form_of = self._prefix, self._form_of
        slots = self.slots_of(keys)
        return [prefix + slot.to_bytes(_SLOT, "big") + form_of(key) for slot, key in zip(slots, keys, strict=True)]

    def _without_prefix(self, forms: Sequence[bytes]) -> list[bytes]:
        return [form[len(self._prefix) :] for form in forms]

    def _each_due(self, forms: Sequence[bytes], stored: Sequence[bytes], how: _Noting) -> list[bytes]:
        """Return the entries of keys in indexes, as `DueIndex.added` or `DueIndex.removed`, by what is stored first."""
        due: list[bytes] = []
        for form, one in zip(forms, stored, strict=True):
            for place, kind in enumerate(_INDEXES[one[_FLAGS] >> _IN_BYTE]):
                at = _LENGTH + AT * place
                due += how(self.indexes[kind], [one[at : at + AT]], [form[len(self._prefix) :]])
        return due

    def _form_of(self, key: Any) -> bytes:
        """Return the form of ``key``, for the most frequent types without a call."""
        if type(key) is str:
            return _TEXT + key.encode("utf-8", "surrogatepass")
        if type(key) is int and -_INT_MAX <= key < _INT_MAX:
            return _INT + key.to_bytes(8, "little", signed=True)
        form = self._form(key)
        return _TEXT + form[_OF_TEXT:] if form[:1] == _TEXT else form


def split(stored: bytes) -> tuple[bytes, bytes]:
    """Return the name and the entry in what is stored for a key, both as in an artefact."""
    head = int.from_bytes(stored[:_LENGTH], "little")
    start = _LENGTH + AT * len(_INDEXES[head >> _BITS])
    end = start + (head & _NAME)
    return stored[start:end], stored[end:]


def _moments(times: Times, needed: int | None, expires: bool) -> tuple[int | None, ...]:
    """Return when a key is due by each index."""
    timers, by_clock, until = times
    if until is None and expires:
        until = _NO_END
    return min(timers, default=None), min(by_clock, default=None), until, needed


def _head(name: bytes, moments: Sequence[int | None]) -> bytes:
    """Return what is stored before a name."""
    flags = sum(1 << kind for kind, moment in enumerate(moments) if moment is not None)
    of_name = (flags << _BITS | len(name)).to_bytes(_LENGTH, "little")
    return b"".join((of_name, *stored_times([moment for moment in moments if moment is not None])))
