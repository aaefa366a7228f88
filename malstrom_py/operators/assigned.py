"""The states of a step as hooks over all keys are given them: it is known afterwards which keys were assigned.

Rule: to read costs what a dict costs, and what follows an assignment costs by the keys that were assigned, not by all.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, MutableMapping, Set, ValuesView
from typing import Any

from malstrom_py.errors import own_words


class Assigned(MutableMapping[Any, Any]):
    """``values``, key -> state. ``changed``: the keys that were assigned or dropped; ``made``: of these, those that had
    no state before.

    >>> values = {"a": 1, "b": 2}
    >>> states = Assigned(values)
    >>> states["a"], states["c"] = 5, 6
    >>> del states["b"]
    >>> values, sorted(states.changed), states.made
    ({'a': 5, 'c': 6}, ['a', 'b', 'c'], {'c'})
    """

    __slots__ = ("_values", "changed", "made")

    def __init__(self, values: dict[Any, Any]) -> None:
        self._values = values
        self.changed: set[Any] = set()
        self.made: set[Any] = set()

    @property
    def before(self) -> Set[Any]:
        """The keys that had state before."""
        keys = self._values.keys()
        return (keys | self.changed) - self.made if self.changed else keys

    def __getitem__(self, key: Any) -> Any:
        return self._values[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._change(key)
        self._values[key] = value

    def __delitem__(self, key: Any) -> None:
        if key in self._values:
            self._change(key)
        del self._values[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __repr__(self) -> str:
        return repr(self._values)

    def get(self, key: Any, default: Any = None) -> Any:
        return self._values.get(key, default)

    def keys(self) -> KeysView[Any]:
        return self._values.keys()

    def values(self) -> ValuesView[Any]:
        return self._values.values()

    def items(self) -> ItemsView[Any, Any]:
        return self._values.items()

    def popitem(self) -> tuple[Any, Any]:
        for key in reversed(self._values):
            return key, self.pop(key)
        raise own_words(KeyError("there is no state left"))

    def clear(self) -> None:
        self.changed |= self._values.keys()
        self._values.clear()

    def _change(self, key: Any) -> None:
        if key not in self.changed:
            self.changed.add(key)
            if key not in self._values:
                self.made.add(key)
