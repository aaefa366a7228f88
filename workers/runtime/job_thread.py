"""A job that runs in its own thread of this process.

Rule: every waiter gets the outcome of the job, and the job's name is released before the first one gets it. The thread
is a daemon, so a job never delays the end of the program: a job that still runs then is stopped without drain.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import Final, Protocol

from malstrom_py.clock import SystemClock
from malstrom_py.errors import ControlError, JobRunning, MalstromError
from malstrom_py.errors.text import redacting
from malstrom_py.workers.control.server import ControlSocket, answering
from malstrom_py.workers.coordinator.command_queue import CommandQueue
from malstrom_py.workers.monitoring.observers import Observers, Observing
from malstrom_py.workers.reports.commands import (
    Command,
    EventsCommand,
    MetricsCommand,
    Result,
    StateCommand,
    StatusCommand,
    StopCommand,
)
from malstrom_py.workers.reports.error_transfer import redacted, without_internals
from malstrom_py.workers.reports.job_status import JobOutcome, JobStatus, still_running
from malstrom_py.workers.reports.result import RunResult

__tracebackhide__ = True  # pytest shows the line of the user

_EXIT_S: Final = 5.0
"""How long the exiting program waits for its jobs to stop."""


class Executable(Protocol):
    """A run of a job, executed by the calling thread."""

    def execute(self) -> RunResult: ...

    def result(self) -> RunResult: ...


def run_to_end(
    run: Executable,
    commands: CommandQueue,
    control: ControlSocket | None,
    observing: Observing | None = None,
    *,
    redact_errors: bool = False,
) -> RunResult:
    """Execute ``run`` in this thread, release the job's name, then publish the outcome."""
    with redacting(redact_errors):
        return _run_to_end(run, commands, control, observing)


def _run_to_end(
    run: Executable, commands: CommandQueue, control: ControlSocket | None, observing: Observing | None
) -> RunResult:
    error: BaseException | None = None
    result: RunResult | None = None
    try:
        result = run.execute()
        return result
    except BaseException as failure:
        error = redacted(failure)
        if error is failure:
            raise
        raise error from None
    finally:
        end_job(JobOutcome.of(result or _counts(run, commands), error), commands, control, observing)


def end_job(
    ending: JobOutcome,
    commands: CommandQueue,
    control: ControlSocket | None,
    observing: Observing | None,
    last: Callable[[], None] = lambda: None,
) -> None:
    """Publish the last event, release the job's name, do what comes ``last``, and publish the outcome."""
    commands.announce(ending)
    if control is not None:
        control.await_followers()
        control.release()
    try:
        if observing is not None:
            observing.end(str(ending.public_error()) if ending.how == "failed" else None)
        last()
    finally:  # also after a Ctrl-C
        commands.end(ending)
    if control is not None:
        control.close()


class LocalJob:
    """A job that runs in a thread of this process."""

    def __init__(
        self,
        run: Executable,
        commands: CommandQueue,
        *,
        control: bool,
        observers: Observers | None = None,
        redact_errors: bool = False,
    ) -> None:
        self.name = commands.name
        self._commands = commands
        self._run = run
        self._redact_errors = redact_errors
        self._observing: Observing | None = None
        with _LOCK:
            if self.name in _HERE and not _HERE[self.name].has_ended:
                raise JobRunning(
                    f"a job {self.name!r} runs already in this process: wait for it, stop it, or give this one "
                    f"another name",
                    job=self.name,
                )
            self._control = ControlSocket(commands.name, answering(commands)) if control else None
            self._process = os.getpid()
            self._thread = threading.Thread(target=self._work, name=f"malstrom-job-{self.name}", daemon=True)
            _HERE[self.name] = self
        try:
            if observers is not None:
                self._observing = observers.begin(commands)
            self._thread.start()
        except BaseException as error:  # such as too many threads, or an address that is taken
            end_job(JobOutcome.of(run.result(), error), commands, self._control, self._observing)
            self._mark_seen()
            raise

    def ask(self, command: Command) -> Result:
        """Execute ``command``, and return its result within its ``timeout_s``."""
        self._refuse_elsewhere()
        timeout_s = None if command.timeout_s is None else min(command.timeout_s, threading.TIMEOUT_MAX)
        if threading.current_thread() is self._thread:
            asks = isinstance(command, StatusCommand | EventsCommand | MetricsCommand | StateCommand)
            may = asks or (isinstance(command, StopCommand) and not command.wait)
            if not may:  # the job thread itself executes the command
                raise ControlError(
                    f"a function of job {self.name!r} cannot wait for the job itself: call it in a thread of your own, "
                    f"or stop the job with wait=False",
                    job=self.name,
                )
            timeout_s = 0.0
        try:
            value = self._commands.answer_of(command, timeout_s)
        except KeyboardInterrupt as error:
            error.add_note(still_running(self.name))
            raise
        if isinstance(value, JobOutcome) or (isinstance(value, JobStatus) and value.phase == "ended"):
            self._mark_seen()
        return self._commands.result_of(command, value, public=False)

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended."""
        return self._commands.ended.done()

    def abandon(self) -> None:
        """Stop the run because the program exits."""
        if self._process == os.getpid():
            self._commands.abandon("the program that ran it has ended")

    def leave(self, until_s: float) -> None:
        """Wait until the run has ended or until ``until_s``, and print an outcome that no caller has seen."""
        if self._process != os.getpid():
            return  # a forked process has a copy of the handle but not the thread
        self._thread.join(max(0.0, until_s - SystemClock().monotonic_s()))
        if self._thread.is_alive() and self._control is not None:
            self._control.release()
        error = self._commands.ended.result().public_error() if self.has_ended else None
        if not self.has_ended:
            print_notice(f"job {self.name!r} did not stop within {_EXIT_S:g} s, and ends with the program")
        elif error is not None:
            print_notice("\n  ".join((str(error), *getattr(error, "__notes__", ()))))

    def _work(self) -> None:
        try:
            run_to_end(self._run, self._commands, self._control, self._observing, redact_errors=self._redact_errors)
        except MalstromError as error:
            without_internals(error)  # their frames would keep the whole run alive
        except BaseException:
            """The outcome holds the error; the exit of the program prints it if no caller asks."""
        else:
            self._mark_seen()
        finally:
            del self._run

    def _refuse_elsewhere(self) -> None:
        if self._process != os.getpid():
            raise ControlError(
                f"job {self.name!r} runs in process {self._process}, of which this one was forked: use "
                f"JobHandle.attach({self.name!r}) here",
                job=self.name,
            )

    def _mark_seen(self) -> None:
        """Note that a caller has seen the outcome, so the exit of the program need not print it."""
        with _LOCK:
            if _HERE.get(self.name) is self:
                del _HERE[self.name]


_LOCK: Final = threading.Lock()
_HERE: Final[dict[str, LocalJob]] = {}
"""By name: the jobs that run in this process, and failed jobs whose outcome no caller has seen."""


@atexit.register
def _leave_all() -> None:
    jobs = list(_HERE.values())
    until_s = SystemClock().monotonic_s() + _EXIT_S
    for job in jobs:
        job.abandon()
    for job in jobs:
        job.leave(until_s)


def _counts(run: Executable, commands: CommandQueue) -> RunResult:
    try:
        return run.result()
    except Exception:
        return commands.known().counts  # an error here must not keep the outcome from the waiters


def print_notice(what: str) -> None:
    """Print a notice on standard error, if it is still open, while the program exits."""
    try:
        print(f"malstrom: {what}", file=sys.stderr)
    except (AttributeError, OSError, ValueError):
        """Standard error is closed."""
