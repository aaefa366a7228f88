"""What a run did, in rows: per step and in sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from html import escape
from typing import Any, Final

_COLUMNS: Final = {
    "kind": "kind",
    "rows_in": "rows in",
    "rows_out": "rows out",
    "filtered": "filtered",
    "late": "late",
    "skipped": "skipped",
    "dead_letters": "dead letters",
    "keys": "keys",
}
"""What a notebook shows of each step, and its heading there."""

_TEXTS: Final = ("step", "kind")
"""The columns of text among them."""


@dataclass(frozen=True, slots=True, repr=False)
class StepCounts:
    """What one step did. ``ports``: rows sent per output stream, read by another step or not.

    ``rows_made``: how many rows had to be made of columns for it; ``columns_made``: how many it made columns of.
    ``ahead``: how many of the ``late`` records were more than ``max_ahead`` past the clock (T4). ``dropped_timers``:
    how many timers ``on_timer`` has set at the end of the stream. ``unmatched``: how many records a join dropped
    because they have no partner. ``busy_s``: the time that workers have spent in it.
    Of a ``key_by``: ``sent_bytes`` to other workers, and for how long, ``waiting_s``, workers had rows that waited for
    credit.
    """

    kind: str
    rows_in: int
    ports: Mapping[str, int]
    filtered: int = 0
    late: int = 0
    skipped: int = 0
    dead_letters: int = 0
    ahead: int = 0
    dropped_timers: int = 0
    unmatched: int = 0
    rows_made: int = 0
    columns_made: int = 0
    keys: int | None = None
    epoch: int | None = None
    busy_s: float = field(default=0.0, compare=False)
    sent_bytes: int = field(default=0, compare=False)
    waiting_s: float = field(default=0.0, compare=False)

    def __repr__(self) -> str:
        shown = [
            f"{field.name}={value!r}"
            for field in fields(self)
            if field.compare and (value := getattr(self, field.name))
        ]
        return f"StepCounts({', '.join(shown)})"

    @property
    def rows_out(self) -> int:
        """Rows sent on all output streams but that of the dead letters."""
        return sum(rows for port, rows in self.ports.items() if port != "dead_letters")


_COUNTED: Final = tuple(each.name for each in fields(StepCounts))


def merged_counts(
    workers: Sequence[Mapping[str, StepCounts]], left: Sequence[Mapping[str, StepCounts]] = ()
) -> dict[str, StepCounts]:
    """The counts of several workers as one: sums, and of the epochs the smallest, but for those that have ``left``."""
    return {
        name: _merged([counts[name] for counts in workers], [counts[name] for counts in left]) for name in workers[0]
    }


def _merged(here: Sequence[StepCounts], left: Sequence[StepCounts]) -> StepCounts:
    first, counts = here[0], [*here, *left]
    if len(counts) == 1:
        return first
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
        dropped_timers=sum(count.dropped_timers for count in counts),
        unmatched=sum(count.unmatched for count in counts),
        rows_made=sum(count.rows_made for count in counts),
        columns_made=sum(count.columns_made for count in counts),
        keys=None if first.keys is None else sum(count.keys or 0 for count in counts),
        epoch=None if None in epochs else min(epoch for epoch in epochs if epoch is not None),
        busy_s=sum(count.busy_s for count in counts),
        sent_bytes=sum(count.sent_bytes for count in counts),
        waiting_s=sum(count.waiting_s for count in counts),
    )


@dataclass(frozen=True, slots=True, repr=False)
class RunResult:
    """The counts of a run. ``steps`` is in the order of the plan; the others are sums over the steps.

    ``snapshots``: how many it has completed, and ``last_snapshot``: the id of the one that the result is in; None for a
    job without. A run that resumed from a snapshot counts only its own rows. ``resumed_finished``: the job had
    finished before it was started, so nothing was run, and the counts are those of the run that finished it;
    ``resume="none"`` starts over, and ``read_new_with`` has the arguments with which sources would read what is new, by
    step. Printed it is one line of the sums; a notebook shows a table of the steps.

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
    last_snapshot: str | None = field(default=None, kw_only=True, compare=False)
    resumed_finished: bool = field(default=False, kw_only=True, compare=False)
    read_new_with: Mapping[str, str] = field(default_factory=dict, kw_only=True, compare=False)

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
        """The number of records at or below the watermark of their partition, or too far ahead of the clock."""
        return sum(step.late for step in self.steps.values())

    @property
    def ahead(self) -> int:
        """Those of the late records that were more than ``max_ahead`` past the runtime's clock."""
        return sum(step.ahead for step in self.steps.values())

    @property
    def dropped_timers(self) -> int:
        """Timers that ``on_timer`` set at the end of the stream, where none follows."""
        return sum(step.dropped_timers for step in self.steps.values())

    @property
    def unmatched(self) -> int:
        """Records that joins dropped because they have no partner."""
        return sum(step.unmatched for step in self.steps.values())

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
        timers = ("dropped_timers",) if self.dropped_timers else ()
        alone = ("unmatched",) if self.unmatched else ()
        figures = ("read", "written", "filtered", "late", *ahead, *alone, "skipped", "dead_letters", *timers)
        sums = ", ".join(f"{getattr(self, name):,} {name.replace('_', ' ')}" for name in figures)
        snapshots = f", {self.snapshots:,} snapshot{'s' if self.snapshots > 1 else ''}" if self.snapshots else ""
        text = f"job {self.job}: {sums}{snapshots} in {self.duration_s:.2f} s"
        if not self.resumed_finished:
            return text
        return (
            f"{text} in an earlier run: already finished in snapshot {self.last_snapshot}, nothing was read; "
            f'resume="none" starts over{text_of_new_input(self.read_new_with)}'
        )

    def __repr__(self) -> str:
        return f"<RunResult of {self}>"

    def _repr_html_(self) -> str:
        """The sums, and a table of the steps, for a notebook."""
        return as_html(str(self), self.steps)


