"""``split``: one stream as several, by a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.errors import own_words
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import Failures, call_each
from malstrom_py.operators.flat_map import refuse_no_items


class Split(Operator):
    """Sends each record to the streams whose numbers (0 to n - 1) ``fn(value)`` gives: one, several or none.

    Records that go to no stream are counted as filtered.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> low, high = job.source("numbers", sources.Memory([1, 5, 9])).split("size", 2, lambda n: [0] if n < 5 else [1])
    >>> mp.collect(low), mp.collect(high)
    ([1], [5, 9])
    """

    def __init__(self, context: StepContext, *, n: int, fn: Callable[[Any], Iterable[int]]) -> None:
        super().__init__(context)
        self._n = n
        self._fn = fn
        self._failures = Failures(context)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        batch, choices = call_each(self._choose, batch, self._failures, out, blame=self._fn)
        self.counters.filtered += choices.count(frozenset())
        for port in range(self._n):
            out.send(batch.compress([port in chosen for chosen in choices]), port)

    def _choose(self, value: Any) -> frozenset[int]:
        numbers = self._fn(value)
        try:
            chosen = frozenset(numbers)
        except TypeError:
            refuse_no_items(numbers, "the numbers of streams")
            raise
        if not chosen <= frozenset(range(self._n)):
            # Not the number itself: the function may have taken it from the record.
            numbered = all(isinstance(number, int) for number in chosen)
            got = "another number" if numbered else "something that is not an int"
            raise own_words(IndexError(f"streams are numbered from 0 to {self._n - 1}, got {got}"))
        return chosen
