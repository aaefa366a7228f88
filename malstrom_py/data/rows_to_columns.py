"""Rows into Arrow columns, and columns that join them. `malstrom_py.data.row_form` is the inverse.

The first rows name the columns; types widen as far as they can. Rule: a value's column type never depends on where
batches are cut; a value whose type would is refused.

Arrow alone would make dates of datetimes, drop or invent zones, make bytes of text and numbers of bools, depending on
the first value of a batch. So `KindCheck` fixes each column's kind at its first value and refuses other kinds; only
ints may join floats, and not where kinds are ``exact``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from numbers import Integral, Real
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from malstrom_py.data.row_form import field_lists, fields_of
from malstrom_py.data.schema import (
    ColumnKind,
    exact_type,
    fits,
    inside,
    joined_type,
    kind_of,
    plain,
    plain_type,
    recast,
    wider_type,
)
from malstrom_py.data.unfit_values import is_unicode, why_unfit
from malstrom_py.errors import MalstromError
from malstrom_py.errors.text import instead_of, redacts

if TYPE_CHECKING:
    import pyarrow as pa

# In this order: a bool is an Integral, a datetime a date.
_KIND_OF: Final[tuple[tuple[type | tuple[type, ...], ColumnKind], ...]] = (
    (bool, ColumnKind.BOOL),
    (Integral, ColumnKind.INT),
    (Real, ColumnKind.FLOAT),
    (Decimal, ColumnKind.DECIMAL),
    (date, ColumnKind.DATE),
    (time, ColumnKind.TIME),
    (timedelta, ColumnKind.DURATION),
    (str, ColumnKind.STR),
    ((bytes, bytearray, memoryview), ColumnKind.BYTES),
)
_SIMPLE: Final[Mapping[type, ColumnKind]] = {
    bool: ColumnKind.BOOL,
    int: ColumnKind.INT,
    float: ColumnKind.FLOAT,
    str: ColumnKind.STR,
    bytes: ColumnKind.BYTES,
    NoneType: ColumnKind.NULL,
}
_KINDS_OF_VALUES: Final = {ColumnKind.NAIVE, ColumnKind.ZONED, *(kind for _, kind in _KIND_OF)}


class KindCheck:
    """Checks that each column, and each field and list inside it, keeps one kind.

    ``error`` makes an error of a message. ``exact`` is for steps that cannot widen earlier batches: ints and floats
    are two kinds, Decimals with different exponents too, dicts have the same fields, and ints have 64 bits.
    """

    def __init__(self, error: Callable[[str], MalstromError], *, exact: bool = False) -> None:
        self._error = error
        self._exact = exact
        self._known: dict[str, str] = {}

    def check(self, name: str, values: Sequence[Any]) -> None:
        """Raise the error, naming the column, if ``values`` hold two kinds, or another kind than earlier values.

        >>> from malstrom_py.errors import SinkError
        >>> kinds = KindCheck(SinkError)
        >>> kinds.check("day", [date(2013, 1, 1), None])
        >>> kinds.check("day", [datetime(2013, 1, 1)])
        Traceback (most recent call last):
        malstrom_py.errors.SinkError: column 'day' holds date and datetime without a zone: convert them ...
        """
        types = set(map(type, values))
        if types <= _SIMPLE.keys():
            found: set[str] = {_SIMPLE[kind] for kind in types if kind is not NoneType}
            self._learn(name, _exactly(found, values) if self._exact else found)
            return
        found = set()
        for kind in types:
            if issubclass(kind, datetime):
                found |= {
                    ColumnKind.ZONED if value.tzinfo else ColumnKind.NAIVE
                    for value in values
                    if isinstance(value, datetime)
                }
            else:
                found.update([name for classes, name in _KIND_OF if issubclass(kind, classes)][:1])
        self._learn(name, _exactly(found, values) if self._exact else found)
        if any(issubclass(kind, dict) for kind in types):
            self._check_fields(name, [value for value in values if isinstance(value, dict)])
        if any(issubclass(kind, list | tuple) for kind in types):
            inner = chain.from_iterable(value for value in values if isinstance(value, list | tuple))
            self.check(f"{name}[]", list(inner))

    def check_type(self, name: str, kind: pa.DataType) -> None:
        """Check a column of an Arrow type, which has one kind."""
        found = kind_of(kind)
        if found in {ColumnKind.STRUCT, ColumnKind.LIST}:
            for place, inner in inside(kind):
                self.check_type(f"{name}{place}", inner)
        elif found in _KINDS_OF_VALUES:
            self._learn(name, {found})

    def _learn(self, name: str, found: set[str]) -> None:
        kinds = found | ({self._known[name]} if name in self._known else set())
        if kinds == {"int", "float"} and not self._exact:
            kinds = {"float"}
        if len(kinds) > 1:
            raise self._error(
                f"column {name!r} holds {' and '.join(sorted(kinds))}: convert them to one type in a map step"
            )
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
    """Return ``found`` in finer kinds: Decimals by exponent, ints by whether they fit 64 bits, dicts by fields."""
    if "Decimal" in found:
        places = {value.as_tuple().exponent for value in values if isinstance(value, Decimal)}
        found = (found - {"Decimal"}) | {f"Decimal with exponent {exponent}" for exponent in places}
    if "int" in found and any(type(value) is int and not -(1 << 63) <= value < 1 << 63 for value in values):
        found = found | {"int beyond 64 bits"}
    # Without the field names: the keys of a dict may be data.
    fields = {frozenset(value) for value in values if isinstance(value, dict)}
    return found | {"dict", "dict of other fields"} if len(fields) > 1 else found


Column: TypeAlias = "list[Any] | pa.Array"
"""The input of one column: Python values, or an Arrow array."""

_LISTED_MAX: Final = 10


class RowColumns:
    """Turns the rows of one stream into record batches of one schema.

    A field that a row lacks is None. Types widen: a column of None only takes any type, ints become floats, structs
    get more fields; anything else raises what ``error`` makes of the message. ``schema`` is the widest so far (None
    before the first row), and `widened` casts an earlier record batch to it.

    ``exact`` is for steps that cannot widen earlier batches: ints beside floats, Decimals with different exponents,
    and rows or structs with different fields are refused. ``names``: only these fields are read; a row that lacks one
    has None there. ``pinned``: the schema to begin with, whose columns keep their types, except those of None.

    >>> from malstrom_py.errors import SinkError
    >>> columns = RowColumns(SinkError)
    >>> columns.convert([{"n": 1}, {"n": None}]).to_pydict()
    {'n': [1, None]}
    >>> columns.convert([{"n": 1.5}]).schema == columns.schema
    True
    >>> columns.convert([{"m": 2}])
    Traceback (most recent call last):
    malstrom_py.errors.SinkError: columns 'm' are not among those of the first batch ('n'): give every value ...
    """

    def __init__(
        self,
        error: Callable[[str], MalstromError],
        *,
        exact: bool = False,
        names: Sequence[str] | None = None,
        pinned: pa.Schema | None = None,
    ) -> None:
        self._error = error
        self._exact = exact
        self._names = names
        self._schema = pinned
        self._kinds = KindCheck(error, exact=exact)
        self._pinned = frozenset(field.name for field in pinned or () if kind_of(field.type) is not ColumnKind.NULL)
        for field in pinned or ():
            self._kinds.check_type(field.name, field.type)

    @property
    def schema(self) -> pa.Schema | None:
        """The names of the first rows with the widest types so far; None before the first row."""
        return self._schema

    def convert(
        self,
        values: list[Any],
        *,
        leading: Mapping[str, Column] | None = None,
        lists: Mapping[Any, list[Any]] | None = None,
    ) -> pa.RecordBatch:
        """Return ``values`` as columns (see `fields_of`) and widen `schema` to hold them.

        ``leading`` are columns placed before those of the values, each as long as ``values``; give the same names at
        every call. Before the first values, no values give no columns. ``lists``: the `field_lists` of ``values``, if
        they have been made.
        """
        if not values:
            return self._no_rows()
        lists = self._usable(field_lists(values) if lists is None else lists)
        if lists is not None:
            before, known = leading or {}, self._known(lists, leading or {})
            nones: list[Any] = [None] * len(values)
            return self._joined(known, lambda name: before[name] if name in before else lists.get(name, nones))
        rows = fields_of(values)
        if self._names is not None:
            rows = self._chosen(rows)
        elif self._exact:
            self._check_alike(rows)
        names = list(dict.fromkeys(chain.from_iterable(rows))) if self._schema is None else set().union(*rows)
        leading = leading or {}
        known = self._known(names, leading)
        return self._joined(known, lambda name: leading[name] if name in leading else [row.get(name) for row in rows])

    def admit(self, columns: pa.RecordBatch, *, leading: Mapping[str, Column] | None = None) -> pa.RecordBatch:
        """Return ``columns`` as `convert` would, and widen `schema` to hold them; no row is made.

        Dictionaries and views become plain columns, zones become UTC.
        """
        import pyarrow as pa

        if not len(columns):
            return self._no_rows()
        if not leading and self._schema is not None and columns.schema.equals(self._schema):
            # All types are those that were joined before, so the same columns would result, at a cost for each.
            return pa.RecordBatch.from_arrays(columns.columns, schema=self._schema)
        names = columns.schema.names
        if len(set(names)) < len(names):
            raise self._error("two columns have the same name: rename one")
        leading = dict(leading or {})
        known = self._known(names, leading)
        there: dict[str, Column] = dict(zip(names, columns.columns, strict=True)) | leading
        return self._joined(known, lambda name: there[name] if name in there else pa.nulls(len(columns)))

    def widened(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return ``batch`` cast to the wider types of ``schema``."""
        import pyarrow as pa

        if batch.schema.equals(schema):
            return batch
        columns = []
        for field, column in zip(schema, batch.columns, strict=True):
            if column.null_count == len(column):
                columns.append(pa.nulls(len(column), field.type))
                continue
            try:
                columns.append(recast(column, field.type))
            except pa.ArrowException:
                raise self._unfit(field.name, f"{column.type} that cannot be written as {field.type}") from None
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _usable(self, lists: Mapping[Any, list[Any]] | None) -> Mapping[Any, list[Any]] | None:
        """Return the columns to convert; None if rows must be looked at, for an error or for fields that they lack."""
        if lists is None:
            return None
        if self._names is not None:
            return {name: lists[name] for name in self._names} if lists.keys() >= set(self._names) else None
        is_other = self._exact and self._schema is not None and lists.keys() != set(self._schema.names)
        return None if is_other else lists

    def _chosen(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return each row's fields of ``names``; raise the error if none of the first rows has one of them."""
        names = self._names or ()
        if self._schema is None and (missing := set(names).difference(*rows)):
            there = list(dict.fromkeys(name for row in rows for name in row if isinstance(name, str)))
            # The keys of a dict may be data.
            known = f"; the rows have {len(there)} others" if redacts() else instead_of(min(missing), there)
            raise self._error(f"an expression names columns that do not exist: {_listed(missing)}{known}")
        return [{name: row.get(name) for name in names} for row in rows]

    def _check_alike(self, rows: list[dict[str, Any]]) -> None:
        fields = rows[0].keys() if self._schema is None else set(self._schema.names)
        for row in rows:
            if row.keys() != fields:
                other = _listed(set(row.keys()).symmetric_difference(fields))
                raise self._error(
                    f"rows have different fields ({other}): give every value the same ones, in a map step for "
                    f"instance, with None for missing ones"
                )

    def _no_rows(self) -> pa.RecordBatch:
        import pyarrow as pa

        return pa.RecordBatch.from_pylist([], schema=pa.schema([]) if self._schema is None else self._schema)

    def _known(self, names: Collection[Any], leading: Mapping[str, Column]) -> pa.Schema:
        """Return the schema so far, at first ``names`` without types; raise the error if it lacks one of ``names``."""
        import pyarrow as pa

        if self._schema is None:
            check_names(names, self._error)
            if not (all_names := [*leading, *names]):
                raise self._error(
                    "the values have no fields, so no column can be written: return values with fields from a map step"
                )
            return pa.schema([(name, pa.null()) for name in all_names])
        known = self._schema.names
        if extra := {*names, *leading}.difference(known):
            raise self._error(
                f"columns {_listed(extra)} are not among those of the first batch ({_listed(known)}): "
                f"give every value the same fields, in a map step for instance, with None for missing ones"
            )
        return self._schema

    def _joined(self, known: pa.Schema, column_of: Callable[[str], Column]) -> pa.RecordBatch:
        import pyarrow as pa

        columns = [(field.name, column_of(field.name), field.type) for field in known]
        for name, column, _ in columns:
            if isinstance(column, list):
                self._kinds.check(name, column)
        arrays = [
            self._array(name, column, kind) if isinstance(column, list) else self._plain(name, column, kind)
            for name, column, kind in columns
        ]
        self._schema = pa.schema([(name, array.type) for name, array in zip(known.names, arrays, strict=True)])
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, name: str, column: list[Any], known: pa.DataType) -> pa.Array:
        import pyarrow as pa

        try:
            array = pa.array(column)
            if name in self._pinned:
                return pa.array(column, type=self._kept(known, array.type))
            if array.type == known and not self._exact:
                return array
            exact = joined_type(known, exact_type(plain_type(array.type))) if self._exact else None
            wider = exact if self._exact else wider_type(known, array.type)
            if wider is None:
                raise pa.ArrowInvalid("another type than before")
            return array if array.type == wider else pa.array(column, type=wider)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            if why := why_unfit(column):
                raise self._error(f"column {name!r} holds {why}, in a map step") from None
            kinds = _listed({type(value).__name__ for value in column if value is not None})
            before = "" if pa.types.is_null(known) else f" after {known}"
            raise self._unfit(name, f"values of type {kinds}{before} that do not fit into one column") from None

    def _plain(self, name: str, column: pa.Array, known: pa.DataType) -> pa.Array:
        import pyarrow as pa

        try:
            array = plain(column)
            self._kinds.check_type(name, array.type)
            return recast(
                array, self._kept(known, array.type) if name in self._pinned else wider_type(known, array.type)
            )
        except pa.ArrowException:
            before = "" if pa.types.is_null(known) else f" after {known}"
            raise self._unfit(name, f"{column.type}{before} that do not fit into one column") from None

    def _kept(self, known: pa.DataType, found: pa.DataType) -> pa.DataType:
        """Return the pinned type ``known``. pyarrow.ArrowException: values of ``found`` do not fit it."""
        import pyarrow as pa

        if not fits(known, found):
            raise pa.ArrowInvalid("another type than before")
        return known

    def _unfit(self, name: str, what: str) -> MalstromError:
        return self._error(f"column {name!r} holds {what}: convert them to one type in a map step")


def check_names(names: Iterable[object], error: Callable[[str], MalstromError]) -> None:
    """Raise the error unless every field name is a str: 1 and "1" would be one column."""
    for name in names:
        if not isinstance(name, str):
            raise error(f"a column's name is of type {type(name).__name__}: names must be str")
        if not is_unicode(name):
            raise error("a column's name is not valid Unicode, with a lone surrogate: repair it in a map step")


def _listed(names: Iterable[str]) -> str:
    shown = sorted(map(str, names))
    more = f" and {len(shown) - _LISTED_MAX} more" if len(shown) > _LISTED_MAX else ""
    return ", ".join(map(repr, shown[:_LISTED_MAX])) + more
