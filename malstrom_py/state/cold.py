"""The states of one step that are on disk, by key.

Rule: a state is in memory or here, never in both, so neither has to be kept up to date. A key is found by a form that
all keys equal to it have. What is stored for it: four bytes, of which the highest four bits say by which of the
indexes the key is due and the rest how long its name is; the times at which it is due, one for each of these; its name
and its entry, both as an artefact has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from itertools import chain, compress, groupby, islice, repeat
from typing import Any, Final, NamedTuple
from uuid import UUID

from malstrom_py.codec import Codec
from malstrom_py.state.change_log import SlotsOf
from malstrom_py.state.disk import Disk
from malstrom_py.state.due_index import AT, DueIndex, stored_time, time_of
from malstrom_py.state.entries import NO_TIMES, Times, decoded_entries, encoded_entries, with_end

KeyForm = Callable[[Any], bytes]
"""Returns the same bytes for keys that are equal, such as 1 and True."""

TIMERS, BY_CLOCK, ENDS, NEEDED = range(4)
"""By what a key is due: its first timer, that of the runtime's clock, the end of its state, `StepValues.due_at`."""

_LENGTH: Final = 4
_NAME: Final = (1 << 28) - 1
_BITS: Final = 28
_FLAGS: Final = _LENGTH - 1
_NOT_DUE: Final = 15
_INDEXES: Final = [[kind for kind in range(4) if flags >> kind & 1] for flags in range(16)]

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


class Held(NamedTuple):
    """States of ``keys``: ``values``, and the ``times`` of those that have some."""

    keys: Sequence[Any]
    values: list[Any]
    times: dict[Any, Times]


