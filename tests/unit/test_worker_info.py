"""`WorkerInfo`: on which worker, of which job and for which step, a source or a sink is opened."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.worker_context import WorkerId, WorkerInfo


class Told:
    """A source and a sink in one that keeps the worker info it is opened with."""

    def __init__(self) -> None:
        self.infos: list[WorkerInfo] = []

    def build(self, worker: WorkerInfo) -> Any:
        self.infos.append(worker)
        return sinks.Callable(lambda value: None).build(worker)


class Reads(Told):
    def build(self, worker: WorkerInfo) -> Any:
        self.infos.append(worker)
        return sources.Memory([1]).build_part(sources.Part("0"), None)


def test_every_worker_is_told_who_it_is() -> None:
    job, source, sink = mp.Job("job"), Reads(), Told()
    job.source("in", source).sink("out", sink)
    mp.run(job, 3)
    assert source.infos == [WorkerInfo("job", "in", WorkerId(worker), workers=3) for worker in range(3)]
    assert sink.infos == [WorkerInfo("job", "out", WorkerId(worker), workers=3) for worker in range(3)]


def test_it_cannot_be_changed() -> None:
    info = WorkerInfo("job", "in", WorkerId(0))
    with pytest.raises(dataclasses.FrozenInstanceError):
        info.worker = WorkerId(1)  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
