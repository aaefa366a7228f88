"""Tables of both formats for tests: made in a folder, written and read, also by Polars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog

from malstrom_py import sinks, sources
from malstrom_py.data.batch import Batch
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.worker_context import WorkerId, WorkerInfo

TABLE = "tests.rows"


def context_of(number: int, *, step: str = "out", final: bool = False) -> CommitContext:
    """Return the context of snapshot ``number``."""
    return CommitContext("job", step, SnapshotId(f"20200101T{number:012d}Z-0000abcd"), 1, final=final)


def worker_of(number: int = 0, *, step: str = "out") -> WorkerInfo:
    return WorkerInfo("job", step, WorkerId(number))


@dataclass(frozen=True)
class Lake:
    """A table in ``folder``, which need not exist."""

    form: str
    folder: Path

    @property
    def catalog(self) -> dict[str, str]:
        place = self.folder / "catalog.db"
        known = {"type": "sql", "uri": f"sqlite:///{place}", "warehouse": f"file://{self.folder}/warehouse"}
        # Looking for the catalog's own tables takes longer than all else.
        return {**known, "init_catalog_tables": "false"} if place.exists() else known

    @property
    def root(self) -> Path:
        """The folder of the data files."""
        return self.folder / "table" if self.form == "delta" else self.folder / "warehouse/tests/rows/data"

    def sink(self, **options: Any) -> Any:
        self.folder.mkdir(exist_ok=True)
        if self.form == "delta":
            return sinks.Delta(self.folder / "table", **options)
        return sinks.Iceberg(TABLE, catalog=self.catalog, **options)

    def source(self, **options: Any) -> Any:
        if self.form == "delta":
            return sources.Delta(self.folder / "table", **options)
        return sources.Iceberg(TABLE, catalog=self.catalog, **options)

    @contextmanager
    def opened(self) -> Iterator[Catalog]:
        catalog = load_catalog("default", **self.catalog)
        try:
            yield catalog
        finally:
            catalog.close()

    def frame(self) -> pl.DataFrame:
        """Return the rows as Polars reads them; none if there is no table."""
        if self.form == "delta":
            there = (self.folder / "table/_delta_log").exists()
            return pl.scan_delta(str(self.folder / "table")).collect() if there else pl.DataFrame()
        if not (self.folder / "catalog.db").exists():
            return pl.DataFrame()
        with self.opened() as catalog:
            found = catalog.load_table(TABLE) if catalog.table_exists(TABLE) else None
            return pl.DataFrame() if found is None else pl.scan_iceberg(found).collect()

    def values(self, column: str = "value") -> list[Any]:
        """Return the sorted values of a column."""
        frame = self.frame()
        return sorted(frame[column].to_list()) if column in frame.columns else []

    def commits(self) -> int:
        """Return how many commits the table has had."""
        if self.form == "delta":
            return DeltaTable(self.folder / "table").version()
        with self.opened() as catalog:
            return len(catalog.load_table(TABLE).metadata.snapshots)

    def staged(self) -> list[Path]:
        """Return the files that are staged."""
        return sorted((self.root / "_staging").rglob("*.parquet"))

    def write(self, rows: Sequence[Any], number: int = 1, **options: Any) -> None:
        """Append ``rows`` by one snapshot."""
        sink = self.sink(**options)
        payload = staged(sink, rows, number)
        sink.commit(context_of(number), [payload])


def staged(sink: Any, rows: Sequence[Any], number: int, *, worker: int = 0) -> bytes:
    """Return the payload of ``rows``, pre-committed by a new writer."""
    writer = sink.open(worker_of(worker))
    try:
        writer.write(Batch(list(rows)))
        payload: bytes = writer.pre_commit(context_of(number))
        return payload
    finally:
        writer.close()


def read_all(source: Any, *, rows_max: int = 100) -> list[dict[str, Any]]:
    """Pin ``source`` and return the rows of all its parts."""
    rows: list[dict[str, Any]] = []
    source.pin("read")
    try:
        for part in source.list_parts():
            opened = source.build_part(part, None)
            while not opened.is_finished():
                polled = opened.poll(rows_max)
                rows += [] if polled is None else polled.to_pylist()
            opened.close()
    finally:
        source.unpin()
    return rows
