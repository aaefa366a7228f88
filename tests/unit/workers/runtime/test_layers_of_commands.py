"""The layers that a rescale passes from the user's handle to the machine that decides: few, and named on a page."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Iterator
from itertools import count
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import ray

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.workers.coordinator.command_queue import CommandQueue
from malstrom_py.workers.coordinator.machine import RescaleRequested
from malstrom_py.workers.ray.coordinator_actor import CoordinatorActor
from malstrom_py.workers.ray.ray_job import RayJob
from malstrom_py.workers.reports.commands import Command, RescaleCommand, WaitCommand
from malstrom_py.workers.runtime.job_thread import LocalJob
from tests.tree import ROOT

WORKERS = "malstrom_py.workers."
RUN = ["coordinator.command_queue", "coordinator.coordinator", "coordinator.machine"]


class Layers:
    """A profiler that notes the modules which a request for a rescale passes, until the machine has it."""

    def __init__(self) -> None:
        self.passed: list[str] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        module = str(frame.f_globals.get("__name__")).partition(WORKERS)[2]
        if event != "call" or module in ("", "reports.commands", *self.passed) or self.passed[-1:] == RUN[-1:]:
            return
        carried = any(isinstance(value, RescaleCommand | RescaleRequested) for value in frame.f_locals.values())
        if carried or frame.f_code.co_name == "rescale":
            self.passed.append(module)


@pytest.fixture
def layers() -> Iterator[Layers]:
    layers = Layers()
    threading.setprofile(layers)
    yield layers
    threading.setprofile(None)


def running(name: str) -> mp.JobHandle:
    job = mp.Job(name)
    source = sources.Generator(lambda part, start: count(start))
    job.source("in", source).sink("out", sinks.Memory())
    return mp.InProcess(progress=False).start(job, control=False)


def rescaled(layers: Layers, handle: mp.JobHandle) -> list[str]:
    sys.setprofile(layers)
    try:
        report = handle.rescale(2)
    finally:
        sys.setprofile(None)
    assert len(report.members) == 2
    return layers.passed


class Actor:
    """An actor of a coordinator: a call takes and returns copies, as one to another process does."""

    def __init__(self, commands: CommandQueue) -> None:
        self._self = SimpleNamespace(_commands=commands)
        self.ask = SimpleNamespace(remote=self._ask)

    def _ask(self, command: Command) -> Any:
        ask: Any = CoordinatorActor.ask
        return pickle.loads(pickle.dumps(ask(self._self, pickle.loads(pickle.dumps(command)))))


def on_ray(handle: mp.JobHandle, monkeypatch: pytest.MonkeyPatch) -> mp.JobHandle:
    """Return a handle on the same job whose calls are those of a job on Ray."""
    assert isinstance(handle._job, LocalJob)
    monkeypatch.setattr(ray, "get", lambda answer, timeout: answer)
    return mp.JobHandle(RayJob(handle.name, Actor(handle._job._commands)))


def section() -> str:
    page = (ROOT / "docs" / "architecture.md").read_text()
    return page[page.index("## Walk 2") : page.index("## Walk 3")]


def test_in_this_program_a_rescale_passes_five_layers(layers: Layers) -> None:
    handle = running("layers-here")
    passed = rescaled(layers, handle)
    handle.stop()
    assert passed == ["runtime.job_handle", "runtime.job_thread", *RUN]
    assert " -> ".join(f"`{WORKERS}{layer}`" for layer in passed) in section()


def test_on_ray_a_rescale_is_one_call_of_the_coordinator_and_passes_one_more(
    layers: Layers, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = running("layers-on-ray")
    passed = rescaled(layers, on_ray(handle, monkeypatch))
    handle.stop()
    assert passed == ["runtime.job_handle", "ray.ray_job", "ray.coordinator_actor", *RUN]
    assert " -> ".join(f"`{WORKERS}{layer}`" for layer in passed) in section()


def test_errors_and_results_of_all_commands_cross_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    here = running("crossing")
    handle = on_ray(here, monkeypatch)
    assert handle.status().state == "running"
    assert handle.metrics().job == "crossing"
    handle.autoscale(mp.Autoscale(max=2))
    with pytest.raises(mp.PlanError, match="workers must be a whole number from 1 to"):
        handle._job.ask(RescaleCommand(0, wait=True, timeout_s=1.0))
    with pytest.raises(mp.SnapshotError, match="without snapshots"):
        handle.snapshot()
    with pytest.raises(mp.OperationInProgress) as late:
        handle.wait(timeout_s=0.01)
    assert (late.value.job, late.value.operation, late.value.__cause__) == ("crossing", "run", None)
    assert handle.stop() is None
    assert handle.wait(timeout_s=60.0) == here.wait()
    assert [*handle.events()] == [*here.events()]
    with pytest.raises(mp.JobEnded) as ended:
        handle.rescale(2)
    assert ended.value.how == "finished"


def test_the_error_of_a_function_becomes_ours_without_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    job = mp.Job("crossing-error")
    job.source("in", sources.Memory([0])).map("inverse", lambda n: 1 // n).sink("out", sinks.Memory())
    here = mp.InProcess(progress=False).start(job, control=False)
    with pytest.raises(mp.OperatorError, match="ZeroDivisionError") as failed:
        on_ray(here, monkeypatch)._job.ask(WaitCommand(60.0))
    assert (failed.value.step, failed.value.__cause__) == ("inverse", None)
    with pytest.raises(mp.OperatorError) as original:
        here.wait()
    assert isinstance(original.value.__cause__, ZeroDivisionError)
