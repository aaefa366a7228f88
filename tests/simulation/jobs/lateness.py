"""Who may be late, and who must be: T1 and T4 for each part by itself, T2 where a part can have been idle."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from malstrom_py.data.messages import MIN_EPOCH
from tests.simulation.jobs.inputs import Entry
from tests.simulation.jobs.layouts import Head, Timing
from tests.simulation.jobs.records import FUTURE, Record, is_sifted, is_unreadable
from tests.simulation.jobs.verdicts import Violation, require

IDLE_POLLS: int = 2
"""A part is idle at its second poll in a row that brings nothing, at the earliest."""


def judged(record: Record, head: Head) -> bool:
    """Return whether a record reaches the step that makes epochs."""
    return not (head.mends and is_unreadable(record)) and not (head.sifts and is_sifted(record))


def late_by_itself(records: Iterable[Record], timing: Timing) -> set[Record]:
    """T1, T4: those of one part that are late by its own running epoch, or too far in the future."""
    late, epoch = set(), MIN_EPOCH
    for record in records:
        if (timing.ahead and record.time >= FUTURE) or record.time <= epoch:
            late.add(record)
        else:
            epoch = max(epoch, record.time - timing.bound - 1)
    return late


def furthest(parts: Iterable[Sequence[Record]], timing: Timing) -> int:
    """No epoch of these parts can be larger, below the maximum."""
    on_time = [record.time for part in parts for record in part if not (timing.ahead and record.time >= FUTURE)]
    return max(on_time) - timing.bound - 1 if on_time else MIN_EPOCH


def segments(entries: Sequence[Entry], head: Head) -> list[list[Record]]:
    """The records of a part between the silences in which it can have been idle."""
    runs: list[list[Record]] = [[]]
    for entry in entries:
        if isinstance(entry, Record):
            if judged(entry, head):
                runs[-1].append(entry)
        elif entry >= IDLE_POLLS:
            runs.append([])
    return runs


def check_late(
    head: Head,
    parts: Mapping[tuple[str, str], Sequence[Entry]],
    late: set[Record],
    *,
    furthest_any: int,
    appeared: Collection[tuple[str, str]] = (),
) -> None:
    """``parts``: (source, part) -> entries, of all sources of ``head``. `Violation` if ``late`` cannot be.

    A part that has ``appeared`` while the job ran begins as one that wakes (R13).
    """
    timing = head.timing
    assert timing is not None
    for name, entries in parts.items():
        runs = segments(entries, head)
        if name in appeared:
            runs = [[], *(runs if timing.idle_s is not None else [[record for run in runs for record in run]])]
        own = late_by_itself((record for run in runs for record in run), timing)
        missing = own - late
        require(not missing, f"{_some(missing)} of part {name} is late, and was not found so (T1, T4)")
        woken = {record for run in runs for record in run if record in late and record not in own}
        if woken and timing.idle_s is None and name not in appeared:
            raise Violation(f"{_some(woken)} of part {name} is falsely late (T1)")
        _check_woken(name, runs, late, woken, furthest_any)


def _check_woken(
    name: tuple[str, str], runs: list[list[Record]], late: set[Record], woken: set[Record], furthest_any: int
) -> None:
    """T2: a part that wakes is judged by one epoch from there on, which others had reached without it."""
    floor = MIN_EPOCH
    for number, run in enumerate(runs):
        raised = [record.time for record in run if record in woken]
        require(number > 0 or not raised, f"{run[:1]} of part {name}: late before the part can have been idle (T2)")
        floor = max([floor, *raised])
        require(
            floor <= furthest_any, f"part {name} is late by {floor}, and no epoch was ever beyond {furthest_any} (T2)"
        )
        for record in run:
            on_time = record in late or record.time > floor
            require(on_time, f"{record} is on time, and one at {floor} after the same silence was late (T2)")


def _some(records: set[Record]) -> str:
    return repr(min(records, key=repr)) if records else "nothing"
