"""The lattice of column types: the kind of each Arrow type, its plain and stored forms, and what two types join to.

Every place that maps column types (rows, files, Spark, snapshots) asks `kind_of` and walks nested types with `inside`.

Three rules compare two types of one column. `wider_type` widens as far as Arrow can. `joined_type` gives types to
columns of nulls and digits to decimals, and widens nothing else. `accepts` returns whether values may be cast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cache
from importlib import import_module
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

_DECIMAL_BITS: Final = 128
_DIGITS_MAX: Final = 38
_DIGITS_OF_INTS: Final = 20


class ColumnKind(StrEnum):
    """The kind of a column's values, regardless of width and layout. The text is the kind's name in errors."""

    NULL = "None"
    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    DECIMAL = "Decimal"
    DATE = "date"
    TIME = "time"
    NAIVE = "datetime without a zone"
    ZONED = "datetime with a zone"
    DURATION = "timedelta"
    STR = "str"
    BYTES = "bytes"
    LIST = "list"
    STRUCT = "struct"
    MAP = "map"
    ENCODED = "encoded"
    OTHER = "other"


_ARROW_IDS: Final = {
    ColumnKind.NULL: "NA",
    ColumnKind.BOOL: "BOOL",
    ColumnKind.INT: "INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64",
    ColumnKind.FLOAT: "HALF_FLOAT FLOAT DOUBLE",
    ColumnKind.DECIMAL: "DECIMAL32 DECIMAL64 DECIMAL128 DECIMAL256",
    ColumnKind.DATE: "DATE32 DATE64",
    ColumnKind.TIME: "TIME32 TIME64",
    ColumnKind.NAIVE: "TIMESTAMP",
    ColumnKind.DURATION: "DURATION",
    ColumnKind.STR: "STRING LARGE_STRING STRING_VIEW",
    ColumnKind.BYTES: "BINARY LARGE_BINARY BINARY_VIEW FIXED_SIZE_BINARY",
    ColumnKind.LIST: "LIST LARGE_LIST FIXED_SIZE_LIST LIST_VIEW LARGE_LIST_VIEW",
    ColumnKind.STRUCT: "STRUCT",
    ColumnKind.MAP: "MAP",
    ColumnKind.ENCODED: "DICTIONARY RUN_END_ENCODED",
}


@cache
def _kinds() -> dict[int, ColumnKind]:
    lib: Any = import_module("pyarrow.lib")  # it has no types
    return {getattr(lib, f"Type_{name}"): kind for kind, names in _ARROW_IDS.items() for name in names.split()}


def kind_of(type_: pa.DataType) -> ColumnKind:
    """Return the kind of the values of ``type_``.

    >>> import pyarrow as pa
    >>> kind_of(pa.uint8()), kind_of(pa.timestamp("s", "UTC")), kind_of(pa.list_view(pa.int8()))
    (<ColumnKind.INT: 'int'>, <ColumnKind.ZONED: 'datetime with a zone'>, <ColumnKind.LIST: 'list'>)
    """
    kind = _kinds().get(type_.id, ColumnKind.OTHER)
    return ColumnKind.ZONED if kind is ColumnKind.NAIVE and type_.tz is not None else kind


def type_of(kind: ColumnKind) -> pa.DataType:
    """Return the Arrow type of Python values of ``kind``, which is not nested.

    >>> type_of(ColumnKind.INT), type_of(ColumnKind.NAIVE)
    (DataType(int64), TimestampType(timestamp[us]))
    """
    return _types()[kind]


@cache
def _types() -> dict[ColumnKind, pa.DataType]:
    import pyarrow as pa

    return {
        ColumnKind.NULL: pa.null(),
        ColumnKind.BOOL: pa.bool_(),
        ColumnKind.INT: pa.int64(),
        ColumnKind.FLOAT: pa.float64(),
        ColumnKind.DATE: pa.date32(),
        ColumnKind.TIME: pa.time64("us"),
        ColumnKind.NAIVE: pa.timestamp("us"),
        ColumnKind.ZONED: pa.timestamp("us", "UTC"),
        ColumnKind.DURATION: pa.duration("us"),
        ColumnKind.STR: pa.string(),
        ColumnKind.BYTES: pa.binary(),
    }


def inside(type_: pa.DataType) -> list[tuple[str, pa.DataType]]:
    """Return the types directly inside ``type_``, each with its place in a column's path.

    >>> import pyarrow as pa
    >>> inside(pa.map_(pa.string(), pa.int64())), inside(pa.int64())
    ([('[key]', DataType(string)), ('[value]', DataType(int64))], [])
    """
    match kind_of(type_):
        case ColumnKind.STRUCT:
            return [(f".{field.name}", field.type) for field in type_]
        case ColumnKind.LIST:
            return [("[]", type_.value_type)]
        case ColumnKind.MAP:
            return [("[key]", type_.key_type), ("[value]", type_.item_type)]
    return []


def with_inside(type_: pa.DataType, types: Sequence[pa.DataType]) -> pa.DataType:
    """Return ``type_`` with ``types`` directly inside it, in the order of `inside`. Views of lists become lists."""
    import pyarrow as pa

    match kind_of(type_):
        case ColumnKind.STRUCT:
            return pa.struct([(field.name, inner) for field, inner in zip(type_, types, strict=True)])
        case ColumnKind.MAP:
            return pa.map_(*types)
        case ColumnKind.LIST if isinstance(type_, pa.FixedSizeListType):
            return pa.list_(types[0], type_.list_size)
        case ColumnKind.LIST if isinstance(type_, pa.LargeListType | pa.LargeListViewType):
            return pa.large_list(types[0])
        case ColumnKind.LIST:
            return pa.list_(types[0])
    return type_


def map_inside(type_: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return ``type_`` with ``change`` applied to the types directly inside it."""
    return with_inside(type_, [change(inner) for _, inner in inside(type_)])


