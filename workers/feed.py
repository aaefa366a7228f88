"""One region of one worker while it runs: what feeds it, when it may be fed, and the alignment of barriers.

F2: data and epochs are taken in only while none of the region's outputs has a backlog, nor a step that holds records
back. S1: a barrier is let in when it has come on all channels of all the region's exchanges and, where the region has
sources, at these too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from malstrom_py.batches import Batch
from malstrom_py.errors import InternalError
from malstrom_py.messages import AbsBarrier, Epoch, StateMessage, SuspendMarker
from malstrom_py.rescale.channel import Barrier, Grant, Suspend
from malstrom_py.rescale.router import Router
from malstrom_py.workers.exchange import Inbox


class Graph(Protocol):
    """The executor, as a region's feed needs it."""

    def push(self, node: int, message: Batch | Epoch | StateMessage, *, index: int = 0) -> None: ...

    def run(self) -> None: ...


class Backlog(Protocol):
    """What can be full: an output, or a step that holds records back."""

    @property
    def backlogged(self) -> bool: ...


class Feed:
    """Feeds one region. ``entries`` are (inbox, entry node) pairs, ``sources`` the nodes of its sources, ``holding``
    the steps that may hold records back.
    """

    def __init__(
        self,
        graph: Graph,
        entries: list[tuple[Inbox, int]],
        sources: list[int],
        exits: list[Router],
        make_barrier: Callable[[str], AbsBarrier],
        holding: Sequence[Backlog] = (),
    ) -> None:
        self._graph = graph
        self._lanes = [(lane, node, index) for inbox, node in entries for index, lane in enumerate(inbox.lanes)]
        self.sources = sources
        self._exits = exits
        self._limits: list[Backlog] = [*exits, *holding]
        self._make_barrier = make_barrier
        self._waiting: Barrier | Suspend | None = None
        self._sources_wait = False
        self.suspended = False

    @property
    def open(self) -> bool:
        """Whether data may be taken in: neither an output nor a step inside has a backlog."""
        for limit in self._limits:  # noqa: SIM110  asked for every batch, and a generator costs more than the question
            if limit.backlogged:
                return False
        return True

    @property
    def outputs_open(self) -> bool:
        """Whether what steps inside hold back may leave: no output has a backlog."""
        return not any(router.backlogged for router in self._exits)

    @property
    def routed_rows(self) -> int:
        """How many rows have left the region so far."""
        rows = 0
        for router in self._exits:
            rows += router.routed_rows
        return rows

    @property
    def ready(self) -> bool:
        """Whether the next `take` will take something."""
        return self.open and any(len(lane) and not lane.blocked for lane, _, _ in self._lanes)

    @property
    def sources_open(self) -> bool:
        """Whether the region's sources may be polled."""
        return not self._sources_wait and not self.suspended and self.open

    def take(self) -> tuple[int, list[Grant]]:
        """Take one item from each channel, as long as the region is open: how many, and the credit they free."""
        taken, graph = 0, self._graph
        grants: list[Grant] = []
        for lane, node, index in self._lanes:
            if not self.open:
                break
            item, grant = lane.take()
            if item is None:
                continue
            taken += 1
            if grant is not None:
                grants.append(grant)
            if isinstance(item, Batch | Epoch):
                graph.push(node, item, index=index)
                graph.run()
            else:
                lane.blocked = True
                self._arrived(item)
        return taken, grants

    def at_sources(self, message: Barrier | Suspend) -> None:
        """The coordinator's barrier, at the sources of this region: they are not polled until it has been let in."""
        if self.sources:
            self._sources_wait = True
            self._arrived(message)

    def _arrived(self, message: Barrier | Suspend) -> None:
        if self._waiting is not None and self._waiting != message:
            raise InternalError(f"{message} came while {self._waiting} was being aligned (R7: one at a time)")
        self._waiting = message
        lanes = [lane for lane, _, _ in self._lanes]
        if not all(lane.blocked for lane in lanes) or (self.sources and not self._sources_wait):
            return
        self._waiting, self._sources_wait = None, False
        for lane in lanes:
            lane.blocked = False
        if isinstance(message, Suspend):
            self.suspended = True
            self._let_in(SuspendMarker())
        else:
            self._let_in(self._make_barrier(message.snapshot))

    def _let_in(self, message: StateMessage) -> None:
        for node in self.sources:
            self._graph.push(node, message)
        for _, node, index in self._lanes:
            self._graph.push(node, message, index=index)
        self._graph.run()

    def inject(self, message: StateMessage) -> None:
        """Pass a message that acts on state through the region, between two messages."""
        self._let_in(message)


def suspended(feeds: Iterable[Feed]) -> bool:
    """Whether every region has been suspended."""
    return all(feed.suspended for feed in feeds)
