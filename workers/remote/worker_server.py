"""A worker in its own process: the server of its loop, and the runs of the job that the process takes part in.

The black box is a small memory-mapped file in which the worker notes its current step, part and position, never a value
of a record; it survives the process however that ends. It is kept from the second run of a job on, because a first
death may not be caused by a record, and costs one write per batch and step.

Rule: orders of the coordinator travel over the streams; a failure is returned as a value, because what is between the
processes would wrap an error.
"""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from malstrom_py.builder.plan import Plan
from malstrom_py.clock import SystemClock
from malstrom_py.data.batch import Batch
from malstrom_py.errors import InternalError, MalstromError
from malstrom_py.errors.text import public_text
from malstrom_py.operators.base import Operator, Outlet
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.state.memory import State
from malstrom_py.workers.coordinator.recovery import SnapshotUse
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.engine.garbage import fewer_collections
from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.engine.worker_loop import Wake, WorkerLoop
from malstrom_py.workers.remote.packed_plan import PlanAdvice, unpack_plan
from malstrom_py.workers.remote.worker_setup import WorkerSetup, log_as
from malstrom_py.workers.reports.error_transfer import pack_error
from malstrom_py.workers.runtime.worker_host import WorkerHost
from malstrom_py.workers.transport.base import Transport
from malstrom_py.workers.transport.messages import COORDINATOR

_BYTES: Final = 2048


def box_path(token: str, incarnation: int, worker: int) -> Path:
    """Return the path of a worker's black box. ``token``: of this start of the job."""
    return Path(tempfile.gettempdir()) / f"malstrom-box-{token}-{incarnation}-{worker}"


def clear_before(token: str, incarnation: int) -> None:
    """Delete the black boxes of earlier incarnations on this machine.

    >>> BlackBox(box_path("docs", 1, 7)).note("")
    >>> clear_before("docs", 2)
    >>> box_path("docs", 1, 7).exists()
    False
    """
    for path in Path(tempfile.gettempdir()).glob(f"malstrom-box-{token}-*"):
        if int(path.name.split("-")[-2]) < incarnation:
            path.unlink(missing_ok=True)


class BlackBox:
    """The black box at ``path``, a new file.

    >>> path = box_path("docs", 1, 0)
    >>> box = BlackBox(path)
    >>> box.note("step 'parse' had 3 records")
    >>> read_black_box(path)
    "step 'parse' had 3 records"
    >>> box.close()
    >>> read_black_box(path)
    ''
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(descriptor, _BYTES)
            self._map = mmap.mmap(descriptor, _BYTES)
        finally:
            os.close(descriptor)

    def note(self, text: str) -> None:
        """Replace the content with ``text``."""
        data = text.encode()[: _BYTES - 1]
        self._map[: len(data) + 1] = data + b"\0"

    def close(self) -> None:
        """Delete the file: the worker has ended without an error."""
        self._map.close()
        self._path.unlink(missing_ok=True)


def read_black_box(path: Path) -> str:
    """Return the content of the black box at ``path``, "" without one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_BYTES).partition(b"\0")[0].decode(errors="replace")


def watch(operators: Mapping[str, Operator], box: BlackBox) -> None:
    """Make each step note its current work in ``box``."""
    sources = [source for source in operators.values() if isinstance(source, ReadSource)]
    stack: list[str] = []

    def noting(step: str, work: Callable[[Batch, Outlet], None]) -> Callable[[Batch, Outlet], None]:
        def on_batch(batch: Batch, out: Outlet) -> None:
            stack.append(_describe_work(step, batch, sources))
            box.note(stack[-1])
            work(batch, out)
            stack.pop()
            box.note(stack[-1] if stack else "")

        return on_batch

    for step, operator in operators.items():
        watched: Any = operator  # replaces the method of this one object
        watched.on_batch = noting(step, operator.on_batch)


def _describe_work(step: str, batch: Batch, sources: list[ReadSource]) -> str:
    source = None if batch.part is None else batch.part.partition("/")[0]
    read = [last for one in sources if source in {None, one.context.step} and (last := one.last_read())]
    came = ", read from " if batch.part is not None else " that had come by an exchange; what was read here last is of "
    return f"step {step!r} was at work on {len(batch)} records{came if read else ''}{' and '.join(read)}"


