"""A job on Ray as a handle sees it: sends commands to the coordinator; in the driver also commits and gets the outcome.

Rule: the driver learns the end of the job immediately, from the coordinator's answer or from Ray's report of its death.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
import weakref
from concurrent.futures import Future
from typing import Any, Final

import ray
from msgspec import structs
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from malstrom_py.builder.plan import Plan
from malstrom_py.clock import SystemClock
from malstrom_py.errors import ControlError, DeadlineError, JobEnded, MalstromError, PeerError, PlanError, SinkError
from malstrom_py.errors.text import describe_error, redacting
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.sinks.memory import Memory
from malstrom_py.workers.control.server import ControlSocket
from malstrom_py.workers.coordinator.command_queue import CommandQueue
from malstrom_py.workers.coordinator.sink_commits import SinkCommits
from malstrom_py.workers.engine.graph_builder import build_sinks, build_sources
from malstrom_py.workers.monitoring.observers import Observers, Observing
from malstrom_py.workers.ray.cluster import NAMESPACE, is_reachable, summarize_error
from malstrom_py.workers.ray.coordinator_actor import PackedEnding
from malstrom_py.workers.ray.driver_commits import DriverTaskRunner
from malstrom_py.workers.reports.commands import (
    Command,
    EventsCommand,
    MetricsCommand,
    ReloadCommand,
    Result,
    StopCommand,
    WaitCommand,
)
from malstrom_py.workers.reports.error_transfer import redacted, unpack_error
from malstrom_py.workers.reports.event_log import EventLog
from malstrom_py.workers.reports.job_status import JobOutcome, in_progress, still_running
from malstrom_py.workers.reports.result import RunResult
from malstrom_py.workers.runtime.hot_reload import texts_of
from malstrom_py.workers.runtime.job_thread import end_job, print_notice
from malstrom_py.workers.runtime.source_pinning import SourcePins

__tracebackhide__ = True  # pytest shows the line of the user

ANSWER_S: Final = 10.0
"""The timeout of an answer, in addition to the command's own."""

RESTART_S: Final = 60.0
"""The same for a job whose coordinator may be restarting."""

_FREE_S: Final = 10.0
_LOOK_S: Final = 2.0
_UP_S: Final = 3.0
_EXIT_S: Final = 5.0
_AGAIN_S: Final = 0.5
_TASKS_S: Final = 2.0


