"""``columns=`` and ``rows=`` of `sources.Files`: which columns are read, and what the rows are.

Rule: the fields of a class are what it says. A column whose values are of another type than its field is refused when
a file is opened; a row with None in a field that takes no None is malformed.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.data.row_form import DICTS, class_fields, form_of, rows_of
from malstrom_py.data.schema import ColumnKind, kind_of, plain_type
from malstrom_py.errors import PlanError, SourceError
from malstrom_py.errors.text import instead_of
from malstrom_py.sources.files.csv import ColumnType
from malstrom_py.sources.files.frames import BadRecord, Run, Sifted, others

if TYPE_CHECKING:
    import pyarrow as pa


def check_rows(rows: Any, columns: object) -> tuple[str, ...] | None:
    """Return the columns to read, in the order of the values; None for all. `PlanError`: an argument is wrong."""
    if not isinstance(rows, type):
        raise PlanError(f"sources.Files: rows must be a class, such as tuple or a msgspec.Struct, got {rows!r}")
    try:
        form_of(rows)
    except TypeError as error:
        raise PlanError(f"sources.Files: rows={rows.__qualname__} cannot be used: {error}") from None
    fields = class_fields(rows)
    if columns is None:
        return fields or None
    if fields:
        raise PlanError(f"sources.Files: rows={rows.__qualname__} names the columns already: leave out columns")
    named = list(columns) if isinstance(columns, list | tuple) else [None]
    if not named or not all(isinstance(name, str) for name in named) or len(set(named)) < len(named):
        raise PlanError('sources.Files: columns must be a list of different names, such as columns=["key", "value"]')
    return tuple(str(name) for name in named)


def select_columns(schema: pa.Schema, names: Sequence[str], path: str, rows: type) -> pa.Schema:
    """Return the fields of ``schema`` called ``names``, in this order. `SourceError`: the file ``path`` lacks one."""
    import pyarrow as pa

    if missing := [name for name in names if name not in schema.names]:
        by = f"rows={rows.__qualname__}" if class_fields(rows) else "columns="
        raise SourceError(
            f"{path} has no column {', '.join(map(repr, missing))}, which {by} "
            f"names{instead_of(missing[0], schema.names)} Name columns that all files have."
        )
    return pa.schema([schema.field(name) for name in names])


class RowMaker:
    """Makes runs of rows of ``kind`` out of runs of columns with ``schema``.

    `SourceError`: a column of the file ``path`` does not fit its field.
    """

    def __init__(self, kind: type, schema: pa.Schema, path: str) -> None:
        self._form = form_of(kind)
        self._kind = kind
        hints = hints_of(kind)
        for field in schema:
            if not _takes(hints.get(field.name), field.type):
                raise SourceError(
                    f"{path}: column {field.name!r} is {field.type}, but field {field.name!r} of {kind.__qualname__} "
                    f"is {_shown(hints[field.name])}: correct the class, or give the column another type."
                )
        self._never_none = [field.name for field in schema if not _takes_none(hints.get(field.name))]

    def runs(self, found: Sequence[Run]) -> list[Run]:
        """Return the same rows; those with None in a field that takes no None as bad records."""
        if self._form is DICTS:
            return list(found)
        return [run if isinstance(run, BadRecord | list) else self._typed(run) for run in found]

    def _typed(self, run: pa.RecordBatch | ColumnBatch | Sifted) -> Run:
        found = run if isinstance(run, Sifted) else Sifted(run, (), {}, lambda _: None)
        batch = found.rows if isinstance(found.rows, ColumnBatch) else ColumnBatch(found.rows)
        nones = self._nones(batch)
        if nones:
            found = self._with_bad(found, batch, nones)
            batch = batch.take(others(len(batch), nones))
        rows = batch.with_form(self._form)
        return replace(found, rows=rows) if found.at else rows

    def _with_bad(self, found: Sifted, batch: ColumnBatch, nones: Mapping[int, str]) -> Sifted:
        """Return ``found`` with the rows ``nones`` of ``batch`` among its bad records."""
        places = others(len(found), found.whys)
        row_at = {places[row]: row for row in nones}
        whys = {**{place: self._why(nones[row]) for place, row in row_at.items()}, **found.whys}

        def record_at(place: int) -> object:
            row = row_at.get(place)
            return found.record_at(place) if row is None else rows_of(batch.columns.slice(row, 1))[0]

        return Sifted(batch, sorted(whys), whys, record_at)

    def _why(self, name: str) -> str:
        return f"column {name!r} is None, and field {name!r} of {self._kind.__qualname__} takes no None"

    def _nones(self, batch: ColumnBatch) -> dict[int, str]:
        """Return index -> column of the rows with None where there must be a value."""
        import pyarrow.compute as pc

        found: dict[int, str] = {}
        for name in self._never_none:
            column = batch.column(name)
            if column is not None and column.null_count:
                nulls = pc.call_function("indices_nonzero", [column.is_null()])
                rows: list[int] = nulls.to_pylist()
                found = {**dict.fromkeys(rows, str(name)), **found}
        return found


@cache
def hints_of(kind: Any) -> Mapping[str, Any]:
    """Return the type of each field of a class; of one whose types cannot be found, none."""
    names = class_fields(kind)
    if not names:
        return {}
    try:
        hints = get_type_hints(kind, include_extras=True)
    except Exception:  # a name that exists for type checkers only
        return {}
    return {name: hints[name] for name in names if name in hints}


_CSV_TYPES: Final[Mapping[type, ColumnType]] = {
    bool: "bool",
    int: "int64",
    float: "float64",
    str: "str",
    date: "date",
    time: "time",
    Decimal: "decimal",
}


def csv_types(kind: type, given: Mapping[str, ColumnType]) -> dict[str, ColumnType]:
    """Return the types of csv columns as the fields of ``kind`` have them; those ``given`` by the user go first.

    >>> from typing import NamedTuple
    >>> class Flight(NamedTuple):
    ...     carrier: str
    ...     delay: float | None
    >>> csv_types(Flight, {"carrier": "int64"})
    {'carrier': 'int64', 'delay': 'float64'}
    """
    of_fields: dict[str, ColumnType] = {}
    for name, hint in hints_of(kind).items():
        classes = [one for one in _classes(hint) or () if one is not types.NoneType]
        if len(classes) == 1 and classes[0] in _CSV_TYPES:
            of_fields[name] = _CSV_TYPES[classes[0]]
    return {**of_fields, **given}


_CLASSES: Final = {
    ColumnKind.NULL: types.NoneType,
    ColumnKind.BOOL: bool,
    ColumnKind.INT: int,
    ColumnKind.FLOAT: float,
    ColumnKind.DECIMAL: Decimal,
    ColumnKind.DATE: date,
    ColumnKind.TIME: time,
    ColumnKind.NAIVE: datetime,
    ColumnKind.ZONED: datetime,
    ColumnKind.DURATION: timedelta,
    ColumnKind.STR: str,
    ColumnKind.BYTES: bytes,
    ColumnKind.LIST: list,
    ColumnKind.STRUCT: dict,
    ColumnKind.MAP: list,
}


def _takes(hint: Any, column: pa.DataType) -> bool:
    classes, found = _classes(hint), _CLASSES.get(kind_of(plain_type(column)))
    if classes is None or found is None:
        return True
    return any(issubclass(found, one) or (found is int and one is float) for one in classes)


def _takes_none(hint: Any) -> bool:
    classes = _classes(hint)
    return classes is None or types.NoneType in classes or object in classes


def _classes(hint: Any) -> list[type] | None:
    """Return the classes that a type hint takes; None if it takes any value, or is not understood."""
    origin = get_origin(hint)
    if hint is Any:
        return None
    if origin is Annotated:
        return _classes(get_args(hint)[0])
    if origin in {Union, types.UnionType}:
        found = [_classes(one) for one in get_args(hint)]
        return None if None in found else [one for classes in found for one in classes or ()]
    if origin is Literal:
        return [type(value) for value in get_args(hint)]
    if isinstance(origin, type):
        return [origin]
    if isinstance(hint, type):
        return [hint]
    supertype = getattr(hint, "__supertype__", None)  # of a NewType
    return None if supertype is None else _classes(supertype)


def _shown(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) and get_origin(hint) is None else str(hint)
