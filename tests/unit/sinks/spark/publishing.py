"""Runs the Spark sink as a job would, and has the file system fail or the machine die at a step that is counted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """Counts what is changed on the disk; ``fail`` decides, by the number of the step, what happens instead."""

    def __init__(self) -> None:
        self.steps = 0
        self.failed = False
        self.fail: Callable[[int], BaseException | None] = lambda step: None


@contextmanager
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    watched = Disk()

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            watched.steps += 1
            error = watched.fail(watched.steps)
            if error is not None:
                watched.failed = True
                raise error
            return operation(*args, **options)

        return call

    with monkeypatch.context() as patched:
        for name in OPERATIONS:
            patched.setattr(os, name, counted(getattr(os, name)))
        yield watched


def dies_at(step: int) -> Callable[[int], BaseException | None]:
    """From that step on nothing is done."""
    return lambda now: Died() if now >= step else None


def fails_at(step: int) -> Callable[[int], BaseException | None]:
    """That step fails, and no other."""
    return lambda now: OSError(5, "Input/output error") if now == step else None


def pre_committed(sink: Spark, *batches: list[Any], snapshot: str = "s1", worker: int = 0) -> bytes:
    writer = sink.open(WorkerInfo("job", "out", WorkerId(worker)))
    for batch in batches:
        writer.write(Batch(batch))
    payload = writer.pre_commit(context(snapshot))
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
