"""One row group of a pinned file while it is read. The position is (file, row group, row).

`sources.files` reads the columns in the file; this module adds the others: partition columns from the names of folders,
and nulls for columns that other files have.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.errors import SourceError
from malstrom_py.sources.files.ahead import AheadPart
from malstrom_py.sources.files.footers import Footers, KnownFile
from malstrom_py.sources.files.objects import ObjectPath
from malstrom_py.sources.files.parquet import ParquetPart
from malstrom_py.sources.files.reading import LazyPart
from malstrom_py.sources.files.streams import file_replaced
from malstrom_py.sources.spark.pin import Pin, PinnedFile, constant

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


class PinnedPart:
    """Returns the rows of ``inner`` for which ``keep`` is true, with the columns ``names`` of ``schema``."""

    wait_max_s: Final = AheadPart.wait_max_s

    def __init__(
        self,
        file: PinnedFile,
        group: int,
        inner: ParquetPart | AheadPart,
        known: KnownFile | None,
        *,
        schema: pa.Schema,
        names: list[str],
        keep: Any = None,
    ) -> None:
        self._file = file
        self._group = group
        self._inner = inner
        self._known = known
        self._schema = schema
        self._names = names
        self._keep = keep
        self._constants = {
            name: constant(value, schema.field(name).type)
            for name, value in file.values.items()
            if name in schema.names
        }

    def poll(self, rows_max: int) -> Any:
        return self._poll(self._inner.poll, rows_max)

    def poll_columns(self, rows_max: int) -> Any:
        """Poll for steps that take columns, by the fastest way."""
        return self._poll(self._inner.poll_columns, rows_max)

    def is_finished(self) -> bool:
        return self._inner.is_finished()

    def snapshot(self) -> dict[str, Any]:
        inner = self._inner.snapshot()
        return position_at(self._file, self._group, row=inner["rows"], finished=inner["finished"])

    def close(self) -> None:
        self._inner.close()

    def _poll(self, poll: Any, rows_max: int) -> Any:
        while True:
            rows = poll(rows_max)
            if self._known is not None and not self._known.is_there():
                raise file_replaced(self._file.path)
            if rows is None or not len(rows):
                return rows
            whole = self._whole(rows)
            # Never return an empty batch because of the filter: the worker would back off as if no rows were there.
            if len(whole):
                return whole

    def _whole(self, rows: Any) -> Any:
        """Return the ``rows`` that the filter keeps, with all columns in order."""
        if isinstance(rows, ColumnBatch):
            if self._keep is None and rows.frame.columns == self._names:
                return rows
            rows = rows.columns
        elif self._keep is None and rows.schema.names == self._names:
            return rows
        import pyarrow as pa

        here = set(rows.schema.names)
        columns = [
            rows.column(field.name) if field.name in here else self._filled(field, rows.num_rows)
            for field in self._schema
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return (batch if self._keep is None else batch.filter(self._keep)).select(self._names)

    def _filled(self, field: pa.Field, size: int) -> pa.Array:
        import pyarrow as pa

        value = self._constants.get(field.name)
        return pa.nulls(size, field.type) if value is None else pa.repeat(value, size)


def position_at(file: PinnedFile, group: int, *, row: int = 0, finished: bool = False) -> dict[str, Any]:
    """Return the position before ``row``, counted in the unfiltered row group."""
    return {"file": file.path, "row_group": group, "row": row, "finished": finished}


def open_pinned(pin: Pin, file: PinnedFile, group: int, footers: Footers, position: Any, keep: Any) -> PinnedPart:
    """Open ``group`` of ``file`` at ``position``; `SourceError` if the file is not the pinned one."""
    path = Path(file.path)
    try:
        file.check(path.stat())
        opened, known = footers.open_known(path)
    except OSError as error:
        raise file.open_error(error) from error
    try:
        file.check(path.stat())
        if not known.is_there():
            raise file_replaced(file.path)
    except (SourceError, OSError):
        opened.close(force=True)
        raise
    inner = _opened(pin, file, group, opened, _in_group(group, position), known)
    return PinnedPart(file, group, inner, known, schema=pin.arrow_schema, names=list(pin.names), keep=keep)


def read_ahead(
    pin: Pin, file: PinnedFile, group: int, footers: Footers, position: Any, keep: Any, path: ObjectPath
) -> PinnedPart:
    """Read ``group`` of the object at ``path`` from ``position`` on, in a thread, which opens it at the first poll."""

    def open_at(inside: dict[str, Any]) -> ParquetPart:
        now = ObjectPath(path.bucket, path.name)  # each partition asks the store once
        try:
            file.check(now.stat())
            opened = footers.open(now)
        except OSError as error:
            raise file.open_error(error) from error
        return _opened(pin, file, group, opened, inside, None)

    ahead = AheadPart(file.path, LazyPart(_in_group(group, position), open_at))
    return PinnedPart(file, group, ahead, None, schema=pin.arrow_schema, names=list(pin.names), keep=keep)


def _in_group(group: int, position: Any) -> dict[str, Any]:
    """Return ``position`` as that of a `ParquetPart`."""
    row = position["row"]
    return {"row_group": group, "records": row, "rows": row, "finished": position["finished"]}


def _opened(
    pin: Pin, file: PinnedFile, group: int, opened: pq.ParquetFile, position: dict[str, Any], known: KnownFile | None
) -> ParquetPart:
    try:
        schema = _read_of(opened.schema_arrow, pin.arrow_schema, file)
    except (SourceError, OSError):
        opened.close(force=True)
        raise
    return ParquetPart(
        f"{file.path} (row group {group})",
        opened,
        stop=group + 1,
        schema=schema,
        first=None,
        position=position,
        remembered={},
        known=known,
    )


def _read_of(found: pa.Schema, schema: pa.Schema, file: PinnedFile) -> pa.Schema:
    """Return the columns of ``schema`` that are read from ``file``: at least one, to know the number of rows."""
    import pyarrow as pa

    in_file = [field for field in schema if field.name in found.names and field.name not in file.values]
    if not in_file:
        fixed = [field for field in found if pa.types.is_primitive(field.type)]
        in_file = (fixed or list(found))[:1]
    return pa.schema([field.remove_metadata() for field in in_file])
