"""The status of a job while it runs and when it has ended, the report of a rescale, and the errors of timed-out waits.

Rule: texts of errors go to other processes and terminals. An error of another class becomes one of this package there,
with the type and, unless texts are redacted, the text of the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Literal

from malstrom_py.errors import InternalError, JobEnded, MalstromError, OperationInProgress, PlanError
from malstrom_py.errors.text import public_text
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.workers.reports.error_transfer import outermost
from malstrom_py.workers.reports.result import RunResult, as_html

__tracebackhide__ = True  # pytest shows the line of the user

WORKERS_MAX: Final = 128


def check_size(workers: object) -> None:
    """Raise `PlanError` if a job cannot have ``workers`` workers."""
    if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= WORKERS_MAX:
        raise PlanError(f"workers must be a whole number from 1 to {WORKERS_MAX}, got {workers!r}")


_OPERATIONS: Final[Mapping[str, str]] = {
    "run": "has not ended within {} s; it continues",
    "rescale": "has not been rescaled within {} s; the rescale continues",
    "rebalance": "has not been rebalanced within {} s; that continues",
    "snapshot": "has not completed a snapshot within {} s; the snapshot continues",
    "savepoint": "has not completed the savepoint within {} s; it continues",
    "reload": "has not completed the reload within {} s; it continues",
    "set": "has not set the parameter within {} s; that continues",
    "shadow": "has not begun within {} s, and cannot be asked for its shadow yet",
    "state": "has not begun within {} s, and cannot be asked for its state yet",
    "stop": "has not stopped within {} s; it is still being stopped",
}


def in_progress(job: str, operation: str, timeout_s: float) -> OperationInProgress:
    """Return the error of a timed-out wait for ``operation`` ("run", "rescale", "rebalance", "snapshot",
    "savepoint", "reload", "set" or "stop").

    >>> print(in_progress("flights", "rescale", 5))
    job 'flights' has not been rescaled within 5 s; the rescale continues: see status(), or allow more with timeout_s=
    """
    state = _OPERATIONS[operation].format(f"{timeout_s:g}")
    return OperationInProgress(
        f"job {job!r} {state}: see status(), or allow more with timeout_s=", job=job, operation=operation
    )


def still_running(job: str) -> str:
    """Return the note on a Ctrl-C that ended a wait, but not the operation."""
    return f"job {job!r} continues, and so does the requested operation: only the wait was interrupted"


@dataclass(frozen=True, slots=True)
class RescaleReport:
    """A rescale that has ended.

    ``members``: the workers that are there now. ``version``: of the routing table they route by. ``moves``: how many
    moves it took. ``slots`` (key groups) and ``parts`` (partitions): how many of each changed worker.
    ``duration_s``: how long it took by the runtime's clock, in seconds. ``superseded_by``: how many workers the later
    request asked for that overtook this one; None if none did. ``keys``: how many keys with state changed worker,
    counted once for each region that keeps something of them. ``bytes``: how many were sent for their state;
    ``bytes_ahead``: of these were sent while the old owners still worked (R12). ``imbalance_before``,
    ``imbalance_after``: the load of the most loaded worker over the mean, 1.0 if all are alike; None if loads were not
    known, and key groups were placed by number.

    >>> RescaleReport((0, 1), version=1, moves=1, slots=512, parts=2, duration_s=0.1).superseded_by is None
    True
    """

    members: tuple[int, ...]
    version: int
    moves: int
    slots: int
    parts: int
    duration_s: float
    superseded_by: int | None = None
    keys: int = 0
    bytes: int = 0
    imbalance_before: float | None = None
    imbalance_after: float | None = None
    bytes_ahead: int = 0


ReloadAction = Literal["reload", "shadow", "promote", "drop"]
"""What becomes of new code: it replaces that of a step, runs beside it, replaces it from there, or is dropped."""


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """A reload that has been confirmed.

    ``step``: the requested one. ``modules``: which were imported again; all steps of the job with functions of them
    have the new code. ``snapshot``: the cut at which the code changed, on every worker. ``pause_s``: for how long no
    worker processed records after that snapshot, in seconds. ``action``: what was asked for.

    >>> print(ReloadReport("total", ("shop",), "20261122T042242123456Z-1a2b3c4d", 0.05))
    step total has the new code of shop since snapshot 20261122T042242123456Z-1a2b3c4d, after a pause of 0.05 s
    """

    step: str
    modules: tuple[str, ...]
    snapshot: str
    pause_s: float
    action: ReloadAction = "reload"

    def __str__(self) -> str:
        code = f"the new code of {', '.join(self.modules)}"
        done = {"shadow": f"has {code} as its shadow", "drop": "has no shadow"}.get(self.action, f"has {code}")
        return f"step {self.step} {done} since snapshot {self.snapshot}, after a pause of {self.pause_s:.2f} s"


@dataclass(frozen=True, slots=True)
class Moving:
    """A rescale while it moves what it is to move.

    ``move``: which move is under way, from 1. ``slots``: how many of the ``of_slots`` that are to change worker have
    done so. ``keys``, ``bytes``: what has been sent with them, as in `RescaleReport`.

    >>> print(Moving(2, slots=16, of_slots=512, keys=1_600, bytes=2_000_000))
    move 2, 16 of 512 key groups moved, with 1,600 keys and 2.0 MB of state
    """

    move: int
    slots: int
    of_slots: int
    keys: int
    bytes: int

    def __str__(self) -> str:
        return (
            f"move {self.move}, {self.slots:,} of {self.of_slots:,} key groups moved, with {self.keys:,} keys and "
            f"{self.bytes / 1e6:,.1f} MB of state"
        )


How = Literal["finished", "failed", "stopped"]
State = Literal["running", "rescaling", "recovering", "stopping", "finished", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """The snapshots of a running job.

    ``last``: the id of the last one, from which the job would resume, and ``at_s``: its time in seconds since 1970;
    both None if there is none yet. ``made``: how many this run has completed. ``bytes``: written for the last one,
    ``duration_s``: how long it took, from its barrier to its commit; ``pause_s``: the longest pause of a worker for it.
    The three are 0 of a snapshot of an earlier run. ``interval_s``: between the starts of two; None: only on request.

    >>> print(SnapshotStatus("20261122T042242123456Z-1a2b3c4d", 1795321362.1, 3))
    3 snapshots, the last one is 20261122T042242123456Z-1a2b3c4d of 2026-11-22 04:22:42 UTC
    """

    last: str | None
    at_s: float | None
    made: int
    bytes: int = 0
    duration_s: float = 0.0
    pause_s: float = 0.0
    interval_s: float | None = None

    @classmethod
    def of(
        cls,
        last: Manifest | None,
        made: int,
        took: tuple[int, float, float] = (0, 0.0, 0.0),
        interval_s: float | None = None,
    ) -> SnapshotStatus:
        """Return the status, given the ``last`` complete snapshot and its bytes, duration and pause."""
        if last is None:
            return cls(None, None, made, interval_s=interval_s)
        return cls(last.id, datetime.fromisoformat(last.created).timestamp(), made, *took, interval_s)

    def __str__(self) -> str:
        made = f"{self.made:,} snapshot{'' if self.made == 1 else 's'}"
        if self.last is None or self.at_s is None:
            return f"{made}, none to resume from yet"
        at = datetime.fromtimestamp(self.at_s, UTC)
        return f"{made}, the last one is {self.last} of {at:%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True, repr=False)
class JobStatus:
    """The status of a job, from `JobHandle.status`. A notebook shows it with a table of the steps.

    ``state``: "running", "rescaling", "recovering" (it restarts from its last snapshot) or
    "stopping"; once it has ended "finished" (its sinks have committed), "failed" or "stopped" (without drain: nothing
    was committed after its last snapshot). ``workers``: their number. ``phase``: of the run,
    "opening", "steady", "joining", "copying", "moving", "leaving", "barrier", "recovering", "committing" or "ended".
    ``counts``: the rows so far. ``error``: why it failed, or how it was stopped, else None. ``age_s``: how old the
    numbers are, in seconds; above 0 only if a function of the job has kept its thread from reporting newer ones.
    ``moving``: the progress of a rescale that moves key groups, else None. ``restarts``: the number of restarts from a
    snapshot. ``snapshots``: their status, None if the job makes none.

    >>> counts = RunResult("flights", {}, 2.0)
    >>> print(JobStatus("flights", "rescaling", 4, "moving", counts, None))
    job flights: rescaling, 4 workers (moving)
    job flights: 0 read, 0 written, 0 filtered, 0 late, 0 skipped, 0 dead letters in 2.00 s
    """

    job: str
    state: State
    workers: int
    phase: str
    counts: RunResult
    error: str | None
    age_s: float = 0.0
    moving: Moving | None = None
    restarts: int = 0
    snapshots: SnapshotStatus | None = None

    @property
    def _headline(self) -> str:
        workers = f"{self.workers} worker{'' if self.workers == 1 else 's'}"
        moving = "" if self.moving is None else f": {self.moving}"
        return f"job {self.job}: {self.state}, {workers} ({self.phase}{moving})"

    def __repr__(self) -> str:
        return f"<JobStatus of {self._headline}>"

    def _repr_html_(self) -> str:
        """The text, and a table of the steps, for a notebook."""
        return as_html(str(self), self.counts.steps)

    def __str__(self) -> str:
        lines = [self._headline, str(self.counts)]
        if self.snapshots is not None:
            lines.append(str(self.snapshots))
        if self.restarts:
            lines.append(f"{self.restarts:,} restart{'' if self.restarts == 1 else 's'} from a snapshot")
        if self.error is not None:
            lines.append(self.error if self.state == "stopped" else f"error: {self.error}")
        if self.age_s:
            lines.append(
                f"these numbers are {self.age_s:.1f} s old: a function of the job keeps it from reporting newer ones"
            )
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The outcome of a job. ``error``: what failed or stopped it; None if it finished."""

    job: str
    how: How
    counts: RunResult
    error: BaseException | None = None

    @classmethod
    def of(cls, counts: RunResult, error: BaseException | None) -> JobOutcome:
        """The ending of a run that came this far and ended by ``error``, or by itself if None.

        >>> JobOutcome.of(RunResult("flights", {}, 2.0), KeyboardInterrupt()).how
        'stopped'
        """
        if error is None:
            return cls(counts.job, "finished", counts)
        stopped = isinstance(error, KeyboardInterrupt) or (isinstance(error, JobEnded) and error.how == "stopped")
        if isinstance(error, JobEnded) and stopped:
            error.result = counts
        return cls(counts.job, "stopped" if stopped else "failed", counts, error)

    def result(self) -> RunResult:
        """The counts of a job that is finished; else raises what it ended by."""
        error = self.error
        if error is None:
            return self.counts
        if isinstance(error, MalstromError):
            raise outermost(error) from error.__cause__
        raise error

    def public_error(self) -> MalstromError | None:
        """Return ``error`` for other processes, its class one of this package."""
        error = self.error
        if error is None or isinstance(error, MalstromError):
            return error
        public: MalstromError
        if isinstance(error, KeyboardInterrupt):
            public = JobEnded(f"job {self.job!r} was stopped by Ctrl-C", job=self.job, how=self.how)
        elif isinstance(error, SystemExit):
            public = JobEnded(f"a function of job {self.job!r} ended the program", job=self.job, how=self.how)
        else:
            public = InternalError(f"job {self.job!r} failed by {public_text(error)}")
        for note in getattr(error, "__notes__", ()):
            public.add_note(note)
        return public

    def public(self) -> JobOutcome:
        """Return the outcome for other processes."""
        return replace(self, error=self.public_error())

    @property
    def snapshot(self) -> SnapshotId | None:
        """The last snapshot, made at the end of the job: the job resumes from it, or its result is in it."""
        if isinstance(self.error, JobEnded):
            return SnapshotId(self.error.snapshot) if self.error.snapshot else None
        last = self.counts.last_snapshot if self.error is None else None
        return None if last is None else SnapshotId(last)

    def stopped(self, *, drain: bool | None, kept: bool = False) -> SnapshotId | None:
        """Return `snapshot` if this is what a stop with ``drain`` was to lead to, else raise what it is instead.

        ``drain`` None is content with an end of the job's own; ``kept``: and, for the job has snapshots, with a stop.
        """
        if self.how == "failed":
            self.result()
        wanted = {True: {"finished"}, False: {"stopped"}, None: {"finished", "stopped"} if kept else {"finished"}}
        if self.how not in wanted[drain]:
            raise self.refusal("stopped without drain" if drain is False else "stopped with drain")
        return self.snapshot

    def refusal(self, what: str) -> JobEnded:
        """That nothing can be asked of the job any more; ``what`` is what it was to be.

        >>> JobOutcome.of(RunResult("flights", {}, 2.0), None).refusal("rescaled to 4")
        JobEnded("job 'flights' cannot be rescaled to 4: it has finished, and its sinks have committed")
        """
        ended = {
            "finished": "finished, and its sinks have committed",
            "failed": f"failed ({self.public_error()})",
            "stopped": "been stopped",
        }
        return JobEnded(f"job {self.job!r} cannot be {what}: it has {ended[self.how]}", job=self.job, how=self.how)
