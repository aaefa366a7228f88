"""What the runtimes have in common whose coordinator is in the program that starts a job: run, start, and the runs of a
job with restarts.

Rule: a call that returns when a job has ended is refused in a coroutine or an event-loop callback, because the loop
could do nothing else until then. A notebook cell is allowed, with or without ``await`` in it: the kernel runs cells
inside its own loop, and a cell blocks only the notebook. A coroutine function that a cell awaits is refused like any
other.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Final, Generic, Protocol

from malstrom_py.builder.job import Job
from malstrom_py.builder.plan import Plan
from malstrom_py.builder.stream import StreamBuilder
from malstrom_py.clock import Clock, SystemClock
from malstrom_py.errors import MalstromError, PlanError
from malstrom_py.workers.control.server import ControlSocket, answering
from malstrom_py.workers.coordinator.command_queue import CommandQueue
from malstrom_py.workers.coordinator.coordinator import Coordinator, G
from malstrom_py.workers.coordinator.recovery import SnapshotUse, begun_again
from malstrom_py.workers.reports.error_transfer import outermost
from malstrom_py.workers.reports.event_log import EventLog
from malstrom_py.workers.reports.job_status import check_size
from malstrom_py.workers.reports.result import RunResult
from malstrom_py.workers.runtime.hot_reload import HotReload
from malstrom_py.workers.runtime.interrupts import STOP_S, PlannedStop
from malstrom_py.workers.runtime.job_handle import JobHandle
from malstrom_py.workers.runtime.job_run import JobRun
from malstrom_py.workers.runtime.job_thread import LocalJob, run_to_end
from malstrom_py.workers.runtime.progress import Progress, progress_for
from malstrom_py.workers.runtime.run_options import (
    RunOptions,
    observers_of,
    restart_of,
    snapshot_use_of,
    warn_of_reading_again,
)
from malstrom_py.workers.runtime.supervisor import Supervisor

__tracebackhide__ = True  # pytest shows the line of the user


@dataclass(frozen=True, slots=True)
class NextRun:
    """A run of ``plan`` that is to be made. ``is_again``: it follows another one."""

    plan: Plan
    workers: int
    clock: Clock
    snapshot_use: SnapshotUse | None = None
    events: EventLog | None = None
    is_again: bool = False


class JobRuns(Protocol[G]):
    """Makes the coordinators of the runs of one job."""

    def coordinator(self, run: NextRun) -> Coordinator[G]:
        """Return the coordinator of ``run``."""
        ...

    def close(self) -> None:
        """Free what is kept from one run to the next."""
        ...


class LocalRuntime(Generic[G]):
    """A runtime whose coordinator is in this program."""

    def __init__(self, workers: int, clock: Clock, options: RunOptions) -> None:
        check_size(workers)
        self._options = options
        self._observers = observers_of(options)
        self._workers = workers if options.autoscale is None else options.autoscale.within(workers)
        self._clock = clock
        self._snapshot_use = snapshot_use_of(options)

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
            refuse_in_coroutine(f"{self._name}.run")
            plan = check_job(job, f"{self._name}.run").plan()
            watched = control or self._observers.any
            commands = CommandQueue(plan.job, kept=self._snapshot_use is not None, watched=watched)
            run = self._controlled(plan, commands, progress_for(plan, self._options.progress))
            stopping = None
            if stop_on_sigterm:
                stop = partial(commands.stop, drain=None)
                stopping = PlannedStop(stop, abandon=commands.abandon, limit_s=stop_timeout_s)
            with ExitStack() as on_failure, stopping or nullcontext():
                socket = ControlSocket(commands.name, answering(commands)) if control else None
                if socket is not None:
                    on_failure.callback(socket.close)
                    on_failure.callback(socket.release)
                observing = self._observers.begin(commands)
                on_failure.pop_all()  # from now on the run closes both
                return run_to_end(run, commands, socket, observing, redact_errors=self._options.redact_errors)
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
            plan = check_job(job, f"{self._name}.start").plan()
            commands = CommandQueue(plan.job, kept=self._snapshot_use is not None)
            run = self._controlled(plan, commands, progress_for(plan, self._options.progress is True))
            observers, redact_errors = self._observers, self._options.redact_errors
            return JobHandle(LocalJob(run, commands, control=control, observers=observers, redact_errors=redact_errors))
        except MalstromError as error:
            raise outermost(error) from error.__cause__

    def _controlled(self, plan: Plan, commands: CommandQueue, progress: Progress | None) -> Supervisor[JobRun[G]]:
        clock = WakefulClock(commands) if type(self._clock) is SystemClock else self._clock
        warn_of_reading_again(plan, self._snapshot_use)
        commands.autoscaler.start(self._options.autoscale)
        snapshot_use, coordinator, reloads, runs = self._snapshot_use, None, self._reloads(plan), self._runs_of_job()

        def make(again: bool, workers: int | None) -> JobRun[G]:
            nonlocal snapshot_use, coordinator
            if again and coordinator is not None:
                snapshot_use = begun_again(snapshot_use, coordinator.snapshots, finished=coordinator.kept is not None)
            workers = workers or self._workers
            coordinator = runs.coordinator(
                NextRun(reloads.plan, workers, clock, snapshot_use, commands.events, is_again=again)
            )
            return JobRun(reloads.plan, coordinator, clock, commands=commands, progress=progress)

        return Supervisor(make, commands, restart_of(self._options), clock, at_end=runs.close, reloads=reloads)

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _runs_of_job(self) -> JobRuns[G]:
        """Return what makes the coordinators of the runs of one job."""
        raise NotImplementedError

    def _reloads(self, plan: Plan) -> HotReload:
        """Return what replaces ``plan`` while it runs."""
        return HotReload(plan)


class WakefulClock(SystemClock):
    """The system clock, whose sleep ends early when a command arrives in ``commands``."""

    def __init__(self, commands: CommandQueue) -> None:
        self._commands = commands

    def sleep_s(self, duration_s: float) -> None:
        wake = self._commands.wake
        if wake.wait(duration_s):
            wake.clear()


def check_job(job: object, function: str) -> Job:
    """``job``, if it is one, else `PlanError`."""
    if isinstance(job, Job):
        return job
    instead = ": end the stream with .sink('name', …), and pass its job" if isinstance(job, StreamBuilder) else ""
    raise PlanError(f"{function} takes a job, got {type(job).__name__}{instead}")


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
    runtime = "InProcess" if function.startswith("mp.") else function.partition(".")[0]
    raise PlanError(
        f"{function} blocks the event loop that runs here until its job has ended: start it instead, handle = "
        f"mp.{runtime}(…).start(job), which returns immediately, and await asyncio.to_thread(handle.wait); or call it "
        f"in a thread, await asyncio.to_thread({function}, …)"
    )


def _is_plain_cell(frame: FrameType | None) -> bool:
    """Return whether the innermost coroutine that is running is a notebook's, and not one of the user's."""
    while frame is not None:
        if frame.f_code.co_flags & _COROUTINE and not frame.f_code.co_name.startswith(_CELLS):
            return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _NOTEBOOKS
        frame = frame.f_back
    return False
