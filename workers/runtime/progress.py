"""Live progress of a run on a terminal: rows per second, keys, watermarks, late and skipped records per step; workers,
watermark, lag and the last snapshot of the job.

Rule: a batch costs one comparison of a clock that is read anyway. Everything else happens at most four times a second,
and never draws more steps than the terminal has lines.
"""

from __future__ import annotations

import sys
from collections import deque
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from malstrom_py.builder.plan import Plan
from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.data.time import Unit, from_time
from malstrom_py.metrics import JobMetrics
from malstrom_py.workers.reports.result import RunResult, StepCounts

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table

_EVERY_S: Final = 0.25
_RATE_DRAWINGS: Final = 8
"""Rates are over the last so many drawings: two seconds, so that they can be read."""

_FRAME_LINES: Final = 6
"""Lines of a drawing that are not steps: title, head, rule, what was left out, the whole job, and the cursor's."""

_OPTIONAL: Final = ("keys", "watermark (UTC)", "late", "unmatched", "skipped", "dead letters")


def progress_for(plan: Plan, wanted: bool | None) -> Progress | None:
    """Return a progress display if ``wanted``; None means only where standard error is a terminal."""
    if wanted is False or (wanted is None and not (sys.stderr is not None and sys.stderr.isatty())):
        return None
    from rich.console import Console

    return Progress(plan, Console(stderr=True))


class Progress:
    """A table that is redrawn four times a second. Use it as a context, which leaves the terminal tidy.

    The last drawing stays on the screen, with the rates of the whole run.
    """

    def __init__(self, plan: Plan, console: Console) -> None:
        self._units: dict[str, Unit | None] = {step.name: step.traits.unit for step in plan.steps}
        self._console = console
        self._live: Live | None = None
        self._next_s = 0.0
        self._remark = ""
        self._shown: deque[RunResult] = deque(maxlen=_RATE_DRAWINGS)

    def __enter__(self) -> Self:
        from rich.live import Live

        # What the user's functions print goes above the table, unless it was sent elsewhere: then it stays there.
        printed_here = sys.stdout is not None and sys.stdout.isatty()
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=printed_here)
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        live, self._live = self._live, None
        if live is not None:
            if self._shown:
                live.update(self._drawn(self._shown[-1]))
            live.__exit__(kind, error, trace)

    def due(self, now_s: float) -> bool:
        """Return whether the table is due to be redrawn."""
        if now_s < self._next_s:
            return False
        self._next_s = now_s + _EVERY_S
        return True

    def show(self, result: RunResult, metrics: JobMetrics | None = None) -> None:
        """Draw ``result``, with the rates since a moment ago, and the ``metrics`` of the job in a line below."""
        if metrics is not None:
            self._remark = remark(metrics)
        if self._live is not None:
            self._live.update(self._drawn(result, since=self._shown[0] if self._shown else None), refresh=True)
        self._shown.append(result)

    def _drawn(self, result: RunResult, *, since: RunResult | None = None) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        table = self.table(result, since=since)
        return Group(table, Text(self._remark, overflow="ellipsis", no_wrap=True)) if self._remark else table

    def table(self, result: RunResult, *, since: RunResult | None = None) -> Table:
        """Return the table for ``result``, without empty columns. Rates are since ``since``, or since the start."""
        from rich import box
        from rich.table import Table

        shown_max = max(1, self._console.height - _FRAME_LINES)
        names = list(result.steps)[:shown_max]
        cells = {name: self._cells(name, result.steps[name]) for name in names}
        optional = [column for column in _OPTIONAL if any(cells[name][column] for name in names)]
        left_out = len(result.steps) - len(names)
        table = Table(
            title=f"{result.job}  {result.duration_s:.1f} s",
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            caption=f"and {left_out:,} more steps" if left_out else None,
            caption_justify="left",
        )
        table.add_column("step", no_wrap=True)
        for column in ("rows", "rows/s", *optional):
            table.add_column(column, justify="right", no_wrap=True)
        for name in names:
            rows = result.steps[name].rows_in
            rate = _rate(rows, result, name, since)
            table.add_row(name, f"{rows:,}", rate, *(cells[name][column] for column in optional))
        return table

    def _cells(self, name: str, step: StepCounts) -> dict[str, str]:
        return {
            "keys": "" if step.keys is None else f"{step.keys:,}",
            "watermark (UTC)": epoch_text(step.epoch, self._units.get(name)),
            "late": f"{step.late:,}" if step.late else "",
            "unmatched": f"{step.unmatched:,}" if step.unmatched else "",
            "skipped": f"{step.skipped:,}" if step.skipped else "",
            "dead letters": f"{step.dead_letters:,}" if step.dead_letters else "",
        }


def remark(metrics: JobMetrics) -> str:
    """Describe the job as a whole: its workers, watermark, lag, late rows, and last snapshot, as far as it has them.

    >>> remark(JobMetrics("flights", "running", "steady", restarts=1))
    '0 workers'
    """
    late = sum(step.late for step in metrics.steps.values())
    snapshots, moving = metrics.snapshots, metrics.moving
    age_s = None if snapshots is None or snapshots.at is None else max(0.0, metrics.at - snapshots.at)
    known = {
        f"{len(metrics.workers)} worker{'' if len(metrics.workers) == 1 else 's'}": True,
        "" if moving is None else f"{moving.slots:,} of {moving.of_slots:,} key groups moved": moving is not None,
        f"watermark {_moment(metrics.watermark)}": metrics.watermark is not None,
        f"{metrics.lag_rows or 0:,} rows to read": bool(metrics.lag_rows),
        f"{late:,} late": late > 0,
        f"snapshot {age_s or 0:.0f} s ago": age_s is not None,
    }
    return " · ".join(text for text, is_known in known.items() if is_known)


def _moment(seconds: float | None) -> str:
    """Return seconds since 1970 as a time in UTC; the number itself, if no calendar has it."""
    try:
        return f"{datetime.fromtimestamp(seconds or 0.0, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g}"


def epoch_text(epoch: int | None, unit: Unit | None) -> str:
    """Return a watermark as text: a time in UTC, "end" for the last one, "" on an untimed stream.

    >>> epoch_text(1357034400000, "ms")
    '2013-01-01 10:00:00'
    """
    if epoch is None or unit is None:
        return ""
    if epoch == MAX_EPOCH:
        return "end"
    try:
        return f"{from_time(epoch, unit):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        return str(epoch)


def _rate(rows: int, result: RunResult, name: str, since: RunResult | None) -> str:
    before = since.steps[name].rows_in if since is not None else 0
    elapsed_s = result.duration_s - (since.duration_s if since is not None else 0.0)
    return f"{(rows - before) / elapsed_s:,.0f}" if elapsed_s > 0 else ""
