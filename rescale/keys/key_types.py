"""Legal keys and the kind of each key type (F4). Checks keys, hashes nothing.

Rule: a type is legal if all its equal values have one canonical form. So a subclass counts as its base if it keeps the
``==`` of the base, and an unlisted type is refused even if its values equal those of a listed type. Whole lists are
checked by sets of types and loops in C; only a list that fails is searched for the illegal key.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from itertools import chain
from operator import ne
from typing import Any, Final, Literal
from uuid import UUID

from malstrom_py.errors import CodecError

Kind = Literal[
    "none",
    "int",
    "float",
    "decimal",
    "numpy int",
    "numpy float",
    "str",
    "bytes",
    "date",
    "datetime",
    "time",
    "timedelta",
    "uuid",
    "enum",
    "flag",
    "tuple",
    "dataclass",
]

_BASES: Final[tuple[tuple[type, Kind], ...]] = (
    (str, "str"),
    (int, "int"),
    (float, "float"),
    (tuple, "tuple"),
    (bytes, "bytes"),
    (datetime, "datetime"),  # before date, whose subclass it is
    (date, "date"),
    (time, "time"),
    (timedelta, "timedelta"),
    (Decimal, "decimal"),
    (UUID, "uuid"),
)

_TYPES_MAX: Final = 4096
_KINDS: Final[dict[type, Kind | None]] = {}
"""The cache of `kind_of`, which is called once per key."""

_INSTEAD: Final[dict[str, str]] = {
    "list": "make it a tuple",
    "dict": "take tuple(sorted(d.items()))",
    "set": "take tuple(sorted(s))",
    "frozenset": "take tuple(sorted(s))",
    "bytearray": "take bytes(b)",
    "memoryview": "take bytes(m)",
    "Fraction": "take (f.numerator, f.denominator)",
    "complex": "take (c.real, c.imag)",
    "range": "take (r.start, r.stop, r.step)",
    "ndarray": "take tuple(a.tolist())",
    "datetime64": "take .item(), a datetime",
    "timedelta64": "take .item(), a timedelta",
    "Timestamp": "take .to_pydatetime()",
    "Timedelta": "take .to_pytimedelta()",
}
"""Type name -> what to return from ``key_by`` instead."""


def kind_of(key_type: type) -> Kind | None:
    """Return the kind of a key of exactly this type; None if it is refused.

    >>> kind_of(bool), kind_of(tuple), kind_of(list)
    ('int', 'tuple', None)
    """
    try:
        return _KINDS[key_type]
    except KeyError:
        if len(_KINDS) >= _TYPES_MAX:  # bounds the memory for classes that are made at run time
            _KINDS.clear()
        kind = _KINDS[key_type] = _find_kind(key_type)
        return kind


def compared_fields(key_type: type) -> tuple[str, ...]:
    """Return the names of the fields that ``==`` of a dataclass compares, in order."""
    return tuple(field.name for field in fields(key_type) if field.compare)


def why_refused(key_type: type) -> str:
    """Return why a type is refused and what to do, as the end of a sentence about the type."""
    instead = _INSTEAD.get(key_type.__name__)
    if instead is not None:
        return f"which is not a legal key: {instead}"
    if is_dataclass(key_type):
        if not _params(key_type).frozen:
            return "a mutable dataclass: declare it with @dataclass(frozen=True)"
        return "a dataclass that is not compared by its fields: let @dataclass make its ==, or take a tuple of them"
    if key_type.__hash__ is None:
        return "which cannot be hashed: take something immutable, for instance a tuple"
    base = next((base for base in (*(base for base, _ in _BASES), Enum) if issubclass(key_type, base)), None)
    if base is not None:
        return f"which has an == other than that of {base.__name__}: turn it into a plain {base.__name__} or a tuple"
    return "which is not a legal key: take a str, a number or a tuple that identifies it"


def _find_kind(key_type: type) -> Kind | None:
    if key_type is type(None):
        return "none"
    if key_type.__hash__ is None:
        return None
    numpy_kind = _numpy_kind(key_type)
    if numpy_kind is not None:
        return numpy_kind if numpy_kind != "refused" else None
    for base, kind in _BASES:
        if issubclass(key_type, base):
            return kind if _equality(key_type) is _equality(base) else None
    if issubclass(key_type, Enum):
        if _equality(key_type) is not _equality(object):
            return None
        return "flag" if issubclass(key_type, Flag) else "enum"
    return "dataclass" if _is_value_dataclass(key_type) else None


def _equality(key_type: type) -> object:
    return key_type.__eq__


def _numpy_kind(key_type: type) -> Kind | Literal["refused"] | None:
    """Return the kind of a numpy scalar type, None for all other types. Does not import numpy."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not issubclass(key_type, numpy.generic):
        return None
    if issubclass(key_type, numpy.timedelta64):  # to numpy it is a signed integer
        return "refused"
    if issubclass(key_type, (numpy.integer, numpy.bool_)):
        return "numpy int"
    if issubclass(key_type, numpy.floating):
        return "numpy float"
    if issubclass(key_type, numpy.str_):
        return "str"
    return "bytes" if issubclass(key_type, numpy.bytes_) else "refused"


