"""A region of worker 0 under its feed, with the real executor, machine and shipping; worker 1 is played by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import AbsBarrier, Epoch, StateMessage
from malstrom_py.operators.base import StepContext
from malstrom_py.operators.branching import Union
from malstrom_py.operators.stateful_map import StatefulMap
from malstrom_py.rescale.channels.channel import (
    Barrier,
    ChannelId,
    Credit,
    Frame,
    Grant,
    OutboundChannel,
    RemoteInbound,
    RemoteOutbound,
)
from malstrom_py.rescale.moves.protocol import Marker, OpenSlots, Report, RescaleMove, StateChunk
from malstrom_py.rescale.moves.receiving_machine import ReceivingMachine
from malstrom_py.testing import CapturingPersistenceBackend, VirtualClock
from malstrom_py.testing.single_step import OpenEnd, Recorder
from malstrom_py.workers.engine.exchange import Exchange
from malstrom_py.workers.engine.executor import Executor, NodeSpec
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.engine.region_input import ExchangeEntry, RegionInput
from malstrom_py.workers.engine.state_transfer import KeyedSteps, StateTransfer
from malstrom_py.workers.transport.messages import COORDINATOR, Outgoing

CODEC = Codec()
BIG = Credit()
SLOTS = 4
CHANNELS = [("left", 0), ("left", 1), ("right", 0), ("right", 1)]


def slot_of(key: Any) -> int:
    """Integers are spread over the slots; everything else is in slot 0."""
    return key % SLOTS if isinstance(key, int) else 0


def slots_of(keys: Sequence[Any]) -> list[int]:
    return list(map(slot_of, keys))


def appended(key: Any, value: Any, values: list[Any]) -> tuple[Any, list[Any]]:
    """Keeps all values of a key."""
    return value, [*values, value]


class Region:
    """A region called ``R``, fed by exchanges ``left`` and ``right`` from workers 0 and 1 (and a source), joined by a
    union, kept by key, and recorded.

    It sends all it gets on to worker 1 over ``exit``, with ``exit_credit`` rows of credit. ``table``: whose the four
    slots are; ``credit``: of the channels that feed it; ``keys_first``: how many keys go into the first parcel.
    """

    def __init__(
        self,
        *,
        source: bool = False,
        exit_credit: int = BIG.rows,
        credit: Credit = BIG,
        table: tuple[int, ...] = (0, 0, 0, 0),
        feeds_exchanges: bool = True,
        keys_first: int = 256,
    ) -> None:
        self.exchanges = {name: exchange_of(name, Batching(credit=credit)) for name in ("left", "right")}
        self.remote = {name: _remote(name, credit) for name in ("left", "right")}
        self.exit = exchange_of("exit", Batching(rows_max=1, bytes_max=1, credit=Credit(rows=exit_credit)), [1], [0])
        self.recorder = Recorder(StepContext("test", "recorder"))
        self.kept = StatefulMap(StepContext("test", "kept", keyed=True), fn=appended, default=list)
        self.executor, entries, kept = self._graph(source=source)
        self.made: list[AbsBarrier] = []
        self.messages: list[Outgoing] = []
        self.clock = VirtualClock()
        self.sent: list[Frame] = []
        self.machine = ReceivingMachine(
            "R", 0, exchanges=("left", "right"), feeds_exchanges=feeds_exchanges, members=(0, 1), table=table
        )
        self.shipping = StateTransfer(
            "R", 0, self.executor, [KeyedSteps([kept], slots_of, ("left", "right"))], keys_first=keys_first
        )
        self.region_input = RegionInput(
            self.executor,
            entries,
            [2] if source else [],
            [self.exit] if feeds_exchanges else [],
            self._barrier,
            machine=self.machine,
            shipping=self.shipping,
            messages=self.messages,
            clock=self.clock,
        )

    def _graph(self, *, source: bool) -> tuple[Executor, list[ExchangeEntry], int]:
        specs = [NodeSpec("left", None), NodeSpec("right", None)]
        inputs: tuple[tuple[int, int], ...] = ((0, 0), (1, 0))
        if source:
            specs.append(NodeSpec("source", OpenEnd(StepContext("test", "source"))))
            inputs = (*inputs, (2, 0))
        specs.append(NodeSpec("union", Union(StepContext("test", "union")), inputs))
        specs.append(NodeSpec("kept", self.kept, ((len(specs) - 1, 0),)))
        kept = len(specs) - 1
        specs.append(NodeSpec("recorder", self.recorder, ((kept, 0),)))
        specs.append(NodeSpec("exit", self.exit, ((kept, 0),), ()))
        entries = [ExchangeEntry(self.exchanges[name], node) for node, name in enumerate(("left", "right"))]
        return Executor(specs), entries, kept

    def _barrier(self, message: Barrier, frontiers: Mapping[str, int], let_in: Callable[[StateMessage], None]) -> None:
        self.frontiers = dict(frontiers)
        self.made.append(AbsBarrier(message.snapshot, CapturingPersistenceBackend(), message.parent))
        let_in(self.made[-1])

    def send(self, exchange: str, worker: int, *items: Any) -> None:
        """Have ``worker`` put rows (a list of keys, which are their values too), an epoch (a number), a `Batch` or
        the queued items of ``exchange``. Rows have the version of the last marker there.
        """
        for item in items:
            made = Batch(item, keys=item) if isinstance(item, list) else Epoch(item) if isinstance(item, int) else item
            channel: OutboundChannel = self.remote[exchange] if worker else self.exchanges[exchange].loopback
            if isinstance(made, Batch):
                channel.put(made)
            elif isinstance(made, Epoch):
                channel.put_epoch(made)
            else:
                channel.put_control(made)
            channel.flush()
        self.carry()

    def carry(self) -> None:
        """Let the frames of worker 1 arrive that have credit."""
        for name, out in self.remote.items():
            inbound = self.exchanges[name].inbound[1]
            assert isinstance(inbound, RemoteInbound)
            for frame in out.take():
                inbound.receive(frame)

    def give(self, grants: Sequence[Grant]) -> None:
        """Credit that goes back to worker 1, and what may come of it."""
        for grant in grants:
            self.remote[grant.channel.exchange].grant(grant)
        self.carry()

    def take(self) -> list[Grant]:
        """Take as long as anything comes, and send on what has credit: that is ``sent``."""
        grants: list[Grant] = []
        while True:
            taken, freed = self.region_input.take()
            self.machine.check()
            self.sent += self.exit.remote[1].take()
            grants += freed
            if not taken:
                return grants

    def got(self) -> list[Any]:
        """Return the output: values, and other messages unchanged."""
        out: list[Any] = []
        for message in self.recorder.take():
            out.extend(message.values if isinstance(message, Batch) else [message])
        return out

    def told(self) -> list[Report]:
        """Take the messages to the coordinator; other messages stay."""
        reports = [message for receiver, message in self.messages if receiver == COORDINATOR]
        self.messages[:] = [(receiver, message) for receiver, message in self.messages if receiver != COORDINATOR]
        return reports  # type: ignore[return-value]  # nothing else goes to the coordinator


class Slots:
    """The slots of keys: the function `slots_of`, or those that are given, for every key."""

    def __init__(self, given: Sequence[int] = ()) -> None:
        self._given = given

    def slots_of(self, keys: Sequence[Any]) -> list[int]:
        return [*self._given] * len(keys) if self._given else slots_of(keys)


def exchange_of(
    name: str, batching: Batching, table: Sequence[int] = (0, 0, 0, 0), slots: Sequence[int] = ()
) -> Exchange:
    context = StepContext("test", name, codec=CODEC)
    return Exchange(context, (0, 1), table, slots=Slots(slots), batching=batching, incarnation=1)


def _remote(exchange: str, credit: Credit) -> RemoteOutbound:
    return RemoteOutbound(ChannelId(exchange, 1, 0), partial(CODEC.encode_batch, step=exchange), 1, credit)


# A region that gains or loses slots.

GAIN = RescaleMove(1, (0, 1), (0, 1), (0, 0, 0, 0))
"""Worker 0 gains slots 1 and 3."""

BEFORE_GAIN = (0, 1, 0, 1)
LOSE = RescaleMove(1, (0, 1), (0, 1), (0, 1, 0, 1))
MARK_GAIN, MARK_LOSE = Marker(GAIN, 5, 5), Marker(LOSE, 5, 5)
EMPTY = StateChunk("R", 1, 1, (1, 3))


def gaining(**options: Any) -> Region:
    """A region that has begun to gain slots 1 and 3, by one marker that has come."""
    region = Region(table=BEFORE_GAIN, **options)
    region.send("left", 1, MARK_GAIN)
    region.take()
    return region


def rest_marked(region: Region, marker: Marker, *, first: tuple[str, int] = ("left", 1)) -> None:
    for exchange, worker in CHANNELS:
        if (exchange, worker) != first:
            region.send(exchange, worker, marker)
    region.give(region.take())


def open_up(region: Region, parcel: StateChunk = EMPTY) -> list[Grant]:
    """Bring the state, and the word that slots may be opened: the credit that this frees."""
    region.region_input.receive(parcel)
    region.region_input.receive(OpenSlots(1, "R"))
    return region.take()


def values(region: Region) -> list[Any]:
    return [value for value in region.got() if not isinstance(value, Epoch)]
