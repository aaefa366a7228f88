"""The in-process runtime: all workers of a job in one thread of this process.

Rule: a call that returns when a job has ended is refused in a coroutine or an event-loop callback, because the loop
could do nothing else until then. A notebook cell is allowed, with or without ``await`` in it: the kernel runs cells
inside its own loop, and a cell blocks only the notebook. A coroutine function that a cell awaits is refused like any
other.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from types import FrameType
from typing import Any, Final, Literal, TypeVar

from malstrom_py import sinks
from malstrom_py.builder.job import Job
from malstrom_py.builder.plan import Plan
from malstrom_py.builder.stream import StreamBuilder
from malstrom_py.clock import Clock, SystemClock
from malstrom_py.errors import MalstromError, PlanError
from malstrom_py.errors.text import check_redact
from malstrom_py.metrics import Metrics
from malstrom_py.rescale.autoscaling import Autoscale
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.workers.control.server import ControlSocket, answering
from malstrom_py.workers.coordinator.autoscaler import check_autoscale
from malstrom_py.workers.coordinator.command_queue import CommandQueue
from malstrom_py.workers.coordinator.coordinator import Coordinator
from malstrom_py.workers.coordinator.recovery import LATEST, begun_again, keeping_of, warn_of_reading_again
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.monitoring.dashboard import Dashboard
from malstrom_py.workers.monitoring.observers import Observers
from malstrom_py.workers.monitoring.watched_job import QueuedJob
from malstrom_py.workers.reports.error_transfer import outermost
from malstrom_py.workers.reports.event_log import OnEvent
from malstrom_py.workers.reports.job_status import check_size
from malstrom_py.workers.reports.result import RunResult
from malstrom_py.workers.runtime.hot_reload import HotReload
from malstrom_py.workers.runtime.interrupts import STOP_S, PlannedStop
from malstrom_py.workers.runtime.job_handle import JobHandle
from malstrom_py.workers.runtime.job_run import JobRun
from malstrom_py.workers.runtime.job_thread import LocalJob, run_to_end
from malstrom_py.workers.runtime.local_workers import LocalWorkers, local_run
from malstrom_py.workers.runtime.progress import Progress, progress_for
from malstrom_py.workers.runtime.supervisor import Restart, Supervisor, restart_of

__tracebackhide__ = True  # pytest shows the line of the user

_CLOCK: Final = ("now_s", "monotonic_s", "sleep_s")

V = TypeVar("V")


class InProcess:
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
        check_size(workers)
        self._redact_errors = check_redact(redact_errors)
        self._autoscale = check_autoscale(autoscale)
        self._observers = Observers.of(on_event, metrics, dashboard=dashboard)
        if batch is not None and not isinstance(batch, Batching):
            raise PlanError(f"batch must be an mp.Batching(rows_max=…), got {type(batch).__name__}")
        if isinstance(clock, type):
            raise PlanError(f"pass an instance as clock, {clock.__name__}(…), not the class itself")
        if clock is not None and not all(callable(getattr(clock, name, None)) for name in _CLOCK):
            raise PlanError(f"clock must have the methods {', '.join(_CLOCK)}, got {type(clock).__name__}")
        self._workers = workers if autoscale is None else autoscale.within(workers)
        self._batching = batch or Batching()
        self._clock = clock or SystemClock()
        self._progress = progress
        self._checks = checks
        self._keeping = keeping_of(snapshots, resume=resume, allow_dropped_state=allow_dropped_state)
        self._restart = restart_of(restart, kept=self._keeping is not None)

    def run(
        self, job: Job, *, control: bool = False, stop_on_sigterm: bool = False, stop_timeout_s: float = STOP_S
    ) -> RunResult:
        """Run ``job`` to its end, then commit its sinks.

        On an error or Ctrl-C the sinks discard uncommitted rows and the error is raised; a Ctrl-C (`KeyboardInterrupt`)
        has the counts so far as a note. ``control``: as in `start`.
        ``stop_on_sigterm``: SIGTERM stops the job as `JobHandle.stop` does; that is for the main thread of a program.
        If that takes longer than ``stop_timeout_s``, the job is ended without drain and without a snapshot, or, where a
        function blocks it, with the program. So does a second SIGTERM after more than a second.

        Raises:
            PlanError: the job is wrong, or this is called in a coroutine, whose event loop it would block: see `start`.
            JobEnded: the job was stopped without drain; it can resume from ``snapshot``.
        """
        try:
            refuse_in_coroutine("InProcess.run")
            plan = check_job(job, "InProcess.run").plan()
            controls = CommandQueue(plan.job, kept=self._keeping is not None)
            controls.is_watched = control or self._observers.any
            run = self._controlled(plan, controls, progress_for(plan, self._progress))
            stopping = None
            if stop_on_sigterm:
                stop = partial(controls.stop, drain=None)
                stopping = PlannedStop(stop, abandon=controls.abandon, limit_s=stop_timeout_s)
            with ExitStack() as on_failure, stopping or nullcontext():
                socket = ControlSocket(controls.job, answering(controls)) if control else None
                if socket is not None:
                    on_failure.callback(socket.close)
                    on_failure.callback(socket.release)
                observing = self._observers.begin(QueuedJob(controls))
                on_failure.pop_all()  # from now on the run closes both
                return run_to_end(run, controls, socket, observing, redact_errors=self._redact_errors)
        except (MalstromError, KeyboardInterrupt) as error:
            raise outermost(error) from error.__cause__

    def start(self, job: Job, *, control: bool = True) -> JobHandle:
        """Run ``job`` in its own thread, and return a handle on it immediately.

        While it runs its name is taken in this process and, with ``control``, for all processes of this user, which
        find it by that name: `JobHandle.attach`, ``malstrom status``, ``rescale`` and ``stop``. Progress is shown only
        where the runtime was made with ``progress=True``.

        >>> import malstrom_py as mp
        >>> from itertools import count
        >>> from malstrom_py import sinks, sources
        >>> job, out = mp.Job("docs-start"), sinks.Memory()
        >>> job.source("in", sources.Generator(lambda part, start: count(start))).sink("out", out)
        >>> handle = mp.InProcess().start(job, control=False)
        >>> handle.stop()
        >>> len(out.items) == handle.wait().written
        True

        Raises:
            PlanError: the job is wrong.
            JobRunning: a job of that name runs already.
            ControlError: there is no folder for control files that belongs to this user alone.
        """
        try:
            plan = check_job(job, "InProcess.start").plan()
            controls = CommandQueue(plan.job, kept=self._keeping is not None)
            run = self._controlled(plan, controls, progress_for(plan, self._progress is True))
            observers, redact_errors = self._observers, self._redact_errors
            return JobHandle(LocalJob(run, controls, control=control, observers=observers, redact_errors=redact_errors))
        except MalstromError as error:
            raise outermost(error) from error.__cause__

    def _controlled(
        self, plan: Plan, controls: CommandQueue, progress: Progress | None
    ) -> Supervisor[JobRun[LocalWorkers]]:
        clock = WakefulClock(controls) if type(self._clock) is SystemClock else self._clock
        warn_of_reading_again(plan, self._keeping)
        controls.autoscaler.set(self._autoscale, is_start=True)
        keeping, crew, reloads = self._keeping, None, HotReload(plan)

        def make(again: bool, workers: int | None) -> JobRun[LocalWorkers]:
            nonlocal keeping, crew
            if again and crew is not None:
                keeping = begun_again(keeping, crew.snapshots, finished=crew.kept is not None)
            crew = local_run(
                reloads.plan,
                workers=workers or self._workers,
                batching=self._batching,
                clock=clock,
                keeping=keeping,
                checks=self._checks,
                log=controls.events,
            )
            return JobRun(reloads.plan, crew, clock, controls=controls, progress=progress)

        return Supervisor(make, controls, self._restart, clock, reloads=reloads)

    def run_plan(
        self,
        plan: Plan,
        *,
        until: Callable[[Coordinator[LocalWorkers]], bool] | None = None,
        until_s: float | None = None,
    ) -> RunResult:
        """The same for a plan, without snapshots. Ends early, and commits, once ``until(crew)`` is true after a step,
        or the clock's monotonic time is ``until_s``.
        """
        try:
            crew = local_run(
                plan, workers=self._workers, batching=self._batching, clock=self._clock, checks=self._checks
            )
            run = JobRun(plan, crew, self._clock, progress=progress_for(plan, self._progress))
            return run.execute(until, until_s)
        except (MalstromError, KeyboardInterrupt) as error:
            raise outermost(error) from error.__cause__


class WakefulClock(SystemClock):
    """The system clock, whose sleep ends early when a command arrives in ``controls``."""

    def __init__(self, controls: CommandQueue) -> None:
        self._controls = controls

    def sleep_s(self, duration_s: float) -> None:
        wake = self._controls.wake
        if wake.wait(duration_s):
            wake.clear()


def check_job(job: object, function: str) -> Job:
    """``job``, if it is one, else `PlanError`."""
    if isinstance(job, Job):
        return job
    instead = ": end the stream with .sink('name', …), and pass its job" if isinstance(job, StreamBuilder) else ""
    raise PlanError(f"{function} takes a job, got {type(job).__name__}{instead}")


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
            until=None if count is None else lambda crew: crew.group.rows_in(last) >= count,
            until_s=None if timeout_s is None else time.monotonic_s() + timeout_s,
        )
    except (MalstromError, KeyboardInterrupt) as error:
        raise outermost(error) from error.__cause__
    return sink.items if count is None else sink.items[:count]


_NOTEBOOKS: Final = frozenset({"IPython", "ipykernel", "marimo"})
"""Packages whose coroutines run the cells of a notebook."""

_CELLS: Final = ("<module>", "<cell line")
"""Code names of notebook cells. A cell that awaits something is itself a coroutine."""

_COROUTINE: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def refuse_in_coroutine(function: str) -> None:
    """`PlanError` if ``function``, which returns when a job has ended, is called where it would block an event loop.

    >>> async def main():
    ...     refuse_in_coroutine("mp.run")
    >>> asyncio.run(main())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    malstrom_py.errors.PlanError: mp.run blocks the event loop that runs here until its job has ended: start ...
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if _is_plain_cell(sys._getframe(1)):
        return
    raise PlanError(
        f"{function} blocks the event loop that runs here until its job has ended: start it instead, handle = "
        f"mp.InProcess(…).start(job), which returns immediately, and await asyncio.to_thread(handle.wait); or call it "
        f"in a thread, await asyncio.to_thread({function}, …)"
    )


def _is_plain_cell(frame: FrameType | None) -> bool:
    """Return whether the innermost coroutine that is running is a notebook's, and not one of the user's."""
    while frame is not None:
        if frame.f_code.co_flags & _COROUTINE and not frame.f_code.co_name.startswith(_CELLS):
            return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _NOTEBOOKS
        frame = frame.f_back
    return False
