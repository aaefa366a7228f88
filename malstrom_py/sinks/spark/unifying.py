"""One schema for all that is published together: what workers wrote, and what is there already."""

from __future__ import annotations

import base64
import binascii
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from malstrom_py.column_types import recast
from malstrom_py.errors import SinkError
from malstrom_py.sinks.files.hive import told_by
from malstrom_py.sinks.files.publishing import StagedFile
from malstrom_py.sinks.files.staging import sink_errors, sync
from malstrom_py.sinks.spark.types import joined_schema, schema_for_spark, without_nulls

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Existing:
    """What a folder holds: the schema of its files, and the columns that its folders are named by.

    ``partition_by`` is None where there are no rows yet: ``schema`` has all columns then.
    """

    schema: pa.Schema
    partition_by: tuple[str, ...] | None


def schema_of_payloads(payloads: Sequence[bytes]) -> pa.Schema | None:
    """The schema of what several workers have pre-committed; None if they wrote nothing.

    Raises:
        SinkError: a column is of two types, or not everywhere; or a payload is damaged.
    """
    import pyarrow as pa

    schemas = []
    for payload in payloads:
        try:
            text = json.loads(payload).get("schema")
            if text is not None:
                schemas.append(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True))))
        except (ValueError, TypeError, AttributeError, binascii.Error, pa.ArrowException, OSError):
            raise SinkError("a pre-commit payload is damaged: restore it") from None
    if not schemas:
        return None
    schema = schemas[0]
    for other in schemas[1:]:
        schema = joined_schema(schema, other, of_known="on one worker", of_found="on another")
    return schema


def existing_in(folder: Path) -> Existing | None:
    """What ``folder`` holds, as the first of its Parquet files with rows tells; None if it holds none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    empty = None
    with sink_errors("cannot look into", folder):
        for here, folders, files in os.walk(folder):
            folders[:] = sorted(name for name in folders if "=" in name or not name.startswith(("_", ".")))
            for name in sorted(files):
                if not name.endswith(".parquet") or name.startswith(("_", ".")):
                    continue
                try:
                    footer = pq.read_metadata(Path(here) / name)
                except pa.ArrowException as error:
                    raise SinkError(f"{Path(here) / name} is no Parquet file that can be read: {error}") from None
                parts = Path(here).relative_to(folder).parts
                named = tuple(told[0] for part in parts if (told := told_by(part)) is not None)
                schema = _as_spark_reads(footer.schema.to_arrow_schema())
                if footer.num_rows or named:
                    return Existing(schema, named)
                empty = empty or Existing(schema, None)
    return empty


def appended_schema(schema: pa.Schema, partition_by: Sequence[str], there: Existing, folder: Path) -> pa.Schema:
    """The schema in which files of ``schema`` are appended to what is in ``folder``; `SinkError` if it is another."""
    check_partitions(partition_by, there, folder)
    known = there.schema if there.partition_by is not None else without(there.schema, partition_by)
    joined = joined_schema(known, schema, of_known=f"in {folder}", of_found="now")
    changed = [name for name in joined.names if joined.field(name).type != known.field(name).type]
    if changed:
        told = ", ".join(map(repr, changed))
        raise SinkError(f"the columns {told} are narrower in {folder} than what is appended: cast them in a map step")
    return joined


def without(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """``schema`` without the columns ``names``."""
    import pyarrow as pa

    return pa.schema([field for field in schema if field.name not in names])


def check_partitions(partition_by: Sequence[str], there: Existing, folder: Path) -> None:
    """`SinkError` if the folders there are named by other columns."""
    if there.partition_by is not None and tuple(partition_by) != there.partition_by:
        raise SinkError(
            f"{folder} is partitioned by {list(there.partition_by)}, and partition_by is {list(partition_by)}: "
            f"give the same columns, in that order"
        )


def bring_to(schema: pa.Schema, staged: Sequence[StagedFile]) -> None:
    """Write those of the ``staged`` files again that are not of ``schema`` yet. Call it again at will."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = pa.schema([(field.name, without_nulls(field.type)) for field in schema])
    for file in staged:
        with sink_errors("cannot write again", file.path):
            if file.path.exists() and not pq.read_schema(file.path).equals(wanted):
                _write_again(file.path, wanted)


def _write_again(path: Path, schema: pa.Schema) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    fresh = path.with_name(f"open-{secrets.token_hex(4)}{path.suffix}")
    try:
        with pq.ParquetFile(path) as content, fresh.open("xb") as stream:
            with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
                for batch in content.iter_batches():
                    arrays = [_recast(batch.column(field.name), field.type) for field in schema]
                    writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(path)
        sync(path.parent)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _recast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    return pa.nulls(len(column), kind) if column.null_count == len(column) else recast(column, kind)


def _as_spark_reads(schema: pa.Schema) -> pa.Schema:
    """``schema`` of a file that is there: INT96, in which Spark writes instants, is nanoseconds to Arrow."""
    import pyarrow as pa

    instants = pa.timestamp("ns")
    fields = [(field.name, pa.timestamp("us", "UTC") if field.type == instants else field.type) for field in schema]
    return schema_for_spark(pa.schema(fields))


def empty_file(path: Path, schema: pa.Schema) -> None:
    """A Parquet file of ``schema`` without a row, durable."""
    import pyarrow.parquet as pq

    with path.open("xb") as stream:
        with pq.ParquetWriter(stream, schema, compression="zstd"):
            pass
        stream.flush()
        os.fsync(stream.fileno())
