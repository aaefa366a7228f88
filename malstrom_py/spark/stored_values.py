"""Values as state variables of PySpark keep them, in the types of their schema.

Rule. What Spark keeps with its meaning is kept as Spark keeps it. What Spark would silently make NULL, cut off, or
write as Java's text is refused. Lists, tuples and dicts stay what they are, and times keep their zone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import shown
from malstrom_py.spark.ddl import struct_of
from malstrom_py.spark.types import INT_BITS, PlainColumns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_PLAIN: Final = frozenset({bool, int, float, str, bytes, type(None)})


class StoredRow:
    """A row of the columns of ``schema``, a StructType or text in Spark's DDL, in the state ``what``.

    >>> row = StoredRow("total decimal(5, 2), seen array<int>", "state 'sums'")
    >>> row.of((Decimal("1.005"), [1, None]))
    (Decimal('1.01'), [1, None])
    >>> row.of((1.5, []))
    Traceback (most recent call last):
    ValueError: column 'total' of state 'sums' is decimal(5,2), got 1.5, which Spark would not keep: convert it first
    """

    def __init__(self, schema: Any, what: str) -> None:
        self._schema: StructType = struct_of(schema, f"the schema of {what}")
        self._what = what
        self._plain = PlainColumns(self._schema)
        self.names = tuple(self._schema.names)
        self.nests = any(one.dataType.typeName() in ("array", "map", "struct") for one in self._schema)

    def of(self, row: Iterable[Any]) -> tuple[Any, ...]:
        """Return a row that is given in the order of the columns. ValueError: a value does not fit its column."""
        values = tuple(row)
        if self._plain.have(values):
            return values
        if len(values) != len(self.names):
            raise ValueError(f"{self._what} has {len(self.names)} columns, and {values!r} has {len(values)}")
        return tuple(map(self._kept, range(len(values)), values))

    def seen(self, row: Iterable[Any]) -> Iterable[Any]:
        """Return a row that was kept, with new lists and dicts: who gets it may change them, as in Spark."""
        return tuple(map(plain, row)) if self.nests else row

    def _kept(self, at: int, value: Any) -> Any:
        column = self._schema[at]
        try:
            return _kept(plain(value), column.dataType)
        except (ValueError, TypeError, OverflowError, InvalidOperation) as error:
            raise ValueError(
                f"column {column.name!r} of {self._what} is {column.dataType.simpleString()}, got {shown(value)}, "
                f"which Spark would not keep: convert it first"
            ) from error


def _kept(value: Any, kind: Any) -> Any:
    """Return a plain value as one of the Spark type ``kind``. ValueError, TypeError, …: it is none."""
    name = kind.typeName()
    if value is None or name not in _KEEPING:
        return value
    return _KEEPING[name](value, kind)


def _exactly(*types: type) -> Callable[[Any, Any], Any]:
    def keep(value: Any, kind: Any) -> Any:
        if type(value) not in types:
            raise TypeError
        return value

    return keep


def _int(value: Any, kind: Any) -> int:
    end = 1 << (INT_BITS[kind.typeName()] - 1)
    if type(value) is not int or not -end <= value < end:
        raise ValueError
    return value


def _float(value: Any, kind: Any) -> float:
    kept: float = struct.unpack("<f", struct.pack("<f", _exactly(float)(value, kind)))[0]
    return kept


def _decimal(value: Any, kind: Any) -> Decimal:
    one: Decimal = _exactly(Decimal)(value, kind)
    if one.is_nan():
        raise ValueError
    return one.quantize(Decimal(1).scaleb(-kind.scale), context=Context(kind.precision, ROUND_HALF_UP))


def _binary(value: Any, kind: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(_exactly(bytes, bytearray)(value, kind))


def _date(value: Any, kind: Any) -> date:
    if not isinstance(value, date):
        raise TypeError
    return value.date() if isinstance(value, datetime) else value


def _moment(value: Any, kind: Any) -> datetime:
    if not isinstance(value, datetime):
        raise TypeError
    return value.replace(tzinfo=None) if kind.typeName() == "timestamp_ntz" else value


def _array(value: Any, kind: Any) -> Any:
    return _exactly(list, tuple)(value, kind) and type(value)(_kept(one, kind.elementType) for one in value)


def _map(value: Any, kind: Any) -> dict[Any, Any]:
    entries = dict(value)  # also of pairs, as Arrow has them
    return {_kept(key, kind.keyType): _kept(one, kind.valueType) for key, one in entries.items()}


def _struct(value: Any, kind: Any) -> Any:
    if isinstance(value, Mapping):
        return {field.name: _kept(value.get(field.name), field.dataType) for field in kind}
    pairs = zip(_exactly(list, tuple)(value, kind), kind, strict=True)
    return tuple(_kept(one, field.dataType) for one, field in pairs)


_KEEPING: Final[dict[str, Callable[[Any, Any], Any]]] = {
    **dict.fromkeys(INT_BITS, _int),
    **dict.fromkeys(("string", "char", "varchar"), _exactly(str)),
    "boolean": _exactly(bool),
    "float": _float,
    "double": _exactly(float),
    "decimal": _decimal,
    "binary": _binary,
    "date": _date,
    **dict.fromkeys(("timestamp", "timestamp_ntz"), _moment),
    "daytimeinterval": _exactly(timedelta),
    "array": _array,
    "map": _map,
    "struct": _struct,
}
"""What is kept of a plain value that is not None, by the name of the type; values of other types unchanged."""


def plain(value: Any) -> Any:
    """Return ``value`` with Python's types in place of those of numpy and pandas, and tuples in place of rows.

    >>> import numpy as np
    >>> plain((np.int64(5), [np.float32(0.5)], np.array([1, 2]), np.datetime64("2026-01-01T00:00:00", "ns")))
    (5, [0.5], [1, 2], datetime.datetime(2026, 1, 1, 0, 0))
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, list):
        return list(map(plain, value))
    if isinstance(value, Mapping):
        return {plain(key): plain(one) for key, one in value.items()}
    if type(value).__name__ in ("NaTType", "NAType"):
        return None
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        of_time = value.dtype.kind in "mM"  # in nanoseconds Python has numbers for them
        return plain((value.astype(f"{value.dtype.kind}8[us]") if of_time else value).tolist())
    for convert in ("to_pydatetime", "to_pytimedelta"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    return value
