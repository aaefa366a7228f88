"""T2: a worker that has nothing to read now follows the others, so that event time goes on without it.

Rule: what it broadcasts is the minimum over the senders that are neither idle nor finished, as its own channels have
brought it; never the maximum epoch. It stays in every minimum, so it may be behind the others, but never ahead of what
it will judge its own parts by.
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
    """One ``generate_epochs`` and the exchanges it feeds: (name, node that sends, what receives) on this worker."""

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
        """If all parts here are idle, and the others have got further, broadcast how far. Between two messages."""
        # Like a source this one waits while its region has a backlog (F2) or a barrier is being aligned (S1).
        if not self._generator.idle or not self._feed.sources_open:
            return
        reached = self._reached()
        if reached is not None and reached > self._generator.sent:
            self._executor.call(self._node, partial(self._generator.follow, time=reached))
            self._executor.run()

    def _reached(self) -> int | None:
        """The smallest of what each exchange's active senders have reached. None: there are none."""
        executor = self._executor
        # Where something else in this region is active on the way to an exchange, that says what is broadcast there.
        active = [machine.active(name) for name, send, machine in self._exchanges if executor.merged(send).idle]
        return min((time for time in active if time is not None), default=None)


def followers_of(
    regions: Iterable[tuple[Region, RegionInput]],
    executor: Executor,
    operators: Mapping[str, Operator],
    nodes: Mapping[str, int],
    exchanges: Iterable[tuple[str, int]],
) -> list[IdleSource]:
    """A follower for each ``generate_epochs`` that knows idle parts and feeds exchanges: (name, node that sends)."""
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
