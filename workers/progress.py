"""Live progress of a run on a terminal: rows per second, keys, epochs, late and skipped records per step."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from malstrom_py.messages import MAX_EPOCH
from malstrom_py.plan import Plan
from malstrom_py.time import Unit, from_time
from malstrom_py.workers.result import RunResult

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

_EVERY_S: Final = 0.25


def progress_for(plan: Plan, wanted: bool | None) -> Progress | None:
    """A progress display, if ``wanted``, or if None where standard error is a terminal."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        return None
    from rich.console import Console

    return Progress(plan, Console(stderr=True))


class Progress:
    """A table that is drawn anew four times a second. Used as a context, so that the terminal is left tidy."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._units = {step.name: step.traits.unit for step in plan.steps}
        self._console = console
        self._live: Live | None = None
        self._next_s = 0.0
        self._last: RunResult | None = None

    def __enter__(self) -> Self:
        from rich.live import Live

        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)
            self._live = None

    def due(self, now_s: float) -> bool:
        """Whether it is time to draw again."""
        if now_s < self._next_s:
            return False
        self._next_s = now_s + _EVERY_S
        return True

    def show(self, result: RunResult) -> None:
        """Draw ``result``."""
        if self._live is not None:
            self._live.update(self.table(result), refresh=True)
        self._last = result

    def table(self, result: RunResult) -> Table:
        """The table for ``result``; rates are since the one shown before."""
        from rich.table import Table

        table = Table(title=f"{result.job}  {result.duration_s:.1f} s", title_justify="left")
        for column in ("step", "rows in", "rows/s", "keys", "epoch", "late", "skipped", "dead letters"):
            table.add_column(column, justify="left" if column == "step" else "right")
        last = self._last
        for name, step in result.steps.items():
            before = last.steps[name].rows_in if last else 0
            elapsed_s = result.duration_s - (last.duration_s if last else 0.0)
            rate = (step.rows_in - before) / elapsed_s if elapsed_s > 0 else 0.0
            table.add_row(
                name,
                f"{step.rows_in:,}",
                f"{rate:,.0f}",
                "" if step.keys is None else f"{step.keys:,}",
                _epoch_text(step.epoch, self._units[name]),
                f"{step.late:,}" if step.late else "",
                f"{step.skipped:,}" if step.skipped else "",
                f"{step.dead_letters:,}" if step.dead_letters else "",
            )
        return table


def _epoch_text(epoch: int | None, unit: Unit | None) -> str:
    if epoch is None or unit is None:
        return ""
    if epoch == MAX_EPOCH:
        return "end"
    try:
        return f"{from_time(epoch, unit):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        return str(epoch)