def contains(type_: pa.DataType, is_wanted: Callable[[pa.DataType], bool]) -> bool:
    """Return whether ``is_wanted`` holds for ``type_`` or for a type at any depth inside it."""
    return is_wanted(type_) or any(contains(inner, is_wanted) for _, inner in inside(type_))


def plain_type(type_: pa.DataType) -> pa.DataType:
    """Return ``type_`` without dictionaries, views and run-end encoding, and with zones as UTC.

    >>> import pyarrow as pa
    >>> plain_type(pa.list_(pa.dictionary(pa.int32(), pa.string_view())))
    ListType(list<item: string>)
    >>> plain_type(pa.timestamp("ms", "Europe/Berlin"))
    TimestampType(timestamp[ms, tz=UTC])
    """
    import pyarrow as pa

    kind = kind_of(type_)
    if kind is ColumnKind.ENCODED:
        return plain_type(type_.value_type)
    if kind is ColumnKind.ZONED:
        return pa.timestamp(type_.unit, "UTC")
    if pa.types.is_string_view(type_) or pa.types.is_binary_view(type_):
        return type_of(kind)
    return map_inside(type_, plain_type)


_last: tuple[pa.Schema, pa.Schema, bool] | None = None
"""The last schema that `pickable` got, that of its result, and whether there are dictionaries: to look takes time."""


def pickable(columns: pa.RecordBatch) -> pa.RecordBatch:
    """Return ``columns`` so that Arrow picks rows of them and merges them with others, with the same values.

    Text and bytes in views become large ones, views of lists become lists, runs are decoded, and dictionaries lose the
    entry null.

    >>> import pyarrow as pa
    >>> pickable(pa.RecordBatch.from_arrays([pa.array(["a"], pa.string_view())], ["text"])).schema.types
    [DataType(large_string)]
    """
    global _last  # noqa: PLW0603
    import pyarrow as pa

    last, schema = _last, columns.schema
    if last is None or not schema.equals(last[0]):
        types = [_pickable(type_) for type_ in schema.types]
        fields = [field.with_type(type_) for field, type_ in zip(schema, types, strict=True)]
        encoded = any(contains(type_, pa.types.is_dictionary) for type_ in types)
        last = _last = (schema, pa.schema(fields, schema.metadata), encoded)
    if last[1].equals(schema) and not (last[2] and any(map(_has_null_entry, columns.columns))):
        return columns
    return pa.RecordBatch.from_arrays(list(map(_as_pickable, columns.columns, last[1].types)), schema=last[1])


