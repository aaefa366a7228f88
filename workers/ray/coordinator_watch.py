"""Replaces a coordinator whose process is stopped (SIGSTOP): ends it, so that Ray starts another one in its place.

The process of the first worker asks the coordinator for a sign of life, again and again. Rule: only a stopped process
is ended, never a slow one. It has answered nothing for `SILENT_S`, and the system of its machine reports it as stopped.
One that computes, waits for a store, or holds the interpreter's lock for however long is not. A stopped process that is
ended cannot continue as a zombie; where it cannot be reached, the claims in the log of the job keep it from committing.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayActorError, RayError

from malstrom_py.clock import SystemClock
from malstrom_py.logs import log
from malstrom_py.workers.ray.cluster import NAMESPACE
from malstrom_py.workers.ray.job_config import JobSetup

SILENT_S: Final = 30.0
"""How long a coordinator may answer nothing before its process is looked at."""

LOOK_S: Final = 1.0
"""The interval at which this process looks for the answer."""

START_S: Final = 60.0
"""How long a task may take to start on the node of the coordinator, beside the limit."""

_CALLS: Final = 6
"""The signs of life that are asked for within the limit."""

_HELD_UP_S: Final = 1.0
_AGAIN_S: Final = 1.0
_STOPPED: Final = "T"

_LOG: Final = logging.getLogger("malstrom_py.coordinator")


@dataclass(frozen=True, slots=True)
class ActorProcess:
    """The process ``pid`` on the node ``node`` of Ray. ``started``: when, as its system counts; "" if unknown."""

    node: str
    pid: int
    started: str


def this_process() -> ActorProcess:
    """Return the process of the actor that calls this."""
    pid = os.getpid()
    return ActorProcess(str(ray.get_runtime_context().get_node_id()), pid, state_of(pid)[1])


def state_of(pid: int) -> tuple[str, str]:
    """Return the state of a process and when it started, as Linux has them; both are "" if they are unknown.

    >>> state, started = state_of(os.getpid())
    >>> state in {"R", "S", ""}
    True
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ""
    fields = text.rpartition(")")[2].split()
    return fields[0], fields[19]


def end_if_stopped(pid: int, started: str) -> bool:
    """Kill the process ``pid`` of this machine if it is stopped, and return whether it was.

    Nothing happens if it is another process than the one that ``started`` then.
    """
    for pause_s in (0.0, _AGAIN_S):
        SystemClock().sleep_s(pause_s)
        if not started or state_of(pid) != (_STOPPED, started):
            return False
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return True


class Silence:
    """Counts how long an answer is missing, in the time that this process itself was running. Pure.

    >>> silence = Silence(3.0)
    >>> [silence.passed(took_s, limit_s=1.0) for took_s in (1.0, 60.0, 1.0, 1.0)]
    [False, False, False, True]
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._silent_s = 0.0

    def passed(self, took_s: float, *, limit_s: float) -> bool:
        """Count a wait that took ``took_s``, and return whether the limit has passed.

        One that took much longer than ``limit_s`` does not count: this process got no CPU itself, or was stopped.
        """
        self._silent_s += took_s if took_s <= limit_s + _HELD_UP_S else 0.0
        return self._silent_s >= self._limit_s

    def end(self) -> None:
        """Note an answer."""
        self._silent_s = 0.0


class CoordinatorWatch:
    """Watches the coordinator of the job of ``setup`` from its own thread, from `start` to the end of this process."""

    def __init__(self, setup: JobSetup) -> None:
        self._job = setup.job
        self._silent_s = setup.silent_s
        self._silence = Silence(setup.silent_s)
        self._seen: ActorProcess | None = None

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._watch, name=f"malstrom-ray-watch-{self._job}", daemon=True).start()

    def _watch(self) -> None:
        clock = SystemClock()
        while ray.is_initialized():
            try:
                actor = ray.get_actor(self._job, namespace=NAMESPACE)
                self._seen = self._answer(actor.process.remote().future())
            except (RayActorError, ValueError):
                return  # the job has ended, and this process ends too
            except RayError:
                pass  # Ray's head may be down for a while
            self._silence.end()
            clock.sleep_s(self._silent_s / _CALLS)

    def _answer(self, asked: Future[ActorProcess]) -> ActorProcess:
        """Return the answer, and end the coordinator if it is stopped instead."""
        while not asked.done():
            if self._is_silent(asked) and self._seen is not None:
                self._look_at(self._seen)
                self._silence.end()
        return asked.result()

    def _is_silent(self, asked: Future[Any]) -> bool:
        """Wait a little, and return whether the answer is missing for too long."""
        clock, wait_s = SystemClock(), min(LOOK_S, self._silent_s / _CALLS)
        began_s = clock.monotonic_s()
        with suppress(Exception):  # what came is seen by `_answer`
            asked.result(wait_s)
        return not asked.done() and self._silence.passed(clock.monotonic_s() - began_s, limit_s=wait_s)

    def _look_at(self, process: ActorProcess) -> None:
        """Let a task on the node of ``process`` end it if it is stopped, and log what came of it."""
        job, silent_s = self._job, self._silent_s
        try:
            was_stopped = self._ended(process)
        except RayError as error:
            what = f"and its process could not be looked at: {type(error).__name__}"
        else:
            what = "because its process was stopped: it was ended, and Ray starts another one"
            if was_stopped is None:
                what = "and its machine does not answer either"
            elif not was_stopped:
                what = "but no stopped process was found: the job waits for it"
        text = "job %s: the coordinator has not answered for %g s, %s"
        log(_LOG, logging.WARNING, text, *(job, silent_s, what), job=job, silent_s=silent_s)

    def _ended(self, process: ActorProcess) -> bool | None:
        """Return whether the process was stopped and is ended; None if its machine does not answer in time."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote: Any = ray.remote
        on_its_node = NodeAffinitySchedulingStrategy(process.node, soft=False)
        end = remote(num_cpus=0, max_retries=0, scheduling_strategy=on_its_node)(end_if_stopped)
        task = end.remote(process.pid, process.started)
        answer: Future[bool] = task.future()
        try:
            return answer.result(self._silent_s + START_S)
        except TimeoutError:
            ray.cancel(task, force=True)
            return None