class RayJob:
    """A job whose coordinator is ``actor``."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name = name
        self._actor = actor
        self._answer_s = ANSWER_S

    def ask(self, command: Command) -> Result:
        """See `RunningJob.ask`."""
        wait_s = None if command.timeout_s is None else command.timeout_s + self._answer_s
        try:
            answer: Result | MalstromError = ray.get(self._actor.ask.remote(command), timeout=wait_s)
        except KeyboardInterrupt as error:
            error.add_note(still_running(self.name))
            raise
        except GetTimeoutError:
            raise DeadlineError(
                f"job {self.name!r} did not answer within {wait_s:g} s: its coordinator is stopped, or very busy",
                wait=f"an answer of job {self.name!r}",
                deadline_s=wait_s or 0.0,
            ) from None
        except RayActorError:
            raise JobEnded(
                f"job {self.name!r} cannot be {command.what}: it has ended; only the program that started it knows how",
                job=self.name,
            ) from None
        except RayError as error:
            raise ControlError(
                f"job {self.name!r} cannot be queried: {describe_error(error)}", job=self.name
            ) from error
        if isinstance(answer, MalstromError):
            raise answer
        return answer


class OwnRayJob(RayJob):
    """A job on Ray in its driver, which gets the outcome and commits the sinks that show rows there."""

    def __init__(
        self,
        plan: Plan,
        actor: Any,
        pins: SourcePins,
        *,
        outlives: bool,
        control: bool,
        kept: bool = False,
        observers: Observers | None = None,
        redact_errors: bool = False,
    ) -> None:
        super().__init__(plan.job, actor)
        here = sinks_here(plan)
        # It commits what Ray has brought from the coordinator, of a job without a store.
        self._here = SinkCommits(plan.job, here, SystemClock().now_s(), stored=False)
        self._redact_errors = redact_errors
        self._runner = DriverTaskRunner(here, redact_errors=redact_errors)
        self._pins = pins
        self._kept = kept
        if kept:
            self._answer_s = RESTART_S
        self._commands = CommandQueue(plan.job)
        """What answers once the job has ended."""
        self._commands.kept = kept  # what snapshots there are the coordinator knows
        self._cluster = str(ray.get_runtime_context().gcs_address)
        self._plan = plan
        self._announced = threading.Event()
        self._has_metrics = False
        self._observing: Observing | None = None
        self._running_tasks: threading.Thread | None = None
        self._ended_because = ""
        self._control = ControlSocket(plan.job, self._answer) if control else None
        try:
            # Neither a thread nor a traceback may refer to it longer than to the end of the job: a program may shut Ray
            # down then, and Ray ends a process in which a reference is dropped during that.
            self._asked_end: Future[PackedEnding] | None = actor.ending.remote().future()
            actor.begin.remote()
            self._watching = threading.Thread(target=self._watch, name=f"malstrom-ray-{plan.job}", daemon=True)
            if not outlives:
                _OWN.add(self)
            if observers is not None:
                self._observing = observers.begin(self)
            self._watching.start()
            if kept and here:
                name = f"malstrom-ray-sinks-{plan.job}"
                self._running_tasks = threading.Thread(target=self._run_tasks, name=name, daemon=True)
                self._running_tasks.start()
        except BaseException:  # such as too many threads
            _OWN.discard(self)
            if self._control is not None:
                self._control.release()
                self._control.close()
            raise

    def ask(self, command: Command) -> Result:
        """See `RunningJob.ask`. The driver has the outcome of the job, with the error itself."""
        match command:
            case StopCommand():
                if not self._commands.ended.done():
                    with contextlib.suppress(JobEnded):
                        super().ask(structs.replace(command, wait=False))
                if command.wait:
                    self._awaited(command.timeout_s, "stop")
                ended = self._commands.ended
                return self._commands.result_of(command, ended.result(), public=False) if ended.done() else None
            case WaitCommand():
                return self._awaited(command.timeout_s, "run").result()
            case _:
                return self._forwarded(command)

    def _forwarded(self, command: Command) -> Result:
        """Let the coordinator execute ``command``. Once the job has ended the driver itself answers."""
        if not self._announced.is_set():
            if isinstance(command, ReloadCommand):  # the user's files are here; the coordinator may be elsewhere
                command = structs.replace(command, texts=texts_of(self._plan, command.step))
            with contextlib.suppress(JobEnded):
                return super().ask(command)
        is_look = isinstance(command, EventsCommand | MetricsCommand)
        if not (is_look and self._announced.wait(ANSWER_S)):
            self._awaited(ANSWER_S, "run")
        if isinstance(command, MetricsCommand) and not self._has_metrics:
            raise JobEnded(f"job {self.name!r} has ended, and its last metrics with it", job=self.name, how="failed")
        return self._commands.ask(command)

    def abandon(self) -> None:
        """Stop the job because the program exits, without waiting for an answer."""
        if ray.is_initialized():
            with contextlib.suppress(RayError):
                self._actor.ask.remote(StopCommand(drain=False, wait=False, timeout_s=_EXIT_S))

    def end_now(self, why: str) -> None:
        """End the job because of ``why``: kill its coordinator, with which Ray ends the workers."""
        self._ended_because = why
        with contextlib.suppress(RayError, ValueError):
            ray.kill(self._actor, no_restart=True)

    def leave(self, until_s: float) -> None:
        """Wait until the job has ended, or until ``until_s``; then release the name and print a notice."""
        left_s = max(0.0, until_s - SystemClock().monotonic_s()) if ray.is_initialized() else 0.0
        try:
            self._commands.ended.result(left_s)
        except TimeoutError:
            if self._control is not None:
                self._control.release()
            print_notice(f"job {self.name!r} did not stop within {_EXIT_S:g} s, and ends with the program")

    def _awaited(self, timeout_s: float | None, operation: str) -> JobOutcome:
        try:
            return self._commands.ended.result(None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))
        except TimeoutError:
            raise in_progress(self.name, operation, timeout_s or 0.0) from None
        except KeyboardInterrupt as error:
            error.add_note(still_running(self.name))
            raise

    def _watch(self) -> None:
        try:
            packed = self._known_end()
            with contextlib.suppress(Exception):  # without this call the coordinator exits later
                self._actor.heard.remote()
            ending = self._as_ending(packed)
            self._pins.keep_unread = self._kept and packed.is_stopped
        except PeerError as error:  # the cluster is gone, so there is no name to release
            ending = JobOutcome(self.name, "failed", RunResult(self.name, {}, 0.0), error)
            self._end(ending)
            return
        except RayError as error:
            known = RunResult(self.name, {}, 0.0)
            ending = JobOutcome.of(known, self._failure(error))
            with contextlib.suppress(Exception):
                ray.kill(self._actor, no_restart=True)  # Ray keeps a dead actor's name while handles exist
        except BaseException as error:
            ending = JobOutcome(self.name, "failed", RunResult(self.name, {}, 0.0), error)
        with contextlib.suppress(Exception):  # the cluster may be gone
            self._free_name()
        self._end(ending)

    def _failure(self, error: RayError) -> MalstromError:
        """Return why the coordinator is gone."""
        if not self._ended_because:
            return _gone(self.name, error)
        last = "; it can resume from its last complete snapshot" if self._kept else ", and nothing was committed"
        return JobEnded(f"job {self.name!r} was stopped: {self._ended_because}{last}", job=self.name, how="stopped")

    def _run_tasks(self) -> None:
        """Execute the coordinator's tasks until the job has ended."""
        clock = SystemClock()
        while not self._commands.ended.done() and ray.is_initialized():
            try:
                task: Any = ray.get(self._actor.task.remote())
                if task is not None and task.what == "end":
                    return
                if task is not None:
                    ray.get(self._actor.task_done.remote(task.number, self._runner.do(task)))
            except RayActorError:
                return  # the job has ended
            except Exception:  # retried until the job has ended
                clock.sleep_s(_AGAIN_S)

    def _known_end(self) -> PackedEnding:
        """Return the outcome once the job has ended. `PeerError` if the cluster is gone, which Ray reports late."""
        while True:
            assert self._asked_end is not None
            try:
                return self._asked_end.result(_LOOK_S)
            except TimeoutError:
                if not is_reachable(self._cluster) and not self._is_up():
                    raise PeerError(
                        f"the coordinator of job {self.name!r} is gone, and so is its Ray cluster ({self._cluster}): "
                        f"see its logs for why; start the cluster again, then the job"
                    ) from None

    def _is_up(self) -> bool:
        """Return whether the coordinator answers. It may while the head of its cluster restarts."""
        if not ray.is_initialized():
            return False  # a call would start a new Ray
        try:
            self._actor.is_up.remote().future().result(_UP_S)
        except (TimeoutError, RayError):
            return False
        return True

    def _end(self, ending: JobOutcome) -> None:
        self._announced.set()
        end_job(ending, self._commands, self._control, self._observing, lambda: self._leave_ray(ending))

    def _leave_ray(self, ending: JobOutcome) -> None:
        _OWN.discard(self)
        with contextlib.suppress(Exception):  # the outcome of the job matters more
            self._pins.unpin(keep=self._kept and ending.how != "finished")  # the job may resume
        self._asked_end = None
        if self._running_tasks is not None:
            self._running_tasks.join(_TASKS_S)

    async def _answer(self, command: Command) -> Result:
        """Forward a command of the control socket to the coordinator, in its own thread: clients that wait for the end
        leave room for others.
        """
        result: Future[Result] = Future()
        result.set_running_or_notify_cancel()

        def forward() -> None:
            try:
                result.set_result(self._forwarded(command))
            except BaseException as error:
                result.set_exception(error)

        threading.Thread(target=forward, name=f"malstrom-ray-command-{self.name}", daemon=True).start()
        return await asyncio.wrap_future(result)

    def _as_ending(self, packed: PackedEnding) -> JobOutcome:
        error = None if packed.error is None else unpack_error(packed.error)
        if error is None and packed.delivery is not None:
            with redacting(self._redact_errors):
                error = self._committed_here(packed.delivery, packed.status.counts)
        status, commands = packed.status, self._commands
        commands.events, self._has_metrics = EventLog.of(packed.events), True
        commands.publish_metrics(packed.metrics)
        commands.shadows.restore(packed.shadows)
        commands.note_snapshots(status.snapshots)
        commands.recover(status.counts, status.workers, times=status.restarts)
        commands.enter("committing", status.counts, status.workers)
        return JobOutcome.of(status.counts, error)

    def _committed_here(self, delivery: tuple[Any, ...], counts: RunResult) -> BaseException | None:
        """Commit the sinks of this program; return the error of one that failed."""
        try:
            self._here.take_over(*delivery)
            self._here.commit(counts)
        except SinkError as failure:
            for note in self._here.abort():
                failure.add_note(str(note))
            return redacted(failure)
        return None

    def _free_name(self) -> None:
        """Wait until the job's name is free. This comes before the outcome is published."""
        clock = SystemClock()
        until_s = clock.monotonic_s() + _FREE_S
        while _named(self.name) is not None:
            if clock.monotonic_s() >= until_s:
                ray.kill(self._actor, no_restart=True)
                return
            clock.sleep_s(0.02)


