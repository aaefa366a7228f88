"""Batches into files: what an encoder is, its columns, and the pieces that wait until they are worth a write.

What an encoder is: it makes pieces of batches, which are held back until many are worth writing, and writes them.

Pieces that wait until enough of them have come together for their folder to be worth a write. Bounded in memory.

The columns of a file: those of the values, on a keyed stream the key before them, without partition columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from malstrom_py.data.batch import Batch
from malstrom_py.data.rows_to_columns import Column, RowColumns, fields_of
from malstrom_py.errors import SinkError

if TYPE_CHECKING:
    import pyarrow as pa

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class EncodedRows(Generic[C]):
    """What one batch puts into one folder (relative to the root, empty for the root itself)."""

    folder: str
    content: C
    rows: int
    bytes: int


class Encoder(Protocol[C]):
    """Writes into the rolling files it was made with."""

    @property
    def group_bytes(self) -> int:
        """How many bytes of pieces of one folder are worth a write."""
        ...

    def encode(self, batch: Batch) -> Iterable[EncodedRows[C]]:
        """What ``batch`` puts into each folder. Nothing is written yet."""
        ...

    def merge(self, folder: str, contents: Sequence[C]) -> EncodedRows[C]:
        """Several pieces of one folder as one, which takes less room."""
        ...

    def write(self, folder: str, contents: Sequence[C]) -> None:
        """Write pieces of one folder, in order."""
        ...

    def finish(self) -> None:
        """Everything is written: finish the files."""
        ...


GROUP_ROWS: Final = 1 << 17
"""Rows of one folder that are worth a write: also the largest row group."""

GROUP_BYTES: Final = 1 << 22
"""Bytes of one folder that are worth a write, if nothing asks for more."""

HELD_BYTES_MAX: Final = 1 << 25
"""Bytes that wait for all folders together; for more, the folder that has most is written."""

_MERGED_AT: Final = 64


class WriteBuffer(Generic[C]):
    """The pieces of each folder in order; `HELD_BYTES_MAX` in all.

    ``merge`` makes one piece of several: small ones take far more room than their bytes.
    """

    def __init__(self, merge: Callable[[str, Sequence[C]], EncodedRows[C]]) -> None:
        self._merge = merge
        self._folders: dict[str, _Folder[C]] = {}
        self._bytes = 0

    def __iter__(self) -> Iterator[str]:
        """The folders that something is held for."""
        return iter(tuple(self._folders))

    def add(self, piece: EncodedRows[C], *, group_bytes: int) -> str | None:
        """Hold ``piece`` back; the folder to write now, if there is one: ``group_bytes`` are worth a write."""
        held = self._folders.get(piece.folder)
        if held is None:
            held = self._folders[piece.folder] = _Folder()
        before = held.bytes
        held.add(piece, self._merge)
        self._bytes += held.bytes - before
        if held.rows >= GROUP_ROWS or held.bytes >= group_bytes:
            return piece.folder
        if self._bytes >= HELD_BYTES_MAX:
            return max(self._folders, key=lambda folder: self._folders[folder].bytes)
        return None

    def take(self, folder: str) -> list[C]:
        """The pieces of ``folder``, which are not held any more."""
        held = self._folders.pop(folder)
        self._bytes -= held.bytes
        return [piece.content for piece in (*held.merged, *held.fresh)]

    def clear(self) -> None:
        """Forget everything."""
        self._folders, self._bytes = {}, 0


class _Folder(Generic[C]):
    """Merges in two steps, so that a row is copied twice and not once per piece that comes after it."""

    def __init__(self) -> None:
        self.fresh: list[EncodedRows[C]] = []
        self.merged: list[EncodedRows[C]] = []
        self.rows = 0
        self.bytes = 0

    def add(self, piece: EncodedRows[C], merge: Callable[[str, Sequence[C]], EncodedRows[C]]) -> None:
        self.fresh.append(piece)
        self.rows += piece.rows
        self.bytes += piece.bytes
        if len(self.fresh) >= _MERGED_AT:
            self.merged.append(merge(piece.folder, [one.content for one in self.fresh]))
            self.fresh = []
            if len(self.merged) >= _MERGED_AT:
                self.merged = [merge(piece.folder, [one.content for one in self.merged])]
            self.bytes = sum(one.bytes for one in self.merge)


class KeyRule:
    """Whether the stream's key is written: decided once, by the first values, and the same for every one."""

    def __init__(self) -> None:
        self._is_written: bool | None = None

    def is_written(self, with_field: int, rows: int) -> bool:
        """Whether ``rows`` values, ``with_field`` of which have a field ``key``, get the stream's key.

        `SinkError` if some have such a field and some have not.
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
    """What makes record batches, such as `RowColumns`."""

    def convert(self, values: list[Any], *, leading: Mapping[str, Column] | None = None) -> pa.RecordBatch:
        """Of rows."""
        ...

    def admit(self, columns: pa.RecordBatch, *, leading: Mapping[str, Column] | None = None) -> pa.RecordBatch:
        """Of columns."""
        ...

    def widened(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """An earlier batch with wider types."""
        ...


class BatchConverter:
    """Turns the batches of one writer, rows or columns, into record batches of one schema (see `RowColumns`).

    ``partition_by`` names columns that stand apart. ``rows`` makes them, a `RowColumns` if None. ``schema`` is the
    widest of the others so far; None before the first row.
    """

    def __init__(self, partition_by: Sequence[str] = (), rows: Converter | None = None) -> None:
        self._partition_by = partition_by
        self._rows: Converter = rows or RowColumns(SinkError)
        self.schema: pa.Schema | None = None
        self._key_rule = KeyRule()

    def convert(self, batch: Batch) -> tuple[list[pa.Array], pa.RecordBatch]:
        """The partition columns of ``batch``, and its other columns, after `schema` has widened to hold them."""
        converted = self._of_rows(batch) if batch.columns is None else self._of_columns(batch, batch.columns)
        names = [name for name in converted.schema.names if name not in self._partition_by]
        if not names:
            raise SinkError("all columns are partition columns, so none is left for the files: add one")
        others = converted.select(names)
        self.schema = others.schema
        return [converted.column(name) for name in self._partition_by], others

    def widened(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """An earlier ``batch`` with the wider types of ``schema``."""
        return self._rows.widened(batch, schema)

    def _of_rows(self, batch: Batch) -> pa.RecordBatch:
        rows = fields_of(batch.values)
        leading = self._leading(batch, sum("key" in row for row in rows) if batch.keys is not None else 0)
        check_partition_columns(self._partition_by, rows, leading)
        return self._rows.convert(rows, leading=leading)

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


def check_partition_columns(columns: Sequence[str], rows: Sequence[dict[str, Any]], leading: dict[str, Column]) -> None:
    """`SinkError` unless each of ``rows`` has each of the partition ``columns`` that is not among ``leading``."""
    for name in columns:
        if name not in leading and not all(name in row for row in rows):
            raise SinkError(f"partition column {name!r} is no field of some value: give it to all, None if need be")
