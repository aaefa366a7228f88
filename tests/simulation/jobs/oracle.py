"""The expected output of a job in any schedule: computed from its layout and its input, one record at a time.

It knows no machine and no worker. What may differ between runs (which of two parts comes first, which row is late after
a silence) is taken from the outcome, and must then agree with all the rest of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.data.time import PER_SECOND
from malstrom_py.workers.reports.result import RunResult
from tests.simulation.jobs.inputs import Input
from tests.simulation.jobs.lateness import check_late, furthest, judged
from tests.simulation.jobs.layouts import End, Head, Layout, Stage, Tail, Way
from tests.simulation.jobs.records import (
    KEYS,
    NOTHING,
    Fired,
    Ident,
    Mark,
    Passed,
    Record,
    chained,
    info_of,
    is_intact,
    is_odd,
    is_poison,
    is_unreadable,
)
from tests.simulation.jobs.seen import Outcome
from tests.simulation.jobs.tails import TAILS
from tests.simulation.jobs.verdicts import Item, by, require, require_ordered, require_same, require_way_order


def check(layout: Layout, inputs: Mapping[str, Input], outcome: Outcome, *, result: RunResult | None = None) -> None:
    """`Violation` if ``outcome`` cannot be, or the counts of ``result`` are not of it."""
    # A part that moves keeps its own frontier (T2), so what leaves the sources of its worker may go back.
    broken = [*outcome.broken, *(() if outcome.rescaled else outcome.broken_at_sources)]
    require(not broken, "; ".join(broken[:3]))
    oracle = _Oracle(layout, inputs, outcome)
    oracle.check()
    if result is not None:
        oracle.counts(result)
    for (step, worker), epochs in outcome.frontiers.items():
        ended = worker in outcome.left or epochs[-1] == MAX_EPOCH
        require(ended, f"{step} on worker {worker} was left at epoch {epochs[-1]}: the maximum epoch never came (T5)")


class _Oracle:
    def __init__(self, layout: Layout, inputs: Mapping[str, Input], outcome: Outcome) -> None:
        self.layout = layout
        self.inputs = inputs
        self.outcome = outcome
        self.streams: dict[Way, list[Item]] = {}
        self.stages = {stage.name: stage for stage in layout.stages}
        self.marks: dict[str, dict[Ident, Mark]] = {name: {} for name in self.stages}
        self.fired: dict[str, list[tuple[int, Fired]]] = {}

    def check(self) -> None:
        """All of it, upstream first."""
        for head in self.layout.heads:
            self.head(head)
        for stage in self.layout.stages:
            self.split_poison(stage)
        for end in self.layout.ends:
            if end.inputs[0].lane != "windows":
                self.end(end)
        for tail in self.layout.tails:
            self.note_marks(tail)
        for stage in self.layout.stages:
            self.stage(stage)
        for tail in self.layout.tails:
            came: Any = self.fired[tail.input.feeder] if tail.kind == "windows" else self.way(tail.input)
            TAILS[tail.kind].judge(tail, self.outcome.rows, came)

    def head(self, head: Head) -> None:
        """What leaves a head, by each of its ways."""
        records = [record for source in head.sources for record in self.inputs[source].all_records()]
        letters = [record for record in records if head.mends and is_unreadable(record)]
        passed = [record for record in records if judged(record, head)]
        late = self.late(head) if head.timing is not None else set()
        strange = late - set(passed)
        require(not strange, f"{head.name}: {next(iter(strange), None)} is late, and never came there")
        self.streams[Way(head.name, "letters")] = [self.placed(record, (f"{head.name}!",)) for record in letters]
        self.streams[Way(head.name, "late")] = [Item(record) for record in passed if record in late]
        self.streams[Way(head.name)] = [Item(record) for record in passed if record not in late]

    def late(self, head: Head) -> set[Record]:
        """T1, T2, T4: the late ones, if they may be those."""
        rows = self.outcome.rows[f"{head.name}-late"]
        late = {row.value.record for row in rows}
        parts = {
            (source, part): entries for source in head.sources for part, entries in self.inputs[source].parts.items()
        }
        # An idle part is judged by what any step of its region has passed, so epochs of other heads may count.
        # T7: in a silence of all an epoch continues by the clock, from where it was.
        reached = [
            furthest([self.inputs[source].all_records() for source in other.sources], other.timing)
            + (round(self.outcome.took_s * PER_SECOND[other.timing.unit]) if other.timing.idle_s is not None else 0)
            for other in self.layout.heads
            if other.timing is not None
        ]
        appeared = {(source, part) for source, part in parts if part in self.inputs[source].appearing}
        check_late(head, parts, late, furthest_any=max(reached), appeared=appeared)
        return late

    def split_poison(self, stage: Stage) -> None:
        """What leaves a stage, by each of its ways."""
        came = [item for way in stage.inputs for item in self.way(way)]
        poison = {item for item in came if stage.poisoned and is_poison(item.record)}
        dead, alive = f"{stage.name}!", [item for item in came if item not in poison]
        self.streams[Way(stage.name, "letters")] = [self.placed(item.record, (*item.path, dead)) for item in poison]
        self.streams[Way(stage.name)] = [self.placed(item.record, (*item.path, stage.name)) for item in alive]

    def way(self, way: Way) -> list[Item]:
        """What goes there."""
        if way.lane in ("yes", "no"):
            return [item for item in self.streams[Way(way.feeder)] if is_odd(item.record) is (way.lane == "yes")]
        return self.streams[way]

    def counts(self, result: RunResult) -> None:
        """Check the counts of the run: equal to those of a run with one worker."""
        names = [*(head.name for head in self.layout.heads), *self.stages]
        wanted = {
            "read": sum(len(given.all_records()) for given in self.inputs.values()),
            "late": sum(len(self.streams[Way(head.name, "late")]) for head in self.layout.heads),
            "dead_letters": sum(len(self.streams[Way(name, "letters")]) for name in names),
            "written": sum(map(len, self.outcome.rows.values())),
        }
        for count, right in wanted.items():
            found = getattr(result, count)
            require(found == right, f"the run counts {found} {count}, not {right}")
        for stage in self.layout.stages:
            counts = result.steps[stage.name]
            alive = {item.keys[-1] for item in self.streams[Way(stage.name)]} if stage.ttl is None else set()
            require(counts.keys == len(alive), f"the run counts {counts.keys} keys at {stage.name}, not {len(alive)}")
            require(counts.epoch == MAX_EPOCH, f"the run says that {stage.name} is at epoch {counts.epoch}")

    def placed(self, record: Record, path: tuple[str, ...]) -> Item:
        """A record that has come by ``path``, with its key at each stage on it; after a head's refusal it has none."""
        stages = (self.stages.get(station.rstrip("!")) for station in path)
        return Item(record, path, tuple(None if stage is None else KEYS[stage.key](record) for stage in stages))

    # -- sinks --

    def end(self, end: End) -> None:
        """Each record is there once, whole, under its key, at its time, and after those before it on its path."""
        where, rows = f"sink {end.name}", self.outcome.rows[end.name]
        found = [self.item(row.value, where) for row in rows]
        require_same(found, (item for way in end.inputs for item in self.way(way)), where)
        timed, keyed = self.layout.is_timed(end.inputs[0]), end.inputs[0].lane != "letters"
        for row, item in zip(rows, found, strict=True):
            time = item.record.time if timed else None
            require(not row.timed or row.time == time, f"{where}: {item} has the timestamp {row.time}, not {time}")
            key = item.keys[-1] if item.keys and keyed else None
            require(row.key == key, f"{where}: {item} is under key {row.key!r}, not {key!r}")
        ordered = (((row.place, *item.way), item.record.number) for row, item in zip(rows, found, strict=True))
        require_ordered(ordered, where)

    def note_marks(self, tail: Tail) -> None:
        """Note the marks of the records in the sinks of a tail: those, and those in lists."""
        for name in TAILS[tail.kind].sinks(tail):
            for row in self.outcome.rows[name]:
                for value in row.value if isinstance(row.value, list) else [row.value]:
                    if isinstance(value, Passed):
                        self.item(value, f"sink {name}")

    def item(self, passed: Any, where: str) -> Item:
        """What is in a sink, as a record and its path; its marks are noted."""
        require(type(passed) is Passed and is_intact(passed.record), f"{where}: {passed!r} is damaged")
        path: tuple[str, ...] = ()
        for mark in passed.trail:
            marks = self.marks.setdefault(mark.stage, {})
            who = Item(passed.record, path).ident
            require(marks.setdefault(who, mark) == mark, f"{where}: {who} was counted twice by {mark.stage}")
            path = (*path, mark.stage)
        return self.placed(passed.record, path)

    # -- stages --

    def stage(self, stage: Stage) -> None:
        """The marks of each key are those of one count, in an order that the parts of sources allow."""
        marks = self.marks[stage.name]
        came = [
            item for way in stage.inputs for item in self.way(way) if not (stage.poisoned and is_poison(item.record))
        ]
        require_same(marks, (item.ident for item in came), f"marks of stage {stage.name}")
        keys = by(came, lambda item: KEYS[stage.key](item.record))
        for key, items in keys.items():
            where = f"stage {stage.name}, key {key!r}"
            self.answer(stage, key, items, where)
            for life in self.lives(stage, items, where):
                self.tally(life, marks, where)
        if stage.kind in ("logic", "batch", "windows"):
            self.final(stage, keys)
        if stage.window is not None:
            self.windows(stage, stage.window, keys)

    def answer(self, stage: Stage, key: Any, items: list[Item], where: str) -> None:
        """What an enriching step has said about each."""
        answer = info_of(key) if stage.enriched else None
        for item in items:
            mark = self.marks[stage.name][item.ident]
            require(mark.answer == answer, f"{where}: {item} got {mark.answer}, not {answer}")

    def lives(self, stage: Stage, items: list[Item], where: str) -> list[list[Item]]:
        """The records of a key in the order in which they were counted; with a ttl apart for each life of its state."""
        marks = self.marks[stage.name]
        in_turn = sorted(items, key=lambda item: marks[item.ident].n)
        if stage.ttl is None:
            return [in_turn]
        lives: dict[int, list[Item]] = {}
        for item in in_turn:
            mark = marks[item.ident]
            before = next((d for d, life in lives.items() if chained(d, item.ident) == mark.digest), None)
            require(before is not None or mark.n == 1, f"{where}: {item} is number {mark.n} without a predecessor")
            lives[mark.digest] = [*(() if before is None else lives.pop(before)), item]
        found = list(lives.values())
        self.expired(stage, stage.ttl, found, where)
        return found

    def expired(self, stage: Stage, ttl: int, lives: list[list[Item]], where: str) -> None:
        """A record finds no state if it is later than the latest one before it + ``ttl``, and only then."""
        lives.sort(key=lambda life: life[0].record.time)
        reach: int | None = None
        for life in lives:
            for n, item in enumerate(life):
                time = item.record.time
                gone = reach is not None and time > reach
                require(gone or reach is None or n > 0, f"{where}: the state was gone at {time}, before {reach}")
                require(not (gone and n > 0), f"{where}: the state of {reach} was still there at {time}")
                reach = max(item.record.time + ttl, reach if reach is not None and n > 0 else item.record.time + ttl)

    def tally(self, items: list[Item], marks: dict[Ident, Mark], where: str) -> None:
        """One count, record by record."""
        n, digest, sources = 0, 0, dict[str, int]()
        for item in items:
            source = item.record.source
            n, digest, sources[source] = n + 1, chained(digest, item.ident), sources.get(source, 0) + 1
            mark = marks[item.ident]
            right = Mark(mark.stage, n, digest, sources[source], mark.answer)
            require(mark == right, f"{where}: {item} has {mark}, not {right}")
        require_way_order(items, where)

    def final(self, stage: Stage, keys: Mapping[Any, list[Item]]) -> None:
        """At the maximum epoch each key's state is what counting all of its records in turn gives, in one place."""
        rows = self.outcome.rows[f"{stage.name}-final"]
        where = f"final states of {stage.name}"
        require_same((row.key for row in rows), keys, where)
        states = {row.key: row.value for row in rows}
        for key, items in keys.items():
            last = max((self.marks[stage.name][item.ident] for item in items), key=lambda mark: mark.n)
            sources = by(items, lambda item: item.record.source)
            counted = (last.n, last.digest, tuple(sorted((source, len(found)) for source, found in sources.items())))
            require(states[key] == ((counted or NOTHING), 0), f"{where}: key {key!r} has {states[key]}, not {counted}")

    def windows(self, stage: Stage, width: int, keys: Mapping[Any, list[Item]]) -> None:
        """Each window of each key fires once, at its end, with all that was in it, in an order that parts allow."""
        where, fired = f"windows of {stage.name}", self.fired.setdefault(stage.name, [])
        items = [(key, item) for key, came in keys.items() for item in came]
        wanted = by(items, lambda pair: (pair[0], pair[1].record.time // width))
        rows = self.outcome.rows[f"{stage.name}-windows"]
        require_same(((row.key, row.value.start // width) for row in rows), wanted, where)
        for row in rows:
            window = row.value
            name = f"{where}: window {window.start} of key {row.key!r}"
            require(window.stage == stage.name and window.key == row.key, f"{name} is {window!r}")
            require(window.start % width == 0, f"{name} begins in the middle of another")
            known = {item.ident: item for _, item in wanted[row.key, window.start // width]}
            require_same(window.content, known, name)
            require_way_order((known[who] for who in window.content), name)
            require(row.time == window.start + width - 1, f"{name} was fired at {row.time}, not at its end (T6)")
            fired.append((window.start + width - 1, window))
