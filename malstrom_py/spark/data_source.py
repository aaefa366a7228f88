"""The data source "malstrom" of Spark: a job's output, also as a stream, its counts, recordings and snapshots.

Rule: the data source runs in Spark's Python processes. It needs neither a session nor a JVM, and malstrom-py must be
installed there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from malstrom_py.errors import SourceError
from malstrom_py.sinks.output_record import JobOutput
from malstrom_py.spark.output_files import OutputFiles, batches_of_all, check_readable, output_of, step_of
from malstrom_py.spark.output_stream import OutputStreamReader
from malstrom_py.spark.recording_source import RecordingQuery, asks_for_recording
from malstrom_py.spark.snapshot_source import RowsReader, SnapshotQuery, asks_for_snapshots
from malstrom_py.spark.types import requested_schema, spark_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

COUNTS: Final = (
    "job string, snapshot string, duration_s double, step string, kind string, rows_in bigint, "
    "ports map<string, bigint>, filtered bigint, late bigint, ahead bigint, skipped bigint, dead_letters bigint, "
    "dropped_timers bigint, unmatched bigint, rows_made bigint, columns_made bigint, keys bigint, epoch bigint, "
    "busy_s double, sent_bytes bigint, waiting_s double"
)
"""The schema of the counts, in Spark's DDL."""


def counts_of(output: JobOutput) -> list[dict[str, Any]]:
    """Return one row of counts per step, column -> value, in the order of the plan."""
    if output.result is None:
        raise SourceError(f"job {output.job!r} has stored no counts with its output: read what='output' instead")
    names = [column.split()[0] for column in COUNTS.replace("map<string, bigint>", "map").split(", ")]
    known = {"job": output.job, "snapshot": output.snapshot, "duration_s": output.result["duration_s"]}
    return [
        {name: {**counts, **known, "step": step}.get(name) for name in names}
        for step, counts in output.result["steps"].items()
    ]


_OPTIONS: Final = {"path", "job", "step", "what"}


class JobOutputSource(DataSource):
    """The data source: see `malstrom_py.spark.register`."""

    @classmethod
    def name(cls) -> str:
        return "malstrom"

    def schema(self) -> StructType | str:
        if asks_for_recording(self.options):
            return RecordingQuery(self.options).schema()
        if asks_for_snapshots(self.options):
            return SnapshotQuery(self.options).schema()
        query = _OutputQuery(self.options)
        return COUNTS if query.what == "result" else spark_schema(query.files().schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        if asks_for_recording(self.options):
            return RecordingQuery(self.options).reader(schema)
        if asks_for_snapshots(self.options):
            return SnapshotQuery(self.options).reader(schema)
        query = _OutputQuery(self.options)
        if query.what == "result":
            return RowsReader(counts_of(query.output()), schema)
        return _FilesReader(query.files(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        if asks_for_recording(self.options):
            return RecordingQuery(self.options).stream_reader(schema)
        if asks_for_snapshots(self.options) and "what" not in self.options:
            raise SourceError(
                "snapshots are read by spark.read, not by spark.readStream, which reads output and recordings"
            )
        if (what := self.options.get("what", "output")) != "output":
            raise SourceError(f"spark.readStream reads output of a job: read what={what!r} by spark.read")
        query = _OutputQuery(self.options)
        return OutputStreamReader(query.path, query.job, query.step, requested_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise SourceError(
            "format 'malstrom' is only read, as no rows are pushed into a job: a job reads a DataFrame by "
            "sources.Spark(df), and a streaming one by sources.Spark(df, staging=folder)"
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802  Spark's name
        self.writer(schema, overwrite)


class _OutputQuery:
    """The options of a query for a job's output, checked."""

    def __init__(self, options: Mapping[str, str]) -> None:
        if unknown := sorted(set(options) - _OPTIONS):
            raise SourceError(f"unknown option {', '.join(unknown)}: known are {', '.join(sorted(_OPTIONS))}")
        if "path" not in options:
            raise SourceError("give the folder that a sink with a path wrote to: load(path)")
        self.path = options["path"]
        self.job = options.get("job")
        self.step = options.get("step")
        self.what = options.get("what", "output")
        if self.what not in ("output", "result"):
            raise SourceError(f"option what must be 'output', 'result' or 'recording', not {self.what!r}")

    def output(self) -> JobOutput:
        return output_of(self.path, self.job)[1]

    def files(self) -> OutputFiles:
        root, output = output_of(self.path, self.job)
        return OutputFiles(root, step_of(output, self.step))


class _FilesReader(DataSourceReader):
    """Reads splits of files, as columns."""

    def __init__(self, files: OutputFiles, schema: StructType) -> None:
        self._schema: pa.Schema = requested_schema(schema)
        self._tasks = files.tasks()
        if self._tasks:
            check_readable({field.name: field.type for field in files.schema()}, self._schema)

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(splits) for splits in self._tasks] or [InputPartition([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches_of_all(partition.value, self._schema)
