"""The source side of a worker of the model: its parts, how far they are, which are idle (T1, T2, T4, T5)."""

from __future__ import annotations

from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from tests.simulation.protocol_model.oracle import Oracle
from tests.simulation.protocol_model.records import AHEAD, Part, PartName, Record, frontier


class Reading:
    """The parts on one worker. ``last``: source -> its last broadcast."""

    def __init__(self, sources: tuple[str, ...]) -> None:
        self.parts: dict[PartName, Part] = {}
        self.last: dict[str, tuple[int, bool]] = dict.fromkeys(sources, (MIN_EPOCH, False))

    def of(self, source: str) -> list[Part]:
        """The parts of one source."""
        return [part for (other, _), part in self.parts.items() if other == source]

    def frontier(self, source: str) -> tuple[int, bool]:
        """What is promised now."""
        return frontier(self.of(source), self.last[source][0])

    def told(self, source: str) -> tuple[int, bool]:
        """The last frontier. Not idle once a part has woken: its records are sent before the change is."""
        time, idle = self.last[source]
        return time, idle and all(part.idle or part.finished for part in self.of(source))

    def pollable(self) -> list[PartName]:
        """The parts that have something to read, and may be read."""
        return [name for name, part in self.parts.items() if part.polled and not part.idle and not part.finished]

    def poll(self, name: PartName, rows: int, oracle: Oracle) -> tuple[list[Record], list[str]]:
        """Read up to ``rows`` rows: those on time, and what was special about the others."""
        part, on_time, special = self.parts[name], [], []
        for key, time in part.rows[part.position : part.position + rows]:
            record = Record(*name, part.position, key, time)
            part.position += 1
            late = self.is_late(part, record)
            if oracle.read(record, late=late):
                special.append("late after a wake")
            if late:
                special.append("future record" if time > AHEAD else "late record")
                continue
            part.epoch = max(part.epoch, time - 1)
            on_time.append(record)
        return on_time, special

    def is_late(self, part: Part, record: Record) -> bool:
        """T1: judged once, per record, against its own part's epoch. T4: nor too far in the future."""
        return record.time <= part.epoch or record.time > AHEAD

    def nap(self, name: PartName) -> None:
        """The part has been asked, and had nothing."""
        self.parts[name].idle = True

    def wake(self, name: PartName) -> None:
        """T2: what it brings now is judged by what was broadcast without it."""
        self.raise_to_last(name)
        self.parts[name].idle = False

    def raise_to_last(self, name: PartName) -> None:
        """T2: an idle part's frontier becomes the last broadcast of who holds it, never the maximum."""
        part, last = self.parts[name], self.last[name[0]][0]
        if part.idle and last != MAX_EPOCH:
            part.epoch = max(part.epoch, last)

    def give(self, name: PartName) -> Part:
        """Hand a part over."""
        self.raise_to_last(name)
        return self.parts.pop(name)

    def switch(self, gained: dict[PartName, Part]) -> dict[str, tuple[int, bool]]:
        """T2: raise what is kept, then add what came; what is promised from here on, per source."""
        for name in self.parts:
            self.raise_to_last(name)
        self.parts |= gained
        for source in self.last:
            idle = [part.epoch for part in self.of(source) if part.idle and not part.finished]
            self.last[source] = frontier(self.of(source), min(idle, default=MIN_EPOCH))
        return dict(self.last)
