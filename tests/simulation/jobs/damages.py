"""Damages to what a run has shown. Each is one that no run can show, so the oracle must object to it.

A damage takes a copy of an outcome, and says whether it found something to damage.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, Final

from tests.simulation.jobs.layouts import Layout
from tests.simulation.jobs.records import KEYS, Fired, Passed
from tests.simulation.jobs.seen import Outcome, Row
from tests.simulation.jobs.verdicts import by

Damage = Callable[[Layout, Outcome, random.Random], bool]

Place = tuple[list[Row], int]
"""A row: the list of its sink, and its place there."""


def damaged(damage: Damage, layout: Layout, outcome: Outcome, rng: random.Random) -> Outcome | None:
    """``outcome`` with one ``damage``; None if there is nothing to damage in that way."""
    broken = Outcome(
        {name: list(rows) for name, rows in outcome.rows.items()},
        copy.deepcopy(outcome.frontiers),
        list(outcome.broken),
        list(outcome.broken_at_sources),
        outcome.hits,
        outcome.left,
        outcome.rescaled,
        outcome.took_s,
    )
    return broken if damage(layout, broken, rng) else None


def _any(places: Iterable[Place], rng: random.Random) -> Place | None:
    found = list(places)
    return rng.choice(found) if found else None


def _places(outcome: Outcome) -> Iterator[Place]:
    return ((rows, at) for rows in outcome.rows.values() for at in range(len(rows)))


def _with(outcome: Outcome, kind: type) -> Iterator[Place]:
    return ((rows, at) for rows, at in _places(outcome) if type(rows[at].value) is kind)


def drop(layout: Layout, outcome: Outcome, rng: random.Random) -> bool:
    """A row is lost."""
    place = _any(_places(outcome), rng)
    if place is not None:
        del place[0][place[1]]
    return place is not None


def duplicate(layout: Layout, outcome: Outcome, rng: random.Random) -> bool:
    """A row is there twice."""
    place = _any(_places(outcome), rng)
    if place is not None:
        place[0].append(place[0][place[1]])
    return place is not None


def _way(layout: Layout, row: Row) -> Any:
    """That on which a row keeps its order: of records their way, of figures their key."""
    value = row.value
    if type(value) is Passed:
        stages = {stage.name: stage for stage in layout.stages}
        keys = [
            KEYS[stages[mark.stage.rstrip("!")].key](value.record) if mark.stage.rstrip("!") in stages else None
            for mark in value.trail
        ]
        stations = tuple(mark.stage for mark in value.trail)
        return (row.place, row.key, value.record.source, value.record.part, stations, tuple(keys))
    return row.key if isinstance(value, int | float) else None


def swap(layout: Layout, outcome: Outcome, rng: random.Random) -> bool:
    """Two rows of one key, part and path have changed places."""
    pairs: list[tuple[list[Row], int, int]] = []
    for rows in outcome.rows.values():
        ways = by(((at, _way(layout, row)) for at, row in enumerate(rows)), lambda place: place[1])
        for way, places in ways.items():
            pairs += [(rows, a, b) for (a, _), (b, _) in pairwise(places) if way is not None]
    pairs = [(rows, a, b) for rows, a, b in pairs if rows[a].value != rows[b].value]
    if not pairs:
        return False
    rows, a, b = rng.choice(pairs)
    rows[a], rows[b] = rows[b], rows[a]
    return True


def _window(layout: Layout, outcome: Outcome, rng: random.Random, change: Callable[[Fired], Fired]) -> bool:
    place = _any(_with(outcome, Fired), rng)
    if place is not None:
        rows, at = place
        rows[at] = rows[at]._replace(value=change(rows[at].value))
    return place is not None


def lessen_window(layout: Layout, outcome: Outcome, rng: random.Random) -> bool:
    """A window has fired without its first record."""
    return _window(layout, outcome, rng, lambda fired: fired._replace(content=fired.content[1:]))


def fill_window(layout: Layout, outcome: Outcome, rng: random.Random) -> bool:
    """A window has a record twice."""
    return _window(layout, outcome, rng, lambda fired: fired._replace(content=(*fired.content, fired.content[0])))


def move_window(layout: Layout, outcome: Outcome, rng: random.Random) -> bool:
    """A window is another one."""
    return _window(layout, outcome, rng, lambda fired: fired._replace(start=fired.start + 1000))


def split_window(layout: Layout, outcome: Outcome, rng: random.Random) -> bool:
    """A window has fired twice, each time with a part of its content."""
    place = _any((place for place in _with(outcome, Fired) if len(place[0][place[1]].value.content) > 1), rng)
    if place is None:
        return False
    rows, at = place
    fired = rows[at].value
    rows.append(rows[at]._replace(value=fired._replace(content=fired.content[1:])))
    rows[at] = rows[at]._replace(value=fired._replace(content=fired.content[:1]))
    return True


def spoil(layout: Layout, outcome: Outcome, rng: random.Random) -> bool:
    """A record is not what it was."""
    place = _any(_with(outcome, Passed), rng)
    if place is not None:
        rows, at = place
        record = rows[at].value.record
        rows[at] = rows[at]._replace(value=rows[at].value._replace(record=record._replace(time=record.time + 1)))
    return place is not None


def forget(layout: Layout, outcome: Outcome, rng: random.Random) -> bool:
    """A key's state was reset in the middle: a record is counted as the first, where it is not."""
    marked = [
        (rows, at, number)
        for rows, at in _with(outcome, Passed)
        for number, mark in enumerate(rows[at].value.trail)
        if mark.n > 1
    ]
    if not marked:
        return False
    rows, at, number = rng.choice(marked)
    trail = list(rows[at].value.trail)
    trail[number] = trail[number]._replace(n=1, of_source=1)
    rows[at] = rows[at]._replace(value=rows[at].value._replace(trail=tuple(trail)))
    return True


