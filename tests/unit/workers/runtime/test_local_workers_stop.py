"""A planned stop takes as long as its last snapshot, independent of the next timer; by a virtual clock."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.clock import VirtualClock
from malstrom_py.errors import JobEnded
from malstrom_py.snapshot.store import MemoryStore
from tests.unit.operators.scripted import Scripted
from tests.unit.workers.harness import PATIENCE_S, idle

LONG_S = 1_000.0


class Stopped:
    """Runs a job whose function asks for its stop at its first record, after which its source has no rows."""

    def __init__(self, *, parts: int = 1, drain: bool | None = False, workers: int = 1, **options: Any) -> None:
        self.clock = VirtualClock()
        self._drain = drain
        self._asked_at_s: float | None = None
        job = mp.Job("stopped")
        rows = {f"part-{number}": [[number], *[None] * 1_000_000] for number in range(parts)}
        read = job.source("in", Scripted(rows)).key_by("key", lambda n: n)
        read.count("n").map("ask", self._ask).sink("out", sinks.Memory())
        self._handles: list[mp.JobHandle] = []
        self.handle = mp.InProcess(workers, clock=self.clock, **options).start(job, control=False)
        self._handles.append(self.handle)

    def _ask(self, value: int) -> int:
        while not self._handles:
            """It is about to be there."""
        if self._asked_at_s is None:
            self._asked_at_s = self.clock.monotonic_s()
            self._handles[0].stop(drain=self._drain, wait=False)
        return value

    def lasted_s(self) -> float:
        """How long the stop took, by the job's clock, once the job has ended."""
        with pytest.raises(JobEnded, match="can resume from snapshot"):
            self.handle.wait(timeout_s=PATIENCE_S)
        assert self._asked_at_s is not None
        return self.clock.monotonic_s() - self._asked_at_s


@pytest.mark.parametrize("interval_s", [3.0, LONG_S, None])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("restart", [None, "never"])
def test_s7_a_stop_waits_for_its_snapshot_and_for_no_timer(
    interval_s: float | None, workers: int, restart: Any, caplog: pytest.LogCaptureFixture
) -> None:
    kept = mp.Snapshots(MemoryStore(), interval_s=interval_s)
    with caplog.at_level(logging.WARNING):
        stopped = Stopped(parts=4, workers=workers, snapshots=kept, restart=restart)
        assert stopped.lasted_s() < 1.0
    assert stopped.handle.status().restarts == 0
    assert stopped.handle.status().state == "stopped"
    assert caplog.messages == []
    (last,) = kept.checkpointer("stopped").list_checkpoints()
    assert kept.checkpointer("stopped").sinks_committed(last)


@pytest.mark.parametrize("order", ["status", "rescale", "snapshot", "savepoint", "stop", "drain"])
def test_an_order_wakes_a_job_that_sleeps_for_long(order: str, tmp_path: Any) -> None:
    kept = mp.Snapshots(MemoryStore() if order != "savepoint" else tmp_path / "kept", interval_s=LONG_S)
    handle = mp.InProcess(snapshots=kept).start(idle(f"asleep-{order}"), control=False)
    handle.snapshot(timeout_s=PATIENCE_S)
    if order == "status":
        assert handle.status(timeout_s=PATIENCE_S).age_s == 0.0
    elif order == "rescale":
        assert handle.rescale(3, timeout_s=PATIENCE_S).members == (0, 1, 2)
    elif order == "snapshot":
        assert handle.snapshot(timeout_s=PATIENCE_S)
    elif order == "savepoint":
        assert handle.savepoint(str(tmp_path / "copy"), timeout_s=PATIENCE_S)
    handle.stop(drain=order == "drain", timeout_s=PATIENCE_S)
    assert handle.status().restarts == 0
