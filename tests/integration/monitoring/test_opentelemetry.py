"""The metrics and spans of jobs in OpenTelemetry, read by its own SDK."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import malstrom_py as mp
from malstrom_py import events
from malstrom_py.metrics import METRICS, JobMetrics
from malstrom_py.workers.monitoring import opentelemetry
from malstrom_py.workers.monitoring.opentelemetry import Spans
from malstrom_py.workers.reports.commands import Command
from tests.integration.monitoring.conftest import PATIENCE_S, a_job, until

READER = InMemoryMetricReader()
SPANS = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def sdk() -> None:
    """A program sets its providers once."""
    metrics.set_meter_provider(MeterProvider([READER]))
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(SPANS))
    trace.set_tracer_provider(provider)


@pytest.fixture(autouse=True)
def no_spans_of_another_test(sdk: None) -> None:
    SPANS.clear()


def exported() -> dict[str, list[Any]]:
    """Return the points of each metric, by name."""
    data = READER.get_metrics_data()
    scopes = [] if data is None else [scope for found in data.resource_metrics for scope in found.scope_metrics]
    return {metric.name: list(metric.data.data_points) for scope in scopes for metric in scope.metrics}


def test_metrics_and_spans_of_a_job_reach_the_sdk_of_the_program(tmp_path: Path) -> None:
    runtime = mp.InProcess(2, metrics=mp.Metrics(port=0), snapshots=mp.Snapshots(tmp_path, interval_s=None))
    handle = runtime.start(a_job("docs-otel"))
    until(lambda: handle.metrics().written, "it writes")
    handle.snapshot()
    handle.rescale(3)
    points = exported()
    assert set(points) <= {metric.name for metric in METRICS}
    (workers,) = points["malstrom_job_workers"]
    assert (workers.value, dict(workers.attributes)) == (3, {"malstrom_job": "docs-otel"})
    rows = {point.attributes["step"]: point.value for point in points["malstrom_step_in_rows"]}
    assert rows["numbers"] >= rows["seen"] > 0
    handle.stop(timeout_s=PATIENCE_S)
    spans = {span.name: span for span in SPANS.get_finished_spans()}
    assert set(spans) == {"malstrom.snapshot", "malstrom.rescale"}
    assert dict(spans["malstrom.rescale"].attributes or {})["malstrom.target"] == 3
    assert exported().get("malstrom_job_workers", []) == [], "an ended job exports nothing"


def test_spans_of_recoveries_and_of_what_is_called_off_end_with_their_cause() -> None:
    spans = Spans("docs")
    spans.see(events.RescaleBegun(2, 4))
    spans.see(events.RescaleEnded(2, "no room"))
    spans.see(events.NodeFailed("worker 1", "killed"))
    spans.see(events.Restarting("killed", 0.1))
    spans.see(events.WorkerJoined(0))
    spans.see(events.RescaleBegun(2, 4))
    spans.see(events.Ended("failed", "it broke"))
    seen = [(span.name, span.status.description) for span in SPANS.get_finished_spans()]
    assert seen == [("malstrom.rescale", "no room"), ("malstrom.recovery", None), ("malstrom.rescale", "it broke")]


class Blocked:
    """A job that answers at the end of the time for it."""

    name = "docs-blocked"

    def __init__(self) -> None:
        self.asked = 0
        self.now_ns = 0

    def ask(self, command: Command) -> JobMetrics:
        self.asked += 1
        self.now_ns += int((command.timeout_s or 0.0) * 1e9)
        return JobMetrics(self.name, "running", "steady")


def test_a_blocked_job_is_asked_once_for_each_export(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Blocked()
    monkeypatch.setattr(opentelemetry, "monotonic_ns", lambda: job.now_ns)
    watched = opentelemetry.OpenTelemetry(job)
    try:
        assert len(exported()["malstrom_job_restarts"]) == 1
        assert job.asked == 1
    finally:
        watched.end()


def test_other_packages_of_opentelemetry_are_not_its_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "opentelemetry" else None)
    assert not opentelemetry.is_installed()
