"""One Parquet file while it is read: row group by row group, in small record batches.

The position is (row group, rows taken from it). The types of the source's first file are everyone's: what another
file holds in smaller types is widened, anything else is refused when the file is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import SourceError
from malstrom_py.sources.files.runs import Cursor, Malformed, Run
from malstrom_py.sources.files.schema import adapted, check_columns

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_BATCH_ROWS: Final = 1 << 14
_BUFFER_BYTES: Final = 1 << 16


def open_parquet(path: Path) -> pq.ParquetFile:
    """The file, its footer read; `SourceError` if it is no Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = path.open("rb")
    try:
        return pq.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER_BYTES, coerce_int96_timestamp_unit="us")
    except pa.ArrowInvalid:
        file.close()
        raise SourceError("it is not a whole Parquet file: it may be another format, empty or cut off") from None
    except BaseException:
        file.close()
        raise


def parquet_types(path: Path) -> Iterator[pa.Schema]:
    """The one schema of the file, as rows of it reach Python."""
    file = open_parquet(path)
    try:
        schema = adapted(file.schema_arrow)
    finally:
        file.close(force=True)
    yield schema


class ParquetPart:
    """``schema`` are the columns and types of every row; ``first`` names the file they came from."""

    def __init__(
        self,
        name: str,
        path: Path,
        *,
        schema: pa.Schema,
        first: str,
        state: dict[str, Any] | None,
        remembered: dict[str, Any],
    ) -> None:
        state = state or {"row_group": 0, "records": 0, "rows": 0, "finished": False}
        self._name = name
        self._schema = schema
        self._remembered = remembered
        self._file = open_parquet(path)
        try:
            check_columns(name, self._file.schema_arrow.names, first, schema.names)
            _check_types(name, adapted(self._file.schema_arrow), first, schema)
        except BaseException:
            self.close()
            raise
        self._row_group: int = state["row_group"]
        self._taken = 0
        self._rows_before: int = state["rows"] - state["records"]
        self._skip: int = state["records"]
        self._finished: bool = state["finished"]
        self._cursor = Cursor()
        self._batches = self._row_group_batches()

    def poll(self, rows_max: int) -> Any:
        import pyarrow as pa

        try:
            while self._cursor.is_empty():
                if self._finished or not self._load():
                    return None
        except (OSError, pa.ArrowException) as error:
            raise SourceError(
                f"{self._name} failed in row group {self._row_group} after {self._rows()} rows were read: "
                f"{type(error).__name__}. The file is damaged or cannot be read: replace it."
            ) from error
        return self._cursor.take(rows_max, self._name, self._rows())

    def is_finished(self) -> bool:
        return self._finished

    def snapshot(self) -> dict[str, Any]:
        return {
            **self._remembered,
            "row_group": self._row_group,
            "records": self._taken + self._cursor.taken + self._skip,
            "rows": self._rows() + self._skip,
            "finished": self._finished,
        }

    def close(self) -> None:
        self._file.close(force=True)

    def _rows(self) -> int:
        return self._rows_before + self._taken + self._cursor.taken

    def _row_group_batches(self) -> Iterator[pa.RecordBatch]:
        if self._row_group >= self._file.num_row_groups:
            return iter(())
        batches: Iterator[pa.RecordBatch] = self._file.iter_batches(
            batch_size=_BATCH_ROWS, row_groups=[self._row_group], columns=self._schema.names, use_threads=False
        )
        return batches

    def _load(self) -> bool:
        """Go on to the next batch, of this row group or the next; False, and finished, if there is none."""
        self._taken, self._cursor = self._taken + self._cursor.taken, Cursor()
        batch = next(self._batches, None)
        if batch is not None:
            self._cursor = Cursor(self._converted(batch))
            self._skip -= self._cursor.skip(self._skip)
            return True
        self._rows_before, self._taken = self._rows_before + self._taken, 0
        if self._row_group + 1 >= self._file.num_row_groups:
            self._finished = True
            return False
        self._row_group += 1
        self._batches = self._row_group_batches()
        return True

    def _converted(self, batch: pa.RecordBatch) -> list[Run]:
        """``batch`` with the source's types; a row with a value that would lose digits is malformed."""
        import pyarrow as pa

        batch = batch.select(self._schema.names)
        try:
            columns = [column.cast(kind) for column, kind in zip(batch.columns, self._schema.types, strict=True)]
        except pa.ArrowInvalid:
            if len(batch) == 1:
                return [Malformed(f"a value does not fit its column's type ({self._lossy(batch)})", _as_text(batch))]
            middle = len(batch) // 2
            return self._converted(batch.slice(0, middle)) + self._converted(batch.slice(middle))
        return [pa.RecordBatch.from_arrays(columns, schema=self._schema)]

    def _lossy(self, row: pa.RecordBatch) -> str:
        import pyarrow as pa

        found = []
        for field, column in zip(self._schema, row.columns, strict=True):
            try:
                column.cast(field.type)
            except pa.ArrowInvalid:
                found.append(f"{field.name!r}: {column.type} as {field.type}")
        return ", ".join(found)


def _check_types(path: str, found: pa.Schema, first: str, expected: pa.Schema) -> None:
    """`SourceError` unless each column's type is the expected one or widens to it."""
    import pyarrow as pa

    for field in expected:
        kind = found.field(field.name).type
        try:
            both = [pa.schema([(field.name, field.type)]), pa.schema([(field.name, kind)])]
            fits = pa.unify_schemas(both, promote_options="permissive").field(0).type == field.type
        except pa.ArrowException:
            fits = False
        if not fits:
            raise SourceError(
                f"column {field.name!r} is {kind} in {path} and {field.type} in {first}: "
                f"give the files the same types, or read them as sources of their own."
            )


def _as_text(row: pa.RecordBatch) -> dict[str, str]:
    """A row whose values Python cannot hold, for the dead-letter stream."""
    return {name: str(column) for name, column in zip(row.schema.names, row.columns, strict=True)}