def _named(job: str) -> Any:
    if not ray.is_initialized():
        return None  # a look-up would start a new Ray
    try:
        return ray.get_actor(job, namespace=NAMESPACE)
    except ValueError:
        return None


def _gone(job: str, error: RayError) -> PeerError:
    return PeerError(
        f"the coordinator of job {job!r} is gone: {summarize_error(error)}. Without snapshots the job fails (S6), and "
        f"its next start is from the beginning; with snapshots its next start resumes from the last"
    )


_OWN: Final = weakref.WeakSet[OwnRayJob]()
"""Running jobs that this program has started and that end with it."""


@atexit.register
def _leave_all() -> None:
    jobs = list(_OWN)
    until_s = SystemClock().monotonic_s() + _EXIT_S
    for job in jobs:
        job.abandon()
    for job in jobs:
        job.leave(until_s)


def check_detached(plan: Plan) -> None:
    """Raise `PlanError` if the driver, which may end before the job, commits a sink of ``plan``, or has its rows."""
    for source in build_sources(plan, SystemClock()):
        if source.source.ends_with_program:
            raise PlanError(
                f"source {source.context.step!r} reads rows that end with the program that starts the job, and a "
                f"detached job continues without it: leave out detached, or give a sources.RayDataset staging="
            )
    for sink in build_sinks(plan, SystemClock()):
        if sink.sink.ends_with_program:
            raise PlanError(
                f"sink {sink.context.step!r} writes to a temporary folder that is removed when the program that starts "
                f"the job ends, and a detached job continues without it: leave out detached, or give sinks.RayDataset "
                f"a folder"
            )
    for step in sinks_here(plan):
        in_memory = isinstance(step.sink, Memory)
        raise PlanError(
            f"sink {step.context.step!r} is committed by the program that starts the job, "
            f"{'into its memory' if in_memory else 'through its Spark'}, and a detached job continues without it: "
            f"leave out detached, or write {'with sinks.Files' if in_memory else 'Parquet to a path'}"
        )


def make_ready(plan: Plan, *, every_sink: bool) -> None:
    """Recover the sinks that the driver commits, before the job begins: they finish or discard an earlier run's output.

    ``every_sink``: also the other sinks, which recover again where they are committed. `SinkError` if one cannot.
    """
    clock = SystemClock()
    SinkCommits(plan.job, build_sinks(plan, clock) if every_sink else sinks_here(plan), clock.now_s()).recover()


def sinks_here(plan: Plan) -> list[WriteSink]:
    """Return the sinks of ``plan`` that the driver commits."""
    return [sink for sink in build_sinks(plan, SystemClock()) if sink.sink.commits_in_driver]
