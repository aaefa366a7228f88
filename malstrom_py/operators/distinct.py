"""``distinct``: each value once per key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.keyed import KeyedOperator, Rows


class Distinct(KeyedOperator):
    """Passes the first record of each value per key, or of each ``by`` (function or column name); the others are
    counted as filtered. What has been seen is kept as long as the job runs.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> words = job.source("words", sources.Memory(["ant", "ape", "ant"])).key_by("letter", lambda w: w[0])
    >>> mp.collect(words.distinct("new"))
    ['ant', 'ape']
    """

    def __init__(self, context: StepContext, *, by: Callable[[Any], Any] | None) -> None:
        super().__init__(context, function=by, by=by)

    def update(self, rows: Rows, results: list[Any]) -> None:
        states = self.states
        for key, value in rows:
            seen = states.get(key)
            if seen is None:
                states[key] = {value}
                results.append(True)
            else:
                new = value not in seen
                if new:
                    seen.add(value)
                    states[key] = seen  # state changes by assignment only
                results.append(new)

    def emit(self, batch: Batch, results: list[Any], out: Outlet) -> None:
        kept = batch.compress(results)
        self.counters.filtered += len(batch) - len(kept)
        out.send(kept)
