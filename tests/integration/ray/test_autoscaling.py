"""The number of workers of a real job on Ray follows its load, and its output is exact."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from math import inf

import pytest

import malstrom_py as mp
from malstrom_py import events, sinks
from malstrom_py.clock import SystemClock
from tests.arriving import KEYS, Arriving, check_exact
from tests.integration.ray.traffic import PATIENCE_S

ROW_S = 0.004
"""How long a row takes a worker, also on a machine that is busy: 250 rows a second."""

LEAST, MOST = 40.0, 560.0
"""Rows a second at night and at noon: work for one worker and for four."""


def arrived(day_s: float, at_s: float) -> float:
    """Return how many rows have arrived after so long, by a curve with one top a day."""
    turn = 2 * math.pi / day_s
    return LEAST * at_s + (MOST - LEAST) / 2 * (at_s - math.sin(turn * at_s) / turn)


def worked(number: int) -> int:
    time.sleep(ROW_S)
    return number


def decisions(handle: mp.JobHandle) -> Iterator[events.Autoscaled]:
    return (event for event in handle.events() if isinstance(event, events.Autoscaled))


@pytest.mark.long("120.0-1")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("day_s", "nights"), [(16.0, 8), (120.0, 1)])
def test_a_job_follows_a_day_curve(day_s: float, nights: int, out: sinks.Memory) -> None:
    source = Arriving(lambda at_s: arrived(day_s, at_s), inf, SystemClock)
    job = mp.Job(f"day-{day_s:.0f}")
    numbers = job.source("in", source).map("work", worked).key_by("key", lambda number: number % KEYS)
    numbers.stateful_map("seen", lambda _, number, seen: ((number, seen + 1), seen + 1), default=int).sink("out", out)
    scale = mp.Autoscale(max=4, interval_s=0.5, up_after_s=1.0, cool_down_s=day_s / 8, catch_up_s=5)
    handle = mp.RayRuntime(1, num_cpus=0.1, autoscale=scale, batch=mp.Batching(rows_max=32)).start(job)
    grown = next(made for made in decisions(handle) if made.target > 2)
    left = next(made for made in decisions(handle) if made.target < made.workers)
    read_by_then = handle.status(timeout_s=PATIENCE_S).counts.read
    assert handle.metrics(timeout_s=PATIENCE_S).autoscale is not None
    handle.stop(timeout_s=PATIENCE_S)
    result = handle.wait(timeout_s=PATIENCE_S)

    assert "rows/s arrive" in grown.reason
    assert grown.needed_per_s > grown.capacity_per_s > 0
    assert "were needed" in left.reason
    # On the first night, or, where a day is as short as a rescale or two, on one of the next.
    assert read_by_then < arrived(day_s, (nights + 0.5) * day_s)
    assert left.needed_per_s < left.capacity_per_s
    check_exact(result.read, result.written, out.items)


@pytest.mark.long
def test_r9_a_user_wins_and_switches_it_off(out: sinks.Memory) -> None:
    source = Arriving(lambda at_s: 20 * at_s, inf, SystemClock)
    job = mp.Job("overruled")
    job.source("in", source).sink("out", out)
    scale = mp.Autoscale(max=3, interval_s=0.5, up_after_s=1.0, cool_down_s=1.0)
    handle = mp.RayRuntime(1, num_cpus=0.1, autoscale=scale).start(job)
    assert handle.rescale(2).members == (0, 1)
    made = next(decisions(handle))
    assert (made.workers, made.target) == (2, 1)
    handle.autoscale(None)
    assert handle.metrics().autoscale is None
    handle.stop(timeout_s=PATIENCE_S)


@pytest.mark.long
def test_a_job_without_room_stays_and_says_why(out: sinks.Memory) -> None:
    source = Arriving(lambda at_s: 2 * at_s / ROW_S, inf, SystemClock)
    job = mp.Job("no-room")
    job.source("in", source).map("work", worked).sink("out", out)
    scale = mp.Autoscale(max=4, interval_s=0.5, up_after_s=1.0)
    runtime = mp.RayRuntime(1, num_cpus=1.5, autoscaling=True, start_timeout_s=20, autoscale=scale)
    handle = runtime.start(job)
    refused = next(made for made in decisions(handle) if made.error)
    assert refused.target > refused.workers == 1
    assert "did not start within 20 s" in refused.error
    status = handle.status(timeout_s=PATIENCE_S)
    assert (status.state, status.workers) == ("running", 1)
    handle.stop(timeout_s=PATIENCE_S)
