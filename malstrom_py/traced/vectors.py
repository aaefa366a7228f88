"""Operations on the values of many rows that give what Python's give for each.

Rule: whole numbers are followed as intervals, so that none leaves 64 bits; where a proof depends on values (a divisor
that is 0, text that is not ASCII, a time beyond the year 9999), they are looked at. What is not proven raises
`Unproven`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from malstrom_py.traced.in_python import Unproven
from malstrom_py.traced.nodes import Kind

if TYPE_CHECKING:
    import pyarrow as pa

Array = Any
"""A numpy array, or an Arrow array of text."""

_LOW: Final = -(1 << 63)
_HIGH: Final = (1 << 63) - 1
_EXACT: Final = 1 << 53
"""Up to here all whole numbers are floats."""

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001  columns without a zone
_FIRST_US: Final = (datetime(1, 1, 1) - _EPOCH) // timedelta(microseconds=1)  # noqa: DTZ001
_LAST_US: Final = (datetime(10_000 - 1, 12, 31) - _EPOCH) // timedelta(microseconds=1)  # noqa: DTZ001
_FIRST_DAY: Final = (date.min - _EPOCH.date()).days
_LAST_DAY: Final = (date.max - _EPOCH.date()).days
_SPACES: Final = " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f"
"""What ``str.strip`` removes of ASCII."""


class Vector(NamedTuple):
    """The values of a node, none of which is None. ``low`` and ``high``: bounds of whole numbers, times and dates.

    A constant is a vector too, of one plain value.
    """

    kind: Kind
    data: Array
    low: int = 0
    high: int = 0
    is_constant: bool = False


def of_constant(value: Any) -> Vector:
    """Return a constant as a vector. `Unproven` if it is not of a kind."""
    if type(value) is bool:
        return Vector("bool", value, int(value), int(value), is_constant=True)
    if type(value) is int:
        if not _LOW <= value <= _HIGH:
            raise Unproven
        return Vector("int", value, value, value, is_constant=True)
    if type(value) is float:
        return Vector("float", value, is_constant=True)
    if type(value) is str:
        return Vector("str", value, is_constant=True)
    if type(value) is datetime and value.tzinfo is None:
        number = (value - _EPOCH) // timedelta(microseconds=1)
        return Vector("time", number, number, number, is_constant=True)
    if type(value) is date:
        number = (value - _EPOCH.date()).days
        return Vector("date", number, number, number, is_constant=True)
    raise Unproven


def of_column(column: pa.Array, kind: Kind) -> Vector:
    """Return the values of a column. `Unproven` if one is None, or none that Python has."""
    import numpy as np
    import pyarrow as pa

    if column.null_count or kind == "other":
        raise Unproven
    if kind == "str":
        is_plain = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        text = column if is_plain else column.cast(pa.large_string())
        if text.null_count:  # in the dictionary
            raise Unproven
        return Vector("str", text)
    if kind == "bool":
        return Vector("bool", column.to_numpy(zero_copy_only=False), 0, 1)
    if kind == "float":
        return Vector("float", column.to_numpy().astype(np.float64, copy=False))
    try:
        if kind == "time":
            column = column.cast(pa.timestamp("us"))
        numbers = column.cast(pa.int32() if kind == "date" else pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        raise Unproven from None
    low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
    first, last = {"time": (_FIRST_US, _LAST_US), "date": (_FIRST_DAY, _LAST_DAY)}.get(kind, (_LOW, _HIGH))
    if low < first or high > last:
        raise Unproven
    return Vector(kind, numbers, low, high)


# Numbers


def whole(vector: Vector) -> Vector:
    """Return whole numbers, which booleans are too."""
    import numpy as np

    if vector.kind == "int":
        return vector
    data = int(vector.data) if vector.is_constant else vector.data.astype(np.int64)
    return Vector("int", data, vector.low, vector.high, vector.is_constant)


def _float(vector: Vector) -> Vector:
    import numpy as np

    if vector.kind == "float":
        return vector
    data = float(vector.data) if vector.is_constant else vector.data.astype(np.float64)
    return Vector("float", data, is_constant=vector.is_constant)


def _ints(data: Array, *bounds: int) -> Vector:
    low, high = min(bounds), max(bounds)
    if low < _LOW or high > _HIGH:
        raise Unproven
    return Vector("int", data(), low, high)


def _arithmetic(name: str) -> Callable[[Vector, Vector], Vector]:
    def calculate(left: Vector, right: Vector) -> Vector:
        import numpy as np

        of = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[name]
        if left.kind == "str":
            return _text_sum(left, right)
        if "float" in (left.kind, right.kind):
            return Vector("float", of(_float(left).data, _float(right).data))
        left, right = whole(left), whole(right)
        corners = [(one, other) for one in (left.low, left.high) for other in (right.low, right.high)]
        exact = {"add": int.__add__, "sub": int.__sub__, "mul": int.__mul__}[name]
        return _ints(lambda: of(left.data, right.data), *(exact(*corner) for corner in corners))

    return calculate


def _nonzero(divisor: Vector) -> None:
    import numpy as np

    if divisor.kind != "float" and (divisor.low > 0 or divisor.high < 0):
        return
    if np.any(np.equal(divisor.data, 0)):
        raise Unproven


def _truediv(left: Vector, right: Vector) -> Vector:
    import numpy as np

    _nonzero(right)
    bounds = [bound for one in (left, right) if one.kind != "float" for bound in (one.low, one.high)]
    if len(bounds) > 2 and max(map(abs, bounds)) > _EXACT:  # Python divides exactly, then rounds once
        raise Unproven
    return Vector("float", np.true_divide(_float(left).data, _float(right).data))


def _floordiv(left: Vector, right: Vector) -> Vector:
    import numpy as np

    _nonzero(right)
    if "float" in (left.kind, right.kind):
        return Vector("float", np.floor_divide(_float(left).data, _float(right).data))
    left, right = whole(left), whole(right)
    if right.low > 0 or right.high < 0:
        corners = [one // other for one in (left.low, left.high) for other in (right.low, right.high)]
    else:
        most = max(abs(left.low), abs(left.high))
        corners = [-most - 1, most]
    return _ints(lambda: np.floor_divide(left.data, right.data), *corners)


def _mod(left: Vector, right: Vector) -> Vector:
    import numpy as np

    _nonzero(right)
    if "float" in (left.kind, right.kind):
        return Vector("float", np.mod(_float(left).data, _float(right).data))
    left, right = whole(left), whole(right)
    if _LOW in {left.low, right.low}:
        raise Unproven
    bounds = (min(0, right.low + 1), max(0, right.high - 1))
    return _ints(lambda: np.mod(left.data, right.data), *bounds)


def _bitwise(name: str) -> Callable[[Vector, Vector], Vector]:
    def calculate(left: Vector, right: Vector) -> Vector:
        import numpy as np

        of = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[name]
        if left.kind == right.kind == "bool":
            return Vector("bool", of(left.data, right.data), 0, 1)
        left, right = whole(left), whole(right)
        return Vector("int", of(left.data, right.data), _LOW, _HIGH)

    return calculate


def _unary(name: str) -> Callable[[Vector], Vector]:
    def calculate(one: Vector) -> Vector:
        import numpy as np

        of = {"neg": np.negative, "pos": np.positive, "abs": np.abs}[name]
        if one.kind == "float":
            return Vector("float", of(one.data))
        one = whole(one)
        exact = {"neg": int.__neg__, "pos": int.__pos__, "abs": int.__abs__}[name]
        inside = [0] if name == "abs" and one.low < 0 < one.high else []
        return _ints(lambda: of(one.data), *map(exact, (one.low, one.high)), *inside)

    return calculate


def _to_int(one: Vector) -> Vector:
    import numpy as np

    if one.kind != "float":
        return whole(one)
    if not (np.abs(one.data) < float(_HIGH)).all():  # nor NaN
        raise Unproven
    numbers = np.trunc(one.data).astype(np.int64)
    return Vector("int", numbers, int(numbers.min(initial=0)), int(numbers.max(initial=0)))


# Comparisons


def _comparison(name: str) -> Callable[[Vector, Vector], Vector]:
    def compare(left: Vector, right: Vector) -> Vector:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        if left.kind == "str":
            sides = _texts(left, right)
            arrow = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater"}
            found = pc.call_function(arrow.get(name, "greater_equal"), sides)
            assert isinstance(found, pa.Array)
            return Vector("bool", found.to_numpy(zero_copy_only=False), 0, 1)
        if "float" in (left.kind, right.kind):
            for one in (left, right):  # Python compares exactly
                if one.kind != "float" and max(abs(one.low), abs(one.high)) > _EXACT:
                    raise Unproven
            left, right = _float(left), _float(right)
            if name in ("eq", "ne") and np.any(np.isnan(left.data) & np.isnan(right.data)):
                raise Unproven  # whether NaN equals itself depends on how it is asked: in a tuple it may
        elif left.kind in ("int", "bool"):
            left, right = whole(left), whole(right)
        of = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater}
        return Vector("bool", of.get(name, np.greater_equal)(left.data, right.data), 0, 1)

    return compare


def _among(one: Vector, constants: tuple[Any, ...]) -> Vector:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if one.kind == "int":
        return Vector("bool", np.isin(one.data, [of_constant(value).data for value in constants]), 0, 1)
    scalars = _texts(one, *map(of_constant, constants))[1:]
    options = pc.SetLookupOptions(pa.array([text.as_py() for text in scalars], one.data.type))
    return Vector("bool", pc.call_function("is_in", [one.data], options).to_numpy(zero_copy_only=False), 0, 1)


# Text


def _texts(*sides: Vector) -> list[Any]:
    """Return texts as arrays and scalars of one type. `Unproven` if one is half of a surrogate pair."""
    import pyarrow as pa

    kinds = {one.data.type for one in sides if not one.is_constant}
    kind = kinds.pop() if len(kinds) == 1 else pa.large_string()
    try:
        return [pa.scalar(one.data, kind) if one.is_constant else one.data.cast(kind) for one in sides]
    except (pa.ArrowException, UnicodeError, ValueError):
        raise Unproven from None


def _text_sum(left: Vector, right: Vector) -> Vector:
    import pyarrow as pa
    import pyarrow.compute as pc

    large = [one.cast(pa.large_string()) for one in _texts(left, right)]  # together they may be too long for the other
    return Vector("str", pc.call_function("binary_join_element_wise", [*large, pa.scalar("", pa.large_string())]))


def _affix(function: str) -> Callable[[Vector, str], Vector]:
    def find(one: Vector, text: str) -> Vector:
        import pyarrow.compute as pc

        _texts(Vector("str", text, is_constant=True))
        options = pc.MatchSubstringOptions(text)
        found = pc.call_function(function, [one.data], options)
        return Vector("bool", found.to_numpy(zero_copy_only=False), 0, 1)

    return find


def _ascii(function: str, *options: Any) -> Callable[[Vector], Vector]:
    def change(one: Vector) -> Vector:
        import pyarrow.compute as pc

        if not pc.call_function("all", [pc.call_function("string_is_ascii", [one.data])]).as_py():
            raise Unproven
        return Vector("str", pc.call_function(function, [one.data], *(pc.TrimOptions(text) for text in options)))

    return change


def _length(one: Vector) -> Vector:
    import numpy as np
    import pyarrow.compute as pc

    numbers = pc.call_function("utf8_length", [one.data]).to_numpy().astype(np.int64)
    return Vector("int", numbers, 0, int(numbers.max(initial=0)))


def _slice(one: Vector, start: int, stop: int | None) -> Vector:
    import pyarrow.compute as pc

    if stop is not None and stop <= start:
        raise Unproven
    options = pc.SliceOptions(start) if stop is None else pc.SliceOptions(start, stop)
    return Vector("str", pc.call_function("utf8_slice_codeunits", [one.data], options))


def _text(one: Vector) -> Vector:
    import pyarrow as pa

    if one.kind == "str":
        return one
    return Vector("str", pa.array(whole(one).data).cast(pa.large_string()))


# Times


def _part(name: str) -> Callable[[Vector], Vector]:
    def take(one: Vector) -> Vector:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        type_ = pa.timestamp("us") if one.kind == "time" else pa.date32()
        moments = pa.array(one.data).cast(type_)
        if name in ("weekday", "isoweekday"):
            options = pc.DayOfWeekOptions(count_from_zero=name == "weekday", week_start=1)
            found = pc.call_function("day_of_week", [moments], options)
        elif name == "microsecond":
            return Vector("int", one.data % 1_000_000, 0, 999_999)
        else:
            found = pc.call_function(name, [moments])
        return Vector("int", found.to_numpy().astype(np.int64), 0, 9999)

    return take


BINARY: Final[Mapping[str, Callable[[Vector, Vector], Vector]]] = {
    **{name: _arithmetic(name) for name in ("add", "sub", "mul")},
    **{name: _bitwise(name) for name in ("and", "or", "xor")},
    **{name: _comparison(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "truediv": _truediv,
    "floordiv": _floordiv,
    "mod": _mod,
}
"""Of two vectors, by the names of nodes."""
OTHER: Final[Mapping[str, Callable[..., Vector]]] = {
    **{name: _unary(name) for name in ("neg", "pos", "abs")},
    **{name: _part(name) for name in ("year", "month", "day", "hour", "minute", "second", "microsecond")},
    **{name: _part(name) for name in ("weekday", "isoweekday")},
    "in": _among,
    "int": _to_int,
    "float": _float,
    "text": _text,
    "length": _length,
    "slice": _slice,
    "startswith": _affix("starts_with"),
    "endswith": _affix("ends_with"),
    "contains": _affix("match_substring"),
    "lower": _ascii("utf8_lower"),  # ascii_lower keeps the offsets of a text that begins within its buffer: wrong text
    "upper": _ascii("utf8_upper"),
    "strip": _ascii("ascii_trim", _SPACES),
}
"""Of a vector and constants."""
