"""The states of one step that are on disk, by key.

Rule: a state is in memory or here, never in both, so neither has to be kept up to date. A key is found by a form that
all keys equal to it have; the stored value holds the key and its state as a snapshot does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date, timedelta
from itertools import chain, compress, islice
from typing import Any, Final
from uuid import UUID

from malstrom_py.codec import Codec
from malstrom_py.state.disk import Disk

KeyForm = Callable[[Any], bytes]
"""Returns the same bytes for keys that are equal, such as 1 and True."""

_LENGTH: Final = 4
"""So many bytes say how long the stored key is, which comes before the state."""

_TOGETHER: Final = 1024
"""So many entries are decoded together."""

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


class ColdStates:
    """The states of ``step`` on ``disk``, which is opened when it is first used. ``prefix``: of the keys of this step.

    >>> from malstrom_py.rescale.keys.key_hash import encode_key
    >>> from malstrom_py.state.disk import RocksDisk
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> disk = RocksDisk(folder)
    >>> cold = ColdStates(lambda: disk, b"s", Codec(), "count", encode_key)
    >>> cold.put(["ann", 7], [{"n": 1}, {"n": 2}])
    >>> cold.take([7.0, "bob"]), cold.peek(["ann", 7]), len(cold)
    (([7.0], [{'n': 2}]), [{'n': 1}, None], 1)
    >>> disk.close()
    """

    __slots__ = ("_codec", "_count", "_disk", "_form", "_prefix", "_step", "bytes")

    def __init__(self, disk: Callable[[], Disk], prefix: bytes, codec: Codec, step: str, form: KeyForm) -> None:
        self._disk = disk
        self._prefix = prefix
        self._codec = codec
        self._step = step
        self._form = form
        self._count = 0
        self.bytes = 0
        """How many bytes are stored."""

    def __len__(self) -> int:
        return self._count

    def put(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        """Store the states of ``keys``, of which none is here. `CodecError` if one cannot be stored."""
        codec, step = self._codec, self._step
        names = codec.encode_each_at_rest(keys, step=step, keys=keys)
        states = codec.encode_each_at_rest(values, step=step, keys=keys)
        stored = [
            len(name).to_bytes(_LENGTH, "little") + name + state for name, state in zip(names, states, strict=True)
        ]
        self._disk().write(list(zip(self._forms(keys), stored, strict=True)))
        self._count += len(keys)
        self.bytes += sum(map(len, stored))

    def take(self, keys: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Remove the states of ``keys``, which differ. Return the keys that were here, and their states."""
        if not (self._count and keys):
            return [], []
        forms = self._forms(keys)
        stored = self._disk().get(forms)
        there = [one is not None for one in stored]
        found = list(compress(keys, there))
        held = list(filter(None, stored))
        self._forget(list(compress(forms, there)), held)
        return found, self._decoded(held, found)

    def peek(self, keys: Sequence[Any]) -> list[Any]:
        """Return the states of ``keys``, None of a key that is not here."""
        if not (self._count and keys):
            return [None] * len(keys)
        stored = self._disk().get(self._forms(keys))
        there = [one is not None for one in stored]
        states = iter(self._decoded(list(filter(None, stored)), list(compress(keys, there))))
        return [next(states) if is_there else None for is_there in there]

    def drop(self, keys: Sequence[Any]) -> None:
        """Forget the states of ``keys``, which differ."""
        if self._count and keys:
            forms = self._forms(keys)
            stored = self._disk().get(forms)
            self._forget(list(compress(forms, stored)), list(filter(None, stored)))

    def _forget(self, forms: Sequence[bytes], stored: Sequence[bytes]) -> None:
        if forms:
            self._disk().write((), forms)
            self._count -= len(forms)
            self.bytes -= sum(map(len, stored))

    def keys(self) -> Iterator[Any]:
        """Return the keys that are here at the time of the call."""
        return chain.from_iterable(map(self._keys_of, self._pieces()))

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Return each key that is here at the time of the call with its state."""
        return chain.from_iterable(map(self._items_of, self._pieces()))

    def due(self, reached: int, due_at: Callable[[Any, Any], int | None]) -> Iterator[list[Any]]:
        """Yield the keys here whose ``due_at(key, state)`` is at most ``reached``, in pieces."""
        for stored in self._pieces():
            times = ((key, due_at(key, state)) for key, state in self._items_of(stored))
            if keys := [key for key, time in times if time is not None and time <= reached]:
                yield keys

    def _pieces(self) -> Iterator[list[bytes]]:
        found = self._disk().scan(self._prefix) if self._count else iter(())
        return iter(lambda: [stored for _, stored in islice(found, _TOGETHER)], [])

    def _keys_of(self, stored: Sequence[bytes]) -> list[Any]:
        return self._codec.decode_each_at_rest(list(map(_name_in, stored)), step=self._step)

    def _items_of(self, stored: Sequence[bytes]) -> Iterator[tuple[Any, Any]]:
        keys = self._keys_of(stored)
        return zip(keys, self._decoded(stored, keys), strict=True)

    def _decoded(self, stored: Sequence[bytes], keys: Sequence[Any]) -> list[Any]:
        states = [one[_LENGTH + int.from_bytes(one[:_LENGTH], "little") :] for one in stored]
        return self._codec.decode_each_at_rest(states, step=self._step, keys=keys)

    def _forms(self, keys: Sequence[Any]) -> list[bytes]:
        return [self._prefix + self._form_of(key) for key in keys]

    def _form_of(self, key: Any) -> bytes:
        """Return the form of ``key``, for the most frequent types without a call."""
        if type(key) is str:
            return _TEXT + key.encode("utf-8", "surrogatepass")
        if type(key) is int and -_INT_MAX <= key < _INT_MAX:
            return _INT + key.to_bytes(8, "little", signed=True)
        form = self._form(key)
        return _TEXT + form[_OF_TEXT:] if form[:1] == _TEXT else form


def _name_in(stored: bytes) -> bytes:
    return stored[_LENGTH : _LENGTH + int.from_bytes(stored[:_LENGTH], "little")]
