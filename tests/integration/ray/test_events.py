"""The events of a job on Ray, through real kills of workers and of the coordinator."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import events, sinks
from malstrom_py.operators.logic import KeyedLogic
from tests.integration.ray.chaos import PATIENCE_S, chaotic, check, numbers, until
from tests.integration.ray.chaos_ends import rows_in
from tests.integration.ray.leftovers import pids
from tests.lives import check_lives

pytestmark = pytest.mark.long


class Reporting(KeyedLogic[int, Any, Any, int]):
    """Writes each event of the job that it gets into a file of its worker's process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_data(self, message: Any, key_state: int | None, output: Any) -> int:
        return (key_state or 0) + 1

    def on_event(self, event: events.AnyEvent) -> None:
        if not isinstance(event, events.Input | events.WorkerJoined | events.SnapshotCompleted):
            with (self.folder / str(os.getpid())).open("a") as file:
                file.write(f"{type(event).__name__}\n")


def test_kills_are_events_for_each_reader_and_for_the_logics_that_go_on(tidy: None, tmp_path: Path) -> None:
    notified = tmp_path / "notified"
    notified.mkdir()
    seen: list[events.AnyEvent] = []
    job = chaotic("docs-ray-events", tmp_path / "out")
    more = job.source("more", mp.sources.Generator(numbers, parts=2)).key_by("by", lambda record: record[1] % 7)
    more.stateful_op("op", Reporting(notified)).sink("nothing", sinks.Callable(lambda _: None))
    runtime = mp.RayRuntime(
        2, num_cpus=0.2, snapshots=mp.Snapshots(tmp_path / "kept", interval_s=0.5), on_event=seen.append
    )
    handle = runtime.start(job)
    handle.snapshot()
    os.kill(pids("WorkerActor")[0], signal.SIGKILL)
    until(lambda: handle.status().restarts == 1 and handle.status().phase == "steady", handle.status)
    handle.rescale(3)
    handle.snapshot()
    handle.stop(drain=True, timeout_s=PATIENCE_S)
    check(rows_in(tmp_path / "out"))
    check_lives(seen, sources=["in", "more"], run_failures=1)
    assert list(handle.events()) == seen
    (failure,) = [event for event in seen if isinstance(event, events.NodeFailed)]
    assert failure.affected_input_ids == ("in", "more", "by-key", "by")
    assert failure.source_node_id in {"worker 0", "worker 1"}
    notes = [file.read_text().split() for file in notified.iterdir()]
    ended = [lines for lines in notes if lines[-2:] == ["Stop", "InputClosed"]]
    assert len(ended) == 3
    assert sum(lines.count("NodeFailed") for lines in notes) == 2  # one for each worker that continued


def test_a_coordinator_that_is_replaced_begins_a_new_log(tidy: None, tmp_path: Path) -> None:
    seen: list[events.AnyEvent] = []
    runtime = mp.RayRuntime(
        1, num_cpus=0.2, snapshots=mp.Snapshots(tmp_path / "kept", interval_s=0.5), on_event=seen.append
    )
    handle = runtime.start(chaotic("docs-ray-log", tmp_path / "out"))
    handle.snapshot()
    os.kill(pids("CoordinatorActor")[0], signal.SIGKILL)
    until(lambda: handle.status().restarts == 1 and handle.status().phase == "steady", handle.status)
    handle.stop(drain=True, timeout_s=PATIENCE_S)
    check(rows_in(tmp_path / "out"))
    replaced = events.NodeFailed("coordinator", "the coordinator died; another one replaces it")
    check_lives(seen[seen.index(replaced) :], sources=["in"])
    assert next(iter(handle.events())) == replaced
