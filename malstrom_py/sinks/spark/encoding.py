"""Parquet files that Spark reads: the encoder of `sinks.Files`, with Spark's types and columns that never drift."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from malstrom_py.batches import Batch
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.files.rolling import RollingFiles
from malstrom_py.sinks.files.tables import ParquetEncoder
from malstrom_py.sinks.files.writer import FilesWriter
from malstrom_py.sinks.spark.given_columns import GivenColumns
from malstrom_py.sinks.spark.types import joined_schema, schema_for_spark, without_nulls

if TYPE_CHECKING:
    import pyarrow as pa


class SparkEncoder(ParquetEncoder):
    """Columns are those of ``given``, or else of the first batch. ``known``: their types so far, as Spark has them."""

    def __init__(self, files: RollingFiles, partition_by: Sequence[str], given: pa.Schema | None) -> None:
        super().__init__(files, partition_by, None if given is None else GivenColumns(given))
        self._seen: pa.Schema | None = None
        self.known: pa.Schema | None = None

    def _check(self, schema: pa.Schema) -> None:
        if self._seen is not None and self._seen.equals(schema):
            return
        found = schema_for_spark(schema)
        if self.known is not None:
            found = joined_schema(self.known, found, of_known="before", of_found="now")
        self._seen, self.known = schema, found

    def _type_in_file(self, kind: pa.DataType) -> pa.DataType:
        import pyarrow as pa

        return without_nulls(schema_for_spark(pa.schema([("", kind)])).field(0).type)


class SparkWriter:
    """Writes as `sinks.Files` does. The payload also tells the types of the columns."""

    def __init__(self, writer: FilesWriter, encoder: SparkEncoder) -> None:
        self._writer = writer
        self._encoder = encoder

    def pre_commit(self, context: CommitContext) -> bytes:
        """See `TransactionalWriter.pre_commit`."""
        named = json.loads(self._writer.pre_commit(context))
        known = self._encoder.known
        if known is not None and named["files"]:
            named["schema"] = base64.b64encode(known.serialize().to_pybytes()).decode()
        return json.dumps(named).encode()

    def write(self, batch: Batch) -> None:
        """See `SinkWriter.write`."""
        self._writer.write(batch)

    def close(self) -> None:
        """See `SinkWriter.close`."""
        self._writer.close()