LINGER_S: Final = 5.0
"""How long an ending worker waits for sent messages to go out."""

SETTLE_S: Final = 300.0
"""How long a leaving worker may take to save its state of the last barrier."""

_LOG: Final = logging.getLogger("malstrom_py.worker")


class WorkerServer:
    """The server of worker ``worker`` of ``plan`` at ``transport``. ``coordinator``: the coordinator's address;
    ``snapshot_use``: how the job keeps snapshots, if any; ``box``: the black box, if any.
    """

    def __init__(
        self,
        plan: Plan,
        worker: int,
        transport: Transport,
        coordinator: Any,
        *,
        batching: Batching,
        checks: bool,
        state: State | None = None,
        snapshot_use: SnapshotUse | None = None,
        box: BlackBox | None = None,
    ) -> None:
        self._transport = transport
        self._coordinator = coordinator
        self._box = box
        clock = SystemClock()
        checkpointer = None if snapshot_use is None else snapshot_use.snapshots.checkpointer(plan.job)
        self._host = WorkerHost(
            plan,
            batching=batching,
            clock=clock,
            wake=Wake(transport),
            checks=checks,
            state=state,
            checkpointer=checkpointer,
            streams=transport,
            built=self._watch,
            settle=lambda: self._loop.settle(SETTLE_S),
        )
        self._loop = WorkerLoop(worker, self._host, transport, clock, batching, checkpointer)

    def run(self) -> None:
        """Run the loop until `Close`; after an error, close what is still open and raise it."""
        self._transport.connect(COORDINATOR, self._coordinator)
        try:
            with fewer_collections():
                self._loop.run()
            if self._box is not None:
                self._box.close()
            _LOG.debug("closed")
        except BaseException as error:
            try:
                self._host.close()
            except Exception as failure:
                error.add_note(public_text(failure))
            raise
        finally:
            self._transport.close(linger_s=LINGER_S)

    def _watch(self, worker: Worker) -> None:
        _LOG.debug("started")
        if self._box is not None:
            watch(worker.operators, self._box)


class PackedFailure:
    """The result of a failed call: the packed error."""

    def __init__(self, error: BaseException) -> None:
        self.packed = pack_error(error)


class WorkerRuns:
    """The workers that this process runs one after the other, each in its own run of the job.

    `open` prepares a worker; then `run` runs its loop to its end. ``shares_output``: standard error is that of the
    program that starts the job, which prints failures there.
    """

    def __init__(self, advice: PlanAdvice, *, shares_output: bool) -> None:
        self._advice = advice
        self._shares_output = shares_output
        self._server: WorkerServer | None = None
        self._failure_level = logging.ERROR

    def open(self, setup: WorkerSetup, plan: bytes, worker: int, coordinator: Any) -> Any:
        """Prepare the loop of ``worker`` of ``plan``, and return the address for its peers or the failure.

        ``coordinator``: the address of the coordinator's end of the streams.
        """
        log_as(setup, worker)
        self._failure_level = logging.DEBUG if self._shares_output and setup.logs is None else logging.ERROR
        try:
            transport = setup.wiring.end(worker, incarnation=setup.incarnation)
            token = setup.wiring.secret.token
            clear_before(token, setup.incarnation)
            self._server = WorkerServer(
                unpack_plan(plan, setup.job, self._advice),
                worker,
                transport,
                coordinator,
                batching=setup.batching,
                checks=setup.checks,
                state=setup.state,
                snapshot_use=setup.snapshot_use,
                box=BlackBox(box_path(token, setup.incarnation, worker)) if setup.watched else None,
            )
        except MalstromError as error:
            return PackedFailure(error)
        return transport.address

    def run(self) -> PackedFailure | None:
        """Run the worker's loop to its end."""
        server, self._server = self._server, None
        try:
            if server is None:
                raise InternalError("a worker's loop runs once, after `open`")
            server.run()
        except BaseException as error:
            _LOG.log(self._failure_level, "failed: %s", public_text(error))
            return PackedFailure(error)
        return None