def text_of_new_input(read_new_with: Mapping[str, str]) -> str:
    """Return how the sources of a job that has finished would read what is new, to follow another text.

    >>> text_of_new_input({"orders": "new_files=True", "rates": "follow=False"})
    '; with new_files=True source orders reads what is new, with follow=False source rates'
    """
    texts = [f"with {argument} source {step}" for step, argument in read_new_with.items()]
    return f"; {texts[0]} reads what is new{''.join(f', {text}' for text in texts[1:])}" if texts else ""


def as_html(text: str, steps: Mapping[str, StepCounts]) -> str:
    """Return ``text``, line by line, above a table of ``steps``.

    >>> as_html("job <docs>", {})
    '<div>job &lt;docs&gt;</div>'
    """
    lines = "<br>".join(map(escape, text.splitlines()))
    if not steps:
        return f"<div>{lines}</div>"
    head = "".join(_cell("th", heading, is_text=heading in _TEXTS) for heading in ("step", *_COLUMNS.values()))
    rows = "".join(f"<tr>{_cell('th', name, is_text=True)}{_cells(counts)}</tr>" for name, counts in steps.items())
    return f"<div>{lines}<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"


def _cells(counts: StepCounts) -> str:
    values = [getattr(counts, name) for name in _COLUMNS]
    shown = ["" if value is None else f"{value:,}" if isinstance(value, int) else value for value in values]
    return "".join(_cell("td", text, is_text=name in _TEXTS) for text, name in zip(shown, _COLUMNS, strict=True))


def _cell(tag: str, text: str, *, is_text: bool) -> str:
    """Return a cell of a table. Numbers are aligned to the right in each program that shows notebooks."""
    return f'<{tag} style="text-align:{"left" if is_text else "right"}">{escape(text)}</{tag}>'


def as_plain(result: RunResult) -> dict[str, Any]:
    """``result`` in types that every format knows.

    >>> as_plain(RunResult("docs", {"in": StepCounts("source", 3, {"out": 3})}, 0.5))["steps"]["in"]["rows_in"]
    3
    """
    steps = {
        name: {**{field: getattr(counts, field) for field in _COUNTED}, "ports": dict(counts.ports)}
        for name, counts in result.steps.items()
    }
    return {"job": result.job, "duration_s": result.duration_s, "snapshots": result.snapshots, "steps": steps}


def from_plain(plain: Mapping[str, Any]) -> RunResult:
    """The result that `as_plain` made ``plain`` of.

    >>> from_plain(as_plain(RunResult("docs", {"in": StepCounts("source", 3, {"out": 3})}, 0.5))).read
    3
    """
    steps = {name: StepCounts(**counts) for name, counts in plain["steps"].items()}
    return RunResult(plain["job"], steps, plain["duration_s"], snapshots=plain["snapshots"])
