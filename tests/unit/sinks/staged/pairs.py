"""Every pair of a place and a committer, with points at each step that changes something, for tests of staged files.

Delta and Iceberg have the committer of a table here, with a catalog in memory. With their libraries, in S3, they are
two more pairs in tests/integration/connectors/test_lake_objects.py. Spark's own writer is in tests/integration/spark.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import pyarrow.parquet as pq

from malstrom_py import sinks
from malstrom_py.data.batch import Batch
from malstrom_py.object_stores import Bucket
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.output_record import read_output
from malstrom_py.sinks.spark import through_spark
from malstrom_py.sinks.staged.folder import FolderPlace
from malstrom_py.sinks.staged.objects import ObjectPlace
from malstrom_py.testing.contracts.sinks import context_of, worker_of
from tests.simulation.commits.model_table import Catalog, ModelSink
from tests.unit.sinks.writing import visible

if TYPE_CHECKING:
    import pytest

_DISK: Final = ("fsync", "link", "mkdir", "rename", "replace", "rmdir", "unlink")
_REQUESTS: Final = ("copy", "create", "delete", "get", "list", "read", "stat", "upload")
_BUCKET: Final = "memory://pairs"
_numbers = count()

Step = Callable[[int], object]


class Steps:
    """Calls ``before`` with the number of each step that changes something, while they are watched.

    ``more``: the class and the name of methods that are such steps too.
    """

    def __init__(self, more: Sequence[tuple[type, str]] = ()) -> None:
        self._more = more
        self.seen = 0
        self.before: Step | None = None

    def take(self, step: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Do one step."""
        if self.before is not None:
            self.seen += 1
            self.before(self.seen)
        return step(*arguments, **options)

    @contextmanager
    def watched(self, before: Step) -> Iterator[None]:
        """Call ``before`` for each step inside, and for none that it does itself."""

        def once(number: int) -> None:
            self.before = None
            try:
                before(number)
            finally:
                self.before = once

        def point(step: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *arguments, **options: self.take(step, *arguments, **options)

        self.seen, self.before = 0, once
        disk: dict[str, Any] = {name: point(getattr(os, name)) for name in _DISK}
        store: dict[str, Any] = {name: point(getattr(Bucket, name)) for name in _REQUESTS}
        try:
            # A commit to a table that loses a race is repeated after a while.
            with (
                ExitStack() as stack,
                mock.patch.multiple(os, **disk),
                mock.patch.multiple(Bucket, **store),
                mock.patch.object(time, "sleep"),
            ):
                for owner, name in self._more:
                    stack.enter_context(mock.patch.object(owner, name, point(getattr(owner, name))))
                yield
        finally:
            self.before = None


@dataclass
class Target:
    """A target of one pair. ``sink``: makes a sink on it, as in another process; ``rows``: the visible numbers;
    ``staged``: the paths of what is staged; ``folder``: the one whose visible files the output record of the job has.
    """

    steps: Steps
    sink: Callable[[], Any]
    rows: Callable[[], list[int]]
    staged: Callable[[], list[str]]
    folder: Path | None = None


def _numbers_in(name: str, content: Any) -> list[int]:
    if name.endswith(".parquet"):
        return [int(row["value"]) for row in pq.read_table(content).to_pylist()]
    return [int(json.loads(line)["value"]) for line in content.read().splitlines()]


def _in_folder(folder: Path, sink: Callable[[Path], Any]) -> Target:
    def rows() -> list[int]:
        found = [(path.name, io.BytesIO((folder / path).read_bytes())) for path in visible(folder)]
        return [number for name, content in found for number in _numbers_in(name, content)]

    return Target(Steps(), lambda: sink(folder), rows, lambda: _staged_in(folder), folder)


def _by_function(folder: Path) -> Target:
    stored: dict[str, list[int]] = {}

    def store(files: Any, snapshot: str) -> None:
        """Store the id in the transaction of the rows; `without_spark` gives files instead of a frame."""
        if snapshot not in stored:
            stored[snapshot] = [number for file in files for number in _numbers_in(file, file)]

    rows = lambda: [number for snapshot in sorted(stored) for number in stored[snapshot]]  # noqa: E731
    sink = lambda: sinks.Spark(foreach_snapshot=store, staging=folder)  # noqa: E731
    # The note of what is published stays.
    staged = lambda: [name for name in _staged_in(folder) if not name.endswith("~committed")]  # noqa: E731
    return Target(Steps(), sink, rows, staged)


def without_spark(patched: pytest.MonkeyPatch) -> None:
    """Let functions of Spark's sink get the names of files, so that no Spark is needed."""
    patched.setattr(through_spark, "spark_session", nullcontext)
    patched.setattr(through_spark, "existing_session", lambda: None)
    patched.setattr(through_spark, "_frame", lambda session, files, schema: files)


def _staged_in(folder: Path) -> list[str]:
    return [str(path) for path in (folder / "_staging").rglob("*") if path.is_file()]


def _keys(folder: str) -> list[str]:
    return [key for key, _ in Bucket(_BUCKET).list(f"{folder}/")]


def _in_store(folder: str, sink: Callable[[str], Any]) -> Target:
    def rows() -> list[int]:
        found = [key for key in _keys(folder) if "/_" not in key]
        return [number for key in found for number in _numbers_in(key, io.BytesIO(Bucket(_BUCKET).get(key)))]

    return Target(Steps(), lambda: sink(f"{_BUCKET}/{folder}"), rows, lambda: _staged_in_store(folder))


def _staged_in_store(folder: str) -> list[str]:
    return [key for key in _keys(folder) if "/_staging/" in key]


def _table(place: FolderPlace | ObjectPlace, staged: Callable[[], list[str]]) -> Target:
    steps = Steps()
    catalog = Catalog(place, ask=steps.take)
    rows = lambda: [int(row["value"]) for row in catalog.rows()]  # noqa: E731
    return Target(steps, lambda: ModelSink(catalog), rows, staged)


def _table_in_folder(folder: Path) -> Target:
    return _table(FolderPlace(folder), lambda: _staged_in(folder))


def _table_in_store(folder: Path) -> Target:
    name = str(next(_numbers))
    return _table(ObjectPlace(f"{_BUCKET}/{name}", {}), lambda: _staged_in_store(name))


PAIRS: Final[dict[str, Callable[[Path], Target]]] = {
    "folder, renames": lambda folder: _in_folder(folder, lambda at: sinks.Files(at, format="json")),
    "folder, renames of columns": lambda folder: _in_folder(folder, sinks.Files),
    "folder, partitions": lambda folder: _in_folder(folder, lambda at: sinks.Files(at, partition_by="part")),
    "folder, table": _table_in_folder,
    "folder, Ray Data": lambda folder: _in_folder(folder, sinks.RayDataset),
    "folder, Spark": lambda folder: _in_folder(folder, lambda at: sinks.Spark(at, partition_by="part")),
    "folder, function of Spark": _by_function,
    "store, renames": lambda folder: _in_store(str(next(_numbers)), lambda at: sinks.Files(at, format="json")),
    "store, renames of columns": lambda folder: _in_store(str(next(_numbers)), sinks.Files),
    "store, table": _table_in_store,
}


def staged(sink: Any, context: CommitContext, *numbers: float) -> list[bytes]:
    """Return the payloads of writers that each pre-commit a row."""
    payloads = []
    for worker, number in enumerate(numbers):
        writer = sink.open(worker_of(worker))
        writer.write(Batch([{"value": number, "part": worker}]))
        payloads.append(writer.pre_commit(context))
        writer.close()
    return payloads


class Case:
    """Two workers have pre-committed three snapshots: the first two have manifests, and none is committed.

    The second rows are floats where the sink joins types: Parquet files of one worker are written again.
    """

    def __init__(self, target: Target, *, is_typed: bool) -> None:
        self.target = target
        self.first, self.second, self.third = (context_of(number, final=False) for number in (1, 2, 3))
        second: Callable[[int], float] = int if is_typed else float
        sink = target.sink()
        sink.recover(context_of(0), [])
        self.payloads = {
            context.snapshot: staged(sink, context, 10 * number, second(10 * number + 1))
            for number, context in enumerate((self.first, self.second, self.third), 1)
        }

    def commit(self, *contexts: CommitContext) -> None:
        """Commit snapshots, as another process."""
        for context in contexts:
            self.target.sink().commit(context, self.payloads[context.snapshot])

    def recover(self) -> None:
        """Start again, as another process: the third snapshot has no manifest."""
        self.target.sink().recover(context_of(4), [self.first.snapshot, self.second.snapshot])

    def goes_on(self) -> None:
        """Recover and commit as the next start does; each row is visible once, and nothing is left staged."""
        self.recover()
        self.commit(self.first, self.second)
        assert sorted(self.target.rows()) == [10, 11, 20, 21]
        assert [name for name in self.target.staged() if name.endswith((".json", ".parquet"))] == []
        if self.target.folder is not None:
            recorded = read_output(self.target.folder, "contract").outputs["out"]
            assert sorted(recorded.files) == sorted(map(str, visible(self.target.folder)))
