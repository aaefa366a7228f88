"""The types of a source's columns: found once, recorded as bytes in every position, adapted to plain Python.

Arrow's nanoseconds become microseconds, because Python's own datetime, time and timedelta hold no more; a value that
would lose digits is malformed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from malstrom_py.errors import SourceError

if TYPE_CHECKING:
    import pyarrow as pa


def without_nanoseconds(found: pa.DataType) -> pa.DataType:
    """``found`` with microseconds in place of nanoseconds, inside lists and structs too, and lists in place of views.

    >>> import pyarrow as pa
    >>> without_nanoseconds(pa.list_(pa.timestamp("ns", "UTC")))
    ListType(list<item: timestamp[us, tz=UTC]>)
    """
    import pyarrow as pa
    from pyarrow import types

    if types.is_timestamp(found) and found.unit == "ns":
        return pa.timestamp("us", found.tz)
    if types.is_duration(found) and found.unit == "ns":
        return pa.duration("us")
    if types.is_time64(found) and found.unit == "ns":
        return pa.time64("us")
    if types.is_list(found) or types.is_list_view(found):
        return pa.list_(found.value_field.with_type(without_nanoseconds(found.value_type)))
    if types.is_large_list(found) or types.is_large_list_view(found):
        return pa.large_list(found.value_field.with_type(without_nanoseconds(found.value_type)))
    if types.is_struct(found):
        return pa.struct([field.with_type(without_nanoseconds(field.type)) for field in found])
    if types.is_dictionary(found):
        return without_nanoseconds(found.value_type)
    return found


def adapted(schema: pa.Schema) -> pa.Schema:
    """``schema`` without nanoseconds and without metadata."""
    import pyarrow as pa

    return pa.schema([field.with_type(without_nanoseconds(field.type)).remove_metadata() for field in schema])


def merge_types(schemas: Iterator[pa.Schema]) -> pa.Schema | None:
    """The first schema; columns without any value there take their type from the first that has one, else string.

    Takes no more of ``schemas`` than it needs; None if there is none.
    """
    import pyarrow as pa

    found: dict[str, pa.DataType] = {}
    for schema in schemas:
        if not found:
            found = dict(zip(schema.names, schema.types, strict=True))
        for name in [name for name, known in found.items() if pa.types.is_null(known)]:
            if name in schema.names:
                found[name] = schema.field(name).type
        if not any(pa.types.is_null(known) for known in found.values()):
            break
    if not found:
        return None
    return pa.schema([(name, pa.string() if pa.types.is_null(known) else known) for name, known in found.items()])


def pack_schema(schema: pa.Schema) -> bytes:
    """``schema`` as bytes, for a position."""
    packed: bytes = schema.serialize().to_pybytes()
    return packed


def unpack_schema(packed: bytes) -> pa.Schema:
    """The schema `pack_schema` packed."""
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(packed))


def check_columns(path: str, names: Iterable[str], first: str, expected: Iterable[str]) -> None:
    """`SourceError` unless ``path`` has exactly the ``expected`` columns of the ``first`` file, in any order."""
    names, expected = list(names), list(expected)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SourceError(f"{path} has more than one column named {_listed(repeated)}: give each a name of its own")
    missing = [name for name in expected if name not in names]
    extra = [name for name in names if name not in expected]
    if missing or extra:
        said = [f"lacks {_listed(missing)}"] if missing else []
        said += [f"has {_listed(extra)} besides"] if extra else []
        raise SourceError(
            f"{path} has other columns than {first}: it {' and '.join(said)}. "
            f"Read files with different columns as sources of their own."
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(repr(name) for name in names[:10]) + more
