"""Copies the state of leaving keys, chunk by chunk, while their old owner works with it (R12).

Rule: only steps that keep their state by key in a dict, and that do no more at a move than take it out and put it in,
are copied; all others send their state at the cut. Between two chunks the region works, and the steps note which keys
change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

from malstrom_py.operators.base import Operator
from malstrom_py.rescale.keys.key_hash import encode_key
from malstrom_py.rescale.moves.pre_copy import CopyRounds
from malstrom_py.state.keyed_state import KeyedState

KEYS_LOOKED_AT: Final = 4096
"""The number of keys that are looked at between two steps: a few milliseconds."""

KEYS_OF_LEAST: Final = 64
"""The bytes that are worth it must not be those of more keys: with 1 MB, keys of less than 16 kB stay."""

_SAMPLED: Final = 16
_SAMPLED_BYTES: Final = 1 << 16


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

    def left(self, slots: Iterable[int]) -> int:
        """Return about how many keys of ``slots`` have state that is not ahead. Goes through no keys, only through the
        changed ones.
        """
        sent = min(state.counted_ahead[0] for state in self.states)
        changed = max(state.counted_ahead[1] for state in self.states)
        return max(0, sum(len(self.keys_in(slot)) for slot in slots) - sent) + changed

    def is_ahead(self, key: Any) -> bool:
        """Return whether all state of ``key`` is ahead; False if none goes ahead."""
        return bool(self.states) and all(state.is_ahead(key) for state in self.states)


class AheadCopy:
    """The copies of ``groups`` that go ahead of the move to ``version``, by ``rounds``.

    ``least``: with fewer bytes nothing goes ahead. ``bounds``: the bytes, about, and the keys of a chunk.
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
        chunk_bytes, keys_max = bounds
        self.version = version
        self._groups = [group for group in groups if group.states]
        self._rounds = rounds
        samples = [state.sampled_bytes(_SAMPLED, _SAMPLED_BYTES) for group in self._groups for state in group.states]
        self._key_bytes = sum(size / keys for keys, size in samples if keys)
        self.keys_max = max(1, min(keys_max, int(chunk_bytes / self._key_bytes))) if self._key_bytes else keys_max
        # To confirm a small key takes as long as to send it.
        is_worth_it = self._bytes_left() >= least and self._key_bytes * KEYS_OF_LEAST >= least
        self.under_way = bool(self._groups) and is_worth_it
        self._keys: list[deque[Any]] | None = None

    def _bytes_left(self) -> float:
        """Return about how many bytes are not ahead."""
        return sum(group.left(self._rounds.slots) for group in self._groups) * self._key_bytes

    def next(self) -> tuple[int, dict[str, bytes]]:
        """Return the state of the next keys, and their new owner; no state if no key of those that were looked at has
        any that is not ahead. Requires `under_way`.
        """
        now = self._rounds.now
        owner = -1 if now is None else now[0]
        found: list[list[Any]] = [[] for _ in self._groups]
        looks = KEYS_LOOKED_AT
        while now is not None and now[0] == owner and looks > 0 and sum(map(len, found)) < self.keys_max:
            looks = self._look(now[1], looks, found)
            now = self._rounds.now
        states = self._copied(found)
        if self._rounds.now is None and not self._rounds.again(int(self._bytes_left())):
            self.under_way = False
        return owner, states

    def _look(self, slot: int, looks: int, found: list[list[Any]]) -> int:
        """Add the keys of ``slot`` that are not ahead to ``found``, by group, up to `keys_max` in all. Return how many
        keys may be looked at after that.
        """
        if self._keys is None:
            self._keys = [deque(in_order(group.keys_in(slot))) for group in self._groups]
        looks -= 1
        room = self.keys_max - sum(map(len, found))
        for group, keys, some in zip(self._groups, self._keys, found, strict=True):
            while keys and looks > 0 and room > 0:
                key = keys.popleft()
                looks -= 1
                if not group.is_ahead(key):
                    some.append(key)
                    room -= 1
        if not any(self._keys):
            self._keys = None
            self._rounds.slot_over()
        return looks

    def _copied(self, found: list[list[Any]]) -> dict[str, bytes]:
        """Return the states of the keys that were found, and count them."""
        states: dict[str, bytes] = {}
        for group, keys in zip(self._groups, found, strict=True):
            for state in group.states if keys else ():
                copied = state.send_ahead(keys) if state.goes_ahead else None
                if copied is not None:
                    states[state.step] = copied
                    self._rounds.sent(len(copied))
        return states
