"""State that goes ahead of a move (R12): what its old owner has sent, and what its new owner keeps aside.

Rule: nothing that came ahead is used until the old owner has confirmed it, key by key, after the cut. So a key that has
changed since is sent again, and one that is gone is not confirmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from malstrom_py.errors import InternalError, shown
from malstrom_py.state.entries import Times


class SentKeys:
    """The keys of ``values`` whose state has been sent ahead; ``changed``: the keys that have changed since.

    >>> values = {"a": 1, "b": 2}
    >>> ahead = SentKeys(values)
    >>> ahead.sent(["a", "b"])
    >>> ahead.changed.add("a")
    >>> ahead.same(["a", "b", "c"], values), ahead.same(["b"], {"b": 2})
    (['b'], [])
    """

    __slots__ = ("_keys", "_values", "changed")

    def __init__(self, values: Mapping[Any, Any]) -> None:
        self._values = values
        self._keys: set[Any] = set()
        self.changed: set[Any] = set()

    def is_of(self, values: Mapping[Any, Any]) -> bool:
        """Return whether these are the values of which changes are noted: a step may go over to another mapping."""
        return values is self._values

    @property
    def counted(self) -> tuple[int, int]:
        """How many keys have been sent, and how many of them have changed after that."""
        return len(self._keys), len(self.changed & self._keys)

    def sent(self, keys: Iterable[Any]) -> None:
        """Note that the state of ``keys`` has been sent."""
        keys = list(keys)
        self._keys.update(keys)
        self.changed.difference_update(keys)

    def has(self, key: Any, values: Mapping[Any, Any]) -> bool:
        """Return whether the state of ``key`` has been sent and has not changed since."""
        return key in self._keys and key not in self.changed and self.is_of(values)

    def same(self, keys: Iterable[Any], values: Mapping[Any, Any]) -> list[Any]:
        """Return those of ``keys`` whose state has been sent and has not changed since, in their order."""
        if not self.is_of(values):
            return []
        sent, changed = self._keys, self.changed
        return [key for key in keys if key in sent and key not in changed]


class KeptAside:
    """The state that came ahead, by key. A later copy replaces an earlier one.

    >>> aside = KeptAside()
    >>> aside.put(["a", "b"], [1, 2], {})
    >>> aside.put(["a"], [3], {})
    >>> aside.take(["a"], "count"), len(aside)
    (([3], {}), 1)
    """

    __slots__ = ("_states",)

    def __init__(self) -> None:
        self._states: dict[Any, tuple[Any, Times | None]] = {}

    def __len__(self) -> int:
        return len(self._states)

    def put(self, keys: Sequence[Any], values: Sequence[Any], times: Mapping[Any, Times]) -> None:
        """Keep the values and times of ``keys``."""
        for key, value in zip(keys, values, strict=True):
            self._states[key] = (value, times.get(key))

    def take(self, keys: Sequence[Any], step: str) -> tuple[list[Any], dict[Any, Times]]:
        """Remove the states of ``keys``, and return their values and times. `InternalError` if one has not come."""
        values: list[Any] = []
        times: dict[Any, Times] = {}
        for key in keys:
            kept = self._states.pop(key, None)
            if kept is None:
                raise InternalError(f"step {step!r}: state of key {shown(key)} was confirmed, and has not come (R12)")
            values.append(kept[0])
            if kept[1] is not None:
                times[key] = kept[1]
        return values, times
