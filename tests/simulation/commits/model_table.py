"""A table in memory with the sink of Delta and Iceberg tables: their commits at any place, without their libraries."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from malstrom_py.connectors.lake.files import LakeFile
from malstrom_py.connectors.lake.sink import LakeSink
from malstrom_py.connectors.lake.types import Seen, Shape
from malstrom_py.sinks.staged.folder import FolderPlace
from malstrom_py.sinks.staged.objects import ObjectPlace


def _plainly(request: Callable[..., Any], *arguments: Any) -> Any:
    return request(*arguments)


@dataclass
class Catalog:
    """What a catalog knows of the table whose files are in ``place``. ``ask``: what surrounds each request."""

    place: FolderPlace | ObjectPlace
    ask: Callable[..., Any] = _plainly
    columns: pa.Schema | None = None
    paths: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table."""
        return [row for path in self.paths for row in pq.read_table(self._opened(path)).to_pylist()]

    def _opened(self, path: str) -> Any:
        if isinstance(self.place, FolderPlace):
            return self.place.root / path
        return io.BytesIO(self.place.bucket.get(self.place.key(path)))


class ModelTable:
    """The table of ``catalog``; see `LakeTable`."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def look(self, app: str) -> Seen | None:
        return self._catalog.ask(self._look, app)  # type: ignore[no-any-return]

    def ensure(self, schema: pa.Schema) -> Shape:
        return self._catalog.ask(self._ensure, schema)  # type: ignore[no-any-return]

    def describe(self, shape: Shape, metadata: pq.FileMetaData) -> Any:
        return {"rows": metadata.num_rows}

    def commit(self, app: str, number: int, files: Sequence[LakeFile]) -> bool:
        return self._catalog.ask(self._commit, app, number, files)  # type: ignore[no-any-return]

    def contains(self, path: str) -> bool:
        return path in self._catalog.paths

    def _look(self, app: str) -> Seen | None:
        known = self._catalog
        return None if known.columns is None else Seen(self._shape(known.columns), known.numbers.get(app))

    def _ensure(self, schema: pa.Schema) -> Shape:
        self._catalog.columns = self._catalog.columns or schema
        return self._shape(self._catalog.columns)

    def _commit(self, app: str, number: int, files: Sequence[LakeFile]) -> bool:
        known = self._catalog.numbers.get(app)
        if known is not None and known >= number:
            return known == number
        self._catalog.paths += [file.path for file in files]
        self._catalog.numbers[app] = number
        return True

    def _shape(self, columns: pa.Schema) -> Shape:
        return Shape("the model table", columns, (), self._catalog.place, in_files=True)


class ModelSink(LakeSink):
    """The sink of the table of ``catalog``."""

    _file_bytes_max = 1 << 20

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @property
    def _table(self) -> ModelTable:
        return ModelTable(self._catalog)
