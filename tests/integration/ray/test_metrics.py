"""The metrics of a job on Ray: of all workers, also after it has ended; its page, and its metrics for Prometheus."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

import malstrom_py as mp
from malstrom_py.clock import SystemClock
from malstrom_py.workers.ray.ray_job import ANSWER_S, OwnRayJob
from tests.integration.monitoring.conftest import PATIENCE_S, TOKEN, Server, a_job, free_port, until


def test_metrics_come_from_the_processes_of_all_workers_and_outlive_them(tidy: None, tmp_path: Path) -> None:
    port, page = free_port(), Server(free_port())
    runtime = mp.RayRuntime(
        2,
        num_cpus=0.2,
        snapshots=mp.Snapshots(tmp_path / "kept", interval_s=0.5),
        metrics=mp.Metrics(port=port),
        dashboard=mp.Dashboard(port=page.port, token=TOKEN),
    )
    handle = runtime.start(a_job("docs-ray-metrics"))
    until(lambda: [key.key for key in handle.metrics().heavy_keys[:1]] == ["7"], "its heaviest key is found")
    until(lambda: len(handle.metrics().heavy_keys) > 16, "keys are sampled on both workers")
    metrics = handle.metrics()
    assert len({worker.pid for worker in metrics.workers}) == 2
    assert all(worker.rss_bytes > 1_000_000 and worker.cpu_s > 0 for worker in metrics.workers)
    assert sum(worker.slots for worker in metrics.workers) == 1024
    assert {part.worker for part in metrics.parts} == {0, 1}
    assert all(part.lag_rows is not None for part in metrics.parts)
    assert metrics.exchanges["key"].bytes > 0, "half of the rows go to the other process"
    answer = page.post("/api/jobs/docs-ray-metrics/rescale", {"workers": 3})
    assert answer["text"] == "the job begins to rescale to 3 workers"
    until(lambda: len(page.view("docs-ray-metrics")["workers"]) == 3, "the page shows three workers")
    until(lambda: handle.metrics().rescales == 1, "the rescale has ended")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as found:
        assert 'malstrom_job_workers{malstrom_job="docs-ray-metrics"} 3.0' in found.read().decode()
    attached = mp.JobHandle.attach("docs-ray-metrics").metrics()
    assert attached.written > 0
    handle.stop(drain=True, timeout_s=PATIENCE_S)
    final, result = handle.metrics(), handle.wait(timeout_s=PATIENCE_S)
    assert (final.state, final.rescales) == ("finished", 1)
    assert (final.read, final.written) == (result.read, result.written)


def test_the_counts_of_a_job_that_is_stopped_are_those_of_its_metrics(tidy: None) -> None:
    handle = mp.RayRuntime(2, num_cpus=0.2).start(a_job("docs-ray-stopped"))
    until(lambda: handle.metrics().written, "it writes")
    handle.stop(drain=False, timeout_s=PATIENCE_S)
    assert handle.status().state == "stopped"
    with pytest.raises(mp.JobEnded, match="stopped without drain: nothing was committed") as caught:
        handle.wait(timeout_s=PATIENCE_S)
    final = handle.metrics()
    assert (caught.value.result.read, caught.value.result.written) == (final.read, final.written)
    assert final.written > 0


@pytest.mark.long
def test_who_watches_a_job_does_not_delay_the_news_that_its_coordinator_is_gone(tidy: None) -> None:
    page = Server(free_port())
    runtime = mp.RayRuntime(
        num_cpus=0.2, metrics=mp.Metrics(port=0), dashboard=mp.Dashboard(port=page.port, token=TOKEN)
    )
    handle = runtime.start(a_job("docs-ray-gone"))
    until(lambda: page.view("docs-ray-gone")["totals"]["written"], "it writes")
    assert isinstance(handle._job, OwnRayJob)
    handle._job.end_now("a test ends it")
    clock = SystemClock()
    began_s = clock.monotonic_s()
    with pytest.raises(mp.JobEnded, match="a test ends it"):
        handle.wait(timeout_s=PATIENCE_S)
    assert clock.monotonic_s() - began_s < ANSWER_S / 2
    with pytest.raises(mp.JobEnded, match=r"its last metrics with it|a test ends it"):
        handle.metrics()


def test_a_detached_job_refuses_what_needs_its_program(tidy: None) -> None:
    for option in ({"dashboard": True}, {"metrics": mp.Metrics(port=0)}, {"on_event": print}):
        with pytest.raises(mp.PlanError, match="a detached job continues without this program"):
            mp.RayRuntime(detached=True, **option)


def test_a_step_is_tapped_on_all_workers_by_any_handle(tidy: None) -> None:
    handle = mp.RayRuntime(2, num_cpus=0.2).start(a_job("docs-ray-tapped"))
    for found in (handle, mp.JobHandle.attach("docs-ray-tapped")):
        tap = found.tap("seen")
        while {record.worker for _, record in zip(range(200), tap, strict=False)} != {0, 1}:
            """Both workers begin."""
        assert tap.passed >= tap.shown > 0
    with pytest.raises(mp.PlanError, match="has no step 'nope' to tap: its steps are 'numbers'"):
        found.tap("nope")
    handle.stop(drain=False, timeout_s=PATIENCE_S)
    assert all(record.key is not None for record in tap)
