"""``top_n``: the largest values per key so far."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from malstrom_py.operators.base import StepContext
from malstrom_py.operators.keyed import KeyedOperator, Rows


class TopN(KeyedOperator):
    """Per record the list of its key's ``n`` largest values so far, by ``by`` (function, column name, or the value
    itself), largest first. Of equal ones the first stays ahead.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> numbers = job.source("numbers", sources.Memory([4, 9, 5])).key_by("all", lambda n: "all")
    >>> mp.collect(numbers.top_n("top", 2))
    [[4], [9, 4], [9, 5]]
    """

    def __init__(self, context: StepContext, *, n: int, by: Callable[[Any], Any] | None) -> None:
        super().__init__(context, function=by)
        self._n = n
        self._rank = by

    def update(self, rows: Rows, results: list[Any]) -> None:
        states, n, rank_of = self.states, self._n, self._rank
        for key, value in rows:
            rank = value if rank_of is None else rank_of(value)
            # Ranks beside their values, ascending, the later of equals first: the end is the top.
            ranks, best = states.get(key, ((), ()))
            # The first value is compared as well, with itself: one without order must not stay and spoil the others.
            place = bisect_left(ranks or (rank,), rank)
            ranks, best = [*ranks[:place], rank, *ranks[place:]][-n:], [*best[:place], value, *best[place:]][-n:]
            states[key] = (ranks, best)
            results.append(best[::-1])
