"""A job on two nodes of Ray whose network is slow, lossy or cut: every row once, and what is cut off is fenced."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.integration.netns.nodes import PATIENCE_S, Apart
from tests.integration.netns.relay import ADDRESSES, Quality
from tests.integration.ray.chaos import check
from tests.integration.ray.chaos_ends import rows_in
from tests.integration.ray.leftovers import is_alive

pytestmark = [pytest.mark.needs_netns, pytest.mark.timeout(600)]

AT_WORK_S: Final = 15.0
"""The longest time until a job whose network is cut makes a snapshot again."""

LATE_S: Final = 10.0
"""The extra time that a machine which is busy with other tests may need."""

CUT: Final = Quality(is_cut=True)


def snapshot(apart: Apart, but: str | None = None, deadline_s: float = PATIENCE_S) -> str | None:
    """Wait for a snapshot other than ``but``, and return its id."""
    made = apart.until(lambda status: status.snapshots.last not in {None, but}, deadline_s).snapshots.last
    assert made is None or isinstance(made, str)
    return made


def started(apart: Apart, folder: Path) -> int:
    """Start a job with a worker on each node, and return the process of the far one once there is a snapshot."""
    apart.ask("start", folder, 2)
    snapshot(apart)
    [far] = far_workers(apart)
    return far


def far_workers(apart: Apart) -> list[int]:
    return [pid for pid, address in apart.ask("workers").items() if address == ADDRESSES["far"]]


def at_work_again(apart: Apart, since_s: float, what: str) -> None:
    """Wait until the job has restarted and made another snapshot."""
    until_s = since_s + AT_WORK_S + LATE_S
    last = apart.until(lambda status: status.restarts > 0, until_s - time.monotonic()).snapshots.last
    snapshot(apart, last, until_s - time.monotonic())
    print(f"{what}: a snapshot {time.monotonic() - since_s:.1f} s after the cut; {apart.ask('status')}")


def rows_of_the_end(apart: Apart, folder: Path) -> set[tuple[int, int]]:
    """Stop the job, check that every row was written once, and return the rows."""
    apart.ask("stop", PATIENCE_S)
    rows = rows_in(folder / "out")
    assert len(rows) > 1000
    check(rows)
    return {(row["part"], row["number"]) for row in rows}


def noted_by(folder: Path, chosen: Callable[[int], bool]) -> set[tuple[int, int]]:
    """Return the rows that some processes handled."""
    files = [file for file in (folder / "noted").iterdir() if chosen(int(file.name))]
    lines = [line.split() for file in files for line in file.read_text().splitlines()]
    return {(int(part), int(number)) for part, number in lines}


def check_fenced(folder: Path, far: int) -> None:
    """Check that the worker that was cut off had handled rows that others then handled again: not its rows count."""
    again = noted_by(folder, lambda pid: pid == far) & noted_by(folder, lambda pid: pid != far)
    print(f"{len(again)} rows of the worker that was cut off were not committed")
    assert again


@pytest.mark.long
def test_s6_rescales_and_a_recovery_at_20_ms_and_1_percent_loss(apart: Apart, tmp_path: Path) -> None:
    apart.network.both(Quality(delay_s=0.02, loss=0.01))
    far = started(apart, tmp_path)
    for size in (3, 1, 4, 2):
        began_s = time.monotonic()
        apart.ask("rescale", size, PATIENCE_S)
        print(f"to {size} workers in {time.monotonic() - began_s:.1f} s")
        snapshot(apart, snapshot(apart))
    assert apart.ask("status").restarts == 0
    [far] = far_workers(apart) or [far]
    os.kill(far, signal.SIGKILL)
    at_work_again(apart, time.monotonic(), "a worker is killed")
    rows_of_the_end(apart, tmp_path)
    assert all(lost > 0 for _, lost in apart.network.change().values())


@pytest.mark.long
def test_s6_a_cut_of_5_seconds(apart: Apart, tmp_path: Path) -> None:
    started(apart, tmp_path)
    apart.network.both(CUT)
    began_s = time.monotonic()
    time.sleep(5.0)
    apart.network.both(Quality())
    at_work_again(apart, began_s, "a cut of 5 s")
    rows_of_the_end(apart, tmp_path)


@pytest.mark.long
def test_s6_a_cut_for_good(apart: Apart, tmp_path: Path) -> None:
    far = started(apart, tmp_path)
    apart.network.both(CUT)
    at_work_again(apart, time.monotonic(), "a permanent cut")
    assert far_workers(apart) == [] or apart.ask("status").workers == 2
    rows_of_the_end(apart, tmp_path)
    check_fenced(tmp_path, far)


@pytest.mark.long
@pytest.mark.parametrize("direction", ["to_far", "to_near"])
def test_s6_a_cut_in_one_direction(direction: str, apart: Apart, tmp_path: Path) -> None:
    far = started(apart, tmp_path)
    apart.network.change(**{direction: CUT})
    at_work_again(apart, time.monotonic(), f"a cut {direction}")
    apart.network.both(Quality())
    apart.until(lambda _: not is_alive(far))
    snapshot(apart, snapshot(apart))
    rows_of_the_end(apart, tmp_path)
    check_fenced(tmp_path, far)
