"""Restores of a snapshot on another number of workers: a job is lost in its middle and resumes.

Rule: nothing is left to the schedule. Half of the records are read when the snapshot is asked for, and part of the
others when the job is lost; so each snapshot covers positions, timers, keys, lists and sinks, and rows to take back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import malstrom_py as mp
from malstrom_py.snapshot.store import MemoryStore
from tests.simulation.jobs.driving import Driven, Steered
from tests.simulation.jobs.feeding import Fed
from tests.simulation.jobs.layouts import Head, Layout, Stage, Tail, Timing, Way
from tests.simulation.jobs.verdicts import Violation, require

PARTS: Final = ("0", "1", "2")
KEYS: Final = 5
ROWS: Final = 6
"""The records of each part before the snapshot; as many follow after it."""

LOST_AFTER: Final = 60
"""The turns of the job between its snapshot and its loss."""

TURNS_MAX: Final = 20_000

LAYOUT: Final = Layout(
    (Head("s", ("s",), Timing(4, "ms")), Head("t", ("t",), Timing(4, "ms"))),
    (
        Stage("a", (Way("s"), Way("t")), kind="windows", window=10, apart=True),
        Stage("b", (Way("a"),), key="number", ttl=5),
    ),
    (Tail("lists", Way("a"), "collect", "number", 5),),
).finished()
"""Two sources with event time, windows by timers, keys that go by their ttl, and lists, each after an exchange."""


def crossed(before: int, after: int) -> Counter[str]:
    """Return the hits of a job that resumes with ``after`` workers from a snapshot of ``before``. `Violation` if it is
    wrong.
    """
    feds = {name: Fed(name, parts=dict.fromkeys(PARTS, ()), chunk=1) for name in "st"}
    snapshots = mp.Snapshots(MemoryStore(), interval_s=None)
    driven = Driven(
        LAYOUT, feds, Steered(before), workers=before, slots=64, batching=mp.Batching(rows_max=2), snapshots=snapshots
    )
    feed(feds, 0)
    until(driven, lambda: all(fed.silences[part, ROWS] for fed in feds.values() for part in PARTS))
    driven.snapshot()
    until(driven, lambda: driven.coverage.hits["snapshot completed"] == 1)
    feed(feds, ROWS)
    for _ in range(LOST_AFTER):
        driven.turn()
    (saved,) = snapshots.checkpointer("driven").list_checkpoints()
    manifest = snapshots.checkpointer("driven").load_manifest(saved)
    require(manifest.workers == before, f"the snapshot is of {manifest.workers} workers")
    require(all(len(manifest.sources[name]) == len(PARTS) for name in feds), "it has the parts of both sources")
    driven.crash("worker", after)
    driven.end()
    return driven.coverage.hits


def feed(feds: dict[str, Fed], first: int) -> None:
    """The records of each part from ``first`` on, some parts ahead of others; the very last of each is late."""
    for ahead, fed in enumerate(feds.values()):
        for part in PARTS:
            for number in range(first, first + ROWS):
                fed.feed(part, (number + int(part)) % KEYS, 3 * number + ahead + int(part))
            if first:
                fed.feed(part, 0, 0)


def until(driven: Driven, holds: Callable[[], bool]) -> None:
    """Let chance decide, until something holds."""
    for _ in range(TURNS_MAX):
        if holds():
            return
        driven.turn()
    raise Violation(f"{TURNS_MAX} turns, and what was waited for has not come (P8)")
