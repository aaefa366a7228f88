"""Encoding of batches for files: the `Encoder` protocol, the bounded write buffer, and rows to record batches.

An encoder turns each batch into `EncodedRows` per output folder. They wait in the `WriteBuffer` until a folder has
enough for one large write. The columns of a file are those of the values, without partition columns; on a keyed stream
the key is the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from malstrom_py.data.batch import Batch
from malstrom_py.data.row_form import field_lists, fields_of
from malstrom_py.data.rows_to_columns import Column, RowColumns
from malstrom_py.errors import SinkError

if TYPE_CHECKING:
    import pyarrow as pa

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class EncodedRows(Generic[C]):
    """The encoded rows of one batch for one folder (relative to the root, empty for the root)."""

    folder: str
    content: C
    rows: int
    bytes: int


class Encoder(Protocol[C]):
    """Encodes batches of one file format and writes them into rolling files."""

    @property
    def group_bytes(self) -> int:
        """The number of buffered bytes at which a folder is written."""
        ...

    def encode(self, batch: Batch) -> Iterable[EncodedRows[C]]:
        """Encode ``batch`` for each folder, without writing."""
        ...

    def merge(self, folder: str, contents: Sequence[C]) -> EncodedRows[C]:
        """Merge encoded rows of one folder, which saves memory."""
        ...

    def write(self, folder: str, contents: Sequence[C]) -> None:
        """Write encoded rows of one folder, in order."""
        ...

    def finish(self) -> None:
        """Finish all open files."""
        ...

    @property
    def staged_schema(self) -> pa.Schema | None:
        """The schema of the finished files, without types for columns of None; None for formats that have none."""
        ...


GROUP_ROWS: Final = 1 << 17
"""The number of buffered rows at which a folder is written; also the largest row group."""

GROUP_BYTES: Final = 1 << 22
"""The default number of buffered bytes at which a folder is written."""

BUFFER_BYTES_MAX: Final = 1 << 25
"""The limit of buffered bytes of all folders; above it the folder with the most bytes is written."""

_MERGE_AT: Final = 64


class WriteBuffer(Generic[C]):
    """Encoded rows that wait to be written, by folder, in order; at most `BUFFER_BYTES_MAX`.

    ``merge`` merges several: small ones take far more memory than their bytes.
    """

    def __init__(self, merge: Callable[[str, Sequence[C]], EncodedRows[C]]) -> None:
        self._merge = merge
        self._folders: dict[str, _FolderBuffer[C]] = {}
        self._bytes = 0

    def __iter__(self) -> Iterator[str]:
        """Iterate over the folders with buffered rows."""
        return iter(tuple(self._folders))

    def add(self, piece: EncodedRows[C], *, group_bytes: int) -> str | None:
        """Buffer ``piece``; return the folder that is to be written now, if any. ``group_bytes``: its limit."""
        buffer = self._folders.get(piece.folder)
        if buffer is None:
            buffer = self._folders[piece.folder] = _FolderBuffer()
        before = buffer.bytes
        buffer.add(piece, self._merge)
        self._bytes += buffer.bytes - before
        if buffer.rows >= GROUP_ROWS or buffer.bytes >= group_bytes:
            return piece.folder
        if self._bytes >= BUFFER_BYTES_MAX:
            return max(self._folders, key=lambda folder: self._folders[folder].bytes)
        return None

    def take(self, folder: str) -> list[C]:
        """Remove and return the encoded rows of ``folder``."""
        buffer = self._folders.pop(folder)
        self._bytes -= buffer.bytes
        return [piece.content for piece in (*buffer.merged, *buffer.fresh)]

    def clear(self) -> None:
        """Drop all buffered rows."""
        self._folders, self._bytes = {}, 0


class _FolderBuffer(Generic[C]):
    """The buffer of one folder. It merges in two levels, so that each row is copied at most twice."""

    def __init__(self) -> None:
        self.fresh: list[EncodedRows[C]] = []
        self.merged: list[EncodedRows[C]] = []
        self.rows = 0
        self.bytes = 0

    def add(self, piece: EncodedRows[C], merge: Callable[[str, Sequence[C]], EncodedRows[C]]) -> None:
        self.fresh.append(piece)
        self.rows += piece.rows
        self.bytes += piece.bytes
        if len(self.fresh) >= _MERGE_AT:
            self.merged.append(merge(piece.folder, [one.content for one in self.fresh]))
            self.fresh = []
            if len(self.merged) >= _MERGE_AT:
                self.merged = [merge(piece.folder, [one.content for one in self.merged])]
            self.bytes = sum(one.bytes for one in self.merged)


class KeyRule:
    """Decides whether the stream's key is written: once, by the first values, and then the same for all."""

    def __init__(self) -> None:
        self._is_written: bool | None = None

    def is_written(self, with_field: int, rows: int) -> bool:
        """Return whether the key is written for ``rows`` values, of which ``with_field`` have a field ``key``.

        Raise `SinkError` if some values have such a field and others do not.
        """
        if self._is_written is None:
            self._is_written = not with_field
        if with_field != (0 if self._is_written else rows):
            raise SinkError(
                "column 'key' would hold the stream's key for some values and their own field for others: "
                "in a map step give all values a field 'key', or none"
            )
        return self._is_written


