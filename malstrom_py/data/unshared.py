"""Copies of values that a user's function may change although others hold them too.

Rule: what cannot change is not copied: `unshared` of a number or a text costs one look at its type.
"""

from __future__ import annotations

import copy
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

PLAIN: Final = frozenset(
    (
        *(int, float, bool, str, bytes, complex, type(None)),
        *(datetime, date, time, timedelta, Decimal, Fraction, UUID),
    )
)
"""Types of which no value changes."""


_DEEP: Final = 8
"""Containers within containers are copied here to this depth, what is deeper by `copy.deepcopy`, which knows cycles."""


def unshared(value: Any, depth: int = _DEEP) -> Any:
    """Return ``value``, or a deep copy of it if it may change.

    >>> shared = [1, [2]]
    >>> own = unshared(shared)
    >>> own[1].append(3)
    >>> shared, own
    ([1, [2]], [1, [2, 3]])
    """
    kind: type = type(value)
    if kind in PLAIN:
        return value
    # A deep copy asks for each item and remembers it; this is ten to twenty times faster.
    if kind is dict:
        return value.copy() if PLAIN.issuperset(map(type, value.values())) else _with_own(value, depth)
    if kind is list or kind is set:
        return value.copy() if PLAIN.issuperset(map(type, value)) else _with_own(value, depth)
    if isinstance(value, tuple) and PLAIN.issuperset(map(type, value)) and not hasattr(value, "__dict__"):
        return value  # named tuples, too
    if (frozen := _is_frozen(kind)) is not None and PLAIN.issuperset(map(type, vars(value).values())):
        return value if frozen else copy.copy(value)
    return copy.deepcopy(value)


def _with_own(container: Any, depth: int) -> Any:
    """Return a copy of a dict or list whose items are copied too."""
    if depth == 0 or type(container) is set:
        return copy.deepcopy(container)
    if type(container) is dict:
        return {key: unshared(value, depth - 1) for key, value in container.items()}
    return [unshared(value, depth - 1) for value in container]


@lru_cache(maxsize=4096)
def _is_frozen(kind: type) -> bool | None:
    """Return whether the dataclass ``kind`` is frozen; None if a copy of it may need more than its attributes."""
    if not all(base is object or is_dataclass(base) for base in kind.__mro__):
        return None
    if any(own in vars(base) for base in kind.__mro__ for own in ("__slots__", "__deepcopy__")):
        return None
    return bool(vars(kind)["__dataclass_params__"].frozen) if "__dataclass_params__" in vars(kind) else None
