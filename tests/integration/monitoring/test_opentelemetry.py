"""The metrics and spans of jobs in OpenTelemetry, read by its own SDK."""

from __future__ import annotations

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
from malstrom_py.metrics import METRICS
from malstrom_py.workers.monitoring.opentelemetry import Spans
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
    SPANS.clear()
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