def misplace(layout: Layout, outcome: Outcome, rng: random.Random) -> bool:
    """A row is under another key."""
    place = _any(((rows, at) for rows, at in _places(outcome) if rows[at].key is not None), rng)
    if place is not None:
        place[0][place[1]] = place[0][place[1]]._replace(key="another")
    return place is not None


def delay(layout: Layout, outcome: Outcome, rng: random.Random) -> bool:
    """A row has a time that is not its own."""
    sinks = {end.name for end in layout.ends} | {tail.name for tail in layout.tails}
    timed = (rows for name, rows in outcome.rows.items() if name in sinks)
    place = _any(((rows, at) for rows in timed for at in range(len(rows)) if rows[at].time is not None), rng)
    if place is not None:
        row = place[0][place[1]]
        place[0][place[1]] = row._replace(time=(row.time or 0) + 1)
    return place is not None


def refuse(layout: Layout, outcome: Outcome, rng: random.Random) -> bool:
    """A record that went through the whole job was late as well."""
    heads = [head.name for head in layout.heads if head.timing is not None]
    name = rng.choice(heads) if heads else ""
    sources = next((head.sources for head in layout.heads if head.name == name), ())
    through = (p for end in layout.ends if end.inputs[0].lane == "all" for p in [(outcome.rows[end.name])])
    found = [
        row for rows in through for row in rows if type(row.value) is Passed and row.value.record.source in sources
    ]
    if found:
        row = rng.choice(found)
        outcome.rows[f"{name}-late"].append(Row(None, Passed(row.value.record), row.value.record.time))
    return bool(found)


def stop_short(layout: Layout, outcome: Outcome, rng: random.Random) -> bool:
    """The maximum epoch did not come everywhere."""
    moves = [epochs for epochs in outcome.frontiers.values() if len(epochs) > 1]
    if moves:
        rng.choice(moves).pop()
    return bool(moves)


DAMAGES: Final[tuple[Damage, ...]] = (
    drop,
    duplicate,
    swap,
    lessen_window,
    fill_window,
    move_window,
    split_window,
    spoil,
    forget,
    misplace,
    delay,
    refuse,
    stop_short,
)
