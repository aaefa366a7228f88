"""What a run did, in rows: per step and in sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StepCounts:
    """What one step did. ``ports``: rows sent per output stream, read by another step or not.

    ``rows_made``: how many rows had to be made of columns for it; ``columns_made``: how many it made columns of.
    ``ahead``: how many of the ``late`` records were more than ``max_ahead`` past the clock (T4).
    """

    kind: str
    rows_in: int
    ports: Mapping[str, int]
    filtered: int = 0
    late: int = 0
    skipped: int = 0
    dead_letters: int = 0
    ahead: int = 0
    rows_made: int = 0
    columns_made: int = 0
    keys: int | None = None
    epoch: int | None = None

    @property
    def rows_out(self) -> int:
        """Rows sent on all output streams but that of the dead letters."""
        return sum(rows for port, rows in self.ports.items() if port != "dead_letters")


def merged_counts(
    workers: Sequence[Mapping[str, StepCounts]], left: Sequence[Mapping[str, StepCounts]] = ()
) -> dict[str, StepCounts]:
    """The counts of several workers as one: sums, and of the epochs the smallest, but for those that have ``left``."""
    return {
        name: _merged([counts[name] for counts in workers], [counts[name] for counts in left]) for name in workers[0]
    }


def _merged(here: Sequence[StepCounts], left: Sequence[StepCounts]) -> StepCounts:
    first, counts = here[0], [*here, *left]
    epochs = [count.epoch for count in here]
    return StepCounts(
        kind=first.kind,
        rows_in=sum(count.rows_in for count in counts),
        ports={port: sum(count.ports[port] for count in counts) for port in first.ports},
        filtered=sum(count.filtered for count in counts),
        late=sum(count.late for count in counts),
        skipped=sum(count.skipped for count in counts),
        dead_letters=sum(count.dead_letters for count in counts),
        ahead=sum(count.ahead for count in counts),
        rows_made=sum(count.rows_made for count in counts),
        columns_made=sum(count.columns_made for count in counts),
        keys=None if first.keys is None else sum(count.keys or 0 for count in counts),
        epoch=None if None in epochs else min(epoch for epoch in epochs if epoch is not None),
    )


@dataclass(frozen=True, slots=True)
class RunResult:
    """The counts of a run. ``steps`` is in the order of the plan; the other figures are sums over the steps.

    ``snapshots``: how many it has completed. A run that went on from a snapshot counts what it did itself.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sinks, sources
    >>> job = mp.Job("docs")
    >>> job.source("in", sources.Memory([1, 2, 3])).filter("odd", lambda n: n % 2).sink("out", sinks.Memory())
    >>> result = mp.run(job)
    >>> result.read, result.filtered, result.written
    (3, 1, 2)
    """

    job: str
    steps: Mapping[str, StepCounts]
    duration_s: float
    snapshots: int = field(default=0, kw_only=True)

    @property
    def read(self) -> int:
        """Records read by all sources, those that could not be read among them."""
        return sum(step.rows_in for step in self.steps.values() if step.kind == "source")

    @property
    def written(self) -> int:
        """Records written to all sinks."""
        return sum(step.rows_in for step in self.steps.values() if step.kind == "sink")

    @property
    def filtered(self) -> int:
        """Records dropped by filters."""
        return sum(step.filtered for step in self.steps.values())

    @property
    def late(self) -> int:
        """Records that came behind the epoch of their part, or too far ahead of the clock."""
        return sum(step.late for step in self.steps.values())

    @property
    def ahead(self) -> int:
        """Those of the late records that were more than ``max_ahead`` past the runtime's clock."""
        return sum(step.ahead for step in self.steps.values())

    @property
    def skipped(self) -> int:
        """Records dropped under ``on_error="skip"``."""
        return sum(step.skipped for step in self.steps.values())

    @property
    def dead_letters(self) -> int:
        """Records dropped under ``on_error="dead-letter"``."""
        return sum(step.dead_letters for step in self.steps.values())

    def __str__(self) -> str:
        ahead = ("ahead",) if self.ahead else ()
        figures = ("read", "written", "filtered", "late", *ahead, "skipped", "dead_letters")
        sums = ", ".join(f"{getattr(self, name):,} {name.replace('_', ' ')}" for name in figures)
        snapshots = f", {self.snapshots:,} snapshot{'s' if self.snapshots > 1 else ''}" if self.snapshots else ""
        return f"job {self.job}: {sums}{snapshots} in {self.duration_s:.2f} s"


def as_plain(result: RunResult) -> dict[str, Any]:
    """``result`` in types that every format knows.

    >>> as_plain(RunResult("docs", {"in": StepCounts("source", 3, {"out": 3})}, 0.5))["steps"]["in"]["rows_in"]
    3
    """
    steps = {name: {**asdict(counts), "ports": dict(counts.ports)} for name, counts in result.steps.items()}
    return {"job": result.job, "duration_s": result.duration_s, "snapshots": result.snapshots, "steps": steps}


def from_plain(plain: Mapping[str, Any]) -> RunResult:
    """The result that `as_plain` made ``plain`` of.

    >>> from_plain(as_plain(RunResult("docs", {"in": StepCounts("source", 3, {"out": 3})}, 0.5))).read
    3
    """
    steps = {name: StepCounts(**counts) for name, counts in plain["steps"].items()}
    return RunResult(plain["job"], steps, plain["duration_s"], snapshots=plain["snapshots"])
