"""The coordinator's handle on a worker in another process: starts it, watches it, kills it.

Rule: a failure is one of our errors, not of what runs the process; every wait has a deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any, Final, Protocol

from malstrom_py.clock import SystemClock
from malstrom_py.errors import MalstromError, PeerError
from malstrom_py.workers.coordinator.worker_group import late_reply
from malstrom_py.workers.remote.worker_server import PackedFailure, box_path
from malstrom_py.workers.remote.worker_setup import WorkerSetup
from malstrom_py.workers.reports.error_transfer import failure_of

LOOK_S: Final = 0.5
"""How often a wait makes its other checks."""


class WorkerProcess(Protocol):
    """A process that can run workers, one after the other."""

    @property
    def node(self) -> str | None:
        """The id of its machine, once it is known."""
        ...

    def open(self, setup: WorkerSetup, plan: Any, worker: int, coordinator: Any) -> Future[Any]:
        """Call `WorkerRuns.open`. ``plan``: as returned by `Machines.share`."""
        ...

    def run(self) -> Future[Any]:
        """Call `WorkerRuns.run`."""
        ...

    def result(self, call: Future[Any], worker: int) -> Any:
        """Return the result of a ``call`` for ``worker`` that has ended. `PeerError` if the process has died."""
        ...

    def read_black_box(self, path: Path) -> str:
        """Return the content of a black box on its machine, or ""."""
        ...

    def kill(self) -> None:
        """Kill the process."""
        ...


class Machines(Protocol):
    """What runs the processes of workers: a cluster, or this machine."""

    @property
    def silent(self) -> frozenset[str]:
        """The ids of the machines that no longer react."""
        ...

    def new_process(self, but: Collection[str] = ()) -> WorkerProcess:
        """Start a process on any machine except ``but``."""
        ...

    def share(self, plan: bytes) -> Any:
        """Return a packed plan as processes take it."""
        ...

    def check_room(self, size: int, *, now: bool = False) -> None:
        """Do as `WorkerGroup.check_room`."""
        ...

    def check_lost_room(self, wanted: int) -> None:
        """Raise `PeerError` if there is no longer room for the ``wanted`` workers, some of which start."""
        ...

    def why_late(self, wanted: int) -> str:
        """Return where to look, and what to do, if workers have not started in time."""
        ...


class WorkerProcesses:
    """The processes of a job's workers on ``machines``. Those whose worker survives are kept for the next run (S6)."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._kept: dict[int, WorkerProcess] = {}

    def take(self, worker: int, but: Collection[str] = ()) -> WorkerProcess:
        """Return a process for ``worker``: the one that it had, another one that was kept, or else a new one."""
        for number in sorted(self._kept, key=lambda number: number != worker):
            process = self._kept.pop(number)
            if process.node not in but:
                return process
            process.kill()
        return self._machines.new_process(but)

    def keep(self, worker: int, process: WorkerProcess) -> None:
        """Keep the process of ``worker``, whose loop has ended."""
        self._kept[worker] = process

    def replace(self, worker: int, but: Collection[str]) -> None:
        """Start a new process for ``worker``, which was lost."""
        self._kept[worker] = self._machines.new_process(but)

    def kill_kept(self) -> None:
        """Kill the processes that are kept."""
        while self._kept:
            self._kept.popitem()[1].kill()


class WorkerHandle:
    """The worker ``worker`` of a run, in ``process``. ``plan``: packed and shared; ``coordinator``: the coordinator's
    address. ``notify`` is called, in any thread, when it is up or has ended.
    """

    def __init__(
        self,
        process: WorkerProcess,
        setup: WorkerSetup,
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
        self._up = process.open(setup, plan, worker, coordinator)
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
        self.address = self._result_of(self._up)
        self.loop = self.process.run()
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
            self._result_of(self.loop)
        except PeerError as error:
            return (1 if error.peer == self.worker else 2), error
        except MalstromError as error:
            return 0, error
        return 2, PeerError(f"worker {self.worker} ended before the job did", peer=self.worker)

    def read_black_box(self) -> str:
        """Return the content of the dead worker's black box, or ""."""
        return "" if self._box is None else self.process.read_black_box(self._box)

    def release(self) -> WorkerProcess:
        """Delete the black box, and return the process."""
        if self._box is not None:
            self._box.unlink(missing_ok=True)
        return self.process

    def kill(self) -> None:
        """Kill the worker's process."""
        self.release().kill()

    def _result_of(self, call: Future[Any]) -> Any:
        """Return the value of a call, or raise its error as one of ours."""
        value = self.process.result(call, self.worker)
        if isinstance(value, PackedFailure):
            raise failure_of(self.worker, value.packed)
        return value


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
