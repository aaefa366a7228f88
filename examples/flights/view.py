"""What the demo on Ray shows while its job runs: the workers, the rates of the steps, the rescales and their moves."""

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
"""Rates are over the last so many seconds, so that they can be read."""


@dataclass(slots=True)
class Rescale:
    """One rescale of the demo, ``asked`` for at ``at_s`` of the run."""

    at_s: float
    before: int
    after: int
    asked: Future[mp.RescaleReport]

    @property
    def report(self) -> mp.RescaleReport | None:
        """What it did; None while it is under way, or where the job had ended before. Raises what it failed of."""
        if not self.asked.done() or isinstance(self.asked.exception(), mp.JobEnded):
            return None
        return self.asked.result()

    def row(self, status: mp.JobStatus | None) -> list[str]:
        """Return its line; ``status`` has the progress of a rescale that runs."""
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
    """Drawn of one status after the other."""

    def __init__(self) -> None:
        self.rescales: list[Rescale] = []
        self.sizes: list[int] = []
        """How many workers there were, one after the other, while rows were read."""
        self._before: mp.JobStatus | None = None
        self._past: deque[tuple[float, int, dict[str, int]]] = deque()
        self._rates: deque[tuple[float, float]] = deque(maxlen=RATES_SHOWN)

    def saw(self, status: mp.JobStatus) -> None:
        """Take note of ``status``: rows that came since the one before, with as many workers, were read by so many."""
        before, self._before = self._before, status
        if before is None or before.workers != status.workers or before.counts.read == status.counts.read:
            return
        if self.sizes[-1:] != [status.workers]:
            self.sizes.append(status.workers)

    def drawn(self, status: mp.JobStatus) -> Group:
        """All of it, for ``status``."""
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
        """The rescales so far."""
        columns = ["workers", "at", "took", "moves", "slots", "files", "keys with state", "state"]
        return table("Rescales while it runs", columns, [rescale.row(status) for rescale in self.rescales])

    def _bars(self) -> Text:
        top = max((rate for _, rate in self._rates), default=0.0) or 1.0
        bars = "".join(BARS[round(rate / top * (len(BARS) - 1))] for _, rate in self._rates)
        return Text(f"flights read per second, at most {top:,.0f}\n{bars}")


def _keys(keys: int | None) -> str:
    return "" if keys is None else f"{keys:,}"


def _size(size: int) -> str:
    return f"{size / 1e3:,.0f} kB"