class Converter(Protocol):
    """Converts rows and columns into record batches, as `RowColumns` does."""

    def convert(
        self,
        values: list[Any],
        *,
        leading: Mapping[str, Column] | None = None,
        lists: Mapping[Any, list[Any]] | None = None,
    ) -> pa.RecordBatch:
        """Convert rows. ``lists``: their `field_lists`, if they have been made."""
        ...

    def admit(self, columns: pa.RecordBatch, *, leading: Mapping[str, Column] | None = None) -> pa.RecordBatch:
        """Convert columns."""
        ...

    def widened(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Cast an earlier batch to wider types."""
        ...


class BatchConverter:
    """Converts the batches of one writer, rows or columns, into record batches of one schema (see `RowColumns`).

    ``partition_by`` names columns that are returned separately. ``rows`` is the converter, by default a `RowColumns`.
    ``schema`` is the widest schema of the other columns so far; None before the first row.
    """

    def __init__(self, partition_by: Sequence[str] = (), rows: Converter | None = None) -> None:
        self._partition_by = partition_by
        self._rows: Converter = rows or RowColumns(SinkError)
        self.schema: pa.Schema | None = None
        self._key_rule = KeyRule()

    def convert(self, batch: Batch) -> tuple[list[pa.Array], pa.RecordBatch]:
        """Return the partition columns of ``batch`` and its other columns; widen `schema` to hold them."""
        converted = self._of_rows(batch) if batch.columns is None else self._of_columns(batch, batch.columns)
        names = [name for name in converted.schema.names if name not in self._partition_by]
        if not names:
            raise SinkError("all columns are partition columns, so the files would have none: add a column")
        others = converted.select(names)
        self.schema = others.schema
        return [converted.column(name) for name in self._partition_by], others

    def widened(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Cast an earlier ``batch`` to the wider types of ``schema``."""
        return self._rows.widened(batch, schema)

    def _of_rows(self, batch: Batch) -> pa.RecordBatch:
        lists = field_lists(batch.values)
        rows = fields_of(batch.values) if lists is None else batch.values
        if batch.keys is None:
            with_field = 0
        elif lists is None:
            with_field = sum("key" in row for row in rows)
        else:
            with_field = len(batch) if "key" in lists else 0
        leading = self._leading(batch, with_field)
        check_partition_columns(self._partition_by, rows if lists is None else [lists], leading)
        return self._rows.convert(rows, leading=leading, lists=lists)

    def _of_columns(self, batch: Batch, columns: pa.RecordBatch) -> pa.RecordBatch:
        names = columns.schema.names
        leading = self._leading(batch, len(batch) if "key" in names else 0)
        check_partition_columns(self._partition_by, [dict.fromkeys(names)], leading)
        return self._rows.admit(columns, leading=leading)

    def _leading(self, batch: Batch, with_field: int) -> dict[str, Column]:
        keys: Column | None = batch.keys if batch.key_column is None else batch.key_column
        if keys is None or not self._key_rule.is_written(with_field, len(batch)):
            return {}
        return {"key": keys}


def check_partition_columns(
    columns: Sequence[str], rows: Sequence[Mapping[Any, Any]], leading: Mapping[str, Column]
) -> None:
    """Raise `SinkError` unless all ``rows`` have all partition ``columns`` that are not among ``leading``."""
    for name in columns:
        if name not in leading and not all(name in row for row in rows):
            raise SinkError(f"some values lack the partition column {name!r}: give it to all, as None if unknown")