def _pickable(type_: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_string_view(type_):
        return pa.large_string()
    if pa.types.is_binary_view(type_):
        return pa.large_binary()
    if pa.types.is_dictionary(type_):
        return pa.dictionary(type_.index_type, _pickable(type_.value_type), type_.ordered)
    if pa.types.is_run_end_encoded(type_):
        return _pickable(type_.value_type)
    return map_inside(type_, _pickable)


def _as_pickable(column: Any, type_: pa.DataType) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute
    if pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    if pa.types.is_dictionary(type_) and column.dictionary.null_count:
        column = column.cast(type_).dictionary_decode().dictionary_encode()
        return pa.DictionaryArray.from_arrays(
            column.indices.cast(type_.index_type), column.dictionary, ordered=type_.ordered
        )
    if contains(column.type, pa.types.is_run_end_encoded) or _has_null_entry(column):  # inside
        return pa.array(column.to_pylist(), type_)
    return recast(column, type_)


def _has_null_entry(column: Any) -> bool:
    """Return whether null is an entry of a dictionary in ``column``, at any depth."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        return bool(column.dictionary.null_count)
    match kind_of(column.type):
        case ColumnKind.STRUCT:
            return any(_has_null_entry(column.field(at)) for at in range(column.type.num_fields))
        case ColumnKind.MAP:
            return _has_null_entry(column.keys) or _has_null_entry(column.items)
        case ColumnKind.LIST:
            return _has_null_entry(column.values)
    return False


def stored_type(type_: pa.DataType, *, times: bool = True) -> pa.DataType:
    """Return the layout of ``type_`` in files: no large, view or fixed-size layouts, times of day in microseconds.

    Without ``times``, times of day keep their unit; two types that are then equal hold the same values.

    >>> import pyarrow as pa
    >>> stored_type(pa.large_list(pa.large_string())), stored_type(pa.time64("ns"))
    (ListType(list<item: string>), Time64Type(time64[us]))
    """
    import pyarrow as pa

    match kind_of(type_):
        case ColumnKind.STR | ColumnKind.BYTES as kind if not pa.types.is_fixed_size_binary(type_):
            return type_of(kind)
        case ColumnKind.TIME if times:
            return type_of(ColumnKind.TIME)
        case ColumnKind.LIST:
            return pa.list_(stored_type(type_.value_type, times=times))
    return map_inside(type_, lambda inner: stored_type(inner, times=times))


def in_microseconds(type_: pa.DataType) -> pa.DataType:
    """Return timestamps, times of day and durations in microseconds, the unit of Python; other types unchanged."""
    import pyarrow as pa

    match kind_of(type_):
        case ColumnKind.NAIVE | ColumnKind.ZONED:
            return pa.timestamp("us", type_.tz)
        case ColumnKind.TIME | ColumnKind.DURATION as kind:
            return type_of(kind)
    return type_


def exact_type(type_: pa.DataType) -> pa.DataType:
    """Return ``type_`` with all decimals as wide as possible, so that the type does not depend on one batch's digits.

    >>> import pyarrow as pa
    >>> exact_type(pa.list_(pa.decimal128(3, 2)))
    ListType(list<item: decimal128(38, 2)>)
    """
    import pyarrow as pa

    if kind_of(type_) is ColumnKind.DECIMAL:
        return pa.decimal128(_DIGITS_MAX, type_.scale)
    return map_inside(type_, exact_type)


def wider_type(known: pa.DataType, found: pa.DataType) -> pa.DataType:
    """Return the plain type that holds the values of both. pyarrow.ArrowException: no type does.

    >>> import pyarrow as pa
    >>> wider_type(pa.int64(), pa.float32())
    DataType(double)
    """
    found = plain_type(found)
    return known if known == found else _unified(known, found)


def widens_to(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether ``wanted``, in any layout, holds all values of ``found``."""
    import pyarrow as pa

    wanted = stored_type(wanted, times=False)
    try:
        return bool(_unified(wanted, stored_type(found, times=False)) == wanted)
    except pa.ArrowException:
        return False


def _unified(known: pa.DataType, found: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    both = [pa.schema([("", known)]), pa.schema([("", found)])]
    return pa.unify_schemas(both, promote_options="permissive").field(0).type


def joined_type(known: pa.DataType, found: pa.DataType) -> pa.DataType | None:
    """Return the type of a column that was of both plain types; None if more than nulls and digits differ.

    >>> import pyarrow as pa
    >>> joined_type(pa.null(), pa.int64()), joined_type(pa.int64(), pa.float64())
    (DataType(int64), None)
    """
    import pyarrow as pa

    kind, other = kind_of(known), kind_of(found)
    if known == found or other is ColumnKind.NULL:
        return known
    if kind is ColumnKind.NULL:
        return found
    if kind is not other:
        return None
    if kind is ColumnKind.DECIMAL:
        scale = max(known.scale, found.scale)
        digits = max(known.precision - known.scale, found.precision - found.scale) + scale
        return pa.decimal128(digits, scale) if digits <= _DIGITS_MAX else None
    if kind is ColumnKind.LIST and not (isinstance(known, pa.ListType) and isinstance(found, pa.ListType)):
        return None
    mine, theirs = inside(known), dict(inside(found))
    if not mine or theirs.keys() != dict(mine).keys():
        return None
    joined = [joined_type(inner, theirs[place]) for place, inner in mine]
    return None if any(inner is None for inner in joined) else with_inside(known, joined)


def accepts(known: pa.DataType, found: pa.DataType) -> bool:
    """Return whether values of ``found`` are of the kind of ``known``, whose width the cast checks.

    Ints go into floats and decimals, and structs into structs with more fields.

    >>> import pyarrow as pa
    >>> accepts(pa.float32(), pa.int64()), accepts(pa.int64(), pa.float32())
    (True, False)
    """
    kind, other = kind_of(known), kind_of(found)
    if other is ColumnKind.NULL:
        return True
    if other is not kind:
        return other is ColumnKind.INT and kind in {ColumnKind.FLOAT, ColumnKind.DECIMAL}
    mine, theirs = dict(inside(known)), dict(inside(found))
    return theirs.keys() <= mine.keys() and all(starmap(accepts, ((mine[at], theirs[at]) for at in theirs)))


def fits(known: pa.DataType, found: pa.DataType) -> bool:
    """Return whether values of ``found`` may be cast to ``known`` (see `accepts`) and no float loses digits.

    >>> import pyarrow as pa
    >>> fits(pa.float64(), pa.float32()), fits(pa.float32(), pa.float64())
    (True, False)
    """
    if not accepts(known, found):
        return False
    if kind_of(known) is kind_of(found) is ColumnKind.FLOAT:
        return bool(found.bit_width <= known.bit_width)
    mine, theirs = dict(inside(known)), dict(inside(found))
    return all(fits(mine[at], theirs[at]) for at in theirs)


def plain(column: pa.Array) -> pa.Array:
    """Return ``column`` in its `plain_type`. pyarrow.ArrowException: the cast fails."""
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute  # its functions are created at import, so mypy does not know them
    type_ = plain_type(column.type)
    if column.type == type_:
        return column
    if pa.types.is_run_end_encoded(column.type):
        return plain(pc.run_end_decode(column))
    return recast(column, type_)


def recast(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return ``column`` cast to ``type_``. pyarrow.ArrowException: ``type_`` does not hold its values."""
    import pyarrow as pa

    if column.type == type_:
        return column
    if contains(column.type, _casts_wrongly):
        return pa.array(column.to_pylist(), type_)
    if kind_of(type_) is ColumnKind.DECIMAL and kind_of(column.type) is ColumnKind.INT:
        # Arrow refuses ints that fit if others of their type would not.
        return column.cast(pa.decimal256(_DIGITS_OF_INTS + type_.scale, type_.scale)).cast(type_)
    return column.cast(type_)


def _casts_wrongly(type_: pa.DataType) -> bool:
    """Return whether Arrow's cast of ``type_`` may break arrays: lists of nulls only, and views of null lists."""
    import pyarrow as pa

    if kind_of(type_) is not ColumnKind.LIST:
        return False
    is_view = pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_)
    return is_view or kind_of(type_.value_type) is ColumnKind.NULL


def for_polars(columns: pa.RecordBatch) -> pa.RecordBatch:
    """Return ``columns`` with the types that Polars misreads or refuses changed to others of the same values.

    Small decimals get 128 bits; zones that are offsets become UTC.
    """
    import pyarrow as pa

    changed = [
        (index, type_) for index, field in enumerate(columns.schema) if (type_ := _of_polars(field.type)) is not None
    ]
    for index, type_ in changed:
        columns = columns.set_column(index, pa.field(columns.schema[index].name, type_), columns[index].cast(type_))
    return columns


def _of_polars(type_: pa.DataType) -> pa.DataType | None:
    import pyarrow as pa

    kind = kind_of(type_)
    if kind is ColumnKind.DECIMAL and type_.bit_width < _DECIMAL_BITS:
        return pa.decimal128(type_.precision, type_.scale)
    if kind is ColumnKind.ZONED and type_.tz[:1] in {"+", "-"}:
        return pa.timestamp(type_.unit, "UTC")
    return None