class ColdStates:
    """The states of ``step`` on ``disk``, which is opened when it is first used. ``prefix``: of the keys of this step.

    >>> from malstrom_py.rescale.keys.key_hash import encode_key
    >>> from malstrom_py.state.disk import RocksDisk
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> disk = RocksDisk(folder)
    >>> cold = ColdStates(lambda: disk, b"s", Codec(), "count", encode_key)
    >>> cold.slots_of = lambda keys: [len(str(key)) for key in keys]
    >>> cold.put(["ann", 7], [{"n": 1}, {"n": 2}], {"ann": Times([5])})
    >>> cold.take([7.0, "bob"]), cold.peek(["ann", 7]).values, len(cold)
    (Held(keys=[7.0], values=[{'n': 2}], times={}), [{'n': 1}, None], 1)
    >>> cold.take_due(TIMERS, 4)[0].keys, cold.take_due(TIMERS, 5)[0].times, len(cold)
    ([], {'ann': Times(timers=[5], by_clock=(), until=None)}, 0)
    >>> cold.put(["eve", "bob", "xy"], [1, 2, 3])
    >>> list(cold.keys()), list(cold.keys_in(3)), list(cold.keys_in(4))
    (['xy', 'bob', 'eve'], ['bob', 'eve'], [])
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

    def put(
        self,
        keys: Sequence[Any],
        values: Sequence[Any],
        times: Mapping[Any, Times] | None = None,
        *,
        needed: Callable[[Any, Any], int | None] | None = None,
        expires: bool = False,
    ) -> None:
        """Store the states of ``keys``, of which none is here, and the ``times`` of some.

        ``needed`` returns when a key with its state is due for the step. ``expires``: a state without an end is due
        immediately. `CodecError` if a state cannot be stored.
        """
        entries = encoded_entries(self._codec, keys, values, times or {}, step=self._step)
        names = self._codec.encode_each_at_rest(keys, step=self._step, keys=keys)
        if not times and needed is None and not expires:
            heads = [len(name).to_bytes(_LENGTH, "little") for name in names]
        else:
            found = map((times or {}).get, keys, repeat(NO_TIMES))
            told = repeat(None) if needed is None else map(needed, keys, values)
            heads = list(map(_head, names, found, told, repeat(expires)))
        self._write(keys, names, heads, entries)

    def put_entries(self, keys: Sequence[Any], entries: Sequence[bytes]) -> None:
        """Store the states of ``keys``, of which none is here, in the form that an artefact has, without times."""
        names = self._codec.encode_each_at_rest(keys, step=self._step, keys=keys)
        self._write(keys, names, [len(name).to_bytes(_LENGTH, "little") for name in names], entries)

    def _write(
        self, keys: Sequence[Any], names: Sequence[bytes], heads: Sequence[bytes], entries: Sequence[bytes]
    ) -> None:
        forms = self._forms(keys)
        stored = [head + name + entry for head, name, entry in zip(heads, names, entries, strict=True)]
        written = list(zip(forms, stored, strict=True))
        for form, head in zip(forms, heads, strict=True):
            if head[_FLAGS] > _NOT_DUE:
                written += ((entry, b"") for entry in self._added(form, head))
        self._disk().write(written)
        self._count += len(keys)
        self.bytes += sum(map(len, stored))

    def take(self, keys: Sequence[Any]) -> Held:
        """Remove the states of ``keys``, which differ, and return those that were here."""
        if not (self._count and keys):
            return Held([], [], {})
        forms = self._forms(keys)
        stored = self._disk().get(forms)
        there = [one is not None for one in stored]
        return self._taken(list(compress(forms, there)), list(filter(None, stored)), list(compress(keys, there)))

    def take_due(self, kind: int, reached: int, since: bytes | None = None) -> tuple[Held, bytes | None]:
        """Remove some states, the first that are due, by time. Return them, and where others begin; None: nowhere.

        ``since``: where to begin.
        """
        forms, rest = self.indexes[kind].first(reached, _TOGETHER, since)
        if not forms:
            return Held([], [], {}), rest
        forms = [self._prefix + form for form in forms]
        stored = [one for one in self._disk().get(forms) if one is not None]
        return self._taken(forms, stored, self._keys_of(stored)), rest

    def _taken(self, forms: list[bytes], stored: list[bytes], keys: list[Any]) -> Held:
        values, times = self._decoded(stored, keys)
        if forms:
            dropped = list(forms)
            for form, one in zip(forms, stored, strict=True):
                if one[_FLAGS] > _NOT_DUE:
                    dropped += self._removed(form, one)
            self._disk().write((), dropped)
            self._count -= len(forms)
            self.bytes -= sum(map(len, stored))
        return Held(keys, values, times)

    def peek(self, keys: Sequence[Any]) -> Held:
        """Return the states of ``keys``, None as the value of a key that is not here."""
        if not (self._count and keys):
            return Held(list(keys), [None] * len(keys), {})
        stored = self._disk().get(self._forms(keys))
        there = [one is not None for one in stored]
        states, times = self._decoded(list(filter(None, stored)), list(compress(keys, there)))
        of_keys = iter(states)
        return Held(list(keys), [next(of_keys) if is_there else None for is_there in there], times)

    def keys(self) -> Iterator[Any]:
        """Return the keys that are here at the time of the call."""
        return chain.from_iterable(map(self._keys_of, self._pieces()))

    def keys_in(self, slot: int) -> Iterator[Any]:
        """Return the keys of ``slot`` that are here at the time of the call."""
        return chain.from_iterable(map(self._keys_of, self._pieces(slot.to_bytes(_SLOT, "big"))))

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Return each key that is here at the time of the call with its value."""
        return chain.from_iterable(map(self._items_of, self._pieces()))

    def rows(self) -> Iterator[SlotRows]:
        """Return the slots that are here at the time of the call, ascending, with what an artefact has of their keys.

        A slot comes in several pieces. They are copied from disk when they are wanted, without decoding.
        """
        return self._rows_in(self._disk().scan(self._prefix))

    def _rows_in(self, found: Iterator[tuple[bytes, bytes]]) -> Iterator[SlotRows]:
        begins, ends = len(self._prefix), len(self._prefix) + _SLOT
        for slot, entries in groupby(found, lambda entry: entry[0][begins:ends]):
            while rows := dict(split(stored) for _, stored in islice(entries, _TOGETHER)):
                yield int.from_bytes(slot, "big"), rows

    def _pieces(self, of_slot: bytes = b"") -> Iterator[list[bytes]]:
        found = self._disk().scan(self._prefix + of_slot) if self._count else iter(())
        return iter(lambda: [stored for _, stored in islice(found, _TOGETHER)], [])

    def _keys_of(self, stored: Sequence[bytes]) -> list[Any]:
        return self._codec.decode_each_at_rest([split(one)[0] for one in stored], step=self._step)

    def _items_of(self, stored: Sequence[bytes]) -> Iterator[tuple[Any, Any]]:
        keys = self._keys_of(stored)
        return zip(keys, self._decoded(stored, keys)[0], strict=True)

    def _decoded(self, stored: Sequence[bytes], keys: Sequence[Any]) -> tuple[list[Any], dict[Any, Times]]:
        """Return the values of ``keys`` and the times of those that have some."""
        forms = [split(one)[1] for one in stored]
        ends: dict[Any, Times] = {}
        for place, one in enumerate(stored):
            if one[_FLAGS] >> 4 == 1 << ENDS:
                until = time_of(one[_LENGTH : _LENGTH + AT])
                form = with_end(forms[place], until) if -_INT_MAX < until < _INT_MAX - 1 else None
                if form is not None:
                    forms[place], ends[keys[place]] = form, Times(until=until)
        values, times = decoded_entries(self._codec, keys, forms, step=self._step)
        return values, {**ends, **times} if times else ends

    def _forms(self, keys: Sequence[Any]) -> list[bytes]:
        prefix, form_of = self._prefix, self._form_of
        slots = self.slots_of(keys)
        return [prefix + slot.to_bytes(_SLOT, "big") + form_of(key) for slot, key in zip(slots, keys, strict=True)]

    def _added(self, form: bytes, stored: bytes) -> list[bytes]:
        """Return the entries of a key in indexes, which are to be stored."""
        kinds = _INDEXES[stored[_FLAGS] >> 4]
        return [
            self.indexes[kind].added(stored[_LENGTH + AT * n : _LENGTH + AT * (n + 1)], form[len(self._prefix) :])
            for n, kind in enumerate(kinds)
        ]

    def _removed(self, form: bytes, stored: bytes) -> list[bytes]:
        """Return the entries of a key in indexes, which are to be dropped."""
        kinds = _INDEXES[stored[_FLAGS] >> 4]
        return [
            self.indexes[kind].removed(stored[_LENGTH + AT * n : _LENGTH + AT * (n + 1)], form[len(self._prefix) :])
            for n, kind in enumerate(kinds)
        ]

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


def _head(name: bytes, times: Times, needed: int | None, expires: bool) -> bytes:
    """Return what is stored before a name."""
    timers, by_clock, until = times
    if until is None and expires:
        until = _NO_END
    moments = (min(timers, default=None), min(by_clock, default=None), until, needed)
    flags = sum(1 << kind for kind, moment in enumerate(moments) if moment is not None)
    of_name = (flags << _BITS | len(name)).to_bytes(_LENGTH, "little")
    return b"".join((of_name, *(stored_time(moment) for moment in moments if moment is not None)))
