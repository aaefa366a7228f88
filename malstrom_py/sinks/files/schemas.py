"""One schema for all Parquet files of a sink: what several workers have staged, and what is visible already.

Rule: the first commit decides the types of the columns, unless ``schema=`` does. Later files are converted to them if
no value changes (a column of None, missing fields, ints to floats that hold them); else the commit is refused.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.rows_to_columns import KindCheck
from malstrom_py.data.schema import ColumnKind, contains, fits, kind_of, map_inside, plain_type, stored_type, wider_type
from malstrom_py.data.schema import recast as cast
from malstrom_py.errors import PlanError, SinkError, lasting
from malstrom_py.sinks.staged import Place
from malstrom_py.sinks.staged.payloads import StagedFile, packed_schemas

if TYPE_CHECKING:
    import pyarrow as pa

_DIGITS_MAX: Final = 38
_BITS_MAX: Final = 128


@dataclass(frozen=True)
class Visible:
    """The schema of the files that a sink has published, and the name of one of them."""

    schema: pa.Schema
    file: str

    def error(self, text: str) -> SinkError:
        """Return the error for rows that do not fit: ``text``, and what to do."""
        return _lasting(
            f"{text}. The files that this sink has written before, such as {self.file!r}, have other columns or types: "
            f"write into another folder, and say the types with schema="
        )


def _lasting(text: str) -> SinkError:
    return lasting(SinkError(text))


def given_schema(schema: Any, asked_by: str) -> pa.Schema:
    """Return what ``schema=`` gave in the types of files; `PlanError` if it cannot be."""
    import pyarrow as pa

    if not isinstance(schema, pa.Schema):
        raise PlanError(f"{asked_by}: schema must be a pyarrow.Schema, got {type(schema).__name__}")
    if len(set(schema.names)) < len(schema) or not schema.names:
        raise PlanError(f"{asked_by}: schema must name at least one column, and each column once")
    return in_files(pa.schema([(field.name, stored_type(plain_type(field.type))) for field in schema]))


def without_nulls(kind: pa.DataType) -> pa.DataType:
    """Return the type of ``kind`` in a file: null types become str, for many readers read no nulls."""
    import pyarrow as pa

    return pa.string() if kind_of(kind) is ColumnKind.NULL else map_inside(kind, without_nulls)


def with_digits(kind: pa.DataType) -> pa.DataType:
    """Return ``kind`` with decimals as wide as possible, for rows: later values may have more digits."""
    import pyarrow as pa

    if kind_of(kind) is ColumnKind.DECIMAL:
        return kind if kind.bit_width > _BITS_MAX else pa.decimal128(_DIGITS_MAX, kind.scale)
    return map_inside(kind, with_digits)


def in_files(schema: pa.Schema) -> pa.Schema:
    """Return ``schema`` without null types."""
    import pyarrow as pa

    return pa.schema([(field.name, without_nulls(field.type)) for field in schema])


def packed(schema: pa.Schema) -> str:
    """Return ``schema`` as text."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def unpacked(text: str) -> pa.Schema:
    """Return the schema that `packed` made a text of. ValueError: it is damaged."""
    import pyarrow as pa

    try:
        return unserialized(base64.b64decode(text, validate=True))
    except (TypeError, binascii.Error, pa.ArrowException, OSError):
        raise ValueError("a schema is damaged") from None


def unserialized(content: bytes) -> pa.Schema:
    """Return a schema that Arrow has serialized."""
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(content))


def schema_in(path: Path) -> pa.Schema:
    """Return the schema of a Parquet file."""
    import pyarrow.parquet as pq

    return pq.read_schema(path).remove_metadata()


def agreed_schema(files: Sequence[StagedFile], *, given: pa.Schema | None, visible: Visible | None) -> pa.Schema | None:
    """Return the one schema of staged ``files`` of a commit, in the types of files; None if no payload has any.

    Raises:
        SinkError: a column has types that no type holds, or another type than the visible files.
    """
    known = visible.schema if visible is not None else given
    distinct = list(map(unpacked_schema, packed_schemas(files)))
    if known is None:
        return in_files(_unified(distinct)) if distinct else None
    for found in distinct:
        check_fits(known, found, visible)
    return known


def unpacked_schema(text: str) -> pa.Schema:
    """Return the schema of a payload; `SinkError` if it is damaged."""
    try:
        return unpacked(text)
    except ValueError:
        raise SinkError("a pre-commit payload is damaged: resume from an older snapshot") from None


