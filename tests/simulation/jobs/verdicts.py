"""What is wrong, and the checks of order that several judges make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from tests.simulation.jobs.records import Ident, Record


class Violation(AssertionError):
    """What the oracle found."""


class Item(NamedTuple):
    """A record at some place of a job, the stations by which it has come there, and its key at each of them."""

    record: Record
    path: tuple[str, ...] = ()
    keys: tuple[Any, ...] = ()

    @property
    def ident(self) -> Ident:
        """Who it is."""
        return (self.record.source, self.record.part, self.record.number, self.path)

    @property
    def way(self) -> tuple[Any, ...]:
        """That on which records keep their order: one part of a source, one path, one key at each exchange on it."""
        return (self.record.source, self.record.part, self.path, self.keys)


def require(holds: bool, what: str) -> None:
    """`Violation` that says ``what``, if something does not hold."""
    if not holds:
        raise Violation(what)


def require_same(found: Iterable[Hashable], wanted: Iterable[Hashable], where: str) -> None:
    """Nothing is lost, nothing is there twice, and nothing that should not be."""
    have, want = Counter(iter(found)), Counter(iter(wanted))
    if have != want:
        lost, extra = want - have, have - want
        twice = {item: count for item, count in extra.items() if item in want}
        strange = {item: count for item, count in extra.items() if item not in want}
        raise Violation(f"{where}: lost {shown(lost)}, duplicated {shown(twice)}, unexpected {shown(strange)}")


def require_ordered(numbered: Iterable[tuple[Hashable, int]], where: str) -> None:
    """Of each (path, number) the numbers of one path only rise."""
    last: dict[Hashable, int] = {}
    for path, number in numbered:
        before = last.get(path, -1)
        require(before < number, f"{where}: of {path}, number {number} came after {before}: reordered")
        last[path] = number


def require_way_order(items: Iterable[Item], where: str) -> None:
    """Those that have gone one way are in the order of their part."""
    require_ordered(((item.way, item.record.number) for item in items), where)


def by(items: Iterable[Any], key: Callable[[Any], Hashable]) -> dict[Any, list[Any]]:
    """``items`` by a key, in order."""
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def shown(things: Any) -> str:
    """Some of ``things``, for a message."""
    several: Sequence[str] = list(map(repr, things))
    return (
        "nothing" if not several else ", ".join(several[:4]) + (f" and {len(several) - 4} more" if several[4:] else "")
    )
