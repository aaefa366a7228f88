"""Writes through the file sink and reads what is visible, for its tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import polars as pl

from malstrom_py.data.batch import Batch
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.sinks.files import Files
from malstrom_py.worker_context import WorkerId, WorkerInfo

Format = Literal["csv", "json", "parquet"]
READERS: dict[str, Any] = {"csv": pl.read_csv, "json": pl.read_ndjson, "parquet": pl.read_parquet}
WORKER = WorkerInfo("job", "out", WorkerId(0))


def context(snapshot: str = "s1", *, job: str = "job", step: str = "out", final: bool = True) -> CommitContext:
    return CommitContext(job, step, SnapshotId(snapshot), incarnation=1, final=final)


def write(folder: Path, *batches: Batch | list[Any], format: Format = "parquet", **options: Any) -> None:
    """One whole job's worth: write, pre-commit, commit, close."""
    sink = Files(folder, format=format, **options)
    writer = sink.open(WORKER)
    try:
        for batch in batches:
            writer.write(batch if isinstance(batch, Batch) else Batch(batch))
        sink.commit(context(), [writer.pre_commit(context())])
    finally:
        writer.close()


def visible(folder: Path) -> list[Path]:
    """The files that readers see, in order, relative to ``folder``."""
    paths = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return [path for path in paths if not path.parts[0].startswith(("_", "."))]


def everything(folder: Path) -> list[str]:
    """The names of all files and folders, however hidden."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
