"""A whole job in the simulator, whose rows cost time, is scaled by its load; its output is exact."""

from __future__ import annotations

from pathlib import Path

import pytest

import malstrom_py as mp
from malstrom_py import events, sinks
from malstrom_py.clock import VirtualClock
from tests.arriving import Arriving

ROW_S = 0.02
"""A row is in three steps, so a worker takes 16 rows a second."""


def arrived(at_s: float) -> float:
    """Return how many rows have arrived: 4 a second, 30 a second from 30 s to 90 s, 4 again."""
    return 4 * at_s + 26 * min(60.0, max(0.0, at_s - 30))


def simulated(seed: int, **more: object) -> tuple[list[tuple[float, events.AnyEvent]], sinks.Memory, int]:
    clock = VirtualClock(4_102_444_800.0)
    source = Arriving(arrived, 240.0, lambda: clock, parts=4)
    job, out = mp.Job("load"), sinks.Memory()
    job.source("in", source).key_by("key", lambda number: number % 23).count("seen").sink("out", out)
    seen: list[tuple[float, events.AnyEvent]] = []
    simulation = mp.Simulation(
        seed=seed,
        rescales=0,
        clock=clock,
        checks=False,
        batch=mp.Batching(rows_max=8),
        row_cost_s=ROW_S,
        autoscale=mp.Autoscale(max=6, up_after_s=10, cool_down_s=60),
        on_event=lambda event: seen.append((clock.monotonic_s(), event)),
        **more,  # type: ignore[arg-type]
    )
    simulation.run(job)
    return seen, out, source.total()


@pytest.mark.long("1")
@pytest.mark.parametrize("seed", range(2))
def test_the_size_of_a_job_follows_its_load(seed: int) -> None:
    seen, out, total = simulated(seed, crashes=0, snapshots=False)
    made = [(event.workers, event.target) for _, event in seen if isinstance(event, events.Autoscaled)]
    assert made[0][0] == 1
    assert 3 <= max(target for _, target in made) <= 6
    assert made[-1][1] <= 2
    assert len(made) <= 5
    for key in range(23):
        assert out.by_key[key] == list(range(1, len(range(key, total, 23)) + 1))


@pytest.mark.long
def test_s6_a_job_that_crashes_is_scaled_too(tmp_path: Path) -> None:
    seen, out, total = simulated(5, crashes=1, snapshots=mp.Snapshots(tmp_path, interval_s=30))
    assert any(isinstance(event, events.Autoscaled) for _, event in seen)
    for key in range(23):
        assert out.by_key[key][-1] == len(range(key, total, 23))
