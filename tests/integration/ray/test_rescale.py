"""Rescales of a job on Ray under traffic lose, duplicate and reorder nothing."""

from __future__ import annotations

import pytest

import malstrom_py as mp
from malstrom_py import sinks
from tests.integration.monitoring.conftest import until
from tests.integration.ray.traffic import (
    KEYS,
    PARTS,
    PATIENCE_S,
    Attendance,
    Tour,
    check_counts,
    check_order,
    check_rows,
    held,
    memory_rows,
    moved_keys,
    traffic,
)
from tests.integration.skew import skewed


def test_p1_a_job_goes_from_1_to_2_to_4_to_3_to_1(out: sinks.Memory, attendance: Attendance) -> None:
    job = traffic("tour", out, attendance)
    handle = mp.RayRuntime(1, num_cpus=0.2).start(job)
    tour = Tour(handle, attendance)
    tour.go(1, 2, 4, 3, 1)
    handle.stop()
    result, rows = handle.wait(timeout_s=PATIENCE_S), memory_rows(out)

    check_rows(rows, result)
    check_order(out.by_key)
    check_counts(result)
    assert moved_keys(rows) > KEYS / 2
    assert held(rows) > 0
    assert [report.members for report in tour.reports] == [(0,), (0, 1), (0, 1, 2, 3), (0, 1, 2), (0,)]
    assert all(report.slots > 0 for report in tour.reports[1:])
    assert sum(report.parts for report in tour.reports) >= PARTS


def test_r10_slots_of_a_job_on_ray_move_by_their_load(out: sinks.Memory) -> None:
    handle = mp.RayRuntime(2, num_cpus=0.2).start(skewed("skewed-on-ray", out))
    until(lambda: (handle.metrics().imbalance or 0.0) > 1.3, "the loads of slots are known")
    report = handle.rebalance(timeout_s=PATIENCE_S)
    assert (report.members, report.superseded_by) == ((0, 1), None)
    assert 1 <= report.slots <= 8, "few of 1,024"
    assert report.keys >= report.slots
    assert report.imbalance_after is not None
    assert report.imbalance_after < 1.1 < 1.3 < (report.imbalance_before or 0.0)
    handle.stop(drain=True, timeout_s=PATIENCE_S)
    assert handle.wait(timeout_s=PATIENCE_S).written == len(out.items)
    assert all(values == list(range(1, len(values) + 1)) for values in out.by_key.values())


@pytest.mark.long
def test_p1_at_full_load(out: sinks.Memory, attendance: Attendance) -> None:
    handle = mp.RayRuntime(1, num_cpus=0.2).start(traffic("full", out, attendance, rows=500, tick_s=0.0))
    Tour(handle, attendance).go(2, 1)
    handle.stop()
    result = handle.wait(timeout_s=PATIENCE_S)
    check_rows(memory_rows(out), result)
    check_order(out.by_key)
    check_counts(result)
