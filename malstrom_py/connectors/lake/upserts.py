"""Upserts: rows replace or delete those of a table that have the same keys, in the commit of their snapshot.

Staged files have the columns of the table and three more: whether a row deletes, and two that give the rows of a key
their order. The commit keeps the last row of each key and merges these into the table in one transaction, which
notes the snapshot. Nothing is published by moves, so staged files are removed after it.

Rule (R4): what a key wrote under a lower version of the routing table, on any worker, precedes what it wrote under a
higher one; within a version one worker has written it, in the order of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.connectors.lake.table import LakeTable
from malstrom_py.connectors.lake.types import Shape
from malstrom_py.connectors.lake.writer import LakeEncoder
from malstrom_py.data.batch import Batch
from malstrom_py.data.schema import ColumnKind, kind_of
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.sinks.files.tables import pieces
from malstrom_py.sinks.staged.writing import EncodedRows, WrittenFile
from malstrom_py.worker_context import WorkerInfo

if TYPE_CHECKING:
    import pyarrow as pa

DELETES: Final = "_malstrom_deletes"
_VERSION: Final = "_malstrom_version"
_ROW: Final = "_malstrom_row"
_NO_KEYS: Final = {ColumnKind.FLOAT, ColumnKind.LIST, ColumnKind.STRUCT, ColumnKind.MAP}


def checked_keys(mode: object, keys: str | Iterable[str], delete_field: object, asked_by: str) -> tuple[str, ...]:
    """Return the keys of upserts, none for appends; `PlanError` if an argument is wrong."""
    named = (keys,) if isinstance(keys, str) else tuple(keys)
    if mode not in ("append", "upsert"):
        raise PlanError(f"{asked_by}: mode must be 'append' or 'upsert', got {mode!r}")
    if not all(isinstance(key, str) and key for key in named) or len(set(named)) < len(named):
        raise PlanError(f"{asked_by}: keys must be different names of columns")
    if bool(named) != (mode == "upsert"):
        raise PlanError(f"{asked_by}: mode='upsert' needs keys, the columns that identify a row; an append has none")
    if delete_field is not None and (not named or not isinstance(delete_field, str) or delete_field in named):
        raise PlanError(f"{asked_by}: delete_field must name a field for mode='upsert' that is not one of the keys")
    return named


class UpsertEncoder(LakeEncoder):
    """Encodes rows with their order. ``delete_field``: the field that says whether a row deletes."""

    def __init__(
        self,
        table: LakeTable[Any, Any],
        worker: WorkerInfo,
        keys: Sequence[str],
        delete_field: str | None,
        *,
        file_bytes_max: int,
    ) -> None:
        # The fields of the keys identify a row, so the key of the stream is a column only if it is one of them.
        super().__init__(table, worker, file_bytes_max=file_bytes_max, takes_key="key" in keys)
        self._keys = keys
        self._delete_field = delete_field
        self._version = 0
        self._row = 0

    def moved(self, version: int) -> None:
        """Take the new version of the routing table."""
        self._version = version

    def details(self, file: WrittenFile) -> Mapping[str, Any]:
        return {}

    def _converted(self, batch: Batch) -> pa.RecordBatch:
        import pyarrow as pa

        columns = super()._converted(batch)
        # The order is that of now: rows may wait here for the columns of a new table while keys move.
        order = pa.array(range(self._row, self._row + len(columns)), pa.int64())
        self._row += len(columns)
        columns = columns.append_column(_VERSION, pa.repeat(pa.scalar(self._version, pa.int64()), len(columns)))
        return columns.append_column(_ROW, order)

    def _ensure(self, schema: pa.Schema) -> Shape:
        import pyarrow as pa

        marks = {self._delete_field, _VERSION, _ROW}
        return super()._ensure(pa.schema([field for field in schema if field.name not in marks]))

    def _fitted(self, shape: Shape, columns: pa.RecordBatch) -> Iterable[EncodedRows[pa.RecordBatch]]:
        import pyarrow as pa
        import pyarrow.compute as pc

        deletes, order = self._deletes(columns), columns.select([_VERSION, _ROW])
        marks = {self._delete_field, _VERSION, _ROW}
        columns = columns.select([name for name in columns.schema.names if name not in marks])
        kept = columns.filter(pc.call_function("invert", [deletes]))
        if len(kept) < len(columns):
            # Of a row that deletes, the keys alone count: other columns may be missing, new, or wrongly None.
            wanted = {*self._keys, *shape.schema.names}
            kept = kept.select([n for n in kept.schema.names if n in wanted or kept.column(n).null_count < len(kept)])
        if len(kept):
            shape = self._shape_for(shape, kept.schema)
        self._check_keys(shape, columns)
        found: list[EncodedRows[pa.RecordBatch]] = []
        for deleting in (False, True):
            some = columns.filter(deletes).select(list(self._keys)) if deleting else kept
            if len(some):
                fitted = (_optional(shape) if deleting else shape).fit(some)
                mask = deletes if deleting else pc.call_function("invert", [deletes])
                arrays = [*fitted.columns, pa.repeat(deleting, len(some)), *order.filter(mask).columns]
                batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema_in_file())
                found += pieces((), [], batch)
        return found

    def _deletes(self, columns: pa.RecordBatch) -> pa.Array:
        """Return of each row whether it deletes."""
        import pyarrow as pa

        if self._delete_field is None:
            return pa.repeat(False, len(columns))
        index = columns.schema.get_field_index(self._delete_field)
        if index < 0 or columns.column(index).type != pa.bool_() or columns.column(index).null_count:
            raise SinkError(
                f"field {self._delete_field!r} of some rows is missing or not a bool: give all rows True or False in a "
                f"step before, as delete_field={self._delete_field!r} asks for"
            )
        return columns.column(index)

    def _check_keys(self, shape: Shape, columns: pa.RecordBatch) -> None:
        """Raise `SinkError` for keys by which rows cannot be found."""
        for key in self._keys:
            if key not in columns.schema.names or key not in shape.schema.names or columns.column(key).null_count:
                raise SinkError(f"the key {key!r} is missing or None in some rows: give it to all in a step before")
            if kind_of(shape.schema.field(key).type) in _NO_KEYS:
                raise SinkError(f"the key {key!r} is {shape.schema.field(key).type} in {shape.where}: use another key")

    def _schema(self) -> pa.Schema | None:
        import pyarrow as pa

        if self._shape is None:
            return None
        marks = [pa.field(DELETES, pa.bool_()), pa.field(_VERSION, pa.int64()), pa.field(_ROW, pa.int64())]
        return pa.schema([*_optional(self._shape).schema, *marks])

    def _schema_in_file(self) -> pa.Schema:
        self._known_shape()
        return self._schema()


def last_rows(files: Sequence[bytes], keys: Sequence[str]) -> pa.Table:
    """Return the last row of each key in staged Parquet ``files``, without its order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [pq.read_table(pa.BufferReader(file)) for file in files]
    rows = pa.concat_tables(tables, promote_options="permissive").sort_by(
        [(_VERSION, "ascending"), (_ROW, "ascending")]
    )
    numbers = pa.table([*(rows.column(key) for key in keys), pa.array(range(len(rows)))], [*keys, _ROW])
    last = numbers.group_by(list(keys), use_threads=False).aggregate([(_ROW, "max")]).column(f"{_ROW}_max")
    return rows.take(last).drop_columns([_VERSION, _ROW])


def _optional(shape: Shape) -> Shape:
    """Return ``shape`` with columns that may all be None, in one folder."""
    import pyarrow as pa

    return replace(shape, schema=pa.schema([field.with_nullable(True) for field in shape.schema]), partition_by=())
