"""``spark.read.format("malstrom")``: what a job has left in a folder, and its snapshots, as a data source of Spark.

The counts of a finished job as rows, one for each step.

Rule: this runs in the Python processes of Spark, so it needs neither a session nor a JVM, and malstrom-py has to be
installed where they run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from malstrom_py.errors import SourceError
from malstrom_py.sinks.output_record import JobOutput
from malstrom_py.spark.output_files import OutputFiles, Portion, batches_of, check_readable, output_of, step_of
from malstrom_py.spark.snapshot_source import AskedSnapshots, is_about_snapshots
from malstrom_py.spark.types import arrow_schema, spark_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

COUNTS: Final = (
    "job string, snapshot string, duration_s double, step string, kind string, rows_in bigint, "
    "ports map<string, bigint>, filtered bigint, late bigint, ahead bigint, skipped bigint, dead_letters bigint, "
    "rows_made bigint, columns_made bigint, keys bigint, epoch bigint"
)
"""The columns, as Spark writes them."""


def counts_of(output: JobOutput) -> list[dict[str, Any]]:
    """Column -> value for each step, in the order of the plan.

    >>> steps = {"in": {"kind": "source", "rows_in": 3, "ports": {"out": 3}, "late": 0}}
    >>> [row] = counts_of(JobOutput("docs", "s1", {"job": "docs", "duration_s": 0.5, "steps": steps}, {}))
    >>> row["step"], row["rows_in"], row["late"], row["keys"]
    ('in', 3, 0, None)
    """
    if output.result is None:
        raise SourceError(f"job {output.job!r} has left no counts with its output: what='output' is there to be read")
    names = [column.split()[0] for column in COUNTS.replace("map<string, bigint>", "map").split(", ")]
    known = {"job": output.job, "snapshot": output.snapshot, "duration_s": output.result["duration_s"]}
    return [
        {name: {**counts, **known, "step": step}.get(name) for name in names}
        for step, counts in output.result["steps"].items()
    ]


_OPTIONS: Final = {"path", "job", "step", "what"}


class JobOutputSource(DataSource):
    """What a job has left: see `malstrom_py.spark.register`."""

    @classmethod
    def name(cls) -> str:
        return "malstrom"

    def schema(self) -> StructType | str:
        if is_about_snapshots(self.options):
            return AskedSnapshots(self.options).schema()
        asked = _Asked(self.options)
        return COUNTS if asked.what == "result" else spark_schema(asked.files().schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        if is_about_snapshots(self.options):
            return AskedSnapshots(self.options).reader(schema)
        asked = _Asked(self.options)
        return _CountsReader(asked.output, schema) if asked.what == "result" else _FilesReader(asked.files(), schema)


class _Asked:
    """What the options ask for."""

    def __init__(self, options: Mapping[str, str]) -> None:
        if unknown := sorted(set(options) - _OPTIONS):
            raise SourceError(f"unknown option {', '.join(unknown)}: known are {', '.join(sorted(_OPTIONS))}")
        if "path" not in options:
            raise SourceError("give the folder that a sink with a path wrote to: load(path)")
        self.what = options.get("what", "output")
        if self.what not in ("output", "result"):
            raise SourceError(f"option what is 'output' or 'result', not {self.what!r}")
        self._step = options.get("step")
        self._root, self.output = output_of(options["path"], options.get("job"))

    def files(self) -> OutputFiles:
        return OutputFiles(self._root, step_of(self.output, self._step))


class _FilesReader(DataSourceReader):
    """A portion of a file in each task, as columns."""

    def __init__(self, files: OutputFiles, schema: StructType) -> None:
        self._schema: pa.Schema = _as_asked(schema)
        self._portions = files.portions()
        if self._portions:
            there = files.schema()
            check_readable({field.name: field.type for field in there}, self._schema)

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(portion) for portion in self._portions] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        portion: Portion | None = partition.value
        return iter(()) if portion is None else batches_of(portion, self._schema)


class _CountsReader(DataSourceReader):
    """One row for each step."""

    def __init__(self, output: JobOutput, schema: StructType) -> None:
        self._rows = counts_of(output)
        self._names = schema.names
        if unknown := [name for name in self._names if name not in self._rows[0]]:
            raise SourceError(f"the result has no column {', '.join(unknown)}: its columns are {COUNTS}")

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return (tuple(row[name] for name in self._names) for row in self._rows)


def _as_asked(schema: StructType) -> pa.Schema:
    """``schema`` in Arrow, exactly as Spark compares it with what is read."""
    import pyarrow as pa

    fields = arrow_schema(schema)
    return pa.schema([field.with_nullable(asked.nullable) for field, asked in zip(fields, schema.fields, strict=True)])
