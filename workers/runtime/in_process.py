"""The in-process runtime: all workers of a job in one thread of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar

from malstrom_py import sinks
from malstrom_py.builder.job import Job
from malstrom_py.builder.plan import Plan
from malstrom_py.builder.stream import StreamBuilder
from malstrom_py.clock import Clock, SystemClock
from malstrom_py.errors import MalstromError, PlanError
from malstrom_py.metrics import Metrics
from malstrom_py.rescale.autoscaling import Autoscale
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.workers.coordinator.coordinator import Coordinator
from malstrom_py.workers.coordinator.recovery import LATEST, SnapshotUse
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.monitoring.dashboard import Dashboard
from malstrom_py.workers.reports.error_transfer import outermost
from malstrom_py.workers.reports.event_log import EventLog, OnEvent
from malstrom_py.workers.reports.result import RunResult
from malstrom_py.workers.runtime.job_run import JobRun
from malstrom_py.workers.runtime.local_runtime import LocalRuntime, check_job, refuse_in_coroutine
from malstrom_py.workers.runtime.local_workers import LocalWorkers, local_run
from malstrom_py.workers.runtime.progress import progress_for
from malstrom_py.workers.runtime.supervisor import Restart

__tracebackhide__ = True  # pytest shows the line of the user

_CLOCK: Final = ("now_s", "monotonic_s", "sleep_s")

V = TypeVar("V")


class _LocalRuns:
    """The runs of a job in this process. A `JobRuns`."""

    def __init__(self, batching: Batching, *, checks: bool) -> None:
        self._batching = batching
        self._checks = checks

    def coordinator(
        self,
        plan: Plan,
        workers: int,
        clock: Clock,
        snapshot_use: SnapshotUse | None,
        log: EventLog | None = None,
        *,
        is_again: bool = False,
    ) -> Coordinator[LocalWorkers]:
        return local_run(
            plan,
            workers=workers,
            batching=self._batching,
            clock=clock,
            snapshot_use=snapshot_use,
            checks=self._checks,
            log=log,
        )

    def close(self) -> None:
        """Nothing is kept."""


class InProcess(LocalRuntime[LocalWorkers]):
    """Runs jobs in this process, in the calling thread: ``workers`` workers in turn, over real channels.

    ``batch``: how batches are cut. ``clock``: the runtime's clock. ``progress``: True to show progress on
    standard error, False to be quiet, None to show it where that is a terminal. ``checks``: test mode, in which a
    value or state that is changed in place, what cannot be encoded at an exchange or as state, and a partitioner that
    would fail on several workers are errors.

    ``snapshots``: where the job keeps its snapshots and how often it makes them; None: no snapshots. ``resume``: the
    snapshot that the job resumes from: "latest", the newest if there is one; "none": a start from the beginning; or an
    id. ``restart``: the restart policy after a failure, a `Restart` or "never". ``allow_dropped_state``: state of steps
    that the job no longer has may be dropped. ``on_event``: a function that is called with each event of the job
    (`malstrom_py.events`), in a separate thread; `run` and the end of the job wait for it for at most ten seconds.
    ``metrics``: serves the metrics of its jobs, a `Metrics`. ``dashboard``: True, or a `Dashboard`, to show them in a
    browser; the address is printed on standard error. ``autoscale``: changes the number of workers by load, an
    `Autoscale`; ``workers`` is then the number at the start. ``redact_errors``: errors, logs and events have the type
    and the place of an exception that a function raises, but not its text, which may hold values of records.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sinks, sources
    >>> job, out = mp.Job("docs"), sinks.Memory()
    >>> job.source("in", sources.Memory(range(3))).map("square", lambda n: n * n).sink("out", out)
    >>> mp.InProcess(batch=mp.Batching(rows_max=2)).run(job).written, out.items
    (3, [0, 1, 4])
    """

    def __init__(
        self,
        workers: int = 1,
        *,
        batch: Batching | None = None,
        clock: Clock | None = None,
        progress: bool | None = None,
        checks: bool = False,
        snapshots: Snapshots | None = None,
        resume: str = LATEST,
        restart: Restart | Literal["never"] | None = None,
        allow_dropped_state: bool = False,
        on_event: OnEvent | None = None,
        metrics: Metrics | None = None,
        dashboard: Dashboard | bool = False,
        autoscale: Autoscale | None = None,
        redact_errors: bool = False,
    ) -> None:
        if isinstance(clock, type):
            raise PlanError(f"pass an instance as clock, {clock.__name__}(…), not the class itself")
        if clock is not None and not all(callable(getattr(clock, name, None)) for name in _CLOCK):
            raise PlanError(f"clock must have the methods {', '.join(_CLOCK)}, got {type(clock).__name__}")
        super().__init__(
            workers,
            batch=batch,
            clock=clock or SystemClock(),
            progress=progress,
            checks=checks,
            snapshots=snapshots,
            resume=resume,
            restart=restart,
            allow_dropped_state=allow_dropped_state,
            on_event=on_event,
            metrics=metrics,
            dashboard=dashboard,
            autoscale=autoscale,
            redact_errors=redact_errors,
        )

    def _runs_of_job(self) -> _LocalRuns:
        return _LocalRuns(self._batching, checks=self._checks)

    def run_plan(
        self,
        plan: Plan,
        *,
        until: Callable[[Coordinator[LocalWorkers]], bool] | None = None,
        until_s: float | None = None,
    ) -> RunResult:
        """The same for a plan, without snapshots. Ends early, and commits, once ``until(coordinator)`` is true after
        a step, or the clock's monotonic time is ``until_s``.
        """
        try:
            coordinator = self._runs_of_job().coordinator(plan, self._workers, self._clock, None)
            run = JobRun(plan, coordinator, self._clock, progress=progress_for(plan, self._progress))
            return run.execute(until, until_s)
        except (MalstromError, KeyboardInterrupt) as error:
            raise outermost(error) from error.__cause__


def run(
    job: Job,
    workers: int = 1,
    *,
    batch: Batching | None = None,
    clock: Clock | None = None,
    progress: bool | None = None,
    checks: bool = False,
    snapshots: Snapshots | None = None,
    resume: str = LATEST,
    restart: Restart | Literal["never"] | None = None,
    allow_dropped_state: bool = False,
    on_event: OnEvent | None = None,
    metrics: Metrics | None = None,
    dashboard: Dashboard | bool = False,
    autoscale: Autoscale | None = None,
    redact_errors: bool = False,
) -> RunResult:
    """Run ``job`` in this process to its end, on ``workers`` workers in turn.

    See `InProcess` for the options and `RunResult` for the answer.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sinks, sources
    >>> job, out = mp.Job("docs"), sinks.Memory()
    >>> job.source("in", sources.Memory(["a", "b"])).map("upper", str.upper).sink("out", out)
    >>> result = mp.run(job)
    >>> result.read, out.items
    (2, ['A', 'B'])
    """
    try:
        runtime = InProcess(
            workers,
            batch=batch,
            clock=clock,
            progress=progress,
            checks=checks,
            snapshots=snapshots,
            resume=resume,
            restart=restart,
            allow_dropped_state=allow_dropped_state,
            on_event=on_event,
            metrics=metrics,
            dashboard=dashboard,
            autoscale=autoscale,
            redact_errors=redact_errors,
        )
        refuse_in_coroutine("mp.run")
        return runtime.run(check_job(job, "mp.run"))
    except (MalstromError, KeyboardInterrupt) as error:
        raise outermost(error) from error.__cause__


def collect(
    stream: StreamBuilder[Any, V],
    *,
    count: int | None = None,
    timeout_s: float | None = None,
    batch: Batching | None = None,
    clock: Clock | None = None,
) -> list[V]:
    """Run what leads to ``stream`` and return its values: all, or those until ``count`` or ``timeout_s`` is reached.

    The job's own sinks are not run. For notebooks and tests.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> mp.collect(mp.Job("docs").source("numbers", sources.Memory(range(1000))), count=3)
    [0, 1, 2]
    """
    if not isinstance(stream, StreamBuilder):
        also = ", and mp.run(job) a job" if isinstance(stream, Job) else ""
        raise PlanError(f"mp.collect takes a stream, such as a step returns{also}; got {type(stream).__name__}")
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 0):
        raise PlanError(f"mp.collect: count must be a whole number of at least 0, got {count!r}")
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if timeout_s is not None and not (is_number and timeout_s >= 0):
        raise PlanError(f"mp.collect: timeout_s must be a number of seconds of at least 0, got {timeout_s!r}")
    time = clock or SystemClock()
    sink = sinks.Memory()
    try:
        refuse_in_coroutine("mp.collect")
        runtime = InProcess(batch=batch, clock=clock, progress=False)
        plan = stream.job.plan_to(stream, sink)
        last = plan.steps[-1].name
        runtime.run_plan(
            plan,
            until=None if count is None else lambda coordinator: coordinator.group.rows_in(last) >= count,
            until_s=None if timeout_s is None else time.monotonic_s() + timeout_s,
        )
    except (MalstromError, KeyboardInterrupt) as error:
        raise outermost(error) from error.__cause__
    return sink.items if count is None else sink.items[:count]
