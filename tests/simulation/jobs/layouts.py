"""How a job is laid out: heads (sources up to their epochs), keyed stages, tails, ends. Both the job and the oracle
are made of it; it names the steps, not their implementation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

LANES: Final = ("all", "yes", "no", "letters", "late", "windows")


@dataclass(frozen=True)
class Way:
    """A stream out of a head or a stage: all of it, a branch of it, its dead letters, late records, or windows."""

    feeder: str
    lane: str = "all"


@dataclass(frozen=True)
class Timing:
    """How a head makes event time. ``idle_s``: its ``idle_after``; ``ahead``: whether it limits ``max_ahead``."""

    bound: int
    unit: str
    idle_s: float | None = None
    ahead: bool = False


@dataclass(frozen=True)
class Head:
    """Sources joined, up to their epochs. ``mends``: a step that may fail; ``sifts``: a filter; both before epochs."""

    name: str
    sources: tuple[str, ...]
    timing: Timing | None = None
    mends: bool = False
    sifts: bool = False
    columns: bool = False


@dataclass(frozen=True)
class Stage:
    """A step that counts per key. ``kind``: by which step; ``apart``: its inputs are keyed apart and joined later.

    ``window``: how wide its windows are; ``ttl``: when a key's state goes; ``poisoned``: whether it fails on some
    records; ``enriched``: whether an asynchronous step is before it.
    """

    name: str
    inputs: tuple[Way, ...]
    key: str = "key"
    kind: str = "stateful_map"
    apart: bool = False
    partitioner: str = "stable_hash"
    window: int | None = None
    ttl: int | None = None
    poisoned: bool = False
    enriched: bool = False


@dataclass(frozen=True)
class Tail:
    """A keyed step that changes records: "collect", "distinct", "figures", "windows", "panes", "clocked" or
    "arrays".

    ``size``: of lists, and how wide windows are; ``every_s``: after how long a list leaves that is not full;
    ``demoted``: why state in arrays becomes rows: "rows" come, or an "overflow".
    """

    name: str
    input: Way
    kind: str
    key: str = "key"
    size: int = 3
    every_s: float | None = None
    demoted: str | None = None


@dataclass(frozen=True)
class End:
    """A sink. ``sink``: "committed", "written", "parts" or "memory"."""

    name: str
    inputs: tuple[Way, ...]
    sink: str = "committed"


@dataclass(frozen=True)
class Layout:
    """A whole job."""

    heads: tuple[Head, ...]
    stages: tuple[Stage, ...] = ()
    tails: tuple[Tail, ...] = ()
    ends: tuple[End, ...] = ()

    def head(self, name: str) -> Head | None:
        """The head of that name, if there is one."""
        return next((head for head in self.heads if head.name == name), None)

    def stage(self, name: str) -> Stage:
        """The stage of that name."""
        return next(stage for stage in self.stages if stage.name == name)

    def is_timed(self, way: Way) -> bool:
        """Whether records have timestamps there."""
        if way.lane == "letters":
            return False
        head = self.head(way.feeder)
        if head is not None:
            return head.timing is not None
        return self.is_timed(self.stage(way.feeder).inputs[0])

    def has_epochs(self, way: Way) -> bool:
        """Whether epochs below the maximum come there."""
        if way.lane in ("letters", "late"):
            return False
        if self.head(way.feeder) is not None:
            return self.is_timed(way)
        return self.has_epochs(self.stage(way.feeder).inputs[0])

    def finished(self) -> Layout:
        """This layout, with an end for each stream without one: a tail does not show which records passed, and what is
        late, or in a window, is to be seen however it is read.
        """
        read = [way for stage in self.stages for way in stage.inputs] + [way for end in self.ends for way in end.inputs]
        shown = {way for way in read if way.lane not in ("late", "windows")}
        wanted: list[Way] = []
        for feeder in [*(head.name for head in self.heads), *(stage.name for stage in self.stages)]:
            branches = [Way(feeder, "yes"), Way(feeder, "no")]
            wanted += branches if shown & set(branches) else [Way(feeder)]
        wanted += [Way(head.name, "late") for head in self.heads if head.timing is not None]
        wanted += [Way(head.name, "letters") for head in self.heads if head.mends]
        wanted += [Way(stage.name, "letters") for stage in self.stages if stage.poisoned]
        wanted += [Way(stage.name, "windows") for stage in self.stages if stage.window is not None]
        ends = [End(f"{way.feeder}-{way.lane}", (way,)) for way in wanted if way not in shown]
        return replace(self, ends=(*self.ends, *ends))
