"""Row forms: how the values of a `ColumnBatch` are made of its columns; and how a field of a value is looked up.

A form is `DICTS` (the default), `SCALAR`, `TUPLES`, or that of a class with fields (`form_of`): a ``msgspec.Struct``, a
dataclass or a named tuple. `RowForm.rows` is the only place where columns become rows; a `ColumnBatch` calls it when
its values are first read.

Rule: a step gives the same results for columns of any form and for rows of that form. So ``by_name`` says
whether a name addresses the same thing in the columns and in the rows.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from operator import attrgetter, itemgetter
from types import FunctionType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, Final, final

from malstrom_py.data.schema import in_microseconds
from malstrom_py.errors import CodecError
from malstrom_py.errors.text import column_of

if TYPE_CHECKING:
    import pyarrow as pa


@final
class RowForm:
    """How one row's value is made of columns. Forms of the same class are the same object.

    ``name``: for messages. ``by_name``: whether a step that looks up a field by name may take the column of that name.
    ``has_fields``: whether the columns are the fields that column steps and sinks see in the values; a value without
    fields is the column ``value``. ``kind``: the class of the values, if they are of a class with fields.

    >>> import pyarrow as pa
    >>> columns = pa.RecordBatch.from_pydict({"carrier": ["UA", "B6"], "delay": [2, None]})
    >>> DICTS.rows(columns), TUPLES.rows(columns)
    ([{'carrier': 'UA', 'delay': 2}, {'carrier': 'B6', 'delay': None}], [('UA', 2), ('B6', None)])
    """

    __slots__ = ("by_name", "has_fields", "kind", "name", "rows")

    def __init__(
        self,
        name: str,
        rows: Callable[[pa.RecordBatch], list[Any]],
        *,
        by_name: bool,
        has_fields: bool,
        kind: type | None = None,
    ) -> None:
        self.name = name
        self.rows = rows
        self.by_name = by_name
        self.has_fields = has_fields
        self.kind = kind

    def __repr__(self) -> str:
        return f"RowForm({self.name})"

    def __reduce__(self) -> tuple[Any, ...] | str:
        return self.name if self.kind is None else (form_of, (self.kind,))


def _lists_of(columns: pa.RecordBatch) -> list[list[Any]]:
    names = columns.schema.names
    return [python_values(column, f"column {name!r}") for name, column in zip(names, columns.columns, strict=True)]


_COMPILED_MAX: Final = 200


def rows_of(columns: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return one dict per row of an Arrow record batch: column name -> Python value, None for null.

    >>> import pyarrow as pa
    >>> rows_of(pa.RecordBatch.from_pydict({"carrier": ["UA", "B6"], "delay": [2, None]}))
    [{'carrier': 'UA', 'delay': 2}, {'carrier': 'B6', 'delay': None}]
    """
    names = columns.schema.names
    if not names:
        return [{} for _ in range(columns.num_rows)]
    return dicts_of(names, _lists_of(columns))