def _is_value_dataclass(key_type: type) -> bool:
    """Return whether a type is a frozen dataclass with the generated ``==``, which compares class and fields.

    A frozen dataclass with ``eq=False`` compares by identity, which has no meaning in another process.
    """
    if not is_dataclass(key_type) or not _params(key_type).frozen:
        return False
    code = getattr(key_type.__eq__, "__code__", None)
    return code is not None and code.co_filename == "<string>"  # the file name of generated code


def _params(key_type: type) -> Any:
    return key_type.__dataclass_params__  # type: ignore[attr-defined]


DEPTH_MAX: Final = 32
"""The largest nesting depth of tuples and dataclasses in a key."""

_PLAIN: Final = frozenset((str, int, bool, bytes, type(None), date, datetime, time, timedelta, UUID))
"""Types whose values are all legal; subclasses are not included."""


def check_key(key: object, step: str = "") -> None:
    """Raise `CodecError` if ``key`` is not legal; the error names ``step``, the type and what to do.

    >>> check_key(("UA", 1, None))
    >>> check_key(["UA", 1], "carrier")
    Traceback (most recent call last):
    malstrom_py.errors.CodecError: step 'carrier': a key is of type list, which is not a legal key: make it a tuple.
    """
    if type(key) not in _PLAIN:
        _check(key, type(key), step, DEPTH_MAX)


def check_keys(keys: Sequence[Any], step: str = "") -> set[type] | None:
    """Check all of ``keys`` as `check_key` does. Return the types of what they are and hold; None if not known.

    >>> check_keys(["a", "b", 1]) == {str, int}, check_keys([("a", (1,))]) == {tuple, str, int}
    (True, True)
    """
    types = set(map(type, keys))
    if _PLAIN.issuperset(types):
        return types
    held = set(types)
    if _all_legal(keys, types, DEPTH_MAX, held):
        return held
    for key in keys:
        check_key(key, step)
    return None


def _all_legal(values: Sequence[Any], types: set[type], depth: int, held: set[type]) -> bool:
    """Return whether ``values``, of ``types``, are legal; if so, ``held`` has got the types of what is inside them."""
    for one in types - _PLAIN:
        those = values if len(types) == 1 else [value for value in values if type(value) is one]
        if not _all_of_type_legal(those, one, depth, held):
            return False
    return True


def _all_of_type_legal(those: Sequence[Any], one: type, depth: int, held: set[type]) -> bool:
    kind = kind_of(one)
    if kind in ("float", "numpy float"):
        return not any(map(ne, those, those))  # only NaN is unequal to itself
    if kind == "decimal":
        return not any(map(Decimal.is_nan, those))
    if kind == "tuple":
        return depth > 0 and _all_inside(list(chain.from_iterable(those)), depth, held)
    if kind == "dataclass":
        columns = ([getattr(value, name) for value in those] for name in compared_fields(one))
        return depth > 0 and all(_all_inside(column, depth, held) for column in columns)
    return kind is not None


def _all_inside(values: list[Any], depth: int, held: set[type]) -> bool:
    types = set(map(type, values))
    held |= types
    return _PLAIN.issuperset(types) or _all_legal(values, types, depth - 1, held)


def _check(value: Any, outer: type, step: str, depth: int) -> None:
    """Check ``value``, which is a key of type ``outer`` or is nested in such a key."""
    kind = kind_of(type(value))
    if kind is None:
        raise _refusal(type(value), outer, step, why_refused(type(value)))
    if kind in ("float", "numpy float", "decimal"):
        if Decimal.is_nan(value) if kind == "decimal" else value != value:
            why = "and NaN, which equals nothing, not even itself: return None, or filter NaN out first"
            raise _refusal(type(value), outer, step, why)
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
