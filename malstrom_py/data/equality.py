"""One meaning of a value wherever values are compared: an instant is an instant, and NaN is a number.

Rules. Aware datetimes are equal, ordered and hashed by UTC. Python does so across zones only: within one zone it
compares clock times, so that the two readings of a repeated hour are equal, and either of them equals no time of
another zone (PEP 495). NaN equals NaN and is larger than every other number. Both hold within tuples, frozensets and
dataclasses. `settled` makes a key of a value, `seen_form` an element of a set, `ordered` something to compare by ``<``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from itertools import chain
from numbers import Number
from operator import attrgetter, is_
from types import NoneType
from typing import Any, Final
from uuid import UUID

AS_THEY_ARE: Final = frozenset((str, int, bool, bytes, NoneType, date, time, timedelta, UUID))
"""Types whose values Python compares and hashes as meant; subclasses are not included."""

IN_ORDER: Final = AS_THEY_ARE | {float}
"""Types that ``<`` compares as meant, but for NaN, which differs from itself."""

_SEEN_NAN: Final = UUID("cfa76c0f-2f8e-4f63-9d06-6f3a0c4e6e4e")
"""Is there for NaN in sets of values that were seen: unlike NaN it is found again, also after it was stored."""


class _Nan:
    """Is NaN where values are compared by ``<``."""

    __slots__ = ()

    def __lt__(self, other: object) -> bool:
        return False if self._is_compared(other) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return other is not self if self._is_compared(other) else NotImplemented

    def _is_compared(self, other: object) -> bool:
        return other is self or isinstance(other, Number)


_NAN: Final = _Nan()


_NO_MOMENTS: Final = AS_THEY_ARE | {float, Decimal}

_zone_of: Final = attrgetter("tzinfo")

_FIXED_TYPES: Final = frozenset((NoneType, timezone))
"""Types of zones with one offset, or none."""


def hold_no_moments(keys: Sequence[Any]) -> bool:
    """Return whether ``keys`` neither are nor hold datetimes, as their types show.

    >>> hold_no_moments([1, ("a", (2.5,))]), hold_no_moments([(datetime(2024, 1, 1),)])
    (True, False)
    """
    others = set(map(type, keys)) - _NO_MOMENTS
    if not others:
        return True
    if not all(issubclass(one, tuple) for one in others):
        return False
    return hold_no_moments(list(chain.from_iterable(key for key in keys if isinstance(key, tuple))))


def settled_keys(keys: list[Any], held: object = None) -> list[Any]:
    """Return ``keys``, each `settled`; ``keys`` itself if all are. ``held``: the types of what they are and hold, which
    the check of keys knows; None if not known.
    """
    if isinstance(held, set):
        settles = all(issubclass(one, tuple) for one in held - _NO_MOMENTS)
    else:
        settles = hold_no_moments(keys)
    if settles:
        return keys
    if held == {datetime} and _FIXED_TYPES.issuperset(map(type, map(_zone_of, keys))):
        return keys
    made = list(map(settled, keys))
    return keys if all(map(is_, made, keys)) else made


def settled_of_column(values: list[Any], type_name: str) -> list[Any]:
    """Return the values of a column of the Arrow type ``type_name`` as `settled_keys` does."""
    return settled_keys(values) if "tz=" in type_name else values


def settled(key: Any) -> Any:
    """Return ``key`` such that ``==`` and ``hash`` compare its instants: with the offset that an ambiguous time has.

    >>> from zoneinfo import ZoneInfo
    >>> berlin = ZoneInfo("Europe/Berlin")
    >>> first, second = (datetime(2024, 10, 27, 2, 30, fold=fold, tzinfo=berlin) for fold in (0, 1))
    >>> first == second, settled(first) == settled(second), str(settled(second))
    (True, False, '2024-10-27 02:30:00+01:00')
    >>> settled(second) == second.astimezone(timezone.utc), settled(datetime(2024, 7, 1, tzinfo=berlin)).tzinfo
    (True, zoneinfo.ZoneInfo(key='Europe/Berlin'))
    """
    kind = type(key)
    if kind is datetime:  # the most frequent of those that may change
        return _settled_one(key)
    return key if kind in AS_THEY_ARE else _with_parts(key, settled, _settled_one)


def first_reading(key: Any) -> Any:
    """Return a key of an earlier version `settled`: the two readings were one, which the first of them is now."""
    return key if type(key) in AS_THEY_ARE else _with_parts(key, first_reading, _first_of_two)


def has_offset_alone(key: Any) -> bool:
    """Return whether ``key`` is or holds a time that `settled` may have made."""
    found: list[Any] = []

    def look(part: Any) -> Any:
        if type(part) not in AS_THEY_ARE:
            _with_parts(part, look, note)
        return part

    def note(part: Any) -> Any:
        if isinstance(part, datetime) and type(part.tzinfo) is timezone and part.tzinfo is not UTC:
            found.append(part)
        return part

    look(key)
    return bool(found)


def seen_form(value: Any) -> Any:
    """Return what a set has for a hashable ``value``: equal values have equal forms, which can be stored.

    >>> nan = float("nan")
    >>> seen_form(nan) == seen_form(-nan), seen_form((1, nan)) == seen_form((1, float("nan"))), seen_form(1.5)
    (True, True, 1.5)
    """
    if type(value) is float:
        return value if value == value else _SEEN_NAN  # only NaN differs from itself
    kind = type(value)
    if kind is datetime:
        return _settled_one(value)
    return value if kind in AS_THEY_ARE else _with_parts(value, seen_form, _seen_one)


def is_nan_form(form: Any) -> bool:
    """Return whether a `seen_form` is that of NaN."""
    return form is _SEEN_NAN


def ordered(value: Any) -> Any:
    """Return what ``<`` compares instead of ``value``. `TypeError`, when it is compared, if ``value`` has no order.

    >>> ordered(float("nan")) > ordered(float("inf")), ordered((1, float("nan"))) < ordered((2, 0))
    (True, True)
    """
    if type(value) is float:
        return value if value == value else _NAN
    return value if type(value) in AS_THEY_ARE else _with_parts(value, ordered, _ordered_one)


def is_smaller(one: Any, other: Any) -> bool:
    """Return whether ``one`` comes before ``other``."""
    return bool(ordered(one) < ordered(other))


def _settled_one(value: Any) -> Any:
    if isinstance(value, datetime) and _is_ambiguous(value):
        return _at_its_offset(value)
    return value


def _first_of_two(value: Any) -> Any:
    if isinstance(value, datetime) and _is_ambiguous(value):
        return _at_its_offset(value.replace(fold=0))
    return value


def _seen_one(value: Any) -> Any:
    return _SEEN_NAN if _is_nan(value) else _settled_one(value)


def _ordered_one(value: Any) -> Any:
    if _is_nan(value):
        return _NAN
    return _at_its_offset(value) if isinstance(value, datetime) and _has_offset(value) else value


def _is_nan(value: Any) -> bool:
    return isinstance(value, Number) and bool(value != value)  # only NaN differs from itself


def _is_ambiguous(moment: datetime) -> bool:
    """Return whether the offset of ``moment`` depends on its fold.

    A subclass may compare instants itself, as that of pandas, but hash a second reading as the first.
    """
    if type(moment.tzinfo) in _FIXED_TYPES or not (_is_of_python(moment) or moment.fold):
        return False
    return moment.utcoffset() != moment.replace(fold=1 - moment.fold).utcoffset()


def _has_offset(moment: datetime) -> bool:
    """Return whether ``moment`` has an offset that may be another at another time, and is compared by Python's rule."""
    return type(moment.tzinfo) not in _FIXED_TYPES and _is_of_python(moment) and moment.utcoffset() is not None


