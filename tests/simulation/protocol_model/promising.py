"""What a worker of the model promises on its exchanges: the minimum over sources and regions that feed one (T2, T3)."""

from __future__ import annotations

from typing import Protocol

from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.rescale.moves.protocol import Report
from malstrom_py.rescale.moves.receiving_machine import ReceivingMachine
from tests.simulation.protocol_model.counting import Counting
from tests.simulation.protocol_model.oracle import Oracle
from tests.simulation.protocol_model.reading import Reading
from tests.simulation.protocol_model.records import ChannelKey, Item, Part, PartName
from tests.simulation.protocol_model.shapes import Shape


class Net(Protocol):
    """What a worker reaches others by."""

    @property
    def oracle(self) -> Oracle: ...

    def hit(self, case: str) -> None: ...

    def put(self, key: ChannelKey, item: Item) -> None: ...

    def mail(self, sender: int, receiver: int, message: object) -> None: ...

    def report(self, worker: int, report: Report) -> None: ...

    def free(self, key: ChannelKey, cost: int) -> None: ...


class Promising:
    """``sent`` and ``idle``: exchange -> what was promised there last. ``gained``: the parts that a switch takes in."""

    net: Net
    shape: Shape
    reading: Reading
    state: dict[str, Counting]
    regions: dict[str, ReceivingMachine]
    sent: dict[str, int]
    idle: dict[str, bool]
    gained: dict[PartName, Part]

    @property
    def may_read(self) -> bool:
        """Whether sources may be read and have a say."""
        raise NotImplementedError

    def send_epoch(self, exchange: str, time: int, *, idle: bool) -> None:
        """Send it to all."""
        raise NotImplementedError

    def due_epochs(self) -> list[str]:
        """The sources with something to broadcast."""
        reading = self.reading
        if not self.may_read:
            return []
        return [source for source, last in reading.last.items() if self.worth_telling(reading.frontier(source), last)]

    def worth_telling(self, now: tuple[int, bool], last: tuple[int, bool]) -> bool:
        """T3: listeners get progress, and changes between idle and active."""
        return now[0] > last[0] or (now[0] == last[0] and now[1] != last[1])

    def broadcast(self, source: str) -> None:
        """Send the frontier of a source."""
        self.reading.last[source] = self.reading.frontier(source)
        self.net.oracle.promised(self.reading.last[source][0], source)
        for exchange in self.shape.fed_by(source):
            self.tell(exchange)

    def promise(self, exchange: str) -> tuple[int, bool]:
        """T2, T6: the minimum over the inputs of ``exchange``, as received. Idle inputs are left out."""
        feeders, state = self.shape.exchanges[exchange], self.state
        told = [(state[name].epoch, False) if name in state else self.reading.told(name) for name in feeders]
        active = [time for time, idle in told if not idle and time != MAX_EPOCH]
        at_rest = [time for time, idle in told if idle]
        return (min(active, default=MAX_EPOCH), False) if active or not at_rest else (min(at_rest), True)

    def is_silent(self, exchange: str) -> bool:
        """R2: between hand-over and marker nothing is promised where a source has a say, not by regions either."""
        return not self.may_read and any(feeder in self.shape.sources for feeder in self.shape.exchanges[exchange])

    def tell(self, exchange: str) -> None:
        """T3: listeners get progress, and changes between idle and active."""
        time, idle = self.promise(exchange)
        if not self.is_silent(exchange):
            if time > self.sent[exchange] or idle != self.idle[exchange]:
                self.send_epoch(exchange, max(time, self.sent[exchange]), idle=idle)
        elif time > self.sent[exchange]:
            self.net.hit("region's epoch waits for the marker")

    def reached(self, source: str) -> int | None:
        """T2: how far an idle worker may follow: the smallest that active senders have reached. None: no further."""
        if not self.may_read or not self.reading.last[source][1] or not self.reading.frontier(source)[1]:
            return None
        # Where something else is active on the way to an exchange, that says what is promised there.
        silent = [exchange for exchange in self.shape.fed_by(source) if self.promise(exchange)[1]]
        times = [self.regions[self.shape.region_of(exchange)].active(exchange) for exchange in silent]
        reached = min((time for time in times if time is not None), default=None)
        return reached if reached is not None and reached > self.reading.last[source][0] else None

    def follow(self, source: str) -> None:
        """Broadcast how far the others are."""
        time = self.reached(source)
        assert time is not None
        self.net.hit("idle worker follows")
        self.reading.last[source] = (time, True)
        for exchange in self.shape.fed_by(source):
            self.tell(exchange)

    def take_in_parts(self) -> None:
        """R2: what has been gained counts from the switch on."""
        for source, (time, _) in self.reading.switch(self.gained).items():
            self.net.oracle.promised(time, source)
        for source, _ in self.gained:
            reached = [self.state[name].epoch for name in self.beside(source)]
            if reached and self.reading.last[source][0] < min(reached):
                self.net.hit("region held back by a gained part")
        self.gained = {}

    def beside(self, source: str) -> list[str]:
        """The regions that feed an exchange together with ``source``."""
        fed = self.shape.fed_by(source)
        return [name for exchange in fed for name in self.shape.exchanges[exchange] if name in self.shape.regions]

    def promise_anew(self, exchange: str) -> tuple[int, int, bool]:
        """R2: what was promised before, and what is from here on, which may be less, by a part that was gained."""
        before = self.sent[exchange]
        self.sent[exchange], self.idle[exchange] = self.promise(exchange)
        self.note_sent(exchange)
        return before, self.sent[exchange], self.idle[exchange]

    def note_sent(self, exchange: str) -> None:
        """T2: idle parts are judged by what has been promised without them, never by the maximum."""
        time = self.sent[exchange]
        self.net.oracle.promised(time, *self.shape.exchanges[exchange])
        for source in self.shape.exchanges[exchange]:
            last, idle = self.reading.last.get(source, (MAX_EPOCH, False))
            if idle and last < time < MAX_EPOCH:
                self.reading.last[source] = (time, True)
