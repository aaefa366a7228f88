"""Tails of windows, as users write them: by event time, by number and by the clock; and timers of the clock.

The judge computes from the records that have come what each window must hold, and who must be in one of the clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from operator import add
from typing import Any, Final

import malstrom_py as mp
from malstrom_py import agg, windows
from tests.simulation.jobs.layouts import Tail
from tests.simulation.jobs.records import KEYS, Ident, Passed, ident
from tests.simulation.jobs.seen import Row, Seen
from tests.simulation.jobs.verdicts import Item, by, require, require_same, require_way_order
from tests.simulation.jobs.watching import watched

Stream = Any
Rows = Mapping[str, Sequence[Row]]

SLOT_MS: Final = 300
"""How wide windows of the clock are, in ms."""


def weight(passed: Passed) -> int:
    """What windows sum up; no two records have the same."""
    return passed.record.check


def width_of(tail: Tail) -> int:
    """How wide the windows of a tail are."""
    return 4 * tail.size


def panes(keyed: Stream, tail: Tail, seen: Seen) -> dict[str, Stream]:
    """Windows of event time: of each kind, with and without a merge of panes, and by number."""
    name, width = tail.name, width_of(tail)
    keyed = watched(keyed, f"{name}-in", seen)
    tumbling = keyed.window(f"{name}-tumbling-step", windows.tumbling(width))
    sliding = keyed.window(f"{name}-sliding-step", windows.sliding(2 * width, width - 1))
    merged = keyed.window(f"{name}-merged-step", windows.sliding(3 * width, 2 * width))
    session = keyed.window(f"{name}-session-step", windows.session(tail.size), emit=2)
    count = keyed.window(f"{name}-count-step", windows.count(tail.size))
    made = {
        "tumbling": tumbling.aggregate(n=agg.count(), weight=agg.sum(weight)),
        "sliding": sliding.collect(),
        "merged": merged.sum(weight),
        "session": session.collect().filter(f"{name}-final", lambda window: not window.update),
        "count": count.collect(),
    }
    return {f"{name}-{kind}": watched(stream, f"{name}-{kind}-out", seen) for kind, stream in made.items()}


PANES: Final = ("tumbling", "sliding", "merged", "session", "count")


def judge_panes(tail: Tail, rows: Rows, came: list[Item]) -> None:
    """Each window of each key comes once, at its end, with all that belongs to it and nothing else."""
    items, width = by(came, lambda item: KEYS[tail.key](item.record)), width_of(tail)
    spans = {"tumbling": (width, width), "sliding": (2 * width, width - 1), "merged": (3 * width, 2 * width)}
    for kind, (size, step) in spans.items():
        wanted = {
            (key, start, start + size): there
            for key, of_key in items.items()
            for start, there in windows_of(of_key, size, step).items()
        }
        _judge_kind(tail, kind, rows, wanted)
    sessions = {
        (key, there[0].record.time, there[-1].record.time + tail.size): there
        for key, of_key in items.items()
        for there in _sessions_of(of_key, tail.size)
    }
    _judge_kind(tail, "session", rows, sessions)
    _judge_count(tail, rows[f"{tail.name}-count"], items)


def windows_of(items: Iterable[Item], size: int, step: int) -> dict[int, list[Item]]:
    """Who belongs to each window, by its start."""
    found: dict[int, list[Item]] = {}
    for item in items:
        time = item.record.time
        for start in range(time // step * step, time - size, -step):
            found.setdefault(start, []).append(item)
    return found


def _sessions_of(items: Iterable[Item], gap: int) -> list[list[Item]]:
    found: list[list[Item]] = []
    for item in sorted(items, key=lambda item: item.record.time):
        if found and item.record.time - found[-1][-1].record.time < gap:
            found[-1].append(item)
        else:
            found.append([item])
    return found


def _judge_kind(tail: Tail, kind: str, rows: Rows, wanted: Mapping[Any, list[Item]]) -> None:
    where = f"{kind} windows of {tail.name}"
    found_here = rows[f"{tail.name}-{kind}"]
    require_same(((row.key, row.value.start, row.value.end) for row in found_here), wanted, where)
    for row in found_here:
        there = wanted[row.key, row.value.start, row.value.end]
        require(row.time == row.value.end - 1, f"{where}: {row.value[:2]} has the timestamp {row.time}, not its end")
        found: Any = row.value.value
        if kind == "tumbling":
            right: Any = {"n": len(there), "weight": sum(item.record.check for item in there)}
        elif kind == "merged":
            right = sum(item.record.check for item in there)
        else:
            found, right = Counter(map(ident, found)), Counter(item.ident for item in there)
        require(found == right, f"{where}: {row.value[:2]} of key {row.key!r} is {found}, not {right}")


def _judge_count(tail: Tail, rows: Sequence[Row], items: Mapping[Any, list[Item]]) -> None:
    where = f"windows by number of {tail.name}"
    for key, taken in by(rows, lambda row: row.key).items():
        known = {item.ident: item for item in items.get(key, ())}
        sizes = sorted((len(row.value.value) for row in taken), reverse=True)
        require(set(sizes[:-1]) <= {tail.size} and 0 < sizes[-1] <= tail.size, f"{where}: of {sizes} records")
        found = [ident(passed) for row in taken for passed in row.value.value]
        require_same(found, known, f"{where}, key {key!r}")
        full = [row for row in taken if len(row.value.value) == tail.size]
        require_way_order((known[ident(passed)] for row in full for passed in row.value.value), f"{where}, {key!r}")
        for row in taken:
            times = [passed.record.time for passed in row.value.value]
            require(row.value.start == min(times), f"{where}: one of {times} begins at {row.value.start}")
            require(row.value.end > max(times), f"{where}: one of {times} ends at {row.value.end}")
    require(len({row.key for row in rows}) == len(items), f"{where}: of other keys")


class Alarm(mp.KeyedLogic[Any, Any, tuple[Ident, ...], tuple[Ident, ...]]):
    """Gathers who is in the windows of a while, by the clock."""

    def on_data(self, message: mp.DataMessage[Any, Any], key_state: Any, output: mp.Output[Any, Any]) -> Any:
        if key_state is None:
            output.set_timer(message.key, timedelta(milliseconds=SLOT_MS), clock="processing")
        return (*(key_state or ()), *map(ident, message.value.value))

    def on_timer(self, key: Any, time: int, key_state: Any, output: mp.Output[Any, Any]) -> Any:
        output.emit(key, key_state)
        return None


def clocked(keyed: Stream, tail: Tail, seen: Seen) -> dict[str, Stream]:
    """Windows and timers of the runtime's clock."""
    name, wide = tail.name, timedelta(milliseconds=SLOT_MS)
    lists = keyed.map(f"{name}-lists", lambda passed: [passed])
    slides = lists.window(f"{name}-slides-step", windows.sliding(2 * wide, wide, clock="processing"))
    slots = keyed.window(f"{name}-slots-step", windows.tumbling(wide, clock="processing")).collect()
    return {
        f"{name}-slots": slots,
        f"{name}-slides": slides.reduce(add),
        f"{name}-visits": keyed.window(f"{name}-visits-step", windows.session(wide, clock="processing")).collect(),
        f"{name}-alarms": slots.stateful_op(f"{name}-alarms-step", Alarm()),
    }


CLOCKED: Final = ("slots", "slides", "visits", "alarms")


def judge_clocked(tail: Tail, rows: Rows, came: list[Item]) -> None:
    """Who is in which window depends on the run; but each record is in one (in two that slide), in
    order, and each window comes once.
    """
    items = by(came, lambda item: KEYS[tail.key](item.record))
    for kind in CLOCKED:
        where, taken = f"{kind} of {tail.name}", by(rows[f"{tail.name}-{kind}"], lambda row: row.key)
        require_same(taken, items, f"keys of {where}")
        for key, of_key in taken.items():
            known = {item.ident: item for item in items[key]}
            lists = [row.value if kind == "alarms" else list(map(ident, row.value.value)) for row in of_key]
            found = [who for there in lists for who in there]
            require(all(lists), f"{where}: key {key!r} has an empty one")
            times = 2 if kind == "slides" else 1
            require_same(found, [who for who in known for _ in range(times)], f"{where}, key {key!r}")
            for there in lists if kind == "slides" else [found]:
                require_way_order((known[who] for who in there), f"{where}, key {key!r}")
            if kind != "alarms":
                starts = [row.value.start for row in of_key]
                require(starts == sorted(set(starts)), f"{where}: key {key!r} has those at {starts}")