def dicts_of(names: Sequence[str], lists: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return one dict per row of columns ``lists``, whose names are ``names``."""
    if len(names) <= _COMPILED_MAX:
        return _dicts(len(names))(names, zip(*lists, strict=True))
    return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]


@cache
def _dicts(width: int) -> Callable[[Sequence[str], Iterable[tuple[Any, ...]]], list[dict[str, Any]]]:
    """Compile a function that makes dicts of rows of ``width`` values with a dict display.

    That takes a third of the time of ``dict(zip(names, row))``. Names are arguments, never code.
    """
    numbers = range(width)
    names, values = ("".join(f"{letter}{number}," for number in numbers) for letter in "nv")
    items = ",".join(f"n{number}:v{number}" for number in numbers)
    source = f"def make(names, rows):\n    ({names}) = names\n    return [{{{items}}} for ({values}) in rows]"
    made: dict[str, Any] = {}
    exec(source, made)
    maker: Callable[[Sequence[str], Iterable[tuple[Any, ...]]], list[dict[str, Any]]] = made["make"]
    return maker


def _tuples_of(columns: pa.RecordBatch) -> list[tuple[Any, ...]]:
    if not columns.num_columns:
        return [()] * columns.num_rows
    return list(zip(*_lists_of(columns), strict=True))


def _scalars_of(columns: pa.RecordBatch) -> list[Any]:
    return python_values(columns.column(0), "the value")


DICTS: Final = RowForm("DICTS", rows_of, by_name=True, has_fields=True)
"""One dict per row."""

SCALAR: Final = RowForm("SCALAR", _scalars_of, by_name=False, has_fields=True)
"""The value is that of the only column, which is called ``value``."""

PARTIALS: Final = RowForm("PARTIALS", _tuples_of, by_name=False, has_fields=False)
"""A row is what several records have gathered before the exchange; only the window after it reads it (F5)."""

TUPLES: Final = RowForm("TUPLES", _tuples_of, by_name=False, has_fields=False)
"""One tuple per row, in the order of the columns."""


@cache
def form_of(kind: Any) -> RowForm:
    """Return the form whose rows are of ``kind``: dict, tuple, or a class with fields.

    Raises:
        TypeError: ``kind`` has no fields, or one that is not an argument of its constructor.

    >>> form_of(dict), form_of(tuple)
    (RowForm(DICTS), RowForm(TUPLES))
    """
    if kind is dict:
        return DICTS
    if kind is tuple:
        return TUPLES
    name, fields = kind.__qualname__, class_fields(kind)
    if not fields:
        raise TypeError(f"{name} has no fields: give dict, tuple, a msgspec.Struct, a dataclass or a named tuple")
    unset = [field.name for field in getattr(kind, "__dataclass_fields__", {}).values() if not field.init]
    if unset:
        raise TypeError(f"field {unset[0]!r} of {name} is not an argument of its constructor")
    plain = _keeps_its_arguments(kind) and _shows_its_fields(kind, fields)
    return RowForm(name, partial(_instances_of, kind), by_name=plain, has_fields=plain, kind=kind)


def _keeps_its_arguments(kind: type) -> bool:
    """Whether the fields of an instance are certainly the arguments of its constructor, so its columns are them too."""
    if hasattr(kind, "__post_init__"):
        return False
    maker = next(base for base in kind.__mro__ if "__init__" in vars(base) or "__new__" in vars(base))
    if dataclasses.is_dataclass(kind):
        code = getattr(vars(maker).get("__init__"), "__code__", None)
        return code is not None and code.co_filename == "<string>" and "__new__" not in vars(maker)
    if issubclass(kind, tuple):
        return "_fields" in vars(maker) and "__init__" not in vars(maker)
    return maker is object  # a Struct has neither


def _shows_its_fields(kind: type, fields: Sequence[str]) -> bool:
    """Whether attributes with the names of fields are certainly what was set: no property or method is in between."""
    if any(isinstance(vars(base).get("__getattribute__"), FunctionType) for base in kind.__mro__):
        return False
    if any(isinstance(vars(base).get("__setattr__"), FunctionType) and not _is_frozen(base) for base in kind.__mro__):
        return False
    found = [(name, inspect.getattr_static(kind, name, None)) for name in fields]
    if issubclass(kind, tuple):
        maker = next(base for base in kind.__mro__ if "_fields" in vars(base))
        return all(one is vars(maker)[name] for name, one in found)
    return all(isinstance(one, MemberDescriptorType) or not hasattr(type(one), "__set__") for _, one in found)


def _is_frozen(kind: type) -> bool:
    """Whether ``kind`` is a frozen dataclass, whose ``__setattr__`` is generated, and which its constructor passes."""
    return "__dataclass_params__" in vars(kind) and bool(vars(kind)["__dataclass_params__"].frozen)


def _instances_of(kind: type, columns: pa.RecordBatch) -> list[Any]:
    names, lists = tuple(columns.schema.names), _lists_of(columns)
    if not _is_positional(kind, names):
        return _by_keyword(names)(kind, zip(*lists, strict=True))
    if issubclass(kind, tuple) and _keeps_its_arguments(kind):
        return list(map(partial(tuple.__new__, kind), zip(*lists, strict=True)))
    return list(map(kind, *lists))


@cache
def _is_positional(kind: type, names: tuple[str, ...]) -> bool:
    """Whether the constructor of ``kind`` takes exactly ``names``, in that order."""
    parameters = inspect.signature(kind).parameters
    return tuple(parameters) == names and all(one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters.values())


@cache
def _by_keyword(names: tuple[str, ...]) -> Callable[[type, Iterable[tuple[Any, ...]]], list[Any]]:
    """Return a function that makes instances by keywords ``names``, which are names of fields."""
    if not all(map(str.isidentifier, names)) or len(names) > _COMPILED_MAX:
        return lambda kind, rows: [kind(**dict(zip(names, row, strict=True))) for row in rows]
    values = "".join(f"v{number}," for number in range(len(names)))
    arguments = ",".join(f"{name}=v{number}" for number, name in enumerate(names))
    made: dict[str, Any] = {}
    exec(f"def make(kind, rows):\n    return [kind({arguments}) for ({values}) in rows]", made)
    maker: Callable[[type, Iterable[tuple[Any, ...]]], list[Any]] = made["make"]
    return maker


@cache
def class_fields(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of a class: of a Struct, a dataclass or a named tuple; of another, none.

    >>> from typing import NamedTuple
    >>> class Flight(NamedTuple):
    ...     carrier: str
    >>> class_fields(Flight), class_fields(tuple)
    (('carrier',), ())
    """
    if issubclass(kind, Mapping):
        return ()
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if issubclass(kind, tuple):
        return getattr(kind, "_fields", ())
    return getattr(kind, "__struct_fields__", ())


def fields_of(values: list[Any]) -> list[dict[str, Any]]:
    """Return the fields of each value: of a dict or of an instance with fields its own, of anything else ``value``.

    >>> fields_of([{"a": 1}, 2])
    [{'a': 1}, {'value': 2}]
    """
    if set(map(type, values)) <= {dict}:
        return values
    return [_fields(value) for value in values]


def field_lists(values: list[Any]) -> dict[Any, list[Any]] | None:
    """Return the fields of `fields_of` as columns: name -> values, without a call in Python per row.

    None if the values are not all of one class with the same fields.

    >>> field_lists([{"a": 1, "b": 2}, {"b": 4, "a": 3}]), field_lists([{"a": 1}, {"b": 2}]), field_lists([5])
    ({'a': [1, 3], 'b': [2, 4]}, None, None)
    """
    kinds = set(map(type, values))
    kind: Any = kinds.pop() if len(kinds) == 1 else None
    if kind is not dict:
        fields = () if kind is None else class_fields(kind)
        return {name: list(map(attrgetter(name), values)) for name in fields} or None
    names = list(values[0])
    try:
        lists = {name: list(map(itemgetter(name), values)) for name in names}
    except KeyError:
        return None
    return lists if lists and set(map(len, values)) == {len(names)} else None


def names_of(value: Any) -> tuple[str, ...]:
    """Return the names of the fields of a value's class (see `class_fields`)."""
    kind: Any = type(value)
    return class_fields(kind)


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    names = names_of(value)
    return {name: getattr(value, name) for name in names} if names else {"value": value}


def getter_of(function: Callable[[Any], Any], value: Any) -> Callable[[Any], Any]:
    """Return what ``function`` does with values of the class of ``value``: the same, but in C where that is known.

    The look-up of a name, an ``itemgetter``, gets the field of that name, if values of that class have it.
    """
    name = column_of(function)
    return function if name is None else _getter(name, value)


def _getter(name: str, value: Any) -> Callable[[Any], Any]:
    kind: Any = type(value)
    return _getter_of_class(name, kind)


@cache
def _getter_of_class(name: str, kind: Any) -> Callable[[Any], Any]:
    return attrgetter(name) if name in class_fields(kind) else itemgetter(name)


def looked_up(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return ``function`` for values of mixed classes: the look-up of a name goes by the class of each value."""
    name = column_of(function)
    return function if name is None else lambda value: _getter(name, value)(value)


def python_values(column: pa.Array, what: str) -> list[Any]:
    """Return a column as a list of Python's own types; raise `CodecError` naming ``what`` if they cannot hold a value.

    Nanoseconds are cast to microseconds, because Arrow would return pandas types where pandas is installed.
    """
    kind = str(column.type)
    try:
        if kind in _TIMES and is_within_datetime(column, *_TIMES[kind]):
            return _moments(column, kind)
        if kind.startswith("dictionary<"):
            column = column.dictionary_decode()
        if kind.startswith("struct<"):
            if not column.null_count:
                return _structs(column, what)
            there = column.is_valid()
            filled = iter(python_values(column.filter(there), what))
            return [next(filled) if valid else None for valid in there.to_pylist()]
        if kind.startswith(_NANOSECONDS):
            column = column.cast(in_microseconds(column.type))
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError, LookupError):
        # Without the cause: Arrow's message quotes the value.
        raise CodecError(
            f"{what} of Arrow type {column.type} has a value that Python cannot hold (finer than a microsecond, "
            f"beyond the years 1 to 9999, in an unknown zone, or not UTF-8): cast the column first."
        ) from None
    return values


def _structs(column: pa.Array, what: str) -> list[Any]:
    """Return a column of structs without nulls as dicts, field by field, which takes a fifth of the time."""
    if hasattr(column, "chunks"):
        return [row for chunk in column.chunks for row in _structs(chunk, what)]
    fields = [field.name for field in column.type]
    if not fields or len(set(fields)) < len(fields) or len(fields) > _COMPILED_MAX:
        return list(column.to_pylist())
    # `flatten` ends the process where unions are inside, and none are null that a struct hides.
    lists = [python_values(column.field(at), what) for at in range(len(fields))]
    return _dicts(len(fields))(fields, zip(*lists, strict=True))


_NANOSECONDS: Final = ("timestamp[ns", "time64[ns", "duration[ns")
_TIMES: Final = {
    "timestamp[us]": (1_000_000, 1),
    "timestamp[ms]": (1_000, 1),
    "timestamp[us, tz=UTC]": (1_000_000, 1),
    "timestamp[ms, tz=UTC]": (1_000, 1),
    "date32[day]": (1, 86_400),
}
"""The units of the types of times that `_moments` takes: so many in a second, or so many seconds."""
_YEAR_1_S: Final = -62_135_596_800
_YEAR_10000_S: Final = 253_402_300_800


def _moments(column: pa.Array, kind: str) -> list[Any]:
    """Return dates or datetimes as Arrow would, in a sixth to a twentieth of the time."""
    if kind.endswith("UTC]"):
        import polars as pl

        coded = column.combine_chunks().dictionary_encode() if hasattr(column, "chunks") else column.dictionary_encode()
        distinct = coded.dictionary
        if len(distinct) * 2 > len(column):
            return pl.Series(column).to_list()
        # A moment with a zone is costly to make, and times of records often repeat.
        made = [*pl.Series(distinct).to_list(), None]
        return list(map(made.__getitem__, coded.indices.fill_null(len(distinct)).to_pylist()))
    moments: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return moments


def is_within_datetime(times: pa.Array, per_second: int, seconds: int = 1) -> bool:
    """Return whether all of ``times`` are in the years 1 to 9999; beyond them Polars panics.

    Their unit is a part of a second, or ``seconds``.
    """
    import pyarrow.compute as pc

    ends = pc.call_function("min_max", [_as_ints(times)]).as_py()
    if ends["min"] is None:
        return True
    first, last = _datetime_bounds(per_second, seconds)
    return bool(first <= ends["min"] and ends["max"] <= last)


def beyond_datetime(times: pa.Array, per_second: int, seconds: int = 1) -> list[int]:
    """Return the rows of ``times`` that are not in the years 1 to 9999."""
    import pyarrow.compute as pc

    numbers, (first, last) = _as_ints(times), _datetime_bounds(per_second, seconds)
    before, after = pc.call_function("less", [numbers, first]), pc.call_function("greater", [numbers, last])
    rows: list[int] = pc.call_function("indices_nonzero", [pc.call_function("or", [before, after])]).to_pylist()
    return rows


def _as_ints(times: pa.Array) -> pa.Array:
    import pyarrow as pa

    return (times.cast(pa.int32()) if pa.types.is_date32(times.type) else times).cast(pa.int64())


def _datetime_bounds(per_second: int, seconds: int) -> tuple[int, int]:
    return _YEAR_1_S * per_second // seconds, _YEAR_10000_S * per_second // seconds - 1
