"""The expected result for every record, window, key and slot in any schedule; independent of all machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from tests.simulation.protocol_model.records import AHEAD, PartName, Record
from tests.simulation.protocol_model.shapes import Shape

Seen = tuple[str, Record]
"""(exchange, record)."""


class Violation(AssertionError):
    """What the oracle found."""


def late_numbers(rows: Sequence[tuple[int, int]]) -> set[int]:
    """T1, T4: the records of a part that are late by its own epoch, or too far in the future, read one by one."""
    late, reached = set(), MIN_EPOCH
    for number, (_, time) in enumerate(rows):
        if time > AHEAD or time < reached:
            late.add(number)
        else:
            reached = max(reached, time)
    return late


class Oracle:
    """Gets everything that is read, processed and fired; raises `Violation` as early as possible."""

    def __init__(self, shape: Shape, parts: Mapping[PartName, tuple[tuple[int, int], ...]]) -> None:
        self._shape = shape
        self._parts = parts
        self._late = {name: late_numbers(rows) for name, rows in parts.items()}
        self._read: dict[PartName, int] = dict.fromkeys(parts, 0)
        self._on_time: Counter[str] = Counter()
        self._napped: set[PartName] = set()
        self._furthest: dict[str, int] = {}
        self._order: dict[tuple[object, ...], int] = {}
        self._seen: dict[tuple[str, str, Record], int] = {}
        self._windows: dict[tuple[str, int, int], tuple[Seen, ...]] = {}

    def require(self, holds: bool, what: str) -> None:
        """A check of the moment."""
        if not holds:
            raise Violation(what)

    def read(self, record: Record, *, late: bool) -> bool:
        """A record was read, and judged. Whether it is late for no other reason than that its part had been idle."""
        name = (record.source, record.part)
        self.require(record.number == self._read[name], f"{record} was read where {self._read[name]} was next")
        self._read[name] += 1
        own = record.number in self._late[name]
        if not late:
            self._on_time[record.source] += 1
            self.require(not own, f"{record} is late, and was not found so (T1, T4)")
            return False
        woken = name in self._napped and record.time <= self._furthest.get(record.source, MIN_EPOCH)
        self.require(own or woken, f"{record} is falsely late (T1, T2)")
        return not own

    def napped(self, name: PartName) -> None:
        """A part has fallen idle."""
        self._napped.add(name)

    def promised(self, time: int, *feeders: str) -> None:
        """Sources and regions have promised an epoch somewhere."""
        for feeder in feeders if time != MAX_EPOCH else ():
            self._furthest[feeder] = max(time, self._furthest.get(feeder, MIN_EPOCH))

    def processed(self, region: str, exchange: str, record: Record) -> None:
        """A region has taken a record in."""
        key = (region, exchange, record)
        self.require(key not in self._seen, f"{record} was processed twice by {region}")
        self._seen[key] = 1
        path = (region, exchange, record.source, record.part, record.path, record.key)
        last = self._order.get(path, -1)
        self.require(last < record.number, f"{record} was processed after number {last} by {region}: reordered")
        self._order[path] = record.number

    def fired(self, region: str, key: int, window: int, content: Iterable[Seen]) -> None:
        """A window has fired."""
        name = (region, key, window)
        self.require(name not in self._windows, f"window {window} of key {key} fired twice in {region} (P2)")
        self._windows[name] = tuple(content)

    def rebalanced(self, before: Sequence[int], after: Sequence[int], members: Sequence[int], moved: int) -> None:
        """A rescale has ended: R10."""
        counts, had = Counter(after), Counter(before)
        self.require(set(after) <= set(members), "a slot has no owner")
        sizes = [counts[member] for member in members]
        self.require(max(sizes) - min(sizes) <= 1, f"unbalanced: {sizes} (R10)")
        small, larger = divmod(len(after), len(members))
        most_first = sorted((had[member] for member in members), reverse=True)
        kept = sum(min(count, small + (rank < larger)) for rank, count in enumerate(most_first))
        fewest = len(after) - kept
        self.require(moved <= 1.1 * fewest, f"{moved} slots were moved where {fewest} would do (R10)")

    def at_end(self, counts: Mapping[tuple[str, int], int]) -> None:
        """Nothing can happen any more. ``counts``: (region, key) -> the records that its state has counted."""
        for name, rows in self._parts.items():
            self.require(self._read[name] == len(rows), f"part {name} was read up to {self._read[name]} of {len(rows)}")
        for exchange in self._shape.exchanges:
            found = sum(1 for _, other, _ in self._seen if other == exchange)
            wanted = self._total(exchange)
            self.require(found == wanted, f"{found} records were processed after {exchange}, not {wanted}: lost")
        for region in self._shape.regions:
            fired = Counter(item for (other, _, _), items in self._windows.items() if other == region for item in items)
            came = Counter((exchange, record) for other, exchange, record in self._seen if other == region)
            self.require(fired == came, f"windows of {region}: too many {fired - came}, missing {came - fired}")
        wanted_counts = Counter((region, record.key) for region, _, record in self._seen)
        self.require(dict(counts) == dict(wanted_counts), f"state {dict(counts)} is not {dict(wanted_counts)}")

    def _total(self, exchange: str) -> int:
        feeders = self._shape.exchanges[exchange]
        entries = [other for feeder in feeders for other in self._shape.regions.get(feeder, ())]
        return sum(self._on_time[feeder] for feeder in feeders) + sum(self._total(other) for other in entries)
