"""Metrics of a run: sums over workers, and rates that do not depend on who asks."""

from __future__ import annotations

from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.builder.plan import Plan
from malstrom_py.events import AnyEvent, HotKeyBegun, HotKeyEnded
from malstrom_py.metrics import HeavyKey, HeavySlot, HotKey, JobMetrics, PartMetrics
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.coordinator.metering import Metering
from malstrom_py.workers.reports.event_log import MoveTotals
from malstrom_py.workers.reports.figures import WorkerFigures
from malstrom_py.workers.reports.job_status import JobStatus, Moving, SnapshotStatus
from malstrom_py.workers.reports.result import RunResult, StepCounts, merged_counts


def a_plan() -> Plan:
    job = mp.Job("docs")
    timed = job.source("in", sources.Memory([1])).assign_timestamps("at", lambda n: n, unit="s")
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(0))
    on_time.key_by("key", lambda n: n).count("n").sink("out", sinks.Memory())
    return job.plan()


class Run:
    """A run whose figures a test sets."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.plan = a_plan()
        self.metering = Metering(self.plan, self.clock)
        self.rows = {0: 0, 1: 0}
        self.busy_s = {0: 0.0, 1: 0.0}
        self.epoch: int | None = None
        self.status = JobStatus("docs", "running", 2, "steady", RunResult("docs", {}, 0.0), None)
        self.totals = MoveTotals()

    def counts(self) -> dict[int, dict[str, StepCounts]]:
        return {
            worker: {
                step.name: StepCounts(
                    step.kind,
                    rows,
                    {port.name: rows for port in step.ports},
                    keys=3 if step.kind == "count" else None,
                    epoch=self.epoch,
                    busy_s=self.busy_s[worker],
                    sent_bytes=10 * rows if step.kind == "key_by" else 0,
                    waiting_s=self.busy_s[worker] / 2 if step.kind == "key_by" else 0.0,
                )
                for step in self.plan.steps
            }
            for worker, rows in self.rows.items()
        }

    def figures(self) -> dict[int, WorkerFigures]:
        part = PartMetrics("in", "0", 0, watermark=self.epoch)
        return {
            worker: WorkerFigures(
                host="here",
                cpu_s=self.busy_s[worker],
                busy_s=self.busy_s[worker],
                arrived={"key": self.rows[worker]},
                backlog={"key": 4},
                state_bytes={"n": 100},
                parts=[part] if worker == 0 else [],
                heavy_keys=[HeavyKey("key", str(7 + worker), 0.1 * (worker + 1), worker)],
                heavy_slots=[HeavySlot("key", 2 * worker, 0.1, worker)],
            )
            for worker in self.rows
        }

    def sample(self) -> None:
        by_worker = self.counts()
        self.metering.sample(merged_counts(list(by_worker.values())), by_worker, self.figures())

    def metrics(self, **changes: Any) -> JobMetrics:
        by_worker = self.counts()
        result = RunResult("docs", merged_counts(list(by_worker.values())), self.clock.monotonic_s())
        given: dict[str, Any] = {"members": (0, 1), "table": (0, 0, 1), "status": self.status, "totals": self.totals}
        return self.metering.metrics(result, by_worker, self.figures(), **(given | changes))


def test_counts_and_figures_of_workers_are_summed() -> None:
    run = Run()
    run.rows = {0: 30, 1: 10}
    metrics = run.metrics()
    assert (metrics.read, metrics.written) == (40, 40)
    assert metrics.steps["n"].keys == 6
    assert metrics.steps["n"].state_bytes == 200
    assert metrics.exchanges["key"].backlog == 8
    assert metrics.exchanges["key"].bytes == 400
    assert [(worker.worker, worker.slots, worker.keys) for worker in metrics.workers] == [(0, 2, 3), (1, 1, 3)]
    assert {key.worker: round(key.share, 6) for key in metrics.heavy_keys} == {0: 0.075, 1: 0.05}


def test_shares_of_heavy_keys_are_of_the_rows_of_all_workers_lately() -> None:
    run = Run()
    run.clock.advance(1.0)
    run.rows = {0: 1_000_000, 1: 0}
    run.sample()
    run.clock.advance(1.0)
    run.rows = {0: 1_000_100, 1: 300}
    shares = {key.worker: key.share for key in run.metrics().heavy_keys}
    assert shares == {0: pytest.approx(0.1 * 0.25), 1: pytest.approx(0.2 * 0.75)}


def test_rates_are_over_the_last_seconds_whoever_asks() -> None:
    run = Run()
    for second in range(1, 21):
        run.clock.advance(1.0)
        per_s = 100 if second <= 10 else 10
        run.rows[0] += per_s
        run.busy_s[0] += 0.5
        run.sample()
        run.metrics()
    run.clock.advance(1.0)
    run.rows[0] += 10
    run.busy_s[0] += 0.5
    metrics = run.metrics()
    assert metrics.steps["in"].in_per_s == pytest.approx(10.0)
    assert metrics.steps["in"].busy == pytest.approx(0.5)
    assert metrics.exchanges["key"].waiting == pytest.approx(0.125), "a share of the time of two workers"
    assert metrics.workers[0].cpu == pytest.approx(0.5)
    assert metrics.workers[1].busy == 0.0
    assert metrics == run.metrics()


def test_the_rates_of_a_sample_are_those_of_the_metrics() -> None:
    run = Run()
    run.epoch = int(run.clock.now_s()) - 5
    run.sample()
    run.clock.advance(1.0)
    run.rows, run.busy_s = {0: 300, 1: 100}, {0: 1.0, 1: 0.5}
    run.sample()
    rates, metrics = run.metering.rates(), run.metrics()
    assert rates.read_per_s == metrics.steps["in"].in_per_s == pytest.approx(400.0)
    assert rates.written_per_s == metrics.steps["out"].in_per_s
    assert rates.busy == pytest.approx(0.75), "the mean of two workers"
    assert rates.event_lag_s == metrics.parts[0].lag_s
    assert rates.at == metrics.at


def test_the_first_second_has_rates_since_the_start() -> None:
    run = Run()
    run.clock.advance(0.25)
    run.rows[0] = 50
    assert run.metrics().steps["in"].in_per_s == pytest.approx(200.0)


def test_a_job_without_work_has_no_rate_of_long_ago() -> None:
    run = Run()
    run.clock.advance(1.0)
    run.rows[0] = 1_000_000
    run.sample()
    run.clock.advance(3600.0)
    assert run.metrics().steps["in"].in_per_s == 0.0


def test_event_time_is_seconds_since_1970_and_its_lag_is_from_now() -> None:
    run = Run()
    run.epoch = int(run.clock.now_s()) - 5
    run.clock.advance(10.0)
    metrics = run.metrics()
    assert metrics.steps["epochs"].watermark == run.epoch
    assert metrics.steps["epochs"].lag_s == pytest.approx(15.0, abs=1.0)
    assert metrics.steps["in"].watermark is None, "the source is not timed"
    assert metrics.parts[0].lag_s == pytest.approx(15.0, abs=1.0)
    run.epoch = mp.MAX_EPOCH
    assert run.metrics().steps["epochs"].watermark is None, "the end is not a time"


def test_snapshots_and_moves_are_there_where_the_job_has_them() -> None:
    run = Run()
    assert (run.metrics().snapshots, run.metrics().moving) == (None, None)
    run.status = JobStatus(
        *("docs", "rescaling", 2, "moving", RunResult("docs", {}, 0.0), None),
        moving=Moving(2, slots=16, of_slots=512, keys=3, bytes=4),
        restarts=1,
        snapshots=SnapshotStatus("id", 5.0, 3, bytes=100, duration_s=0.5, pause_s=0.1),
    )
    run.totals = MoveTotals(rescales=2, slots=512, keys=7, bytes=8, duration_s=1.5)
    metrics = run.metrics()
    assert metrics.snapshots is not None
    assert (metrics.snapshots.made, metrics.snapshots.bytes, metrics.snapshots.pause_s) == (3, 100, 0.1)
    assert metrics.moving is not None
    assert (metrics.moving.slots, metrics.moving.of_slots) == (16, 512)
    assert (metrics.restarts, metrics.rescales, metrics.moved_keys, metrics.rescale_s) == (1, 2, 7, 1.5)


def test_a_part_that_has_moved_is_there_once() -> None:
    run = Run()
    figures = {worker: WorkerFigures(parts=[PartMetrics("in", "0", worker, lag_rows=5)]) for worker in (0, 1)}
    metrics = run.metering.metrics(
        *(RunResult("docs", {}, 1.0), {}, figures), members=(0, 1), table=(0, 1), status=run.status, totals=run.totals
    )
    assert len(metrics.parts) == 1
    assert metrics.lag_rows == 5


def test_a_key_and_a_slot_that_have_moved_are_there_once_with_the_share_of_their_owner() -> None:
    run = Run()
    run.rows = {0: 10, 1: 90}
    figures = {
        worker: WorkerFigures(
            arrived={"key": rows},
            heavy_keys=[HeavyKey("key", "7", 0.5, worker)],
            heavy_slots=[HeavySlot("key", 1, 0.5, worker)],
        )
        for worker, rows in run.rows.items()
    }
    metrics = run.metering.metrics(
        *(RunResult("docs", {}, 1.0), {}, figures), members=(0, 1), table=(0, 1), status=run.status, totals=run.totals
    )
    assert metrics.heavy_keys == [HeavyKey("key", "7", 0.45, 1)]
    assert metrics.heavy_slots == [HeavySlot("key", 1, 0.45, 1)]


def test_the_rows_of_a_worker_are_rows_however_many_steps_take_them() -> None:
    run = Run()
    run.sample()
    run.clock.advance(1.0)
    run.rows = {0: 300, 1: 100}
    metrics = run.metrics()
    assert [(worker.rows_in, round(worker.in_per_s)) for worker in metrics.workers] == [(300, 300), (100, 100)]
    assert metrics.steps["in"].in_per_s == pytest.approx(400.0), "as many as the job reads"


def test_a_worker_with_the_number_of_one_that_left_is_not_less_than_idle() -> None:
    run = Run()
    run.busy_s[1] = 30.0
    run.sample()
    run.clock.advance(1.0)
    run.busy_s[1] = 0.1
    worker = run.metrics().workers[1]
    assert (worker.busy, worker.waiting) == (0.0, 0.0)


def test_a_key_is_busy_as_much_as_other_rows_of_its_region() -> None:
    run = Run()
    run.clock.advance(1.0)
    run.sample()
    assert all(key.busy == 0.0 for key in run.metering.keys_busy())
    for _ in range(4):
        run.clock.advance(1.0)
        run.rows = {0: run.rows[0] + 100, 1: run.rows[1] + 300}
        run.busy_s[1] += 0.25
        run.sample()
    first, second = run.metering.keys_busy()
    region = sum(step.kind in ("count", "sink") for step in run.plan.steps)
    assert (first.worker, second.worker) == (0, 1)
    assert [first.busy, second.busy] == pytest.approx([0.0, region * 0.25 * 0.2])
    assert [first.share, second.share] == pytest.approx([0.1 * 0.25, 0.2 * 0.75])


class CountedRows(dict[str, int]):
    """Rows by exchange that count how often one is asked for them."""

    asked = 0

    def get(self, step: str, default: Any = None) -> Any:
        CountedRows.asked += 1
        return super().get(step, default)


def test_the_rows_of_a_worker_are_read_once_for_all_its_heavy_keys() -> None:
    run = Run()
    keys = [HeavyKey("key", str(number), 0.01, 0) for number in range(16)]
    figures = {worker: WorkerFigures(arrived=CountedRows(key=7), heavy_keys=keys) for worker in range(50)}
    counts = run.counts()
    run.metering.metrics(
        RunResult("docs", merged_counts(list(counts.values())), 1.0),
        counts,
        figures,
        members=range(50),
        table=(0,),
        status=run.status,
        totals=run.totals,
    )
    assert CountedRows.asked == 50


# Loads of slots and hot keys.


def watch() -> tuple[Metering, VirtualClock, list[AnyEvent]]:
    job = mp.Job("docs", slots=4)
    job.source("in", sources.Memory([1])).key_by("key", lambda n: n).count("n").sink("out", sinks.Memory())
    seen, clock = list[AnyEvent](), VirtualClock()
    return Metering(job.plan(), clock, seen.append), clock, seen


def metrics_of(loads: Metering) -> JobMetrics:
    result = RunResult("docs", {}, 1.0)
    status = JobStatus("docs", "running", 2, "steady", result, None)
    return loads.metrics(result, {}, {}, members=(0, 1), table=(0, 1, 0, 1), status=status, totals=MoveTotals())


def test_weights_are_of_the_rows_that_all_workers_count() -> None:
    loads, clock, _ = watch()
    assert loads.weights is None
    assert metrics_of(loads).imbalance is None
    for second in range(4):
        figures = {
            0: WorkerFigures(slot_loads={0: 3_000 * second}, sampled=1_000 * second, sampled_squares=9_000.0 * second),
            1: WorkerFigures(slot_loads={1: 1_000 * second}),
        }
        loads.weigh(figures, 2)
        clock.advance(1.0)
    weights = loads.weights
    assert weights is not None
    assert weights[0] > 2.5 * weights[1] > weights[2] == weights[3]
    found = metrics_of(loads).imbalance
    assert found is not None
    assert 1.4 < found < 1.5


def test_a_key_becomes_hot_and_cools_once_each_and_the_end_of_the_run_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loads, _, seen = watch()
    hot = HotKey("key", "7", share=0.6, busy=0.9, worker=1)
    for keys in [[hot], [hot], [], [hot]]:
        monkeypatch.setattr(loads, "keys_busy", lambda keys=keys: keys)
        loads.weigh({}, 2)
    assert metrics_of(loads).hot_keys == [hot]
    loads.close()
    begun, ended = HotKeyBegun("key", "7", 1, 0.6, 0.9), HotKeyEnded("key", "7")
    assert seen == [begun, ended, begun, ended]
    assert metrics_of(loads).hot_keys == []
