"""The health of a job by its metrics: what is wrong, in sentences, and what ``/healthz`` and ``/readyz`` answer.

Rule: probes answer with no name and no value of a job, so they need no token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from malstrom_py.errors import ControlError, JobEnded, JobNotFound, OperationInProgress
from malstrom_py.metrics import ENDED, JobMetrics, SnapshotMetrics
from malstrom_py.workers.monitoring.watched_job import metrics_of
from malstrom_py.workers.reports.commands import RunningJob

SILENT_S: Final = 30.0
"""How old the metrics of a job, or the first report of a worker, may be."""

INTERVALS: Final = 3
"""How many intervals the last snapshot may be old."""

PROBE_S: Final = 0.5
"""How long a job may take to answer a probe; then its last known metrics count."""

PROBES: Final = ("/healthz", "/readyz")

_READY: Final = ("running", "rescaling")
_NOT_READY: Final = ("opening", "committing", "ended")
_NO_ANSWER: Final = (ControlError, JobEnded, JobNotFound, OperationInProgress)


def health_of(found: JobMetrics) -> list[str]:
    """Return a sentence for each problem of a job; none if it is healthy.

    >>> health_of(JobMetrics("flights", "running", "steady"))
    []
    >>> health_of(JobMetrics("flights", "recovering", "recovering", restarts=2))
    ['the job restarts from its last snapshot (restart 2)']
    """
    if found.state in ENDED:
        return [f"the job has {_HOW[found.state]}{f': {found.error}' if found.error else ''}"]
    problems = []
    if found.state == "recovering":
        times = f" (restart {found.restarts})" if found.restarts else ""  # none is counted for a reload
        problems.append(f"the job restarts from its last snapshot{times}")
    if found.age_s > SILENT_S:
        problems.append(f"nothing was heard from the job for {found.age_s:.0f} s: one of its functions blocks")
    silent = [worker.worker for worker in found.workers if not worker.host]
    if silent and found.duration_s > SILENT_S:
        named = f"worker{'' if len(silent) == 1 else 's'} {', '.join(map(str, silent))}"
        problems.append(f"nothing was heard from {named} since the start {found.duration_s:.0f} s ago")
    if found.snapshots is not None and found.state != "recovering":
        problems += _late_snapshots(found, found.snapshots)
    return problems


_HOW: Final = {"finished": "finished", "failed": "failed", "stopped": "been stopped"}


def _late_snapshots(found: JobMetrics, made: SnapshotMetrics) -> Iterable[str]:
    if made.interval_s is None:
        return
    # A snapshot that takes longer than its interval, or a short one, is not late yet.
    allowed_s = INTERVALS * max(made.interval_s, made.duration_s, 1.0)
    # The last one may be of an earlier run, which ended long ago.
    age_s = found.duration_s if made.at is None else min(found.duration_s, found.at - made.at)
    age_s += found.age_s
    if age_s > allowed_s:
        what = "no snapshot was made" if made.at is None else "the last snapshot was made"
        since = f"since the start {age_s:.0f} s ago" if made.at is None else f"{age_s:.0f} s ago"
        yield f"{what} {since}, which is more than {INTERVALS} times the interval of {made.interval_s:g} s"


def is_alive(age_s: float) -> bool:
    """Return whether the loop of a job with metrics of this age answers."""
    return age_s <= SILENT_S


def is_ready(state: str, phase: str, age_s: float) -> bool:
    """Return whether a job runs on workers that are all connected, and does not restart or end.

    >>> is_ready("running", "steady", 0.0), is_ready("running", "opening", 0.0)
    (True, False)
    """
    return state in _READY and phase not in _NOT_READY and is_alive(age_s)


def probe(path: str, found: Iterable[tuple[str, str, float]]) -> tuple[int, str]:
    """Return the status and the text that answer a request for one of `PROBES`, by the states, phases and ages of the
    jobs that have not ended.

    >>> probe("/readyz", [("running", "steady", 0.1)]), probe("/readyz", [])
    ((200, 'ready'), (503, 'not ready'))
    """
    jobs = list(found)
    if path == "/healthz":
        return (200, "alive") if all(is_alive(age_s) for *_, age_s in jobs) else (503, "not alive")
    return (200, "ready") if jobs and all(is_ready(*job) for job in jobs) else (503, "not ready")


def asked(jobs: Sequence[RunningJob]) -> Iterable[tuple[str, str, float]]:
    """Ask ``jobs`` for what `probe` takes. A job that has ended is left out; one that cannot be reached is old."""
    for job in jobs:
        try:
            found = metrics_of(job, PROBE_S)
        except JobEnded:
            continue
        except _NO_ANSWER:
            yield "gone", "ended", float("inf")
            continue
        if found.state not in ENDED:
            yield found.state, found.phase, found.age_s
