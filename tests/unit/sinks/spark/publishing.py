"""Runs the Spark sink as a job would, and has the file system fail or the machine die at a step that is counted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from malstrom_py.data.batch import Batch
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.spark import Spark
from malstrom_py.worker_context import WorkerId, WorkerInfo
from tests.unit.sinks.writing import context, visible

if TYPE_CHECKING:
    import pytest

OPERATIONS = ("fsync", "link", "mkdir", "rename", "replace", "rmdir", "unlink")


class Died(BaseException):
    """The machine is off: nothing is done any more."""


class Disk:
    """Fails for a block: ``fail`` decides, by the number of the change to the disk, what happens instead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail: Callable[[int], BaseException | None]) -> None:
        self.steps = 0
        self.failed = False
        self._fail = fail
        self._patching = monkeypatch.context()

    def __enter__(self) -> None:
        patched = self._patching.__enter__()
        for name in OPERATIONS:
            patched.setattr(os, name, self._counted(getattr(os, name)))

    def __exit__(self, *error: Any) -> None:
        self._patching.__exit__(*error)

    def _counted(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.steps += 1
            error = self._fail(self.steps)
            if error is not None:
                self.failed = True
                raise error
            return operation(*args, **options)

        return call


def each_step(
    monkeypatch: pytest.MonkeyPatch, fails: Callable[[int], Callable[[int], BaseException | None]]
) -> Iterator[tuple[int, Disk]]:
    """Yield a disk that fails at its first step, then one that fails at its second, until one has nothing to fail."""
    for step in range(1, 200):
        disk = Disk(monkeypatch, fails(step))
        yield step, disk
        if not disk.failed:
            return
    raise AssertionError("the steps have no end")


def dies_at(step: int) -> Callable[[int], BaseException | None]:
    """From that step on nothing is done."""
    return lambda now: Died() if now >= step else None


def fails_at(step: int, error: Exception | None = None) -> Callable[[int], BaseException | None]:
    """That step fails, and no other."""
    return lambda now: (error or OSError(5, "Input/output error")) if now == step else None


def pre_committed(sink: Spark, *batches: list[Any], snapshot: str = "s1", worker: int = 0, step: str = "out") -> bytes:
    writer = sink.open(WorkerInfo("job", step, WorkerId(worker)))
    for batch in batches:
        writer.write(Batch(batch))
    payload = writer.pre_commit(context(snapshot, step=step))
    writer.close()
    return payload


def run(sink: Spark, *workers: list[Any], snapshot: str = "s1") -> None:
    """A whole run: recover, write, commit, or abort if that fails."""
    committing: CommitContext = context(snapshot)
    sink.recover(committing, [])
    payloads = [pre_committed(sink, rows, snapshot=snapshot, worker=number) for number, rows in enumerate(workers)]
    try:
        sink.commit(committing, payloads)
    except Exception:
        sink.abort(committing, payloads)
        raise


def rows(folder: Path) -> list[Any]:
    """What is visible in ``folder``, with the columns that folders name, sorted."""
    found = []
    for name in visible(folder):
        named = dict(part.split("=") for part in name.parts[:-1])
        found += [{**row, **named} for row in pq.ParquetFile(folder / name).read().to_pylist()]
    return sorted(found, key=repr)
