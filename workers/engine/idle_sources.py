"""T2: the idle sources of a worker follow the other workers, so that event time advances without them, and where no
worker reads them, the other side of a join or union. T7: if all are silent, they follow the runtime's clock.

Rule: an idle worker broadcasts the minimum of the senders that are neither idle nor finished, as received on its own
channels, and never the maximum epoch. The worker stays in every minimum. So its epoch may lag, but is never ahead of
the frontier by which it will judge its own parts. A worker without parts of a source that is listed again is idle, not
finished (R13); without ``idle_after`` it follows, but never the clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from malstrom_py.builder.plan import Region
from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.data.time import from_clock
from malstrom_py.operators.base import Operator
from malstrom_py.operators.event_time import GenerateEpochs
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.rescale.moves.receiving_machine import ReceivingMachine
from malstrom_py.workers.engine.executor import Executor
from malstrom_py.workers.engine.region_input import RegionInput

TICK_S: Final = 0.1
"""The shortest time between two epochs in a silence: each goes to all workers."""


class IdleSource:
    """One ``generate_epochs`` and the exchanges that it feeds: (name, sending node, receiving machine).

    ``beside``: the exchanges that are joined with what it feeds.
    """

    def __init__(
        self,
        executor: Executor,
        node: int,
        generator: GenerateEpochs,
        region_input: RegionInput,
        exchanges: Sequence[tuple[str, int, ReceivingMachine]],
        beside: Sequence[tuple[str, ReceivingMachine]] = (),
    ) -> None:
        self._executor = executor
        self._node = node
        self._generator = generator
        self._region_input = region_input
        self._exchanges = exchanges
        self._beside = beside
        # T7: when the silence was noticed here and the epoch at that moment; when the last epoch was sent in it.
        self._silence: tuple[float, int] | None = None
        self._ticked_s = 0.0

    def follow(self) -> None:
        """Broadcast what others have reached if it is ahead and all parts here are idle. Call between messages."""
        generator = self._generator
        if not generator.idle:
            self._silence = None
            return
        # As a source does, wait while the region has a backlog (F2) or a barrier is being aligned (S1).
        if not self._region_input.sources_open:
            return
        # An active source in this region decides what is broadcast to the exchanges that it feeds.
        fed = [(name, machine) for name, send, machine in self._exchanges if self._executor.merged(send).idle]
        if not fed:
            self._silence = None
            return
        reached = _smallest(machine.active(name) for name, machine in fed)
        if reached is not None:
            self._silence = None
        else:
            silent = _smallest(machine.silent(name) for name, machine in fed)
            reached = silent if generator.idle_after_s is None else self._without_senders(silent)
        if reached is not None and reached > generator.sent:
            self._executor.call(self._node, partial(generator.follow, time=reached))
            self._executor.run()

    def catch_up(self) -> None:
        """R13: broadcast the cuts that this worker has passed, before new parts begin here. A worker that has joined
        has broadcast nothing, but no record may follow below the cut.
        """
        generator = self._generator
        passed = max(machine.frontier(name) for name, _, machine in self._exchanges)
        if generator.idle and generator.sent < passed < MAX_EPOCH:
            self._executor.call(self._node, partial(generator.follow, time=passed))
            self._executor.run()

    def _without_senders(self, silent: int | None) -> int | None:
        """Return what a stream has reached that no worker reads: what it is joined with (T2), or by the clock (T7).

        ``silent``: the smallest frontier of its idle senders; None: not one has had a record.
        """
        joined = _smallest(machine.active(name) for name, machine in self._beside)
        if joined is not None and (silent is None or joined > self._generator.sent):
            self._silence = None
            return joined
        if silent is None:
            silent = _smallest(machine.silent(name) for name, machine in self._beside)
        if silent is None:
            silent = _smallest(machine.ended(name) for name, machine in self._beside)
        return self._by_clock(silent)

    def _by_clock(self, epoch: int | None) -> int | None:
        """T7: return the epoch at which the silence began + the time since; None if it is too early for another.

        ``epoch``: where a silence begins now; None: no stream has had a record.
        """
        now_s = self._generator.context.clock.monotonic_s()
        if self._silence is None:
            self._silence = None if epoch is None else (now_s, epoch)
            self._ticked_s = now_s
            return epoch
        if now_s - self._ticked_s < TICK_S:
            return None
        self._ticked_s = now_s
        began_s, began = self._silence
        return min(began + from_clock(now_s - began_s, self._generator.unit), MAX_EPOCH - 1)


def _smallest(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)


def _is_listed_again(source: Operator) -> bool:
    return isinstance(source, ReadSource) and source.lists_again_every_s is not None


def followers_of(
    regions: Iterable[tuple[Region, RegionInput]],
    executor: Executor,
    operators: Mapping[str, Operator],
    nodes: Mapping[str, int],
    exchanges: Iterable[tuple[str, int]],
) -> list[IdleSource]:
    """Return an `IdleSource` for each ``generate_epochs`` that feeds exchanges and may be idle: it has ``idle_after``,
    or a source of its region is listed again (R13).
    """
    regions, exchanges = list(regions), list(exchanges)
    receiving = {name: region_input.machine for region, region_input in regions for name in region.entries}
    followers: list[IdleSource] = []
    for region, region_input in regions:
        listed_again = any(_is_listed_again(operators[name]) for name in region.sources)
        for name in region.steps:
            operator = operators[name]
            if not isinstance(operator, GenerateEpochs) or (operator.idle_after_s is None and not listed_again):
                continue
            behind = executor.behind(nodes[name])
            fed = [(name, send, receiving[name]) for name, send in exchanges if send in behind]
            if fed:
                beside = [(other, receiving[other]) for other in _joined_with([name for name, *_ in fed], regions)]
                followers.append(IdleSource(executor, nodes[name], operator, region_input, fed, beside))
    return followers


def _joined_with(fed: Iterable[str], regions: Iterable[tuple[Region, RegionInput]]) -> list[str]:
    """Return the exchanges that enter a region together with the exchanges ``fed``, or with what follows them."""
    behind, entered = set(fed), list[Region]()
    for region, _ in reversed(list(regions)):  # upstream first
        if behind.intersection(region.entries):
            behind.update(region.exits)
            entered.append(region)
    return [name for region in entered for name in region.entries if name not in behind]
