"""The coordinator's handle on one worker actor: starts it, watches it, kills it.

Rule: a failure is one of our errors, never an error of Ray; every wait has a deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import replace
from typing import Any, Final

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from malstrom_py.clock import SystemClock
from malstrom_py.errors import InternalError, MalstromError, PeerError
from malstrom_py.workers.coordinator.worker_calls import late_reply
from malstrom_py.workers.ray.cluster import NAMESPACE, summarize_error
from malstrom_py.workers.ray.job_config import JobSetup
from malstrom_py.workers.ray.worker_actor import PackedFailure, box_path, read_black_box, worker_class
from malstrom_py.workers.reports.error_transfer import failure_of

WORDS_S: Final = 10.0
"""The timeout for reading a black box on another machine."""

LOOK_S: Final = 0.5
"""How often a wait makes its other checks."""


class WorkerProcess:
    """An actor that can run a worker of a job, on any node except ``but``."""

    def __init__(self, setup: JobSetup, but: Collection[str] = ()) -> None:
        options = setup.options
        self.actor = worker_class(
            {
                "num_cpus": options.num_cpus,
                "num_gpus": options.num_gpus,
                "memory": options.memory or None,
                "resources": dict(options.resources) or None,
                "runtime_env": options.runtime_env,
                "namespace": NAMESPACE,
                "scheduling_strategy": {"spread": "SPREAD", "pack": "DEFAULT"}[options.placement],
                "label_selector": {"ray.io/node-id": f"!in({','.join(sorted(but))})"} if but else None,
            }
        ).remote(setup.job)
        self.found_node = self.actor.node.remote().future()

    @property
    def node(self) -> str | None:
        """The id of its node, once it is known."""
        if not self.found_node.done() or self.found_node.exception() is not None:
            return None
        return str(self.found_node.result())

    def kill(self) -> None:
        """Kill the process."""
        ray.kill(self.actor, no_restart=True)


class WorkerProcesses:
    """The processes of a job's workers. Those whose worker survives a run are kept for the next one (S6)."""

    def __init__(self, setup: JobSetup) -> None:
        self._setup = setup
        self._kept: dict[int, WorkerProcess] = {}

    def take(self, worker: int, but: Collection[str] = ()) -> WorkerProcess:
        """Return a process for ``worker``: the one that it had, another one that was kept, or else a new one."""
        for number in sorted(self._kept, key=lambda number: number != worker):
            process = self._kept.pop(number)
            if process.node not in but:
                return process
            process.kill()
        return WorkerProcess(self._setup, but)

    def keep(self, worker: int, process: WorkerProcess) -> None:
        """Keep the process of ``worker``, whose loop has ended."""
        self._kept[worker] = process

    def replace(self, worker: int, but: Collection[str]) -> None:
        """Start a new process for ``worker``, which was lost."""
        self._kept[worker] = WorkerProcess(self._setup, but)

    def kill_kept(self) -> None:
        """Kill the processes that are kept."""
        while self._kept:
            self._kept.popitem()[1].kill()