def check_fits(known: pa.Schema, found: pa.Schema, visible: Visible | None) -> None:
    """Raise `SinkError` if columns of ``found`` have types that no cast brings to the schema ``known``."""
    error = _of_schema if visible is None else visible.error
    there = "schema= says" if visible is None else f"{visible.file!r} has"
    for field in found:
        index = known.get_field_index(field.name)
        if index < 0:
            raise error(f"column {field.name!r} is not among the columns {', '.join(map(repr, known.names[:10]))}")
        if not fits(known.field(index).type, field.type):
            raise error(f"column {field.name!r} holds {field.type}, and {there} {known.field(index).type}")


def _of_schema(text: str) -> SinkError:
    return _lasting(f"{text}: give the values the types of schema= in a map step")


def _unified(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the schema that holds the values of all: all columns, in types that widen."""
    import pyarrow as pa

    kinds, found = KindCheck(_of_workers), dict[str, Any]()
    for schema in schemas:
        for field in schema:
            kinds.check_type(field.name, field.type)
            known = found.setdefault(field.name, field.type)
            try:
                found[field.name] = _joined(known, field.type)
            except pa.ArrowException:
                raise _of_workers(f"column {field.name!r} holds {known} and {field.type}") from None
    return pa.schema(list(found.items()))


def _joined(known: pa.DataType, found: pa.DataType) -> pa.DataType:
    joined = wider_type(known, found)
    is_wide = contains(known, _is_wide) or contains(found, _is_wide)
    return joined if is_wide else _capped(joined)


def _is_wide(kind: pa.DataType) -> bool:
    return kind_of(kind) is ColumnKind.DECIMAL and kind.bit_width > _BITS_MAX


def _capped(kind: pa.DataType) -> pa.DataType:
    """Return ``kind`` with decimals of at most 38 digits: the values are checked when they are converted."""
    import pyarrow as pa

    return pa.decimal128(_DIGITS_MAX, kind.scale) if _is_wide(kind) else map_inside(kind, _capped)


def _of_workers(text: str) -> SinkError:
    return _lasting(
        f"the files that the workers have staged cannot have one schema: {text}. Give the column one type in a map "
        f"step, or say the types with schema=. A job that resumes from a snapshot with such rows needs the schema=, or "
        f"an older snapshot"
    )


def fitted(batch: pa.RecordBatch, schema: pa.Schema, where: str) -> pa.RecordBatch:
    """Return ``batch`` in the columns and types of ``schema``; `SinkError`, naming ``where``, if a value would change.

    A missing column is None.
    """
    import pyarrow as pa

    arrays = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        column = None if index < 0 else batch.column(index)
        if column is None or column.null_count == len(column):
            arrays.append(pa.nulls(len(batch), field.type))
            continue
        try:
            arrays.append(cast(_without_text(column, field.type), field.type))
        except (pa.ArrowException, OverflowError):
            raise _lasting(
                f"column {field.name!r} of {where} holds values of {column.type} that {field.type}, the type of the "
                f"column in other files of this sink, does not hold: say the types with schema=, or convert the values "
                f"in a map step"
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _without_text(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return ``column`` with the types of ``kind`` for what holds only None inside it, which files have as text."""
    import pyarrow as pa

    if column.type == kind:
        return column
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)
    if pa.types.is_struct(column.type) and pa.types.is_struct(kind):
        names = [field.name for field in column.type]
        inner = [
            array if kind.get_field_index(name) < 0 else _without_text(array, kind.field(name).type)
            for name, array in zip(names, column.flatten(), strict=True)
        ]
        return pa.StructArray.from_arrays(inner, names, mask=column.is_null())
    if pa.types.is_list(column.type) and pa.types.is_list(kind):
        whole = pa.concat_arrays([column, column.slice(0, 0)])  # so that it begins at its first value
        return pa.ListArray.from_arrays(
            whole.offsets, _without_text(whole.values, kind.value_type), mask=whole.is_null()
        )
    return column


def bring_to(place: Place, schema: pa.Schema, files: Sequence[StagedFile]) -> None:
    """Write those of the staged ``files`` again that are not of ``schema`` yet. It may be called again."""
    wanted = in_files(schema)
    others = [file for file in files if file.schema is None or not in_files(unpacked(file.schema)).equals(wanted)]
    place.rewrite(others, partial(_convert, wanted))


def _convert(schema: pa.Schema, path: Path, fresh: Path) -> bool:
    """Write the rows of the file ``path`` into the new file ``fresh``, of ``schema``; False if it has that already."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if pq.read_schema(path).equals(schema):
        return False
    with pq.ParquetFile(path) as content, fresh.open("xb") as stream:
        with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
            for batch in content.iter_batches():
                writer.write_table(pa.Table.from_batches([fitted(batch, schema, f"a file of {path.parent}")]))
        stream.flush()
        os.fsync(stream.fileno())
    return True
