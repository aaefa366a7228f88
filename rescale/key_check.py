"""Is a key legal (F4)? Only looks, hashes nothing: this is what a job with one worker does.

Rule: whole lists are judged by sets of types and loops in C; only when that says no is the culprit looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from operator import ne
from typing import Any, Final
from uuid import UUID

from malstrom_py.errors import CodecError
from malstrom_py.rescale.key_types import compared_fields, kind_of, why_refused

DEPTH_MAX: Final = 32
"""How deep tuples and dataclasses may be nested in a key."""

_PLAIN: Final = frozenset((str, int, bool, bytes, type(None), date, datetime, time, timedelta, UUID))
"""Types of which every value is legal, as long as it is exactly this type."""


def check_key(key: object, step: str = "") -> None:
    """`CodecError` if ``key`` is no legal key; it names ``step``, the type and what to do.

    >>> check_key(("UA", 1, None))
    >>> check_key(["UA", 1], "carrier")
    Traceback (most recent call last):
    malstrom_py.errors.CodecError: step 'carrier': a key is of type list, which is no key: make it a tuple.
    """
    if type(key) not in _PLAIN:
        _check(key, type(key), step, DEPTH_MAX)


def check_keys(keys: Sequence[Any], step: str = "") -> set[type]:
    """`check_key` for all of ``keys`` at once; the types among them.

    >>> check_keys(["a", "b", 1]) == {str, int}
    True
    """
    types = set(map(type, keys))
    if not _PLAIN.issuperset(types) and not _all_legal(keys, types, DEPTH_MAX):
        for key in keys:
            check_key(key, step)
    return types


def _all_legal(values: Sequence[Any], types: set[type], depth: int) -> bool:
    for one in types - _PLAIN:
        those = values if len(types) == 1 else [value for value in values if type(value) is one]
        if not _all_of_type_legal(those, one, depth):
            return False
    return True


def _all_of_type_legal(those: Sequence[Any], one: type, depth: int) -> bool:
    kind = kind_of(one)
    if kind in ("float", "numpy float"):
        return not any(map(ne, those, those))  # NaN is all that is unequal to itself
    if kind == "decimal":
        return not any(map(Decimal.is_nan, those))
    if kind == "tuple":
        return depth > 0 and _all_inside(list(chain.from_iterable(those)), depth)
    if kind == "dataclass":
        columns = ([getattr(value, name) for value in those] for name in compared_fields(one))
        return depth > 0 and all(_all_inside(column, depth) for column in columns)
    return kind is not None


def _all_inside(values: list[Any], depth: int) -> bool:
    types = set(map(type, values))
    return _PLAIN.issuperset(types) or _all_legal(values, types, depth - 1)


def _check(value: Any, outer: type, step: str, depth: int) -> None:
    """Check ``value``, which is a key of type ``outer`` or stands somewhere inside of it."""
    kind = kind_of(type(value))
    if kind is None:
        raise _refusal(type(value), outer, step, why_refused(type(value)))
    if kind in ("float", "numpy float", "decimal"):
        if Decimal.is_nan(value) if kind == "decimal" else value != value:
            raise _refusal(type(value), outer, step, "and NaN, which equals nothing: take None, or filter it before")
    elif kind in ("tuple", "dataclass"):
        if depth == 0:
            raise _refusal(type(value), outer, step, f"nested more than {DEPTH_MAX} deep: take a flat tuple")
        for item in value if kind == "tuple" else _compared_values(value):
            if type(item) not in _PLAIN:
                _check(item, outer, step, depth - 1)


def _compared_values(value: Any) -> list[Any]:
    return [getattr(value, name) for name in compared_fields(type(value))]


def _refusal(culprit: type, outer: type, step: str, why: str) -> CodecError:
    where = f"step {step!r}: " if step else ""
    what = "a key is of type" if culprit is outer else f"a key of type {outer.__name__} holds a"
    return CodecError(f"{where}{what} {culprit.__name__}, {why}.", step=step, type_name=culprit.__name__)
