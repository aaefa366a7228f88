"""A job on worker processes is recorded, rescaled and killed, while another job follows; its results are explained."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import malstrom_py as mp
from malstrom_py import capture, sinks, sources
from tests.integration.processes.worker_pids import worker_pids
from tests.integration.ray.leftovers import until

ROWS = 1_500


def numbers(part: int, start: int) -> Iterator[int]:
    for number in range(start, ROWS):
        time.sleep(0.002)
        yield 2 * number + part


def test_a_follower_has_each_record_once_of_a_job_that_is_rescaled_and_killed(tidy: None, tmp_path: Path) -> None:
    job = mp.Job("recorded")
    keyed = job.source("in", sources.Generator(numbers, parts=2)).key_by("key", lambda n: n % 7)
    keyed.capture_into("seen", tmp_path / "seen")
    totals = sinks.Memory()
    keyed.sum("total").sink("totals", totals)
    captured = mp.Processes(2, snapshots=mp.Snapshots(tmp_path / "kept", interval_s=0.2)).start(job)
    until(lambda: any(tmp_path.glob("seen/*.commit")))

    again, out = mp.Job("follows"), sinks.Memory()
    again.replay_from("back", tmp_path / "seen", follow=True).sink("out", out)
    follower = mp.InProcess(2, snapshots=mp.Snapshots(tmp_path / "again", interval_s=0.2)).start(again)
    until(lambda: (kept := follower.status().snapshots) is not None and kept.made > 0)
    captured.rescale(3)
    follower.rescale(3)
    os.kill(max(worker_pids()), signal.SIGKILL)
    until(lambda: captured.status().restarts == 1)
    assert follower.status().phase == "steady"
    captured.wait(timeout_s=60)
    follower.wait(timeout_s=60)
    assert {key: sorted(rows) for key, rows in out.by_key.items()} == {
        key: [number for number in range(2 * ROWS) if number % 7 == key] for key in range(7)
    }
    for rows in out.by_key.values():  # each part of the source has an order
        for part in (0, 1):
            assert (mine := [n for n in rows if n % 2 == part]) == sorted(mine)
    assert capture.check(tmp_path / "seen") == []
    for key, sums in totals.by_key.items():
        for number in (1, len(sums) // 2, len(sums)):
            inputs = [record.value for record in mp.why(job, {"key": key, "value": sums[number - 1]}).inputs]
            assert inputs == out.by_key[key][:number]
            assert sum(inputs) == sums[number - 1]
