"""Encoder of Parquet files for Spark: that of `sinks.Files`, with Spark's types and columns that keep their type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from malstrom_py.sinks.files.given_columns import GivenColumns
from malstrom_py.sinks.files.schemas import packed, without_nulls
from malstrom_py.sinks.files.tables import ParquetEncoder
from malstrom_py.sinks.files.target_columns import TargetColumns
from malstrom_py.sinks.spark.schema import joined_schema, schema_for_spark
from malstrom_py.sinks.staged.writing import RollingFiles

if TYPE_CHECKING:
    import pyarrow as pa


class SparkEncoder(ParquetEncoder):
    """Encodes the columns of ``given``, else of the first batch. ``known``: their types so far, as Spark's types."""

    def __init__(self, files: RollingFiles, partition_by: Sequence[str], given: TargetColumns | None) -> None:
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

    def packed_schema(self) -> str | None:
        return None if self.known is None else packed(self.known)

    def _type_in_file(self, kind: pa.DataType) -> pa.DataType:
        import pyarrow as pa

        return without_nulls(schema_for_spark(pa.schema([("", kind)])).field(0).type)
