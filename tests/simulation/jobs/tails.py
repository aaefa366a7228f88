"""Keyed steps whose outputs are not the records that came: lists, firsts, figures, windows of windows.

Each has its build and its judge, which says what must be in its sinks, given what has come: for the records of a part
in their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any, Final

import malstrom_py as mp
from tests.simulation.jobs.arrays import ARRAYS, arrays, judge_arrays
from tests.simulation.jobs.layouts import Tail
from tests.simulation.jobs.panes import CLOCKED, PANES, clocked, judge_clocked, judge_panes, panes
from tests.simulation.jobs.records import KEYS, Fired, Passed, Record, ident, is_intact
from tests.simulation.jobs.seen import Row, Seen
from tests.simulation.jobs.verdicts import Item, Violation, by, require, require_same, require_way_order
from tests.simulation.jobs.watching import watched

Stream = Any
Rows = Mapping[str, Sequence[Row]]


@dataclass(frozen=True)
class TailKind:
    """``build(keyed, tail, seen)`` gives its streams by the names of their sinks; ``judge(tail, rows, came)``."""

    build: Callable[[Stream, Tail, Seen], dict[str, Stream]]
    judge: Callable[[Tail, Rows, list[Any]], None]
    figures: tuple[str, ...] = ()

    def sinks(self, tail: Tail) -> list[str]:
        """The names of the sinks of ``tail``."""
        return [f"{tail.name}-{figure}" for figure in self.figures] or [tail.name]


def outer_key(fired: Fired) -> int:
    """By what the windows of windows are keyed."""
    return fired.start // 4 % 3


def class_of(passed: Passed) -> int:
    """What "distinct" goes by."""
    return passed.record.number % 4


def keyed_by(tail: Tail, items: Sequence[Item]) -> dict[Any, list[Item]]:
    """What came, by key."""
    return by(items, lambda item: KEYS[tail.key](item.record))


# -- collect --


def _collect(keyed: Stream, tail: Tail, seen: Seen) -> dict[str, Stream]:
    every = None if tail.every_s is None else timedelta(seconds=tail.every_s)
    return {
        tail.name: watched(keyed.collect(f"{tail.name}-collect", size=tail.size, every=every), f"{tail.name}-out", seen)
    }


def _judge_collect(tail: Tail, rows: Rows, came: list[Item]) -> None:
    where, lists = f"lists of {tail.name}", by(rows[tail.name], lambda row: row.key)
    items = keyed_by(tail, came)
    require_same(lists, items, f"keys of {where}")
    for key, taken in lists.items():
        known = {item.ident: item for item in items[key]}
        passed = [passed for row in taken for passed in row.value]
        require(all(is_intact(one.record) for one in passed), f"{where}: a record of key {key!r} is damaged")
        require_same(map(ident, passed), known, f"{where} of key {key!r}")
        require_way_order((known[ident(one)] for one in passed), f"{where} of key {key!r}")
        for row in taken:
            require(0 < len(row.value) <= tail.size, f"{where}: one of {len(row.value)} values")
            latest = max(one.record.time for one in row.value)
            require(row.time in (None, latest), f"{where}: a list up to {latest} has the timestamp {row.time}")
        if tail.every_s is None and all(row.time is None for row in taken):
            short = [len(row.value) for row in taken[:-1] if len(row.value) < tail.size]
            require(not short, f"{where} of key {key!r}: lists of {short} before the last one")


# -- distinct --


def _distinct(keyed: Stream, tail: Tail, seen: Seen) -> dict[str, Stream]:
    return {tail.name: keyed.distinct(f"{tail.name}-distinct", by=class_of)}


def _judge_distinct(tail: Tail, rows: Rows, came: list[Item]) -> None:
    """Who comes first of its class has only classes before it, in its part, that are there already."""
    where, firsts = f"firsts of {tail.name}", by(rows[tail.name], lambda row: row.key)
    items = keyed_by(tail, came)
    require_same(firsts, items, f"keys of {where}")
    for key, taken in firsts.items():
        classes = {class_of(Passed(item.record)) for item in items[key]}
        require_same((class_of(row.value) for row in taken), classes, f"{where} of key {key!r}")
        known, there = {item.ident: item for item in items[key]}, set[int]()
        for row in taken:
            first = known.get(ident(row.value))
            if first is None or first.record != row.value.record:
                raise Violation(f"{where}: {row.value} never came")
            require(row.time in (None, first.record.time), f"{where}: {first} has the timestamp {row.time}")
            earlier = {
                class_of(Passed(item.record))
                for item in items[key]
                if item.way == first.way and item.record.number < first.record.number
            }
            require(earlier <= there, f"{where} of key {key!r}: {first} came before what was before it in its part")
            there.add(class_of(row.value))


# -- figures --


def _figures(keyed: Stream, tail: Tail, seen: Seen) -> dict[str, Stream]:
    name = tail.name
    return {
        f"{name}-count": keyed.count(f"{name}-counts"),
        f"{name}-sum": keyed.sum(f"{name}-sums", by=weight_of_passed),
        f"{name}-max": keyed.max(f"{name}-maxima", by=weight_of_passed),
        f"{name}-mean": keyed.mean(f"{name}-means", by=weight_of_passed),
        f"{name}-top": keyed.top_n(f"{name}-tops", 2, by=weight_of_passed).map(f"{name}-tops-of", list),
    }


def weight_of(record: Record) -> int:
    """What is summed up; no two records have the same."""
    return record.check


def weight_of_passed(passed: Passed) -> int:
    """The same, of what goes through the job."""
    return weight_of(passed.record)


def _judge_figures(tail: Tail, rows: Rows, came: list[Item]) -> None:
    """The growth of a sum shows which record came, so each figure must be that of these records."""
    rows_of = {figure: by(rows[f"{tail.name}-{figure}"], lambda row: row.key) for figure in FIGURES}
    items = keyed_by(tail, came)
    for figure, by_key in rows_of.items():
        require_same(by_key, items, f"keys of {tail.name}-{figure}")
    for key, wanted in items.items():
        where = f"figures of {tail.name}, key {key!r}"
        sums = [row.value for row in rows_of["sum"][key]]
        weights = [after - before for before, after in pairwise([0, *sums])]
        known = {weight_of(item.record): item for item in wanted}
        require_same(weights, known, where)
        require_way_order((known[weight] for weight in weights), where)
        times = [known[weight].record.time for weight in weights]
        for figure, of in FIGURES.items():
            found_times = [row.time for row in rows_of[figure][key]]
            timed = found_times == times or set(found_times) == {None}
            require(timed, f"{where}: {figure} has the timestamps {found_times}, not {times}")
            found = [row.value for row in rows_of[figure][key]]
            right = [of(weights[: n + 1]) for n in range(len(weights))]
            if figure == "top":
                found = [[weight_of_passed(passed) for passed in top] for top in found]
            require(found == right, f"{where}: {figure} is {found}, not {right}")


FIGURES: Final[dict[str, Callable[[list[int]], Any]]] = {
    "count": len,
    "sum": sum,
    "max": max,
    "mean": lambda weights: sum(weights) / len(weights),
    "top": lambda weights: sorted(weights, reverse=True)[:2],
}


# -- windows of windows --


class Outer(mp.KeyedLogic[Any, Fired, Fired, Any]):
    """Gathers the windows of a stage into wider ones."""

    def __init__(self, tail: Tail) -> None:
        self.tail = tail

    def on_data(self, message: mp.DataMessage[Any, Fired], key_state: Any, output: mp.Output[Any, Any]) -> Any:
        assert message.timestamp is not None
        width, fired = 8 * self.tail.size, message.value
        start = message.timestamp // width * width
        output.set_timer(message.key, start + width - 1)
        windows = key_state or {}
        return {**windows, start: (*windows.get(start, ()), (fired.key, fired.start, len(fired.content)))}

    def on_timer(self, key: Any, time: int, key_state: Any, output: mp.Output[Any, Any]) -> Any:
        start = time - 8 * self.tail.size + 1
        output.emit(key, Fired(self.tail.name, key, start, key_state[start]), time)
        return {other: content for other, content in key_state.items() if other != start} or None


def _windows(keyed: Stream, tail: Tail, seen: Seen) -> dict[str, Stream]:
    keyed = watched(keyed, f"{tail.name}-in", seen)
    return {tail.name: watched(keyed.stateful_op(f"{tail.name}-outer", Outer(tail)), f"{tail.name}-out", seen)}


def _judge_windows(tail: Tail, rows: Rows, came: list[tuple[int, Fired]]) -> None:
    """``came``: the windows that the stage must have fired, and when."""
    width = 8 * tail.size
    wanted = by(came, lambda pair: (outer_key(pair[1]), pair[0] // width * width))
    found = by(rows[tail.name], lambda row: (row.key, row.value.start))
    require_same(((row.key, row.value.start) for row in rows[tail.name]), wanted, f"windows of {tail.name}")
    for name, (row,) in found.items():
        content = Counter((fired.key, fired.start, len(fired.content)) for _, fired in wanted[name])
        require(Counter(row.value.content) == content, f"window {name} of {tail.name} is {row.value.content}")
        require(row.time == name[1] + width - 1, f"window {name} of {tail.name} was fired at {row.time} (T6)")


TAILS: Final = {
    "collect": TailKind(_collect, _judge_collect),
    "distinct": TailKind(_distinct, _judge_distinct),
    "figures": TailKind(_figures, _judge_figures, tuple(FIGURES)),
    "windows": TailKind(_windows, _judge_windows),
    "panes": TailKind(panes, judge_panes, PANES),
    "clocked": TailKind(clocked, judge_clocked, CLOCKED),
    "arrays": TailKind(arrays, judge_arrays, ARRAYS),
}
