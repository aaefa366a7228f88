"""A pinned source over Parquet files for tests, and copies of it as a worker has them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from malstrom_py.sources.files.folders import folder_values
from malstrom_py.sources.files.footers import needed_columns, read_footer
from malstrom_py.sources.pinned.row_groups import PinnedFile, RowGroups, RowGroupSource, new_pin


class PinnedFiles(RowGroupSource):
    """Reads the ``names``, by default all, of ``schema`` from ``paths``; folders below ``root`` have columns too."""

    def __init__(
        self,
        paths: Sequence[Path],
        schema: pa.Schema,
        *,
        names: Sequence[str] = (),
        keep: Any = None,
        root: Path | None = None,
    ) -> None:
        super().__init__(keep)
        self.paths, self.root = paths, root
        self.schema, self.names = schema, names or schema.names

    def __repr__(self) -> str:
        return f"PinnedFiles({', '.join(path.name for path in self.paths)})"

    def _find(self, job: str) -> RowGroups:
        needed = needed_columns(self._keep, self.names, self.schema)
        return new_pin("files", needed, self.names, [self._pinned(path, needed) for path in self.paths], None)

    def _pinned(self, path: Path, schema: pa.Schema) -> PinnedFile:
        values = {} if self.root is None else folder_values(str(path), [str(self.root)])
        footer = read_footer(path, schema, keep=self._keep)
        return PinnedFile(str(path), footer.size, footer.mtime_ns, footer.groups, values)


def copy_of(source: Any) -> Any:
    """Pin ``source`` and return a worker's copy of it."""
    source.pin("job")
    return pickle.loads(pickle.dumps(source))


def parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    """Write a new Parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return path
