"""Jobs drawn from a seed: shapes, what their stages do, what their sources have; and a case, which is one of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import malstrom_py as mp
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.reports.result import RunResult
from tests.simulation.jobs.building import build
from tests.simulation.jobs.counting import KINDS, LASTING, MAY_FAIL
from tests.simulation.jobs.inputs import Input, draw_input, grown
from tests.simulation.jobs.layouts import End, Head, Layout, Stage, Tail, Timing, Way
from tests.simulation.jobs.oracle import check
from tests.simulation.jobs.records import COLUMN_KEYS, KEYS, WHOLE_KEYS
from tests.simulation.jobs.seen import Outcome, Seen


@dataclass
class Case:
    """A job with its input. `job` builds a new instance, with a new clock and new sinks."""

    shape: str
    layout: Layout
    inputs: Mapping[str, Input]
    slots: int
    seen: Seen = field(default_factory=Seen, repr=False)

    @property
    def clock(self) -> VirtualClock:
        """The clock of the job that was built last, which its sources know."""
        clock: VirtualClock = self.seen.clock
        return clock

    def job(self, *, slow_polls: bool = False, slow_s: float = 0.0, kept: bool = False) -> mp.Job:
        """The job, new. ``slow_polls``: polls that bring nothing take time of its clock; else the runtime moves it.

        ``slow_s``: how long it takes to read a row, and to write one. ``kept``: it will have snapshots.
        """
        self.seen = Seen(clock=VirtualClock(start_s=1_000.0), slow_polls=slow_polls, slow_s=slow_s, kept=kept)
        return build(self.shape, self.layout, self.inputs, self.seen, slots=self.slots)

    def check(self, outcome: Outcome, *, result: RunResult | None = None) -> None:
        """`Violation` if ``outcome`` cannot be, or the counts of ``result`` are not of it."""
        check(self.layout, self.inputs, outcome, result=result)


class Draw:
    """Draws what shapes leave open."""

    def __init__(self, rng: random.Random, *, timed: bool | None = None) -> None:
        self.rng = rng
        self.timed = rng.random() < 0.65 if timed is None else timed
        self.unit = rng.choice(["s", "ms", "us"])
        self.columns = False

    def chance(self, probability: float) -> bool:
        """Whether something rare happens."""
        return self.rng.random() < probability

    def head(self, name: str, *sources: str, **given: object) -> Head:
        """A head; of records in columns if the whole job is."""
        timing = None
        if self.timed:
            idle_s = self.rng.choice([None, None, 0.02, 0.2])
            timing = Timing(self.rng.choice([0, 2, 6, 15]), self.unit, idle_s, ahead=self.chance(0.3))
        mends, sifts = not self.columns and self.chance(0.15), self.chance(0.15)
        drawn = Head(name, sources or (name,), timing, mends=mends, sifts=sifts, columns=self.columns)
        return replace(drawn, **given)  # type: ignore[arg-type]

    def stage(self, name: str, *inputs: str | Way, **given: object) -> Stage:
        """A stage. Windows need time; partitioners by number need numbers."""
        ways = tuple(way if isinstance(way, Way) else Way(way) for way in inputs)
        key = self.rng.choice(COLUMN_KEYS if self.columns and name == "a" else list(KEYS))
        partitioner = self.rng.choice(["stable_hash", "index", "own"]) if key in WHOLE_KEYS else "stable_hash"
        epochs = self.timed and not any(way.lane in ("late", "letters") for way in ways)
        kind = self.rng.choice([kind for kind in KINDS if kind != "windows"])
        kind = str(given.pop("kind", kind))
        if kind == "windows" or (epochs and "ttl" not in given and self.chance(0.5)):
            kind = "windows" if epochs else "logic"
        return replace(
            Stage(
                name,
                ways,
                key,
                kind,
                apart=len(ways) > 1 and self.chance(0.5),
                partitioner=partitioner,
                window=self.rng.choice([1, 4, 10]) if kind == "windows" else None,
                poisoned=kind in MAY_FAIL and self.chance(0.2),
            ),
            **given,  # type: ignore[arg-type]
        )

    def layout(self, heads: list[Head], stages: list[Stage], *, ends: tuple[End, ...] = ()) -> Layout:
        """A layout with an end for everything, of some kind of sink."""
        tails: tuple[Tail, ...] = ()
        windowed = [stage for stage in stages if stage.window is not None]
        if windowed and self.chance(0.15):
            tails = (
                Tail("outer", Way(self.rng.choice(windowed).name, "windows"), "windows", size=self.rng.randint(1, 3)),
            )
        return self.finished(Layout(tuple(heads), tuple(stages), tails, ends))

    def finished(self, layout: Layout) -> Layout:
        """``layout`` with ends, each with a sink of some kind."""
        first, *ends = layout.finished().ends
        # One is transactional, because only such a sink learns that a job restarts.
        return replace(layout, ends=(first, *(self._end(end, layout) for end in ends)))

    def _end(self, end: End, layout: Layout) -> End:
        kinds = ["committed", "committed", "committed", "written"]
        if all(way.lane in ("all", "yes", "no", "letters", "late") for way in end.inputs):
            kinds.append("parts")
        if all(way.lane in ("all", "yes", "no") and layout.head(way.feeder) is None for way in end.inputs):
            kinds += ["memory", "memory"]
        return replace(end, sink=self.rng.choice(kinds))


# -- shapes --


def _chain(draw: Draw, length: int) -> Layout:
    stages = [draw.stage(name, before) for before, name in zip(("s", *"ab"), "abc"[:length], strict=False)]
    return draw.layout([draw.head("s")], stages)


def _linear(draw: Draw) -> Layout:
    """One keyed stage."""
    return _chain(draw, 1)


def _two_stages(draw: Draw) -> Layout:
    """One keyed stage after another."""
    return _chain(draw, 2)


def _three_stages(draw: Draw) -> Layout:
    """Three keyed stages in a row."""
    return _chain(draw, 3)


def _union(draw: Draw) -> Layout:
    """Two sources joined before they are keyed: before or after their epochs."""
    if draw.chance(0.5):
        return draw.layout([draw.head("s", "s1", "s2")], [draw.stage("a", "s")])
    return draw.layout([draw.head("s"), draw.head("t")], [draw.stage("a", "s", "t", apart=False)])


def _two_inputs(draw: Draw) -> Layout:
    """A keyed step with two inputs, which are keyed apart."""
    stages = [draw.stage("a", "s", "t", apart=True)]
    if draw.chance(0.4):
        stages.append(draw.stage("b", "a"))
    return draw.layout([draw.head("s"), draw.head("t")], stages)


def _rejoin(draw: Draw) -> Layout:
    """Split by a branch, keyed on each way, and joined again."""
    head, apart = draw.head("s"), draw.chance(0.7)
    a, b = draw.stage("a", Way("s", "yes")), draw.stage("b", Way("s", "no"))
    if not apart:  # what is joined before it is keyed again must have been keyed alike
        b = replace(b, key=a.key, partitioner=a.partitioner)
    return draw.layout([head], [a, b, draw.stage("c", "a", "b", apart=apart)])


def _diamond(draw: Draw) -> Layout:
    """Everything by two ways, and joined again."""
    return draw.layout(
        [draw.head("s")], [draw.stage("a", "s"), draw.stage("b", "s"), draw.stage("c", "a", "b", apart=True)]
    )


def _several_sources(draw: Draw) -> Layout:
    """Sources at different distances from the last stage."""
    stages = [draw.stage("a", "s"), draw.stage("b", "t"), draw.stage("c", "a", "b", "u", apart=True)]
    return draw.layout([draw.head("s"), draw.head("t"), draw.head("u")], stages)


def _late(draw: Draw) -> Layout:
    """Late records are counted, too, in a region without epochs."""
    return draw.layout([draw.head("s")], [draw.stage("a", "s"), draw.stage("l", Way("s", "late"))])


def _letters(draw: Draw) -> Layout:
    """Dead letters of a source region and of a keyed one, joined in one sink."""
    heads = [draw.head("s", mends=True), draw.head("t")]
    stages = [draw.stage("a", "t", kind=draw.rng.choice(MAY_FAIL), poisoned=True)]
    both = End("letters", (Way("s", "letters"), Way("a", "letters")))
    return draw.layout(heads, stages, ends=(both,))


def _mixed(draw: Draw) -> Layout:
    """The same, and counted: a region that has a source and an exchange feeds another."""
    heads = [draw.head("s", mends=True), draw.head("t")]
    stages = [
        draw.stage("a", "t", kind=draw.rng.choice(MAY_FAIL), poisoned=True),
        draw.stage("m", Way("s", "letters"), Way("a", "letters"), apart=False),
    ]
    return draw.layout(heads, stages)


def _ttl(draw: Draw) -> Layout:
    """State that goes when a key has been silent."""
    stage = draw.stage("a", "s", kind=draw.rng.choice(LASTING), ttl=draw.rng.choice([1, 2, 5]))
    stages = [stage, draw.stage("b", "a")][: draw.rng.choice([1, 1, 2])]
    return draw.layout([draw.head("s", timing=Timing(draw.rng.choice([0, 0, 4]), draw.unit))], stages)


def _enriched(draw: Draw) -> Layout:
    """An asynchronous step before the first stage, or the second. Where there are no epochs it is busy at barriers."""
    draw.timed = draw.timed and draw.chance(0.4)
    stages = [draw.stage("a", "s"), draw.stage("b", "a")][: draw.rng.choice([1, 2])]
    stages[-1] = replace(stages[-1], enriched=True)
    return draw.layout([draw.head("s")], stages)


def _columns(draw: Draw) -> Layout:
    """Records as columns, until after the first exchange."""
    draw.columns = True
    stages = [draw.stage("a", "s"), draw.stage("b", "a")][: draw.rng.choice([1, 2])]
    return draw.layout([draw.head("s", *draw.rng.choice([(), ("s1", "s2")]))], stages)


def _arrays(draw: Draw) -> Layout:
    """State of keys in arrays, of figures and windows; at times with a stage that counts rows."""
    draw.columns = True
    stages = [draw.stage("a", "s")] if draw.chance(0.3) else []
    demoted = draw.rng.choice([None, None, "rows", "overflow"])
    key, size = draw.rng.choice(COLUMN_KEYS), draw.rng.randint(1, 4)
    tail = Tail("arrays", Way("s"), "arrays", key, size, demoted=demoted)
    return draw.finished(Layout((draw.head("s"),), tuple(stages), (tail,)))


def _tail(kind: str) -> Callable[[Draw], Layout]:
    def shape(draw: Draw) -> Layout:
        stages = [draw.stage("a", "s")] if draw.chance(0.5) else []
        every_s = draw.rng.choice([None, None, 0.5]) if kind == "collect" else None
        before = Way("a") if stages else Way("s")
        tail = Tail(kind, before, kind, draw.rng.choice(list(KEYS)), draw.rng.randint(1, 4), every_s)
        return draw.finished(Layout((draw.head("s"),), tuple(stages), (tail,)))

    return shape


def _windows_of_windows(draw: Draw) -> Layout:
    """The output of windows goes into wider windows, after another exchange."""
    stage = draw.stage("a", "s", kind="windows")
    tail = Tail("outer", Way("a", "windows"), "windows", size=draw.rng.randint(1, 3))
    return draw.finished(Layout((draw.head("s"),), (stage,), (tail,)))


SHAPES: Final[dict[str, tuple[Callable[[Draw], Layout], bool | None]]] = {
    "linear": (_linear, None),
    "two-stages": (_two_stages, None),
    "three-stages": (_three_stages, None),
    "union": (_union, None),
    "two-inputs": (_two_inputs, None),
    "rejoin": (_rejoin, None),
    "diamond": (_diamond, None),
    "several-sources": (_several_sources, None),
    "late": (_late, True),
    "letters": (_letters, None),
    "mixed": (_mixed, None),
    "ttl": (_ttl, True),
    "enriched": (_enriched, None),
    "columns": (_columns, None),
    "collect": (_tail("collect"), None),
    "distinct": (_tail("distinct"), None),
    "figures": (_tail("figures"), None),
    "windows-of-windows": (_windows_of_windows, True),
    "panes": (_tail("panes"), True),
    "clocked": (_tail("clocked"), None),
    "arrays": (_arrays, True),
}
"""How each is drawn, and whether it is timed where that is not left to chance."""

WEIGHTS: Final = {
    "enriched": 10,
    "columns": 2,
    "two-stages": 8,
    "three-stages": 6,
    "rejoin": 4,
    "several-sources": 4,
    "diamond": 3,
}
"""How often a shape is drawn; the others: 4."""


INSTEAD: Final = {"figures": "clocked", "windows-of-windows": "panes", "linear": "arrays", "distinct": "arrays"}
"""Shapes that are drawn in every other case instead of another."""


GROWING: Final = 0.06
"""The share of the cases with a source whose parts appear while the job runs."""


def draw(rng: random.Random, *, shape: str | None = None, growing: float = GROWING) -> Case:
    """A case of ``shape``, or of any. ``growing``: how probable it is that parts appear."""
    first = [shape for shape in SHAPES if shape not in INSTEAD.values()]
    name = shape or rng.choices(first, [WEIGHTS.get(shape, 4) for shape in first])[0]
    if shape is None and name in INSTEAD and rng.random() < 0.5:
        name = INSTEAD[name]
    make, timed = SHAPES[name]
    drawing = Draw(rng, timed=timed)
    layout = make(drawing)
    sources = [source for head in layout.heads for source in head.sources]
    rows = rng.choice([0, 5, 10, 15, 20, 20, 25, 40, 60]) // len(sources)
    silent = any(head.timing is not None and head.timing.idle_s for head in layout.heads) or rng.random() < 0.2
    ahead = any(head.timing is not None and head.timing.ahead for head in layout.heads)
    inputs = {}
    for source in sources:
        kind = "columns" if drawing.columns else rng.choice(["memory", "script", "script", "script"])
        inputs[source] = draw_input(rng, source, kind=kind, rows_max=rows, silent=silent, ahead=ahead)
    slots = rng.choice([1, 2, 5, 16, 64, 1024])
    may_grow = [source for source, given in inputs.items() if given.kind != "memory" and given.parts]
    if may_grow and rng.random() < growing:
        source = rng.choice(may_grow)
        inputs[source] = grown(rng, inputs[source])
    return Case(name, layout, inputs, slots)