class WorkerHandle:
    """The worker ``worker`` of a run, in ``process``. ``plan``: packed, in Ray's store; ``coordinator``: the
    coordinator's address. ``notify`` is called, in any thread, when it is up or has ended.
    """

    def __init__(
        self,
        process: WorkerProcess,
        setup: JobSetup,
        plan: Any,
        worker: int,
        coordinator: Any,
        notify: Callable[[], None],
    ) -> None:
        self.worker = worker
        self.process = process
        self.address: Any = None
        self._notify = notify
        self._box = box_path(setup.wiring.secret.token, setup.incarnation, worker) if setup.watched else None
        self._up = process.actor.open.remote(replace(setup, plan=b""), plan, worker, coordinator).future()
        self._up.add_done_callback(lambda _: notify())
        self.loop: Future[Any] | None = None
        """The call that runs the loop; None before `run`."""

    @property
    def is_up(self) -> bool:
        """Whether the actor is up or has failed to start; `run` raises the failure."""
        return bool(self._up.done())

    @property
    def node(self) -> str | None:
        """The id of the worker's node, once it is known."""
        return self.process.node

    def run(self) -> None:
        """Store the address and start the loop, or raise the error of the start."""
        self.address = result_of(self._up, self.worker)
        self.loop = self.process.actor.run.remote().future()
        self.loop.add_done_callback(lambda _: self._notify())

    @property
    def has_ended(self) -> bool:
        """Whether the worker's loop has ended."""
        return self.loop is not None and self.loop.done()

    @property
    def survives(self) -> bool:
        """Whether the loop has ended, but not by a failure of the worker or its process."""
        end = self.ended_by()
        return end is not None and end[0] == 2

    def ended_by(self) -> tuple[int, MalstromError] | None:
        """Return the error that ended the loop and its distance from the root: 0 if the worker itself failed, 1 its
        death, 2 the loss of a peer. None while the loop runs.
        """
        if self.loop is None or not self.loop.done():
            return None
        try:
            result_of(self.loop, self.worker)
        except PeerError as error:
            return (1 if error.peer == self.worker else 2), error
        except MalstromError as error:
            return 0, error
        return 2, PeerError(f"worker {self.worker} ended before the job did", peer=self.worker)

    def read_black_box(self) -> str:
        """Return the content of the dead worker's black box, or ""."""
        if self._box is None:
            return ""
        if self._box.exists():
            return read_black_box(self._box)
        try:
            here = NodeAffinitySchedulingStrategy(self.process.found_node.result(0.0), soft=False)
            remote: Any = ray.remote  # its types lack the scheduling strategy
            read = remote(num_cpus=0, max_retries=0, scheduling_strategy=here)(read_black_box)
            return str(ray.get(read.remote(self._box), timeout=WORDS_S))
        except (RayError, TimeoutError):
            return ""  # the node is gone too

    def release(self) -> WorkerProcess:
        """Delete the black box, and return the process."""
        if self._box is not None:
            self._box.unlink(missing_ok=True)
        return self.process

    def kill(self) -> None:
        """Kill the worker's process."""
        self.release().kill()


def await_ends(handles: Sequence[WorkerHandle], timeout_s: float, look: Callable[[], None]) -> None:
    """Wait until the loops of ``handles``, which were ordered to close, have ended. Raise the first error of closing.

    ``look`` is called every `LOOK_S` and may raise.

    Raises:
        DeadlineError: one of them has not ended within ``timeout_s``.
    """
    clock = SystemClock()
    until_s = clock.monotonic_s() + timeout_s
    _, waiting = wait_for([handle.loop for handle in handles if handle.loop is not None], timeout=0)
    while waiting and (left_s := until_s - clock.monotonic_s()) > 0:
        _, waiting = wait_for(waiting, min(LOOK_S, left_s))
        look()
    for handle in handles:
        end = handle.ended_by()
        if end is not None and end[0] < 2:  # workers end at different times, so a lost peer is expected
            raise end[1]
    if missing := [handle.worker for handle in handles if not handle.has_ended]:
        raise late_reply(missing, "close", timeout_s)


def result_of(future: Future[Any], worker: int) -> Any:
    """Return the value of an actor call, or raise its error as one of ours."""
    try:
        value = future.result(timeout=0)
    except RayActorError as error:
        raise worker_died(worker, error) from None
    except RayError as error:
        raise InternalError(f"worker {worker}: {summarize_error(error)}") from error
    if isinstance(value, PackedFailure):
        raise failure_of(worker, value.packed)
    return value


def worker_died(worker: int, error: RayActorError) -> PeerError:
    """Return the error for a dead worker process, with what Ray knows about it."""
    return PeerError(
        f"worker {worker} died: {summarize_error(error)}. Its log, and Ray's on its node, may say why (killed, out of "
        f"memory, its node gone). Without snapshots the job fails; with them it restarts from the last, as often as "
        f"restart= allows",
        peer=worker,
    )
