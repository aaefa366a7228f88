"""Copies the state of leaving keys, chunk by chunk, while their old owner works with it (R12).

Rule: only steps that keep their state by key in a dict, and that do no more at a move than take it out and put it in,
are copied; all others send their state at the cut, and so do small keys. Between two chunks the region works, and the
steps note which keys change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

from malstrom_py.operators.base import Operator
from malstrom_py.rescale.keys.key_hash import encode_key
from malstrom_py.rescale.moves.pre_copy import CopyRounds
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.workers.engine.rough_sizes import rough_size

KEYS_LOOKED_AT: Final = 4096
"""The number of keys that are looked at between two steps: a few milliseconds."""

KEYS_OF_LEAST: Final = 64
"""To confirm a small key takes as long as to send it: one goes ahead if so many like it were worth a copy."""

_SAMPLED: Final = 16
_SAMPLED_BYTES: Final = 1 << 16
_DEPTH: Final = 3


def in_order(keys: Collection[Any]) -> list[Any]:
    """Return ``keys`` in an order that is the same in every process."""
    plain = set(map(type, keys)) <= {str} or set(map(type, keys)) <= {int}
    return sorted(keys) if plain else sorted(keys, key=encode_key)


class KeyGroup(NamedTuple):
    """Steps with one mapping of keys to slots. ``keys_in``: slot -> the keys that may have state; ``states``: those
    that go ahead; ``is_whole``: whether these are all.
    """

    keys_in: Callable[[int], Sequence[Any]]
    states: Sequence[KeyedState]
    is_whole: bool

    @classmethod
    def of(cls, operators: Sequence[Operator], keys_in: Callable[[int], Sequence[Any]]) -> KeyGroup:
        """Return the group of ``operators``."""
        states = [state for operator in operators if (state := operator.state_ahead) is not None and state.goes_ahead]
        return cls(keys_in, states, len(states) == sum(operator.keys is not None for operator in operators))

    def is_ahead(self, key: Any) -> bool:
        """Return whether all state of ``key`` is ahead; False if none goes ahead."""
        return bool(self.states) and all(state.is_ahead(key) for state in self.states)

    def size(self, key: Any, other: int) -> int:
        """Return about how many bytes the state of ``key`` has. ``other``: of a value that is not plain."""
        values = [state.values_of([key])[0] for state in self.states if state.goes_ahead]
        return sum(rough_size(value, depth=_DEPTH, other=other) for value in values)


class AheadCopy:
    """The copies of ``groups`` that go ahead of the move to ``version``, by ``rounds``.

    ``least``: with fewer bytes left there is no further round, and a key with less than a part of it stays.
    ``bounds``: the bytes, about, and the keys of a chunk.
    """

    def __init__(
        self,
        version: int,
        groups: Sequence[KeyGroup],
        rounds: CopyRounds,
        *,
        least: int,
        bounds: tuple[int, int],
    ) -> None:
        self.version = version
        self._groups = [group for group in groups if group.states]
        self._rounds = rounds
        self._bytes_max, self._keys_max = bounds
        self._key_least = least // KEYS_OF_LEAST
        samples = [state.sampled_bytes(_SAMPLED, _SAMPLED_BYTES) for group in self._groups for state in group.states]
        self._other = int(sum(size / keys for keys, size in samples if keys))
        self._sent = (0, 0)
        self.under_way = bool(self._groups)
        self._keys: list[deque[Any]] | None = None

    def _bytes_changed(self) -> int:
        """Return about how many bytes were sent of keys that have changed since."""
        keys, size = self._sent
        changed = sum(max(state.counted_ahead[1] for state in group.states) for group in self._groups)
        return changed * size // keys if keys else 0

    def next(self) -> tuple[int, dict[str, bytes]]:
        """Return the state of the next keys, and their new owner; no state if none of the keys that were looked at goes
        ahead. Requires `under_way`.
        """
        now = self._rounds.now
        owner = -1 if now is None else now[0]
        found: list[list[Any]] = [[] for _ in self._groups]
        room = self._bytes_max
        looks = KEYS_LOOKED_AT
        while now is not None and now[0] == owner and looks > 0 and room > 0:
            looks, room = self._look(now[1], looks, room, found)
            now = self._rounds.now
        states = self._copied(found)
        if self._rounds.now is None and not self._rounds.again(self._bytes_changed()):
            self.under_way = False
        return owner, states

    def _look(self, slot: int, looks: int, room: int, found: list[list[Any]]) -> tuple[int, int]:
        """Add keys of ``slot`` that go ahead to ``found``, by group. Return how many keys may be looked at after that,
        and for how many bytes there is room in the chunk: none if it has as many keys as it may.
        """
        if self._keys is None:
            self._keys = [deque(in_order(group.keys_in(slot))) for group in self._groups]
        looks -= 1
        for group, keys, some in zip(self._groups, self._keys, found, strict=True):
            while keys and looks > 0 and room > 0:
                key = keys.popleft()
                looks -= 1
                size = group.size(key, self._other)
                if size >= self._key_least and not group.is_ahead(key):
                    some.append(key)
                    room = room - size if sum(map(len, found)) < self._keys_max else 0
        if not any(self._keys):
            self._keys = None
            self._rounds.slot_over()
        return looks, room

    def _copied(self, found: list[list[Any]]) -> dict[str, bytes]:
        """Return the states of the keys that were found, and count them."""
        states: dict[str, bytes] = {}
        for group, keys in zip(self._groups, found, strict=True):
            for state in group.states if keys else ():
                copied = state.send_ahead(keys) if state.goes_ahead else None
                if copied is not None:
                    states[state.step] = copied
        count, size = sum(map(len, found)), sum(map(len, states.values()))
        if count:
            self._rounds.sent(size)
            self._sent = (self._sent[0] + count, self._sent[1] + size)
            self._other = max(self._other, size // count)
        return states