def _is_of_python(moment: datetime) -> bool:
    """Return whether ``moment`` is compared by Python's rule: a subclass, as that of pandas, may have its own."""
    return type(moment) is datetime or type(moment).__eq__ is datetime.__eq__


def _at_its_offset(moment: datetime) -> datetime:
    """Return the instant with the same clock time and the offset alone: not in UTC, where year 1 may not hold it."""
    return moment.replace(tzinfo=timezone(moment.utcoffset() or timedelta()), fold=0)


def _with_parts(value: Any, part_form: Callable[[Any], Any], form: Callable[[Any], Any]) -> Any:
    """Return ``value`` with other parts, if it has any and they change; else its ``form``."""
    kind = type(value)
    if isinstance(value, tuple | list):
        own: object = kind.__eq__
        if own is not tuple.__eq__ and own is not list.__eq__:
            return value
        if AS_THEY_ARE.issuperset(map(type, value)):
            return value
        made = list(map(part_form, value))
        if all(map(is_, made, value)):
            return value
        return tuple.__new__(kind, made) if isinstance(value, tuple) else made
    if kind is frozenset:
        return frozenset(map(part_form, value))
    if is_dataclass(kind) and kind.__eq__ is not object.__eq__:
        return _with_fields(value, part_form)
    return form(value)


def _with_fields(value: Any, part_form: Callable[[Any], Any]) -> Any:
    names = [field.name for field in fields(value) if field.compare]
    parts = [getattr(value, name) for name in names]
    made = list(map(part_form, parts))
    if all(map(is_, made, parts)):
        return value
    other = copy(value)
    for name, part in zip(names, made, strict=True):
        object.__setattr__(other, name, part)  # the class may be frozen
    return other
