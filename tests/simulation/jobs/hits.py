"""The properties that jobs and their input must hit: a case without a hit is not tested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from malstrom_py.workers.simulator.coverage import HARD_CASES as RUNTIME_CASES
from malstrom_py.workers.simulator.coverage import SNAPSHOT_CASES
from tests.simulation.jobs.arrays import ARRAY_CASES
from tests.simulation.jobs.counting import KINDS
from tests.simulation.jobs.jobs import SHAPES, Case
from tests.simulation.jobs.lateness import IDLE_POLLS, judged, late_by_itself
from tests.simulation.jobs.layouts import Head
from tests.simulation.jobs.records import FUTURE, Record
from tests.simulation.jobs.seen import Outcome
from tests.simulation.jobs.tails import TAILS

SINKS: Final = ("committed", "written", "parts", "memory")

JOB_CASES: Final = (
    *(f"shape {shape}" for shape in SHAPES),
    *(f"counted by {kind}" for kind in KINDS),
    *(f"tail of {kind}" for kind in TAILS),
    *(f"sink {sink}" for sink in SINKS),
    "keyed by index",
    "keyed by a custom partitioner",
    "one slot",
    "equal keys of other types",
    "heavy key",
    "joined before keys",
    "joined after keys",
    "timed",
    "untimed",
    "windows at two stages",
    "window fired",
    "late record",
    "late after a silence",
    "future record",
    "silent part",
    "empty part",
    "source without parts",
    "no record at all",
    "source in memory",
    "source of columns",
    "few parts open at a time",
    "dead letter of a source",
    "dead letter of a key",
    "state gone by its ttl",
    "part opened at its position",
    "part of a sink moved",
)
"""What jobs are like, and what their sources and sinks have met."""

HARD_CASES: Final = (*JOB_CASES, *ARRAY_CASES, *RUNTIME_CASES, *SNAPSHOT_CASES)


def hits_of(case: Case, outcome: Outcome) -> Counter[str]:
    """What was special about a case, and how often."""
    hits = Counter(_of_layout(case))
    hits.update(_of_input(case))
    for head in case.layout.heads:
        if head.timing is not None:
            hits += _of_late(case, head, outcome)
    rows = outcome.rows
    hits["window fired"] = sum(len(rows[f"{stage.name}-windows"]) for stage in case.layout.stages if stage.window)
    for end in case.layout.ends:
        letters = [way for way in end.inputs if way.lane == "letters"]
        heads = {head.name for head in case.layout.heads}
        hits["dead letter of a source"] += len(rows[end.name]) if any(way.feeder in heads for way in letters) else 0
        hits["dead letter of a key"] += len(rows[end.name]) if any(way.feeder not in heads for way in letters) else 0
    ttl = {stage.name for stage in case.layout.stages if stage.ttl is not None}
    marks = {
        (mark.stage, row.key, mark.digest): mark.n
        for end in case.layout.ends
        for row in (rows[end.name] if end.inputs[0].feeder in ttl else ())
        for mark in row.value.trail
        if mark.stage in ttl
    }
    first = Counter((stage, key) for (stage, key, _), n in marks.items() if n == 1)
    hits["state gone by its ttl"] += sum(count - 1 for count in first.values())
    del hits[""]
    return hits


def _of_layout(case: Case) -> Iterator[str]:
    layout = case.layout
    yield f"shape {case.shape}"
    yield "timed" if any(head.timing is not None for head in layout.heads) else "untimed"
    yield from (f"tail of {tail.kind}" for tail in layout.tails)
    yield from (f"sink {end.sink}" for end in layout.ends)
    for stage in layout.stages:
        yield f"counted by {stage.kind}"
        yield {"index": "keyed by index", "own": "keyed by a custom partitioner"}.get(stage.partitioner, "")
        if len(stage.inputs) > 1:
            yield "joined after keys" if stage.apart else "joined before keys"
    if sum(stage.window is not None for stage in layout.stages) > 1:
        yield "windows at two stages"
    if case.slots == 1:
        yield "one slot"


def _of_input(case: Case) -> Iterator[str]:
    for given in case.inputs.values():
        records = given.all_records()
        yield {"memory": "source in memory", "columns": "source of columns"}.get(given.kind, "")
        if given.open_max is not None and given.open_max < len(given.parts) and given.kind != "memory":
            yield "few parts open at a time"
        if any(isinstance(entry, int) and entry >= IDLE_POLLS for part in given.parts.values() for entry in part):
            yield "silent part"
        if not given.parts:
            yield "source without parts"
        if any(not part for part in given.parts.values()):
            yield "empty part"
        if any(record.key == 1 and type(record.key) is not int for record in records):
            yield "equal keys of other types"
        counted = Counter(repr(record.key) for record in records)
        if len(counted) > 2 and counted.most_common(1)[0][1] > len(records) / 2:
            yield "heavy key"
    if not any(given.all_records() for given in case.inputs.values()):
        yield "no record at all"


def _of_late(case: Case, head: Head, outcome: Outcome) -> Counter[str]:
    assert head.timing is not None
    late: set[Record] = {row.value.record for row in outcome.rows[f"{head.name}-late"]}
    own: set[Record] = set()
    for source in head.sources:
        for part in case.inputs[source].parts:
            records = [record for record in case.inputs[source].records(part) if judged(record, head)]
            own |= late_by_itself(records, head.timing)
    return Counter(
        {
            "late record": len(own),
            "late after a silence": len(late - own),
            "future record": sum(record.time >= FUTURE for record in late),
        }
    )
