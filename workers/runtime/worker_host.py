"""Executes the orders of the coordinator on one worker, in this process or in an actor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from malstrom_py.builder.plan import Plan
from malstrom_py.clock import Clock
from malstrom_py.codec import Codec
from malstrom_py.errors import InternalError
from malstrom_py.snapshot.checkpointer import Checkpointer
from malstrom_py.state.memory import State
from malstrom_py.workers.coordinator.sink_commits import pre_committed
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.engine.graph_builder import Membership, States, initial_states
from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.reports.taps import TapStep
from malstrom_py.workers.transport.base import Transport
from malstrom_py.workers.transport.messages import (
    COORDINATOR,
    Build,
    Built,
    Close,
    Drain,
    Finish,
    Finished,
    Notify,
    OpenSources,
    Outgoing,
    Parted,
    PartWith,
    Reach,
    Reached,
    Saved,
    SourcesOpened,
    Start,
    Suspend,
    Welcome,
    WorkerOrder,
)


class WorkerHost:
    """The host of a worker of ``plan``, which `Build` makes.

    ``checkpointer``: of a job with snapshots; ``streams``: of a worker in its own process. ``warned`` and
    ``keys_per_chunk``: as of `Membership` and `Worker`. ``load``: returns the initial states of steps; ``built`` is
    called with the new worker; ``settle``: waits until captured state is saved, and returns the last report of that.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        batching: Batching,
        clock: Clock,
        wake: threading.Event,
        checks: bool = False,
        state: State | None = None,
        checkpointer: Checkpointer | None = None,
        streams: Transport | None = None,
        warned: set[str] | None = None,
        keys_per_chunk: int | None = None,
        load: Callable[[Plan, Collection[str]], States] = initial_states,
        built: Callable[[Worker], None] = lambda _: None,
        settle: Callable[[], Saved | None] = lambda: None,
    ) -> None:
        self.is_started = False
        self._plan = plan
        self._batching = batching
        self._clock = clock
        self._wake = wake
        self._checks = checks
        self._state = state
        self._checkpointer = checkpointer
        self._streams = streams
        self._warned = set[str]() if warned is None else warned
        self._keys_per_chunk = keys_per_chunk
        self._load = load
        self._built = built
        self._settle = settle
        self._worker: Worker | None = None

    @property
    def has_worker(self) -> bool:
        """Whether the worker is built."""
        return self._worker is not None

    @property
    def worker(self) -> Worker:
        """The worker."""
        if self._worker is None:
            raise InternalError("this worker has not been built yet")
        return self._worker

    def obey(self, order: WorkerOrder) -> list[Outgoing]:
        """Execute ``order`` between two steps. Return the messages to send, the reply last."""
        return _EXECUTED_BY[type(order)](self, order)

    def close(self) -> None:
        """Close the worker, if it is built."""
        self.is_started = False
        if self._worker is not None:
            self._worker.close()

    def _build(self, order: Build) -> list[Outgoing]:
        member = Membership(
            order.worker,
            order.members,
            order.table,
            order.version,
            order.incarnation,
            warned=self._warned,
            parameters=order.parameters,
        )
        worker = self._worker = Worker(
            self._plan,
            member,
            batching=self._batching,
            clock=self._clock,
            codec=Codec(self._plan.types),
            tracked=self._checkpointer is not None,
            checks=self._checks,
            state=self._state,
            wake=self._wake,
            keys_per_chunk=self._keys_per_chunk,
        )
        self._built(worker)
        for other in order.others:
            worker.connect(other)
        worker.open_sinks()
        if order.restored is not None and self._checkpointer is not None:
            order.restored.restore(self._checkpointer, worker)
        worker.start_with(self._load(self._plan, order.beginning))
        return [(COORDINATOR, Built(order.worker))]

    def _reach(self, order: Reach) -> list[Outgoing]:
        if self._streams is not None:
            for peer, address in order.addresses.items():
                self._streams.connect(peer, address)
        return [(COORDINATOR, Reached(self.worker.id))]

    def _welcome(self, order: Welcome) -> list[Outgoing]:
        reached = self._reach(Reach(order.addresses))
        for joiner in order.addresses:
            self.worker.connect(joiner)
        return reached

    def _part_with(self, order: PartWith) -> list[Outgoing]:
        for leaver in order.leavers:
            self.worker.disconnect(leaver)
            if self._streams is not None:
                self._streams.disconnect(leaver)
        return [(COORDINATOR, Parted(self.worker.id))]

    def _open_sources(self, order: OpenSources) -> list[Outgoing]:
        outgoing = self.worker.open_sources(order.parts, order.restored)
        return [*outgoing, (COORDINATOR, SourcesOpened(self.worker.id, self.worker.reading.fixed))]

    def _start(self, order: Start) -> list[Outgoing]:
        self.is_started = True
        return []

    def _notify(self, order: Notify) -> list[Outgoing]:
        self.worker.notify(order.event)
        return []

    def _tap(self, order: TapStep) -> list[Outgoing]:
        return [] if self._worker is None else self._worker.tapping.obey(order)

    def _drain(self, order: Drain) -> list[Outgoing]:
        self.worker.reading.stop()
        return []

    def _suspend(self, order: Suspend) -> list[Outgoing]:
        return self.worker.suspend()

    def _finish(self, order: Finish) -> list[Outgoing]:
        """Pre-commit; once that is done, close all but the transactional writers."""
        self.is_started = False
        worker, payloads = self.worker, list[tuple[str, bytes]]()
        failed: BaseException | None = None
        saved: Saved | None = None
        try:
            saved = self._settle()
            for payload in pre_committed(worker.sinks, order.contexts):
                payloads.append(payload)
            worker.close_before_commit()
        except BaseException as error:  # raised by the coordinator, which also discards what is pre-committed by now
            failed = error
        ended = worker.reading.ended()
        return [(COORDINATOR, Finished(worker.id, tuple(payloads), worker.counts(), failed, saved, ended))]

    def _close(self, order: Close) -> list[Outgoing]:
        self.close()
        return []


_EXECUTED_BY: Final[Mapping[type, Callable[[WorkerHost, Any], list[Outgoing]]]] = {
    Build: WorkerHost._build,
    Reach: WorkerHost._reach,
    Welcome: WorkerHost._welcome,
    PartWith: WorkerHost._part_with,
    OpenSources: WorkerHost._open_sources,
    Start: WorkerHost._start,
    Notify: WorkerHost._notify,
    TapStep: WorkerHost._tap,
    Drain: WorkerHost._drain,
    Suspend: WorkerHost._suspend,
    Finish: WorkerHost._finish,
    Close: WorkerHost._close,
}
"""What executes each type of order."""
