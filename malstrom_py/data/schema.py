"""Arrow types: the plain form of each, and the type that holds what two of them hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

_DECIMAL_BITS: Final = 128


def plain_type(kind: pa.DataType) -> pa.DataType:
    """``kind`` without the ways to store the same values otherwise: dictionaries, views, runs. Zones become UTC.

    >>> import pyarrow as pa
    >>> plain_type(pa.list_(pa.dictionary(pa.int32(), pa.string_view())))
    ListType(list<item: string>)
    >>> plain_type(pa.timestamp("ms", "Europe/Berlin"))
    TimestampType(timestamp[ms, tz=UTC])
    """
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, "UTC")
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    return _plain_nested(kind) if types.is_nested(kind) else kind


def _plain_nested(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    types = pa.types
    if types.is_struct(kind):
        return pa.struct([(field.name, plain_type(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type), kind.list_size)
    if types.is_large_list(kind) or types.is_large_list_view(kind):
        return pa.large_list(plain_type(kind.value_type))
    if types.is_list(kind) or types.is_list_view(kind):
        return pa.list_(plain_type(kind.value_type))
    return kind


def stored_type(kind: pa.DataType, *, times: bool = True) -> pa.DataType:
    """``kind`` in the one form in which files hold it: no large, view or fixed-size layouts, times in microseconds.

    Without ``times`` those stay as they are: of two types that are alike then, each holds the values of the other.

    >>> import pyarrow as pa
    >>> stored_type(pa.large_list(pa.large_string())), stored_type(pa.time64("ns"))
    (ListType(list<item: string>), Time64Type(time64[us]))
    """
    import pyarrow as pa

    types = pa.types
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if times and types.is_time(kind):
        return pa.time64("us")
    if types.is_struct(kind):
        return pa.struct([(field.name, stored_type(field.type, times=times)) for field in kind])
    if types.is_map(kind):
        return pa.map_(stored_type(kind.key_type, times=times), stored_type(kind.item_type, times=times))
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if is_list or types.is_list_view(kind) or types.is_large_list_view(kind):
        return pa.list_(stored_type(kind.value_type, times=times))
    return kind


def plain(column: pa.Array) -> pa.Array:
    """``column`` in its `plain_type`. pyarrow.ArrowException: it cannot be made so."""
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute  # its functions are made while it is imported, so that no checker knows them
    kind = plain_type(column.type)
    if column.type == kind:
        return column
    if pa.types.is_run_end_encoded(column.type):
        return plain(pc.run_end_decode(column))
    return recast(column, kind)


def recast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """``column`` with its values in another type. pyarrow.ArrowException: it does not hold them."""
    import pyarrow as pa

    if column.type == kind:
        return column
    if _has_list_of_none(column.type) or _has_list_view(column.type):
        # Arrow casts a list of nulls that stays one, and views of lists that are null, into broken arrays.
        return pa.array(column.to_pylist(), kind)
    return column.cast(kind)


def _has_list_of_none(kind: pa.DataType) -> bool:
    import pyarrow as pa

    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return bool(types.is_null(kind.value_type)) or _has_list_of_none(kind.value_type)
    return bool(types.is_struct(kind)) and any(_has_list_of_none(field.type) for field in kind)


def _has_list_view(kind: pa.DataType) -> bool:
    import pyarrow as pa

    types = pa.types
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return True
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _has_list_view(kind.value_type)
    return bool(types.is_struct(kind)) and any(_has_list_view(field.type) for field in kind)


def wider_type(known: pa.DataType, found: pa.DataType) -> pa.DataType:
    """The plain type that holds the values of both. pyarrow.ArrowException: there is none.

    >>> import pyarrow as pa
    >>> wider_type(pa.int64(), pa.float32())
    DataType(double)
    """
    import pyarrow as pa

    found = plain_type(found)
    if known == found:
        return known
    both = [pa.schema([("", known)]), pa.schema([("", found)])]
    return pa.unify_schemas(both, promote_options="permissive").field(0).type


def for_polars(columns: pa.RecordBatch) -> pa.RecordBatch:
    """``columns`` with what Polars would misread or refuse in another type of the same values: small decimals in 128
    bits, zones that are offsets in UTC."""
    import pyarrow as pa

    changed = [
        (index, kind) for index, field in enumerate(columns.schema) if (kind := _of_polars(field.type)) is not None
    ]
    for index, kind in changed:
        columns = columns.set_column(index, pa.field(columns.schema[index].name, kind), columns[index].cast(kind))
    return columns


def _of_polars(kind: pa.DataType) -> pa.DataType | None:
    import pyarrow as pa

    if pa.types.is_decimal(kind) and kind.bit_width < _DECIMAL_BITS:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind) and kind.tz is not None and kind.tz[:1] in {"+", "-"}:
        return pa.timestamp(kind.unit, "UTC")
    return None


def exact_type(kind: pa.DataType) -> pa.DataType:
    """``kind`` as that of a column of which one batch is all that is known: a decimal has as many digits as there are.

    >>> import pyarrow as pa
    >>> exact_type(pa.list_(pa.decimal128(3, 2)))
    ListType(list<item: decimal128(38, 2)>)
    """
    import pyarrow as pa

    types = pa.types
    if types.is_decimal(kind):
        return pa.decimal128(38, kind.scale)
    if types.is_list(kind):
        return pa.list_(exact_type(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([(field.name, exact_type(field.type)) for field in kind])
    return kind


def only_nulls_widen(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether ``wide`` differs from ``narrow`` only where that was of no type yet.

    >>> import pyarrow as pa
    >>> only_nulls_widen(pa.null(), pa.int64()), only_nulls_widen(pa.int64(), pa.float64())
    (True, False)
    """
    import pyarrow as pa

    types = pa.types
    if types.is_null(narrow):
        return True
    if types.is_struct(narrow) and types.is_struct(wide):
        names = {field.name for field in narrow}
        return names == {field.name for field in wide} and all(
            only_nulls_widen(narrow.field(name).type, wide.field(name).type) for name in names
        )
    if types.is_list(narrow) and types.is_list(wide):
        return only_nulls_widen(narrow.value_type, wide.value_type)
    return bool(narrow == wide)
