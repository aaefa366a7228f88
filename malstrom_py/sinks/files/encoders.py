"""What turns batches into the bytes of files: one encoder per format, each bounded in memory."""

from __future__ import annotations

import contextlib
import json
import math
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

from malstrom_py.batches import Batch
from malstrom_py.errors import SinkError
from malstrom_py.row_columns import check_names, fields_of
from malstrom_py.sinks.files.columns import Columns, KeyRule, without_null_type
from malstrom_py.sinks.files.rolling import RollingFiles

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_GROUP_ROWS: Final = 1 << 17
_GROUP_BYTES: Final = 1 << 25
_PENDING_MAX: Final = 64


class Encoder(Protocol):
    """Writes into the rolling files it was made with."""

    def write(self, batch: Batch) -> None:
        """Take one batch."""
        ...

    def finish(self) -> None:
        """Write what is held back, and finish the open file."""
        ...

    def abandon(self) -> None:
        """Forget what is held back. Never raises."""
        ...


class JsonEncoder:
    """One object per line. Nothing is held back: lines are independent, so fields and types may differ."""

    def __init__(self, files: RollingFiles) -> None:
        self._files = files
        self._key_rule = KeyRule()

    def write(self, batch: Batch) -> None:
        rows = fields_of(batch.values)
        check_names(set().union(*rows), SinkError)
        if self._key_rule.is_written(rows, batch.keys) and batch.keys is not None:
            rows = [{"key": key, **row} for key, row in zip(batch.keys, rows, strict=True)]
        text = "\n".join(map(_json_line, rows))
        self._files.current().write(text.encode() + b"\n")
        if self._files.is_full():
            self._files.finish_file()

    def finish(self) -> None:
        self._files.finish_file()

    def abandon(self) -> None:
        """Nothing is held back."""


class _ColumnEncoder:
    """Collects rows until they are worth writing: a row group's number of rows, or 32 MiB."""

    def __init__(self, files: RollingFiles) -> None:
        self._files = files
        self._columns = Columns()
        self._pending: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def write(self, batch: Batch) -> None:
        columns = self._columns.convert(batch)
        self._check(columns.schema)
        self._pending.append(columns)
        self._rows += len(columns)
        self._bytes += columns.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._flush()
        elif len(self._pending) >= _PENDING_MAX:
            self._pending = self._held().combine_chunks().to_batches()

    def abandon(self) -> None:
        self._pending = []

    def _flush(self) -> None:
        if self._pending:
            held = self._held()
            self._pending, self._rows, self._bytes = [], 0, 0
            self._write_table(held)
            if self._files.is_full():
                self._finish_file()

    def _held(self) -> pa.Table:
        import pyarrow as pa

        schema = self._columns.schema
        return pa.Table.from_batches([self._columns.widened(batch, schema) for batch in self._pending], schema=schema)

    def _check(self, schema: pa.Schema) -> None:
        """Raise `SinkError` for types the format has no place for."""

    def _write_table(self, table: pa.Table) -> None:
        raise NotImplementedError

    def _finish_file(self) -> None:
        self._files.finish_file()


class CsvEncoder(_ColumnEncoder):
    """A header, then one line per record; text is quoted, None is an empty field."""

    def finish(self) -> None:
        self._flush()
        self._finish_file()

    def _check(self, schema: pa.Schema) -> None:
        import pyarrow as pa

        for field in schema:
            if pa.types.is_nested(field.type):
                raise SinkError(f"column {field.name!r} holds {field.type}, csv only plain values: use parquet or json")

    def _write_table(self, table: pa.Table) -> None:
        import pyarrow as pa
        import pyarrow.csv as pa_csv

        is_new = not self._files.is_open()
        table = table.cast(without_null_type(table.schema))
        try:
            pa_csv.write_csv(table, self._files.current(), pa_csv.WriteOptions(include_header=is_new))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            kinds = ", ".join(f"{field.name!r}: {field.type}" for field in table.schema)
            raise SinkError(f"csv cannot hold one of the columns {kinds}: use parquet or json") from None


class ParquetEncoder(_ColumnEncoder):
    """Row groups of at most 131,072 rows. All files of one pre-commit get the same schema: those written before a
    column's type widened are written again."""

    def __init__(self, files: RollingFiles) -> None:
        super().__init__(files)
        self._writer: pq.ParquetWriter | None = None
        self._schemas: dict[Path, pa.Schema] = {}

    def finish(self) -> None:
        self._flush()
        self._finish_file()
        if self._schemas:
            schema = without_null_type(self._columns.schema)
            for path in [path for path, written in self._schemas.items() if not written.equals(schema)]:
                self._write_again(path, schema)
            self._schemas = {}

    def abandon(self) -> None:
        super().abandon()
        if self._writer is not None:
            with contextlib.suppress(Exception):  # Its disk may be full; the file is thrown away.
                self._writer.close()
            self._writer = None

    def _write_table(self, table: pa.Table) -> None:
        table = table.cast(without_null_type(table.schema))
        if self._writer is not None and not self._writer.schema.equals(table.schema):
            self._finish_file()
        self._open(table.schema).write_table(table, row_group_size=_GROUP_ROWS)

    def _open(self, schema: pa.Schema) -> pq.ParquetWriter:
        import pyarrow.parquet as pq

        if self._writer is None:
            self._writer = pq.ParquetWriter(self._files.current(), schema, compression="zstd")
        return self._writer

    def _finish_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
            schema, self._writer = self._writer.schema, None
            self._files.finish_file()
            self._schemas[self._files.written[-1]] = schema

    def _write_again(self, path: Path, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                self._open(schema).write_batch(self._columns.widened(batch, schema))
        self._finish_file()
        self._files.drop(path)


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if hasattr(value, "item"):  # a number of numpy
        return value.item()
    fields = fields_of([value])[0]
    if fields.keys() == {"value"} and fields["value"] is value:
        raise TypeError(type(value).__name__)
    return fields


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return value


def _finite_json_value(value: Any) -> Any:
    """As `_json_value`; what is inside a value may be NaN too."""
    return _without_nan(_json_value(value))


# Made once: json.dumps would make an encoder for each row.
_encode_json: Final = json.JSONEncoder(default=_json_value, allow_nan=False, ensure_ascii=False).encode
_encode_finite: Final = json.JSONEncoder(default=_finite_json_value, allow_nan=False, ensure_ascii=False).encode


def _json_line(row: dict[str, Any]) -> str:
    try:
        try:
            return _encode_json(row)
        except ValueError:  # JSON has neither NaN nor infinity.
            return _encode_finite(_without_nan(row))
    except (TypeError, ValueError, RecursionError) as error:
        kinds = ", ".join(f"{name!r}: {type(value).__name__}" for name, value in list(row.items())[:20])
        raise SinkError(
            f"a value cannot be written as JSON ({type(error).__name__}; {kinds}): convert it in a map step"
        ) from None
