"""The time that rows cost on the simulated clock: a worker that has taken some is busy for so long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace

from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.reports.figures import WorkerFigures


class RowCosts:
    """Each row in a step costs a worker ``row_s``; with 0 nothing costs time.

    >>> costs = RowCosts(0.01)
    >>> bool(costs), costs.busy([0, 1], 5.5)
    (True, {})
    """

    def __init__(self, row_s: float) -> None:
        self._row_s = row_s
        self._rows: defaultdict[int, int] = defaultdict(int)
        self._until_s: dict[int, float] = {}
        self._busy_s: defaultdict[int, float] = defaultdict(float)

    def __bool__(self) -> bool:
        return self._row_s > 0

    def spend(self, worker: Worker, now_s: float) -> None:
        """Let ``worker`` be busy with the rows that its steps have taken since the call before."""
        if not self._row_s:
            return
        rows = sum(step.counters.rows_in for step in worker.operators.values())
        cost_s = (rows - self._rows[worker.id]) * self._row_s
        self._rows[worker.id] = rows
        self._busy_s[worker.id] += cost_s
        self._until_s[worker.id] = now_s + cost_s

    def busy(self, workers: Iterable[int], now_s: float) -> dict[int, float]:
        """Return which of ``workers`` are busy, and until when."""
        return {worker: until for worker in workers if (until := self._until_s.get(worker, 0.0)) > now_s}

    def due_s(self, workers: Collection[Worker], now_s: float) -> list[float]:
        """Return when something is due: the end of busy times, and the timers of other workers.

        Beside workers that are busy, overdue work waits for credit.
        """
        busy = self.busy((worker.id for worker in workers), now_s)
        due_s = [due for worker in workers if worker.id not in busy and (due := worker.due_s()) is not None]
        return [*busy.values(), *(due for due in due_s if due > now_s or not busy)]

    def figures(self, workers: Iterable[Worker]) -> dict[int, WorkerFigures]:
        """Return the figures of ``workers`` with the time that they have spent here, each like a process."""
        found = {worker.id: worker.figures(fresh=True) for worker in workers}
        return {number: replace(one, busy_s=self._busy_s[number], pid=number + 1) for number, one in found.items()}
