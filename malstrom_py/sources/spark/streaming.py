"""Runs the query of a streaming DataFrame, which stages its batches in a `StreamFolder`: for a run of the job to the
end of what is available, or for as long as the job runs.

Batches of the first kind stay, because a run that starts from the beginning reads them again, which the query does not.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import PlanError, SourceError, lasting
from malstrom_py.errors.text import public_text
from malstrom_py.sources.pinned.folder import PinFolder
from malstrom_py.sources.pinned.row_groups import PinnedFile, RowGroups, new_pin
from malstrom_py.sources.spark.pinning import check_complete, columns_of, footers_in, write_rows
from malstrom_py.sources.spark.query import BATCH_ID, Bound, SparkQuery
from malstrom_py.sources.spark.stream_folder import StreamFolder
from malstrom_py.spark.failures import spark_errors
from malstrom_py.spark.session import spark_session

if TYPE_CHECKING:
    import pyarrow as pa

_POLL_S: Final = 1
_ROOM_S: Final = 0.05
_UNREAD_MAX: Final = 4
"""How many batches may wait for a reader; then the query waits."""

_GRACE_S: Final = 10.0
"""How long the end of a job waits for the batch that Spark is writing."""

_LOG: Final = logging.getLogger("malstrom_py.sources")


def pinned_batches(query: SparkQuery, job: str, after: Bound | None = None) -> tuple[RowGroups, PinFolder, Bound]:
    """Run the query to the end of what is available, and pin the batches that follow the one of ``after``.

    Raises:
        SourceError: the query fails, a type is not supported, or rows cannot be staged.
        SparkError: Spark cannot be used, or its session ended.
    """
    folder = _folder_of(query, job)
    frame, names, schema = _described(query)
    last = -1 if after is None or after.upto is None else int(after.upto)
    with folder.alone():
        folder.check_there(last + 1)
        folder.check_columns(last + 1, schema)
        running = _Query(query, frame, schema, folder, availableNow=True)
        try:
            running.wait()
        finally:
            running.end()
        folder.hold()
    try:
        pin, bound = _pin(query, folder, names, schema, last)
    except BaseException:
        folder.leave(keep=True)
        raise
    return pin, folder, bound


def _folder_of(query: SparkQuery, job: str) -> StreamFolder:
    return StreamFolder(query.staging / job / "stream")


def _described(query: SparkQuery) -> tuple[Any, Sequence[str], pa.Schema]:
    """Return the rows to stage, the columns to read, and the schema of all that are staged."""
    with spark_session(query.df.sparkSession) as session, spark_errors(f"Spark does not read {query}", SourceError):
        frame = query.df if query.filter is None else query.df.filter(query.filter)
        return frame, *columns_of(query, session, frame.schema)


def _pin(
    query: SparkQuery, folder: StreamFolder, names: Sequence[str], schema: pa.Schema, last: int
) -> tuple[RowGroups, Bound]:
    new = [id for id in folder.ids() if id > last]
    found = [footers_in(PinFolder(folder.batch(id)), schema, query.keep) for id in new]
    files = [
        PinnedFile(str(path), one.size, one.mtime_ns, one.groups, {}) for batch in found for path, one in batch.items()
    ]
    last = new[-1] if new else last
    return new_pin(f"batches up to {last}", schema, names, files, folder.path), Bound(BATCH_ID, "batch", str(last))


def follow(query: SparkQuery, job: str, earlier: RowGroups | None) -> tuple[RowGroups, Followed]:
    """Start the query, and return a pin without files, whose id is the name of the folder that it stages into.

    ``earlier``: the pin of the run that this one resumes. `SourceError`: its batches or its columns are not there.
    """
    folder = _folder_of(query, job)
    frame, names, schema = _described(query)
    if earlier is not None and folder.name() != earlier.id:
        raise lasting(
            SourceError(
                f"the batches that the job has read in part are not in {folder.path}: give the former staging=, or "
                f"start the job from the beginning"
            )
        )
    with folder.alone() as name:
        pin = new_pin(name, schema, names, [], folder.path)
        if earlier is None:
            folder.check_there(0)
            folder.check_columns(0, schema)
        elif pin != replace(earlier, staged=pin.staged):
            raise lasting(
                SourceError(
                    f"the stream has other columns than in the run to resume ({', '.join(earlier.names)}): select "
                    f"these, or start the job from the beginning with another staging="
                )
            )
        followed = Followed(folder.path, name, partial(_Query, query, frame, schema, folder))
        try:
            followed.hold()
        except BaseException:
            followed.leave(keep=True)
            raise
    return pin, followed


class _Query:
    """The query while it runs: Spark calls `_stage` for each batch."""

    def __init__(self, query: SparkQuery, frame: Any, schema: pa.Schema, folder: StreamFolder, **trigger: Any) -> None:
        self._asked = query
        self._schema = schema
        self._folder = folder
        self._failures: list[Exception] = []
        self._is_staging = threading.Lock()
        self.ends = threading.Event()
        """Whether the query is to end: no batch waits for readers any more."""
        self._waits_for_readers = not trigger
        with spark_errors(f"the query of {query} has failed", SourceError):
            writer = frame.writeStream.foreachBatch(self._stage)
            writer = writer.trigger(**trigger) if trigger else writer
            self._started = writer.option("checkpointLocation", f"file://{folder.checkpoint}").start()

    def wait(self) -> None:
        """Wait for its end. `SourceError`, `SparkError`: it has failed."""
        try:
            with spark_errors(f"the query of {self._asked} has failed", SourceError):
                while not self._started.awaitTermination(_POLL_S):
                    """Ctrl-C is noticed between two waits."""
        except (PlanError, SourceError):
            if self._failures:  # our error, and not Spark's text of it
                raise self._failures[0] from None
            raise

    def end(self) -> None:
        """End it, after the batch that it is staging, if that is soon."""
        self.ends.set()
        if self._is_staging.acquire(timeout=_GRACE_S):
            self._is_staging.release()
        with suppress(Exception):  # it has ended, or Spark has
            self._started.stop()

    def _stage(self, batch: Any, id: int) -> None:
        with self._is_staging:
            try:
                while self._waits_for_readers and self._folder.unread() >= _UNREAD_MAX:
                    if self.ends.wait(_ROOM_S):
                        break
                self._folder.stage(id, lambda unfinished: self._write(batch, unfinished))
            except Exception as error:
                self._failures.append(error)
                raise

    def _write(self, batch: Any, unfinished: PinFolder) -> None:
        counted = write_rows(self._asked, batch.sparkSession, batch, self._schema, unfinished)
        footers = footers_in(unfinished, self._schema, self._asked.keep)
        check_complete(counted, sum(one.rows for one in footers.values()), len(footers), unfinished)
        self._folder.note_columns(unfinished, self._schema)


class Followed(StreamFolder):
    """A folder with the query that stages into it: readers learn from the folder how the query has ended.

    Where the job restarts in another process, it asks by the folder for the query, and ``start`` starts it again here.
    """

    def __init__(self, path: Path, name: str, start: Callable[[], _Query]) -> None:
        super().__init__(path)
        self._name = name
        self._start = start
        self._running = start()
        self._ends = threading.Event()
        self._watch = threading.Thread(target=self._run_on, name="malstrom-spark-query", daemon=True)
        self._watch.start()

    def leave(self, *, keep: bool) -> None:
        """End the query, and unlock the folder, which stays."""
        self._ends.set()
        self._running.end()
        self._watch.join(_GRACE_S)
        super().leave(keep=True)

    def _run_on(self) -> None:
        text = self._reason()
        while self._is_asked_after(text):
            self.clear()
            try:
                self._running = self._start()
            except Exception as error:
                text = public_text(error)
                continue
            if self._ends.is_set():  # `leave` may have ended the one before
                self._running.end()
            text = self._reason()

    def _reason(self) -> str:
        """Wait for the end of the query, and return its reason."""
        try:
            self._running.wait()
        except Exception as error:
            return public_text(error)
        return f"the query that stages into {self.path} was stopped while the job reads its batches"

    def _is_asked_after(self, text: str) -> bool:
        """Note why the query has ended, and wait until it is asked for again; return False if the job ends before."""
        is_noted = False
        while not self._ends.is_set():
            try:
                if not is_noted:
                    self.note_failure(text)
                    is_noted = True
                elif self.failure() is None and self.name() == self._name:
                    return True
            except (OSError, SourceError) as error:
                _LOG.error("%s, and the job cannot know it: %s", text, error)
            self._ends.wait(_POLL_S)
        return False
