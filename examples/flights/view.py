"""Draws a running job: the workers, the rates of the steps, the rescales and their moves."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

import malstrom_py as mp
from examples.flights.report import table

if TYPE_CHECKING:
    from concurrent.futures import Future

    from rich.table import Table

BARS = " ▁▂▃▄▅▆▇█"
RATES_SHOWN = 60
RATE_S = 2.0
"""Each rate is the mean of this many seconds."""


@dataclass(slots=True)
class Rescale:
    """One rescale, requested at ``at_s`` of the run."""

    at_s: float
    before: int
    after: int
    future: Future[mp.RescaleReport]

    @property
    def report(self) -> mp.RescaleReport | None:
        """Return its report; None while it runs, and if the job ended first. Raises the error of a failed rescale."""
        if not self.future.done() or isinstance(self.future.exception(), mp.JobEnded):
            return None
        return self.future.result()

    def row(self, status: mp.JobStatus | None) -> list[str]:
        """Return its line of the table; ``status`` has the progress of a rescale that runs."""
        start = [f"{self.before} -> {self.after}", f"{self.at_s:.1f} s"]
        if self.report is not None:
            report = self.report
            figures = (report.moves, report.slots, report.parts, report.keys)
            return [*start, f"{report.duration_s:.2f} s", *(f"{n:,}" for n in figures), _size(report.bytes)]
        if status is None:
            return [*start, "", "", "", "", "", ""]
        if status.moving is None:
            return [*start, status.phase, "", "", "", "", ""]
        moving = status.moving
        slots = f"{moving.slots:,} of {moving.of_slots:,}"
        return [*start, status.phase, f"{moving.move:,}", slots, "", f"{moving.keys:,}", _size(moving.bytes)]


class View:
    """Collects the statuses of a job and draws them."""

    def __init__(self) -> None:
        self.rescales: list[Rescale] = []
        self.sizes: list[int] = []
        """The numbers of workers that have read rows, in order."""
        self._before: mp.JobStatus | None = None
        self._past: deque[tuple[float, int, dict[str, int]]] = deque()
        self._rates: deque[tuple[float, float]] = deque(maxlen=RATES_SHOWN)

    def observe(self, status: mp.JobStatus) -> None:
        """Record the number of workers if rows were read since the last status, and the number is the same as then."""
        before, self._before = self._before, status
        if before is None or before.workers != status.workers or before.counts.read == status.counts.read:
            return
        if self.sizes[-1:] != [status.workers]:
            self.sizes.append(status.workers)

    def draw(self, status: mp.JobStatus) -> Group:
        """Return the whole drawing for ``status``."""
        now_s, steps = status.counts.duration_s, status.counts.steps
        rows = {name: step.rows_in for name, step in steps.items()}
        while len(self._past) > 1 and now_s - self._past[0][0] > RATE_S:
            self._past.popleft()
        since_s, read, before = self._past[0] if self._past else (0.0, 0, dict[str, int]())
        elapsed_s = max(now_s - since_s, 1e-9)
        self._past.append((now_s, status.counts.read, rows))
        self._rates.append((now_s, (status.counts.read - read) / elapsed_s))
        counted = [
            [name, f"{n:,}", f"{(n - before.get(name, 0)) / elapsed_s:,.0f}", _keys(steps[name].keys)]
            for name, n in rows.items()
        ]
        head = Text.assemble(
            (f"{status.state} ", "bold"), ("■ " * status.workers, "green"), f"{status.workers} workers, {now_s:.1f} s"
        )
        return Group(
            head, "", table("Steps", ["", "rows", "rows/s", "keys"], counted), "", self.moves(status), "", self._bars()
        )

    def moves(self, status: mp.JobStatus | None = None) -> Table:
        """Return the table of the rescales so far."""
        columns = ["workers", "at", "took", "moves", "slots", "files", "keys with state", "state"]
        return table("Rescales while it runs", columns, [rescale.row(status) for rescale in self.rescales])

    def _bars(self) -> Text:
        top = max((rate for _, rate in self._rates), default=0.0) or 1.0
        bars = "".join(BARS[round(rate / top * (len(BARS) - 1))] for _, rate in self._rates)
        return Text(f"rows per second, at most {top:,.0f}\n{bars}")


def _keys(keys: int | None) -> str:
    return "" if keys is None else f"{keys:,}"


def _size(size: int) -> str:
    return f"{size / 1e3:,.0f} kB"
