"""Shadows in simulated jobs: the job has the output that it has without one, and exactly the differences are found that
the new code makes, through rescales, crashes and snapshots.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources, windows
from malstrom_py.builder.plan import Plan
from malstrom_py.workers.coordinator.shadow_counts import ShadowCounts
from malstrom_py.workers.reports.shadows import Compared, ShadowReport
from malstrom_py.workers.runtime.shadow_plan import with_shadow
from tests.simulation.jobs.runs import run, run_on_disk

ROWS = 200
SEEDS = 12
KEYS = 12
"""A multiple of the number of partitions: the rows of a key are of one partition, and have an order."""


def total(key: int, number: int, state: int | None) -> tuple[int, int]:
    return (state or 0) + number, (state or 0) + number


def odd_total(key: int, number: int, state: int | None) -> tuple[int, int]:
    one_more = (state or 0) + number + (number % 7 == 0)
    return one_more, one_more


def twice(number: int) -> Iterable[int]:
    return [number, number]


def twice_at_times(number: int) -> Iterable[int]:
    return [number] if number % 7 == 0 else [number, number]


def doubled(row: dict[str, int]) -> dict[str, int]:
    return {"n": row["n"] * 2}


def odd_doubled(row: dict[str, int]) -> dict[str, int]:
    return {"n": row["n"] * 2 if row["n"] % 7 else row["n"] * 3 + 1}


def numbers_by(job: mp.Job, numbers: Iterable[Any], key: Callable[[Any], int]) -> Any:
    return job.source("in", sources.Memory(list(numbers), parts=3)).key_by("key", key)


def build_state(new: bool) -> tuple[mp.Job, sinks.Memory]:
    job, out = mp.Job("state"), sinks.Memory()
    stream = numbers_by(job, range(ROWS), lambda number: number % KEYS)
    stream.stateful_map("step", odd_total if new else total).sink("out", out)
    return job, out


def build_rows(new: bool) -> tuple[mp.Job, sinks.Memory]:
    job, out = mp.Job("rows"), sinks.Memory()
    stream = numbers_by(job, range(ROWS), lambda number: number % KEYS)
    stream.flat_map("step", twice_at_times if new else twice).sum("sum").sink("out", out)
    return job, out


def build_source_region(new: bool) -> tuple[mp.Job, sinks.Memory]:
    job, out = mp.Job("source-region"), sinks.Memory()
    numbers = job.source("in", sources.Memory(list(range(ROWS)), parts=3))
    numbers.flat_map("step", twice_at_times if new else twice).key_by("key", lambda n: n % KEYS).sink("out", out)
    return job, out


def build_columns(new: bool) -> tuple[mp.Job, sinks.Memory]:
    job, out = mp.Job("columns"), sinks.Memory()
    rows = numbers_by(job, ({"n": number} for number in range(ROWS)), lambda row: row["n"] % KEYS)
    doubles = rows.map_batches("columns", lambda batch: batch).map("step", odd_doubled if new else doubled)
    doubles.sum("sum", by=lambda row: row["n"]).sink("out", out)
    return job, out


def build_windows(new: bool) -> tuple[mp.Job, sinks.Memory]:
    job, out = mp.Job("windows"), sinks.Memory()
    numbers = job.source("in", sources.Memory(list(range(ROWS)), parts=3)).assign_timestamps("time", lambda n: n)
    timed, _ = numbers.generate_epochs("epochs", mp.limit_out_of_orderness(200))
    size = timedelta(milliseconds=30 if new else 20)
    keyed = timed.key_by("key", lambda n: n % KEYS)
    keyed.window("step", windows.tumbling(size)).count().sink("out", out)
    return job, out


BUILDS = [build_state, build_rows, build_source_region, build_columns, build_windows]
ODD = sum(number % 7 == 0 for number in range(ROWS))
EXPECTED = {build_rows: (2 * ROWS, ODD), build_source_region: (2 * ROWS, ODD), build_columns: (ROWS, ODD)}


def simulated(
    build: Callable[[bool], tuple[mp.Job, sinks.Memory]], seed: int, *, new: bool
) -> tuple[dict[Any, list[Any]], ShadowReport]:
    job, out = build(False)
    plan = with_shadow(job.plan(), build(new)[0].plan(), "step")

    def shadowed() -> Plan:
        return plan

    job.plan = shadowed  # type: ignore[method-assign]
    handle = mp.Simulation(2, seed=seed, crashes=seed % 2).start(job)
    handle.wait(timeout_s=120)
    return out.by_key, handle.shadow("step")


def differing_totals(by_key: dict[int, list[int]]) -> int:
    found = 0
    for totals in by_key.values():
        state = 0
        for before, after in zip([0, *totals], totals, strict=False):
            state = odd_total(0, after - before, state)[1]
            found += state != after
    return found


@pytest.mark.parametrize("build", BUILDS)
def test_a_shadow_changes_nothing_and_its_differences_are_exact(build: Any) -> None:
    hits = Counter[str]()
    for seed in range(5 if build is build_columns else SEEDS):  # small batches of columns take four times as long
        job, out = build(False)
        hits.update(mp.Simulation(2, seed=seed, crashes=seed % 2).run(job).hits)
        made = sum(map(len, out.by_key.values()))
        for new in (False, True):
            by_key, report = simulated(build, seed, new=new)
            assert by_key == out.by_key, seed
            assert not report.failure, seed
            if not new:
                rows = EXPECTED.get(build, (made, 0))[0]
                assert (report.compared, report.different) == (rows, 0), seed
            elif build is build_state:
                assert (report.compared, report.different) == (ROWS, differing_totals(by_key)), seed
            elif build in EXPECTED:
                assert (report.compared, report.different) == EXPECTED[build], seed
            else:
                assert 0 < report.different <= report.compared, seed
    assert hits["part moved"]
    assert hits["snapshot inside a rescale"]
    assert hits["worker crash"] + hits["coordinator crash"]


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_shadow_of_any_step_of_any_job_finds_no_difference(on_disk: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of seeds with the same code beside one of their steps are as without, and so are their counts."""
    found: list[object] = []
    seed, kinds, plan_of, add = 0, Counter[str](), mp.Job.plan, ShadowCounts.add

    def shadowed(job: mp.Job) -> Plan:
        plan = plan_of(job)
        names = [step.name for step in plan.steps]
        for name in random.Random(seed).sample(names, len(names)):
            with suppress(mp.ReloadError):
                made = with_shadow(plan, plan, name)
                kinds[plan.steps[plan.rank(name)].kind] += 1
                return made
        return plan

    def added(self: ShadowCounts, compared: Compared) -> None:
        add(self, compared)
        if compared.different or compared.failure:
            found.append((seed, compared))

    monkeypatch.setattr(mp.Job, "plan", shadowed)
    monkeypatch.setattr(ShadowCounts, "add", added)
    for seed in (*range(12), 29, 35):  # late records, and dead letters, are those of the job
        run(seed, runtime=run_on_disk) if on_disk else run(seed)
    assert found == []
    assert len(kinds) > 3
