"""The in-process runtime: all workers of a job in one thread of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, Unpack

from malstrom_py import sinks
from malstrom_py.builder.job import Job
from malstrom_py.builder.plan import Plan
from malstrom_py.builder.stream import StreamBuilder
from malstrom_py.clock import Clock, SystemClock
from malstrom_py.errors import MalstromError, PlanError
from malstrom_py.validation import checked_seconds
from malstrom_py.workers.coordinator.coordinator import Coordinator
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.reports.error_transfer import outermost
from malstrom_py.workers.reports.result import RunResult
from malstrom_py.workers.runtime.job_run import JobRun
from malstrom_py.workers.runtime.local_runtime import LocalRuntime, NextRun, check_job, refuse_in_coroutine
from malstrom_py.workers.runtime.local_workers import LocalWorkers
from malstrom_py.workers.runtime.progress import progress_for
from malstrom_py.workers.runtime.run_options import RunKeywords, RunOptions, options_of

__tracebackhide__ = True  # pytest shows the line of the user

_CLOCK: Final = ("now_s", "monotonic_s", "sleep_s")

V = TypeVar("V")


class _LocalRuns:
    """The runs of a job in this process. A `JobRuns`."""

    def __init__(self, options: RunOptions) -> None:
        self._options = options

    def coordinator(self, run: NextRun) -> Coordinator[LocalWorkers]:
        options = self._options
        group = LocalWorkers(run.plan, run.clock, options.batching, checks=options.checks, state=options.state)
        return Coordinator(
            run.plan, group, workers=run.workers, clock=run.clock, snapshot_use=run.snapshot_use, log=run.events
        )

    def close(self) -> None:
        """Nothing is kept."""


class InProcess(LocalRuntime[LocalWorkers]):
    """Runs jobs in this process, in the calling thread: ``workers`` workers in turn, over real channels.

    ``clock``: the runtime's clock. ``options``, or keywords: those of `RunOptions`.

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
        clock: Clock | None = None,
        options: RunOptions | None = None,
        **keywords: Unpack[RunKeywords],
    ) -> None:
        if isinstance(clock, type):
            raise PlanError(f"pass an instance as clock, {clock.__name__}(…), not the class itself")
        if clock is not None and not all(callable(getattr(clock, name, None)) for name in _CLOCK):
            raise PlanError(f"clock must have the methods {', '.join(_CLOCK)}, got {type(clock).__name__}")
        super().__init__(workers, clock or SystemClock(), options_of(InProcess, options, keywords))

    def _runs_of_job(self) -> _LocalRuns:
        return _LocalRuns(self._options)

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
            coordinator = self._runs_of_job().coordinator(NextRun(plan, self._workers, self._clock))
            run = JobRun(plan, coordinator, self._clock, progress=progress_for(plan, self._options.progress))
            return run.execute(until, until_s)
        except (MalstromError, KeyboardInterrupt) as error:
            raise outermost(error) from error.__cause__


def run(
    job: Job,
    workers: int = 1,
    *,
    clock: Clock | None = None,
    options: RunOptions | None = None,
    **keywords: Unpack[RunKeywords],
) -> RunResult:
    """Run ``job`` in this process to its end, on ``workers`` workers in turn.

    See `InProcess` and `RunOptions` for the options, and `RunResult` for the answer.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sinks, sources
    >>> job, out = mp.Job("docs"), sinks.Memory()
    >>> job.source("in", sources.Memory(["a", "b"])).map("upper", str.upper).sink("out", out)
    >>> result = mp.run(job)
    >>> result.read, out.items
    (2, ['A', 'B'])
    """
    try:
        runtime = InProcess(workers, clock=clock, options=options_of(run, options, keywords))
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
    if timeout_s is not None:
        checked_seconds(timeout_s, "mp.collect: timeout_s")
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
