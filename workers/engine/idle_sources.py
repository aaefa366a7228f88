"""T2: the idle sources of a worker follow the other workers, so that event time advances without them.

Rule: an idle worker broadcasts the minimum of the senders that are neither idle nor finished, as received on its own
channels, and never the maximum epoch. The worker stays in every minimum. So its epoch may lag, but is never ahead of
the frontier by which it will judge its own parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from malstrom_py.builder.regions import Region
from malstrom_py.operators.base import Operator
from malstrom_py.operators.event_time import GenerateEpochs
from malstrom_py.rescale.moves.receiving_machine import ReceivingMachine
from malstrom_py.workers.engine.executor import Executor
from malstrom_py.workers.engine.region_input import RegionInput


class IdleSource:
    """One ``generate_epochs`` and the exchanges that it feeds: (name, sending node, receiving machine)."""

    def __init__(
        self,
        executor: Executor,
        node: int,
        generator: GenerateEpochs,
        feed: RegionInput,
        exchanges: Sequence[tuple[str, int, ReceivingMachine]],
    ) -> None:
        self._executor = executor
        self._node = node
        self._generator = generator
        self._feed = feed
        self._exchanges = exchanges

    def follow(self) -> None:
        """Broadcast the frontier of the other workers if it is ahead and all parts here are idle. Call between
        messages.
        """
        # As a source does, wait while the region has a backlog (F2) or a barrier is being aligned (S1).
        if not self._generator.idle or not self._feed.sources_open:
            return
        reached = self._reached()
        if reached is not None and reached > self._generator.sent:
            self._executor.call(self._node, partial(self._generator.follow, time=reached))
            self._executor.run()

    def _reached(self) -> int | None:
        """Return the smallest frontier of the active senders of each exchange; None without any."""
        executor = self._executor
        # An active source in this region decides what is broadcast to the exchanges that it feeds.
        active = [machine.active(name) for name, send, machine in self._exchanges if executor.merged(send).idle]
        return min((time for time in active if time is not None), default=None)


def followers_of(
    regions: Iterable[tuple[Region, RegionInput]],
    executor: Executor,
    operators: Mapping[str, Operator],
    nodes: Mapping[str, int],
    exchanges: Iterable[tuple[str, int]],
) -> list[IdleSource]:
    """Return an `IdleSource` for each ``generate_epochs`` with ``idle_after`` that feeds exchanges."""
    regions, exchanges = list(regions), list(exchanges)
    receiving = {name: feed.machine for region, feed in regions for name in region.entries}
    followers: list[IdleSource] = []
    for region, feed in regions:
        for name in region.steps:
            operator = operators[name]
            if not isinstance(operator, GenerateEpochs) or operator.idle_after_s is None:
                continue
            behind = executor.behind(nodes[name])
            fed = [(name, send, receiving[name]) for name, send in exchanges if send in behind]
            if fed:
                followers.append(IdleSource(executor, nodes[name], operator, feed, fed))
    return followers
