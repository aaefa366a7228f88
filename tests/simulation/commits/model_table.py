"""A table in memory with the sink of Delta and Iceberg tables: their commits at any place, without their libraries."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from malstrom_py.connectors.lake.sink import LakeSink
from malstrom_py.connectors.lake.table import LakeFile, LakeTable
from malstrom_py.connectors.lake.types import Shape
from malstrom_py.sinks.staged.folder import FolderPlace
from malstrom_py.sinks.staged.objects import ObjectPlace


class OvertakenError(Exception):
    """Another program has changed the table since it was read."""


@dataclass(frozen=True)
class Version:
    """What a table is in one version: its columns, its files, and the numbers of snapshots."""

    columns: pa.Schema
    paths: Sequence[str] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)


def _plainly(request: Callable[..., Any], *arguments: Any) -> Any:
    return request(*arguments)


@dataclass
class Catalog:
    """The newest version of the table whose files are in ``place``. ``ask``: what surrounds each request."""

    place: FolderPlace | ObjectPlace
    ask: Callable[..., Any] = _plainly
    newest: Version | None = None

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table."""
        paths = () if self.newest is None else self.newest.paths
        return [row for path in paths for row in pq.read_table(self._opened(path)).to_pylist()]

    def change(self, before: Version | None, after: Version) -> None:
        """Replace the version ``before``; `OvertakenError` if that is not the newest."""
        if self.newest is not before:
            raise OvertakenError
        self.newest = after

    def _opened(self, path: str) -> Any:
        if isinstance(self.place, FolderPlace):
            return self.place.root / path
        return io.BytesIO(self.place.bucket.get(self.place.key(path)))


class ModelTable(LakeTable[None, Version]):
    """The table of ``catalog``."""

    kind, illegal, has_times, in_files = "model", "", True, True

    def __init__(self, catalog: Catalog) -> None:
        super().__init__("of the model")
        self._catalog = catalog

    def describe(self, shape: Shape, metadata: pq.FileMetaData) -> Any:
        return {"rows": metadata.num_rows}

    def _session(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _find(self, session: None) -> Version | None:
        found: Version | None = self._catalog.ask(lambda: self._catalog.newest)
        return found

    def _noted(self, table: Version, app: str) -> int | None:
        return table.numbers.get(app)

    def _shape(self, table: Version) -> Shape:
        return Shape(self.where, table.columns, (), self._catalog.place, in_files=self.in_files)

    def _create(self, session: None, fields: Sequence[pa.Field]) -> None:
        self._catalog.ask(self._catalog.change, None, Version(pa.schema(fields)))

    def _add_columns(self, table: Version, fields: Sequence[pa.Field]) -> None:
        self._catalog.ask(self._catalog.change, table, replace(table, columns=pa.schema([*table.columns, *fields])))

    def _add(self, table: Version, app: str, number: int, files: Sequence[LakeFile]) -> None:
        paths = [*table.paths, *(file.path for file in files)]
        added = replace(table, paths=paths, numbers={**table.numbers, app: number})
        self._catalog.ask(self._catalog.change, table, added)

    def _merge(self, table: Version, app: str, number: int, rows: pa.Table, keys: Sequence[str]) -> None:
        raise NotImplementedError

    def _has(self, table: Version, path: str) -> bool:
        return path in table.paths

    def _why_lost(self, error: Exception) -> str | None:
        return "another program was faster" if isinstance(error, OvertakenError) else None


class ModelSink(LakeSink):
    """The sink of the table of ``catalog``."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(ModelTable(catalog), file_bytes_max=1 << 20)
