"""Pins the batches of a streaming DataFrame: a run reads what its query finds now, and that the last run has not read.

Each start runs the query to the end of what is available. Spark hands over batches with ids; each is written below
``<staging>/<job>/stream/`` and takes its name ``batches/<id>`` once it is whole. Spark repeats a batch whose end it has
not noted, with the same rows: one that has its name is not written again. Batches stay, because a run that starts
from the beginning reads them again, which the query does not.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import PlanError, SourceError, lasting
from malstrom_py.local_files import locked
from malstrom_py.sources.pinned.folder import PinFolder
from malstrom_py.sources.pinned.row_groups import PinnedFile, RowGroups, new_pin
from malstrom_py.sources.spark.pinning import check_complete, columns_of, footers_in, write_rows
from malstrom_py.sources.spark.query import BATCH_ID, Bound, SparkQuery
from malstrom_py.spark.failures import spark_errors
from malstrom_py.spark.session import spark_session

if TYPE_CHECKING:
    import pyarrow as pa

_ID: Final = re.compile(r"[0-9]{12,}")
_POLL_S: Final = 1


class StreamFolder(PinFolder):
    """What one source has staged for one job, over all runs. It is never removed."""

    def __init__(self, staging: Path, job: str) -> None:
        super().__init__(staging / job / "stream")
        self.checkpoint = self.path / "checkpoint"
        self._batches = self.path / "batches"

    def batch(self, id: int) -> Path:
        """Return the folder of a whole batch."""
        return self._batches / f"{id:012d}"

    def ids(self) -> list[int]:
        """Return the ids of the whole batches, in order."""
        return sorted(int(one.name) for one in self._batches.iterdir() if _ID.fullmatch(one.name))

    def unfinished(self, id: int) -> PinFolder:
        """Return a new folder in which a batch is written, removing what a killed program has left."""
        path = self._batches / f".tmp-{id}"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return PinFolder(path)

    def prepare(self) -> None:
        """Create the folder. `SourceError`: it cannot be made, or has batches without their query's checkpoint."""
        try:
            self._batches.mkdir(parents=True, exist_ok=True)
            is_lost = bool(self.ids()) and not (self.checkpoint / "offsets").is_dir()
        except OSError as error:
            raise SourceError(f"rows cannot be staged in {self.path}: {error.strerror}. Correct staging=") from error
        if is_lost:  # Spark would count from 0 again, and new batches would have the names of those that are there.
            raise lasting(
                SourceError(
                    f"{self.path} has batches, and the checkpoint of their query is gone: restore it, or remove the "
                    f"whole folder and start the job from the beginning"
                )
            )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder for its query. `SourceError`: a source is reading from it, or stages into it."""
        with locked(self.path) as is_free:
            if not is_free:
                raise SourceError(
                    f"another source or job is using the batches in {self.path}: give each source its own staging="
                )
            yield


def pinned_batches(query: SparkQuery, job: str, after: Bound | None = None) -> tuple[RowGroups, PinFolder, Bound]:
    """Run the query to the end of what is available, and pin the batches that follow the one of ``after``.

    Raises:
        SourceError: the query fails, a type is not supported, or rows cannot be staged.
        SparkError: Spark cannot be used, or its session ended.
    """
    folder = StreamFolder(query.staging, job)
    with spark_session(query.df.sparkSession) as session:
        with spark_errors(f"Spark does not read {query}", SourceError):
            frame = query.df if query.filter is None else query.df.filter(query.filter)
            names, schema = columns_of(query, session, frame.schema)
        folder.prepare()
        with folder.alone():
            _run(query, frame, schema, folder)
    folder.hold()
    try:
        pin, bound = _pin(query, folder, names, schema, after)
    except BaseException:
        folder.leave(keep=True)
        raise
    return pin, folder, bound


def _pin(
    query: SparkQuery, folder: StreamFolder, names: Sequence[str], schema: pa.Schema, after: Bound | None
) -> tuple[RowGroups, Bound]:
    last = -1 if after is None or after.upto is None else int(after.upto)
    new = [id for id in folder.ids() if id > last]
    found = [footers_in(PinFolder(folder.batch(id)), schema, query.keep) for id in new]
    files = [
        PinnedFile(str(path), one.size, one.mtime_ns, one.groups, {}) for batch in found for path, one in batch.items()
    ]
    last = new[-1] if new else last
    return new_pin(f"batches up to {last}", schema, names, files, folder.path), Bound(BATCH_ID, "batch", str(last))


def _run(query: SparkQuery, frame: Any, schema: pa.Schema, folder: StreamFolder) -> None:
    """Have Spark stage what is available."""
    failures: list[Exception] = []

    def stage(batch: Any, id: int) -> None:
        try:
            _stage(query, batch, id, schema, folder)
        except Exception as error:
            failures.append(error)
            raise

    try:
        with spark_errors(f"the query of {query} has failed", SourceError):
            writer = frame.writeStream.foreachBatch(stage).trigger(availableNow=True)
            started = writer.option("checkpointLocation", f"file://{folder.checkpoint}").start()
            try:
                while not started.awaitTermination(_POLL_S):
                    """Ctrl-C is noticed between two waits."""
            finally:
                with suppress(Exception):  # it has ended, or Spark has
                    started.stop()
    except (PlanError, SourceError):
        if failures:  # our error, and not Spark's text of it
            raise failures[0] from None
        raise


def _stage(query: SparkQuery, batch: Any, id: int, schema: pa.Schema, folder: StreamFolder) -> None:
    whole = folder.batch(id)
    if whole.exists():
        return
    unfinished = folder.unfinished(id)
    counted = write_rows(query, batch.sparkSession, batch, schema, unfinished)
    footers = footers_in(unfinished, schema, query.keep)
    check_complete(counted, sum(one.rows for one in footers.values()), len(footers), unfinished)
    unfinished.path.rename(whole)
