"""Kinds of values that Arrow would quietly turn into each other, told apart before it sees them.

Arrow makes dates of datetimes, drops or invents zones, makes bytes of text, numbers of bools, or refuses, depending on
which value of a batch comes first. So a column holds one of these kinds from its first value on, and refuses the
others; whole numbers alone may stand beside floats, and not even they where kinds are `exact`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import MalstromError

if TYPE_CHECKING:
    import pyarrow as pa

# In this order: a bool is an Integral, a datetime a date.
_KIND_OF: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (bool, "bool"),
    (Integral, "int"),
    (Real, "float"),
    (Decimal, "Decimal"),
    (date, "date"),
    (time, "time"),
    (timedelta, "timedelta"),
    (str, "str"),
    ((bytes, bytearray, memoryview), "bytes"),
)
_NAIVE: Final = "datetime without a zone"
_ZONED: Final = "datetime with a zone"


class Kinds:
    """The kind of each column, and of each field and list inside it, as far as it matters.

    ``error`` makes the error that is raised of its message. ``exact``: ints and floats are two kinds, Decimals of
    different places are, so are dicts of different fields, and an int has 64 bits: for whom batches are gone before
    the next one comes, so that nothing can be widened later.
    """

    def __init__(self, error: Callable[[str], MalstromError], *, exact: bool = False) -> None:
        self._error = error
        self._exact = exact
        self._known: dict[str, str] = {}

    def check(self, name: str, values: Sequence[Any]) -> None:
        """The error, naming the column, if ``values`` hold two kinds, or another one than came before.

        >>> from malstrom_py.errors import SinkError
        >>> kinds = Kinds(SinkError)
        >>> kinds.check("day", [date(2013, 1, 1), None])
        >>> kinds.check("day", [datetime(2013, 1, 1)])
        Traceback (most recent call last):
        malstrom_py.errors.SinkError: column 'day' holds date and datetime without a zone: make them alike in a map step
        """
        types = set(map(type, values))
        found: set[str] = set()
        for kind in types:
            if issubclass(kind, datetime):
                found |= {_ZONED if value.tzinfo else _NAIVE for value in values if isinstance(value, datetime)}
            else:
                found.update([told for classes, told in _KIND_OF if issubclass(kind, classes)][:1])
        self._learn(name, _exactly(found, values) if self._exact else found)
        if any(issubclass(kind, dict) for kind in types):
            self._check_fields(name, [value for value in values if isinstance(value, dict)])
        if any(issubclass(kind, list | tuple) for kind in types):
            inner = chain.from_iterable(value for value in values if isinstance(value, list | tuple))
            self.check(f"{name}[]", list(inner))

    def check_type(self, name: str, kind: pa.DataType) -> None:
        """The same for a column of an Arrow type, which says its kind whatever it holds."""
        import pyarrow as pa

        if pa.types.is_struct(kind):
            for field in kind:
                self.check_type(f"{name}.{field.name}", field.type)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            self.check_type(f"{name}[]", kind.value_type)
        else:
            self._learn(name, _kinds_of_type(kind))

    def _learn(self, name: str, found: set[str]) -> None:
        kinds = found | ({self._known[name]} if name in self._known else set())
        if kinds == {"int", "float"} and not self._exact:
            kinds = {"float"}
        if len(kinds) > 1:
            raise self._error(f"column {name!r} holds {' and '.join(sorted(kinds))}: make them alike in a map step")
        if kinds:
            self._known[name] = kinds.pop()

    def _check_fields(self, name: str, rows: Iterable[dict[Any, Any]]) -> None:
        fields: dict[Any, list[Any]] = {}
        for row in rows:
            for field, value in row.items():
                fields.setdefault(field, []).append(value)
        for field, values in fields.items():
            self.check(f"{name}.{field}", values)


def _exactly(found: set[str], values: Sequence[Any]) -> set[str]:
    """``found``, told apart further: Decimals by their places, ints by whether they fit, dicts of different fields."""
    if "Decimal" in found:
        places = {value.as_tuple().exponent for value in values if isinstance(value, Decimal)}
        found = (found - {"Decimal"}) | {f"Decimal with exponent {exponent}" for exponent in places}
    if "int" in found and any(type(value) is int and not -(1 << 63) <= value < 1 << 63 for value in values):
        found = found | {"int beyond 64 bits"}
    # Without the names of the fields: those of a dict that is a mapping may be data.
    fields = {frozenset(value) for value in values if isinstance(value, dict)}
    return found | {"dict", "dict of other fields"} if len(fields) > 1 else found


def _kinds_of_type(kind: pa.DataType) -> set[str]:
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return {_NAIVE if kind.tz is None else _ZONED}
    tests = (
        (pa.types.is_boolean, "bool"),
        (pa.types.is_integer, "int"),
        (pa.types.is_floating, "float"),
        (pa.types.is_decimal, "Decimal"),
        (pa.types.is_date, "date"),
        (pa.types.is_time, "time"),
        (pa.types.is_duration, "timedelta"),
        (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), "str"),
        (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), "bytes"),
        (pa.types.is_fixed_size_binary, "bytes"),
    )
    return {told for is_kind, told in tests if is_kind(kind)}


def is_unicode(text: str) -> bool:
    r"""Whether ``text`` has an encoding: no halves of surrogate pairs, which neither Arrow nor a file's name takes.

    >>> is_unicode("é"), is_unicode("\ud800")
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
