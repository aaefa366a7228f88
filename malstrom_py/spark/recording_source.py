"""The recordings of a job as Spark reads them: the records that ``capture_into`` has recorded, a task per stream.

Rules:
- The columns are ``key`` and ``timestamp``, if the stream had them, and ``value``, in which the fields of a dict are
  those of a struct. Timestamps are numbers in the unit of the stream.
- Keys or values whose types no column holds are JSON, all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from malstrom_py.capture.merge import Cursor
from malstrom_py.capture.places import ObjectStore
from malstrom_py.capture.recording import Recording, Segment
from malstrom_py.codec.job_codec import without_classes
from malstrom_py.data.batch import Batch
from malstrom_py.data.rows_to_columns import RowColumns
from malstrom_py.data.schema import recast
from malstrom_py.errors import SourceError
from malstrom_py.snapshot.typed_columns import json_text
from malstrom_py.spark.recording_stream import RecordingStreamReader
from malstrom_py.spark.snapshot_source import STORE_OPTION
from malstrom_py.spark.types import check_requested, requested_schema, spark_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

KEY: Final = "key"
TIMESTAMP: Final = "timestamp"
VALUE: Final = "value"

_OPTIONS: Final = {"path", "step", "what"}


def asks_for_recording(options: Mapping[str, str]) -> bool:
    """Return whether the options ask for a recording."""
    return options.get("what") == "recording"


def batches_of(recording: Recording, segments: Sequence[Segment]) -> Iterator[Batch]:
    """Read consecutive ``segments`` of a stream in order, up to where a worker is writing it, or has died."""
    first = segments[0]
    cursor = Cursor(recording, f"{first.generation}/{first.stream}", [], without_classes())
    cursor.seek([first.number, 0, 0, cursor.held.image(), False])
    cursor.follow(segments)
    try:
        while not cursor.is_over:
            batch = cursor.take()
            if batch is not None and len(batch):
                yield batch
    finally:
        cursor.close()


@dataclass(slots=True)
class Column:
    """The keys or the values of all batches as a column: of one Arrow type, or JSON once no type holds them.

    >>> column = Column("value")
    >>> column.widen([{"n": 1}])
    >>> column.type
    StructType(struct<n: int64>)
    >>> column.widen([{"n": "one"}])
    >>> column.array([{"n": "two"}]).to_pylist()
    ['{"n": "two"}']
    """

    name: str
    type: pa.DataType | None = None
    is_json: bool = False
    _columns: RowColumns | None = field(default=None, init=False)

    def widen(self, values: Any) -> None:
        """Widen the type so that it holds ``values`` too, a list or columns."""
        if self.is_json:
            return
        try:
            self.type = self.array(values).type
        except SourceError:
            self.type, self.is_json = None, True

    def array(self, values: Any) -> pa.Array:
        """Return ``values`` as an array of the type, which they may widen."""
        import pyarrow as pa

        if self.is_json:
            rows = values if isinstance(values, list) else values.to_pylist()
            return pa.array([None if row is None else json_text(row) for row in rows], pa.string())
        if self._columns is None:
            pinned = None if self.type is None else pa.schema([(self.name, self.type)])
            self._columns = RowColumns(SourceError, pinned=pinned)
        if isinstance(values, list):
            return self._columns.convert([{self.name: value} for value in values]).column(0)
        return self._columns.admit(pa.RecordBatch.from_arrays([values], [self.name])).column(0)

    def spark_type(self) -> pa.DataType:
        """Return the type for Spark: text if nothing is known."""
        import pyarrow as pa

        return pa.string() if self.type is None or pa.types.is_null(self.type) else self.type


def parts_of(batch: Batch) -> dict[str, Any]:
    """Return the columns of ``batch``: lists, or arrays where it has them."""
    parts: dict[str, Any] = {
        KEY: batch.keys if batch.key_column is None else batch.key_column,
        TIMESTAMP: batch.timestamps if batch.time_column is None else batch.time_column.cast("int64"),
        VALUE: batch.values if batch.columns is None else batch.columns.to_struct_array(),
    }
    return {name: part for name, part in parts.items() if part is not None}


class RecordingQuery:
    """The options of a query for a recording, checked."""

    def __init__(self, options: Mapping[str, str]) -> None:
        known = {name for name in options if name in _OPTIONS or name.startswith(STORE_OPTION)}
        if unknown := sorted(set(options) - known):
            raise SourceError(
                f"unknown option {', '.join(unknown)}: the options are {', '.join(sorted(_OPTIONS))} and "
                f"{STORE_OPTION}<option>"
            )
        if "path" not in options:
            raise SourceError("give the place that capture_into recorded to: load(uri)")
        store = {name.removeprefix(STORE_OPTION): options[name] for name in known - _OPTIONS}
        place: Any = ObjectStore(options["path"], options=store) if store else options["path"]
        self.recording = Recording(place, options.get("step"))

    def columns(self) -> list[Column]:
        """Infer the columns from all of the recording."""
        header = self.recording.header()
        there = {KEY: header.keyed, TIMESTAMP: header.unit is not None, VALUE: True}
        columns = [Column(name) for name, is_there in there.items() if is_there]
        for segments in self.recording.streams.values():
            for batch in batches_of(self.recording, segments):
                parts = parts_of(batch)
                for column in columns:
                    column.widen(parts[column.name])
        return [Column(column.name, column.type, column.is_json) for column in columns]

    def schema(self) -> StructType:
        """Return the schema of the rows."""
        return _schema_of(self.columns())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the rows."""
        return _RecordingReader(self.recording, RecordingRows(self.columns(), schema))

    def stream_reader(self, schema: StructType) -> RecordingStreamReader:
        """Return the reader of what is committed, as a stream."""
        columns = self.columns()
        if any(column.type is None and not column.is_json for column in columns):
            raise SourceError("the recording has no record yet, so its types are unknown: start the query once it has")
        return RecordingStreamReader(self.recording, RecordingRows(columns, schema))


class RecordingRows:
    """The rows of a recording in the columns of a requested ``schema``."""

    def __init__(self, columns: list[Column], schema: StructType) -> None:
        check_requested(schema, _schema_of(columns), "the recording")
        self._columns = [column for name in schema.names for column in columns if column.name == name]
        self._schema = requested_schema(schema)

    def batches(self, recording: Recording, segments: Sequence[Segment]) -> Iterator[pa.RecordBatch]:
        """Read consecutive ``segments`` of a stream."""
        import pyarrow as pa

        for batch in batches_of(recording, segments):
            parts = parts_of(batch)
            arrays = [column.array(parts[column.name]) for column in self._columns]
            pairs = zip(arrays, self._schema, strict=True)
            yield pa.RecordBatch.from_arrays([recast(array, one.type) for array, one in pairs], schema=self._schema)


class _RecordingReader(DataSourceReader):
    """Reads one stream per task, in its order."""

    def __init__(self, recording: Recording, rows: RecordingRows) -> None:
        self._recording = recording
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(segments) for segments in self._recording.streams.values()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.batches(self._recording, partition.value)


def _schema_of(columns: list[Column]) -> StructType:
    import pyarrow as pa

    return spark_schema(pa.schema([(column.name, column.spark_type()) for column in columns]))
