"""Wrong sources of a worker, each with one clause broken."""

from __future__ import annotations

from malstrom_py.data.messages import MAX_EPOCH
from tests.simulation.protocol_model.oracle import Oracle
from tests.simulation.protocol_model.reading import Reading
from tests.simulation.protocol_model.records import AHEAD, Part, PartName, Record, frontier


class LateByBatch(Reading):
    """T1: records are judged by the epoch before their batch."""

    def poll(self, name: PartName, rows: int, oracle: Oracle) -> tuple[list[Record], list[str]]:
        self.begin = self.parts[name].epoch
        return super().poll(name, rows, oracle)

    def is_late(self, part: Part, record: Record) -> bool:
        return record.time <= self.begin or record.time > AHEAD


class LateByWorker(Reading):
    """T1: records are judged by the furthest part of the worker."""

    def is_late(self, part: Part, record: Record) -> bool:
        furthest = max(other.epoch for other in self.parts.values() if other.polled)
        return record.time <= furthest or record.time > AHEAD


class NotRaisedOnWaking(Reading):
    """T2: a part that wakes keeps the epoch that it fell idle with."""

    def raise_to_last(self, name: PartName) -> None:
        """Not at all."""


class GainedPartIsRaised(Reading):
    """T2: a gained part is raised to what its new worker has broadcast."""

    def switch(self, gained: dict[PartName, Part]) -> dict[str, tuple[int, bool]]:
        for (source, _), part in gained.items():
            if self.last[source][0] != MAX_EPOCH:
                part.epoch = max(part.epoch, self.last[source][0])
        return super().switch(gained)


class GainedPartDoesNotCount(Reading):
    """R6: a gained part does not count before it is polled."""

    def frontier(self, source: str) -> tuple[int, bool]:
        return frontier([part for part in self.of(source) if part.polled], self.last[source][0])

    def switch(self, gained: dict[PartName, Part]) -> dict[str, tuple[int, bool]]:
        super().switch({})
        self.parts |= gained
        return dict(self.last)


class FinishedPartsHoldTimeBack(Reading):
    """T5: a finished part counts with its last epoch."""

    def frontier(self, source: str) -> tuple[int, bool]:
        finished = [part.epoch for part in self.of(source) if part.finished and part.rows]
        time, idle = super().frontier(source)
        return min([time, *finished]), idle


class FutureLetIn(Reading):
    """T4: a time far in the future is taken for true."""

    def is_late(self, part: Part, record: Record) -> bool:
        return record.time <= part.epoch
