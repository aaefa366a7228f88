"""What is wrong with a job, by its metrics, and what probes answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from malstrom_py.errors import ControlError, JobEnded, MalstromError
from malstrom_py.metrics import JobMetrics, SnapshotMetrics, WorkerMetrics
from malstrom_py.workers.monitoring.health import asked, health_of, probe


def metrics(**fields: Any) -> JobMetrics:
    known = {"state": "running", "phase": "steady", "at": 1_000.0, "duration_s": 500.0}
    return JobMetrics(**{"job": "shop", **known, **fields})


def made(**fields: Any) -> SnapshotMetrics:
    return SnapshotMetrics(**{"made": 1, "last": "id", "at": 990.0, "interval_s": 10.0, **fields})


@pytest.mark.parametrize(
    "found",
    [
        metrics(),
        metrics(state="rescaling", phase="moving"),
        metrics(state="stopping"),
        metrics(age_s=29.0),
        metrics(workers=[WorkerMetrics(0, host="here")]),
        metrics(workers=[WorkerMetrics(0)], duration_s=5.0),  # it has just begun
        metrics(snapshots=made()),
        metrics(snapshots=made(at=971.0)),
        metrics(snapshots=made(at=1.0, interval_s=None)),  # only on request
        metrics(snapshots=made(at=1.0), duration_s=29.0),  # it resumed 29 s ago
        metrics(snapshots=made(at=None, last=None, made=0), duration_s=29.0),
        metrics(snapshots=made(at=920.0, duration_s=30.0)),  # each takes 30 s
    ],
)
def test_a_job_without_problems_is_healthy(found: JobMetrics) -> None:
    assert health_of(found) == []


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (metrics(state="failed", phase="ended", error="no room"), "the job has failed: no room"),
        (metrics(state="finished", phase="ended"), "the job has finished"),
        (metrics(state="stopped", phase="ended"), "the job has been stopped"),
        (metrics(state="recovering", phase="recovering", restarts=3), "the job restarts from its last snapshot"),
        (metrics(age_s=31.0), "nothing was heard from the job for 31 s"),
        (metrics(workers=[WorkerMetrics(0, host="a"), WorkerMetrics(3)]), "nothing was heard from worker 3 since"),
        (metrics(snapshots=made(at=969.0)), "the last snapshot was made 31 s ago, which is more than 3 times"),
        (metrics(snapshots=made(at=975.0), age_s=6.0), "the last snapshot was made 31 s ago"),
        (
            metrics(snapshots=made(at=None, last=None, made=0), duration_s=31.0),
            "no snapshot was made since the start 31 s ago, which is more than 3 times the interval of 10 s",
        ),
    ],
)
def test_each_problem_has_its_sentence(found: JobMetrics, problem: str) -> None:
    (said,) = health_of(found)
    assert said.startswith(problem)


@pytest.mark.parametrize(
    ("jobs", "healthz", "readyz"),
    [
        ([], 200, 503),
        ([("running", "steady", 0.0)], 200, 200),
        ([("rescaling", "moving", 0.0)], 200, 200),
        ([("running", "opening", 0.0)], 200, 503),
        ([("recovering", "recovering", 0.0)], 200, 503),
        ([("stopping", "steady", 0.0)], 200, 503),
        ([("running", "committing", 0.0)], 200, 503),
        ([("running", "steady", 31.0)], 503, 503),
        ([("running", "steady", 0.0), ("recovering", "recovering", 0.0)], 200, 503),
        ([("running", "steady", 0.0), ("running", "steady", 31.0)], 503, 503),
    ],
)
def test_probes_ask_for_life_and_for_readiness(jobs: list[tuple[str, str, float]], healthz: int, readyz: int) -> None:
    assert (probe("/healthz", jobs)[0], probe("/readyz", iter(jobs))[0]) == (healthz, readyz)


class Asked:
    """A job that answers with its metrics, or an error."""

    name = "shop"

    def __init__(self, answer: JobMetrics | MalstromError) -> None:
        self._answer = answer

    def ask(self, command: object) -> Any:
        if isinstance(self._answer, MalstromError):
            raise self._answer
        return self._answer


def test_a_job_that_cannot_be_reached_is_not_alive_and_one_that_has_ended_does_not_count() -> None:
    ended = JobEnded("it has ended", job="shop", how="finished")
    jobs = [Asked(metrics(state="failed")), Asked(ended), Asked(metrics())]
    assert list(asked(jobs)) == [("running", "steady", 0.0)]

    def lost() -> Iterator[tuple[str, str, float]]:
        yield from asked([Asked(ControlError("it does not answer"))])

    assert probe("/healthz", lost()) == (503, "not alive")
