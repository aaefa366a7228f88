"""Tables of both formats for tests: made in a folder, written and read, also by Polars."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyiceberg.catalog import Catalog, load_catalog

from malstrom_py import sinks, sources
from malstrom_py.connectors.lake.iceberg_catalog import checked_catalog
from malstrom_py.data.batch import Batch
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.worker_context import WorkerId, WorkerInfo
from tests.integration.connectors.buckets import TestBucket
from tests.servers import catalog_of

TABLE = "tests.rows"
Rows = Batch | list[Any]


def context_of(number: int, *, step: str = "out", final: bool = False) -> CommitContext:
    """Return the context of snapshot ``number``."""
    return CommitContext("job", step, SnapshotId(f"20200101T{number:012d}Z-0000abcd"), 1, final=final)


def worker_of(number: int = 0, *, step: str = "out") -> WorkerInfo:
    return WorkerInfo("job", step, WorkerId(number))


@dataclass(frozen=True)
class Lake:
    """A table in ``folder``, which need not exist. With a ``bucket`` its files are there, in a folder of that name.

    ``rest``: the address of a REST catalog, which has the table, and its files in ``bucket``.
    """

    form: str
    folder: Path
    bucket: TestBucket | None = None
    rest: str | None = None

    @property
    def name(self) -> str:
        """The name of the table in a catalog."""
        return TABLE if self.rest is None else f"tests{zlib.crc32(bytes(self.folder))}.rows"

    @property
    def catalog(self) -> dict[str, str]:
        if self.rest is not None:
            return catalog_of(self.rest)
        place = self.folder / "catalog.db"
        known = {"type": "sql", "uri": f"sqlite:///{place}", "warehouse": f"{self._url}/warehouse"}
        # Looking for the catalog's own tables takes longer than all else.
        return {**known, "init_catalog_tables": "false"} if place.exists() else known

    @property
    def _url(self) -> str:
        return f"file://{self.folder}" if self.bucket is None else f"{self.bucket.url}/{self.folder.name}"

    @property
    def _store(self) -> dict[str, Any]:
        return {} if self.bucket is None else {"store_options": self.bucket.options}

    @property
    def table(self) -> str:
        """The path or URL of a Delta table."""
        return str(self.folder / "table") if self.bucket is None else f"{self._url}/table"

    @property
    def storage(self) -> dict[str, str] | None:
        """What others need to reach the table."""
        return None if self.bucket is None else self.bucket.options

    @property
    def root(self) -> Path:
        """The folder of the data files."""
        return self.folder / self._data

    @property
    def _data(self) -> str:
        return "table" if self.form == "delta" else "warehouse/tests/rows/data"

    def sink(self, **options: Any) -> Any:
        self.folder.mkdir(exist_ok=True)
        if self.form == "delta":
            return sinks.Delta(self.table, **self._store, **options)
        return sinks.Iceberg(self.name, catalog=self.catalog, **self._store, **options)

    def source(self, **options: Any) -> Any:
        if self.form == "delta":
            return sources.Delta(self.table, **self._store, **options)
        return sources.Iceberg(self.name, catalog=self.catalog, **self._store, **options)

    @contextmanager
    def opened(self) -> Iterator[Catalog]:
        store = {} if self.bucket is None else checked_catalog("tests", self.bucket.options, "tests").properties
        catalog = load_catalog("default", **self.catalog, **store)
        try:
            yield catalog
        finally:
            catalog.close()

    def frame(self) -> pl.DataFrame:
        """Return the rows as Polars reads them, or pyiceberg from a REST catalog; none if there is no table."""
        if self.form == "delta":
            try:
                found = DeltaTable(self.table, storage_options=self.storage)
            except TableNotFoundError:
                return pl.DataFrame()
            return pl.scan_delta(found, storage_options=self.storage).collect()
        if self.rest is None and not (self.folder / "catalog.db").exists():
            return pl.DataFrame()
        with self.opened() as catalog:
            if not catalog.table_exists(self.name):
                return pl.DataFrame()
            table = catalog.load_table(self.name)
            if self.rest is not None:
                return pl.DataFrame(table.scan().to_arrow())
            return pl.scan_iceberg(table, storage_options=self.storage).collect()

    def values(self, column: str = "value") -> list[Any]:
        """Return the sorted values of a column."""
        frame = self.frame()
        return sorted(frame[column].to_list()) if column in frame.columns else []

    def commits(self) -> int:
        """Return how many commits the table has had."""
        if self.form == "delta":
            return DeltaTable(self.table, storage_options=self.storage).version()
        with self.opened() as catalog:
            return len(catalog.load_table(self.name).metadata.snapshots)

    def staged(self) -> list[Path]:
        """Return the files that are staged."""
        if self.bucket is None:
            return sorted((self.root / "_staging").rglob("*.parquet"))
        root = f"{self.folder.name}/{self._data}" if self.rest is None else f"{self.name.replace('.', '/')}/data"
        return [Path(key) for key in self.bucket.keys(f"{root}/_staging/")]

    def write(self, rows: Rows, number: int = 1, **options: Any) -> None:
        """Append ``rows`` by one snapshot."""
        sink = self.sink(**options)
        payload = staged(sink, rows, number)
        sink.commit(context_of(number), [payload])


def staged(sink: Any, rows: Rows, number: int, *, worker: int = 0) -> bytes:
    """Return the payload of ``rows``, of one batch or of several, pre-committed by a new writer."""
    batches = rows if isinstance(rows, list) and rows and isinstance(rows[0], list) else [rows]
    with closing(sink.open(worker_of(worker))) as writer:
        for batch in batches:
            writer.write(batch if isinstance(batch, Batch) else Batch(batch))
        payload: bytes = writer.pre_commit(context_of(number))
        return payload


def read_all(source: Any, *, rows_max: int = 100) -> list[dict[str, Any]]:
    """Pin ``source`` and return the rows of all its parts."""
    rows: list[dict[str, Any]] = []
    source.pin("read")
    try:
        for part in source.list_parts():
            opened = source.build_part(part, None)
            while not opened.is_finished():
                polled = opened.poll(rows_max)
                if polled is None:
                    time.sleep(0.001)  # objects are read in a thread
                else:
                    rows += polled.to_pylist()
            opened.close()
    finally:
        source.unpin()
    return rows
