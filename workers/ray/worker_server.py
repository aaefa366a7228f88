"""The server of one worker on Ray: builds the worker, runs its loop, executes the coordinator's requests.

Every request runs in the thread of the loop, between two steps; the server does not know how requests arrive.

The black box is a small memory-mapped file in which the worker notes its current step, part and position, never a value
of a record; it survives the process however that ends. It is kept from the second run of a job on, because a first
death may not be caused by a record, and costs one write per batch and step.
"""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from malstrom_py.builder.plan import Plan
from malstrom_py.clock import Clock, SystemClock
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.operators.base import Operator, Outlet
from malstrom_py.operators.read_source import ReadSource, RestoredPart
from malstrom_py.sources.base import Part
from malstrom_py.workers.coordinator.recovery import RestorePoint, SnapshotUse, restore
from malstrom_py.workers.coordinator.sink_commits import Contexts, pre_committed
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.engine.graph_builder import Membership
from malstrom_py.workers.engine.initial_states import initial_states
from malstrom_py.workers.engine.worker import NOTHING, Worker
from malstrom_py.workers.engine.worker_loop import WorkerLoop
from malstrom_py.workers.reports.error_transfer import pack_error
from malstrom_py.workers.reports.result import StepCounts
from malstrom_py.workers.transport.base import Transport
from malstrom_py.workers.transport.messages import Saved

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


@dataclass(frozen=True, slots=True)
class WorkerOutcome:
    """What a finished worker leaves: the pre-commits of its sinks, by step, and its last counts.

    ``error``: the packed error of finishing; earlier pre-commits are listed to be discarded. ``saved``: the last report
    of saved state again, because the worker's stream may be closed before it arrives.
    """

    payloads: tuple[tuple[str, bytes], ...]
    counts: Mapping[str, StepCounts]
    error: bytes | None
    saved: Saved | None = None


class WorkerServer:
    """The server of a worker of ``plan`` at ``transport``. ``keeping``: how the job keeps snapshots, if any; ``box``:
    the black box, if any.
    """

    def __init__(
        self,
        plan: Plan,
        transport: Transport,
        *,
        batching: Batching,
        checks: bool,
        keeping: SnapshotUse | None = None,
        box: BlackBox | None = None,
    ) -> None:
        self._plan = plan
        self._batching = batching
        self._checks = checks
        self._keeping = keeping
        self._box = box
        self._clock: Clock = SystemClock()
        self._loop = WorkerLoop(transport, self._clock)

    def run(self) -> None:
        """Run the loop until `close`, then close what is still open. Errors are raised."""
        transport = self._loop.transport
        try:
            self._loop.run()
        except BaseException as error:
            self._close_quietly(error)
            raise
        finally:
            transport.close(linger_s=LINGER_S)

    def do(self, what: str, *arguments: Any) -> Future[Any]:
        """Execute a request of the coordinator, one of `ORDERS`, in the thread of the loop."""
        return self._loop.ask(lambda: ORDERS[what](self, *arguments))

    # Requests of the coordinator, executed by the thread of the loop.

    def build(
        self,
        member: Membership,
        others: Sequence[int],
        draining: bool,
        resumption: RestorePoint | None = None,
        beginning: Collection[str] = (),
    ) -> None:
        """Build the worker with channels also to ``others``, which join with it (R1), and open its sinks.

        It restores its own slots of ``resumption`` (S5). ``beginning``: the steps that start with their initial state.
        """
        worker = Worker(
            self._plan,
            member,
            batching=self._batching,
            clock=self._clock,
            codec=Codec(self._plan.types),
            tracked=self._keeping is not None,
            checks=self._checks,
            wake=self._loop.wake,
        )
        self._loop.take_on(worker)
        if self._box is not None:
            watch(worker.operators, self._box)
        for other in others:
            worker.connect(other)
        worker.open_sinks()
        if self._keeping is not None:
            checkpointer = self._keeping.snapshots.checkpointer(self._plan.job)
            self._loop.keep_snapshots(checkpointer)
            if resumption is not None:
                restore(resumption, checkpointer, [worker])
        worker.start_with(initial_states(self._plan, beginning))
        if draining:
            worker.reading.stop()

    def reach(self, addresses: Mapping[int, Any]) -> None:
        """Open the streams to these peers."""
        for peer, address in addresses.items():
            self._loop.transport.connect(peer, address)

    def welcome(self, addresses: Mapping[int, Any]) -> None:
        """Open streams and channels to joining workers (R1)."""
        self.reach(addresses)
        for joiner in addresses:
            self._loop.worker.connect(joiner)

    def part_with(self, leavers: Sequence[int]) -> None:
        """Close channels and streams to workers that have left (R8)."""
        for leaver in leavers:
            self._loop.worker.disconnect(leaver)
            self._loop.transport.disconnect(leaver)

    def open_sources(
        self, parts: Mapping[str, Sequence[Part]], begun: Mapping[str, Mapping[Part, RestoredPart]] = NOTHING
    ) -> str:
        """Open the sources at the positions ``begun``, and name a source that cannot move to another worker, if any."""
        worker = self._loop.worker
        self._loop.send(worker.open_sources(parts, begun))
        return worker.reading.fixed

    def start(self) -> None:
        """Start processing."""
        _LOG.info("started")
        self._loop.start()

    def drain(self) -> None:
        """Stop the sources."""
        self._loop.worker.reading.stop()

    def suspend(self) -> None:
        """Suspend the worker after all messages in flight."""
        self._loop.send(self._loop.worker.suspend())

    def finish(self, contexts: Contexts) -> WorkerOutcome:
        """Stop processing; once all state is saved, pre-commit, and close all but the transactional writers."""
        self._loop.rest()
        worker, payloads, error = self._loop.worker, list[tuple[str, bytes]](), None
        try:
            self._loop.settle(SETTLE_S)
            for payload in pre_committed(worker.sinks, contexts):
                payloads.append(payload)
            worker.close_before_commit()
        except Exception as failure:
            error = pack_error(failure)
        return WorkerOutcome(tuple(payloads), worker.counts(), error, self._loop.saved)

    def close(self) -> None:
        """Close the worker, and end the loop."""
        self._loop.rest()
        self._loop.stop()
        if self._loop.has_worker:
            self._loop.worker.close()
        if self._box is not None:
            self._box.close()
        _LOG.info("closed")

    def _close_quietly(self, error: BaseException) -> None:
        try:
            if self._loop.has_worker:
                self._loop.worker.close()
        except Exception as failure:
            error.add_note(str(failure))


ORDERS: Final[Mapping[str, Callable[..., Any]]] = {
    order.__name__: order
    for order in (
        WorkerServer.build,
        WorkerServer.reach,
        WorkerServer.welcome,
        WorkerServer.part_with,
        WorkerServer.open_sources,
        WorkerServer.start,
        WorkerServer.drain,
        WorkerServer.suspend,
        WorkerServer.finish,
        WorkerServer.close,
    )
}
"""The requests that a server executes, by name."""
