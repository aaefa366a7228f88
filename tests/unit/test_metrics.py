"""The list of exported metrics keeps to the conventions of Prometheus, and holds what a job can report."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.metrics import (
    METRICS,
    AutoscaleMetrics,
    ExchangeMetrics,
    HeavyKey,
    HotKey,
    JobMetrics,
    Metric,
    Metrics,
    PartMetrics,
    ShadowMetrics,
    SnapshotMetrics,
    StepMetrics,
    WorkerMetrics,
)
from malstrom_py.workers.control.messages import LENGTH_BYTES, decode_answer, encode_answer
from malstrom_py.workers.monitoring.prometheus import exposition

UNITS = ("seconds", "bytes", "ratio", "rows", "keys", "slots", "workers", "restarts", "snapshots", "rescales", "state")
FULL = JobMetrics(
    "flights",
    "running",
    "steady",
    at=100.0,
    duration_s=2.0,
    steps={
        "in": StepMetrics("source", rows_in=3, rows_out=3, busy_s=0.5),
        "n": StepMetrics("count", rows_in=3, late=1, skipped=2, keys=2, state_bytes=20, watermark=98.0, lag_s=2.0),
    },
    parts=[PartMetrics("in", "0", 0, rows=3, lag_rows=4, lag_bytes=5, lag_s=1.0)],
    exchanges={"key": ExchangeMetrics(rows=3, bytes=30, backlog=1, waiting_s=0.25)},
    workers=[
        WorkerMetrics(0, busy_s=1.0, cpu_s=1.5, rss_bytes=1000, state_in_memory=70, found_on_disk=9, keys=2, slots=1024)
    ],
    heavy_keys=[HeavyKey("key", "'UA'", 0.5, 0), HeavyKey("key", "'AA'", 0.25, 0)],
    hot_keys=[HotKey("key", "'UA'", 0.5, 0.9, 0)],
    imbalance=1.2,
    snapshots=SnapshotMetrics(made=2, last="id", at=99.0, bytes=10, duration_s=0.1, pause_s=0.01),
    autoscale=AutoscaleMetrics(1, 8, 0.7, decisions=2, refused=1, needed_per_s=150.0, capacity_per_s=100.0),
    shadows={"n": ShadowMetrics(compared=3, different=1, failure="ValueError")},
    restarts=1,
    rescales=2,
    moved_keys=7,
)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_and_units_follow_the_conventions_of_prometheus(metric: Metric) -> None:
    assert re.fullmatch(r"malstrom_[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith(UNITS)
    assert not metric.name.endswith("_total")
    assert metric.exported.endswith("_total") is (metric.kind == "counter")
    assert "job" not in metric.labels, "Prometheus sets this label itself"
    assert metric.help


def test_each_metric_has_its_own_name() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_each_metric_has_a_value_with_its_labels(metric: Metric) -> None:
    values = list(metric.values(FULL))
    assert values
    assert all(tuple(labels) == metric.labels for labels, _ in values)


def test_what_is_not_known_is_left_out() -> None:
    empty = JobMetrics("docs", "running", "opening")
    exported = {metric.name for metric in METRICS if list(metric.values(empty))}
    assert exported == {
        *("malstrom_job_state", "malstrom_job_uptime_seconds", "malstrom_job_workers", "malstrom_job_restarts"),
        *("malstrom_job_metrics_age_seconds", "malstrom_rescales", "malstrom_rescale_duration_seconds"),
        *("malstrom_rescale_moved_slots", "malstrom_rescale_moved_keys", "malstrom_rescale_moved_bytes"),
    }


def test_the_text_for_prometheus_has_the_values_of_all_jobs() -> None:
    text = exposition([FULL, JobMetrics("clicks", "failed", "ended")])
    for line in (
        'malstrom_step_in_rows_total{malstrom_job="flights",step="in"} 3.0',
        'malstrom_step_failed_rows_total{malstrom_job="flights",policy="skip",step="n"} 2.0',
        'malstrom_source_lag_rows{malstrom_job="flights",part="0",source="in"} 4.0',
        'malstrom_exchange_heaviest_key_ratio{exchange="key",malstrom_job="flights"} 0.5',
        'malstrom_job_state{malstrom_job="clicks",state="failed"} 1.0',
    ):
        assert line in text.splitlines()


def test_metrics_cross_the_control_socket_whole() -> None:
    reply = decode_answer(encode_answer(FULL)[LENGTH_BYTES:])
    assert reply.metrics == FULL


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"port": -1}, "port must be a whole number from 0 to 65535, got -1"),
        ({"port": True}, "port must be a whole number"),
        ({"host": ""}, "host must be a name or an address of this machine"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(mp.PlanError, match=said):
        Metrics(**options)  # type: ignore[arg-type]


def test_the_final_metrics_are_the_counts_of_the_job() -> None:
    job, out = mp.Job("docs-final-metrics"), sinks.Memory()
    numbers = job.source("in", sources.Memory(range(1000), parts=4))
    numbers.filter("odd", lambda n: n % 2).key_by("key", lambda n: n % 7).count("n").sink("out", out)
    handle = mp.InProcess(3).start(job, control=False)
    result = handle.wait(timeout_s=60)
    metrics = handle.metrics()
    assert (metrics.state, metrics.error, metrics.age_s) == ("finished", None, 0.0)
    assert (metrics.read, metrics.written) == (result.read, result.written) == (1000, 500)
    for name, counts in result.steps.items():
        step = metrics.steps[name]
        assert (step.rows_in, step.rows_out, step.filtered) == (counts.rows_in, counts.rows_out, counts.filtered)
    assert metrics.steps["n"].keys == 7
    assert [edge.rows for edge in metrics.edges] == [1000, 500, 500, 500]
    assert [edge.exchange for edge in metrics.edges] == [False, False, True, False]
    assert sum(worker.slots for worker in metrics.workers) == 1024
    assert metrics.steps["odd"].place.rpartition(":")[0].endswith("test_metrics.py")


def test_a_failed_job_says_why_in_its_metrics() -> None:
    job = mp.Job("docs-failed-metrics")
    job.source("in", sources.Memory([1, 0])).map("invert", lambda n: 1 / n).sink("out", sinks.Memory())
    handle = mp.InProcess().start(job, control=False)
    with pytest.raises(mp.OperatorError):
        handle.wait(timeout_s=60)
    metrics = handle.metrics()
    assert metrics.state == "failed"
    assert metrics.error is not None
    assert "step 'invert'" in metrics.error


class Oddly:
    """A part with a name that no encoding of text has, and an impossible lag."""

    def __init__(self, lag: int) -> None:
        self.lag = lag

    def list_parts(self) -> list[sources.Part]:
        return [sources.Part("\udcff.csv")]

    def build_part(self, part: sources.Part, state: Any) -> Oddly:
        return self

    def poll(self, rows_max: int) -> None:
        return None

    def is_finished(self) -> bool:
        return False

    def snapshot(self) -> int:
        return 0

    def lag_rows(self) -> int:
        return self.lag

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("lag", [-1, 1 << 80])
def test_metrics_of_any_source_can_be_sent(lag: int) -> None:
    job = mp.Job("docs-odd")
    job.source("in", Oddly(lag)).sink("out", sinks.Memory())
    handle = mp.InProcess().start(job, control=False)
    while not (metrics := handle.metrics()).parts:
        """The job begins."""
    handle.stop(drain=False)
    assert (metrics.parts[0].part, metrics.lag_rows) == ("\\udcff.csv", None)
    assert msgspec.msgpack.encode(metrics)
