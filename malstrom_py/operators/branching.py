"""The steps that divide or merge streams: ``branch``, ``split``, ``cloned`` and ``union``.

The executor merges the epochs of several inputs (minimum) and aligns their control messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from malstrom_py.data.batch import Batch
from malstrom_py.errors import mark_safe
from malstrom_py.errors.text import refuse_no_items
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import call_each, verdicts_of
from malstrom_py.operators.stateless import FunctionStep

YES: Final = 0
NO: Final = 1


class Branch(FunctionStep):
    """Sends each record to the first stream where ``predicate(value)`` is true, else to the second.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> even, odd = job.source("numbers", sources.Memory([1, 2, 3])).branch("even", lambda n: n % 2 == 0)
    >>> mp.collect(even), mp.collect(odd)
    ([2], [1, 3])
    """

    makes_columns = False

    option = "predicate"

    def __init__(self, context: StepContext, *, predicate: Callable[[Any], Any], compiles: bool = True) -> None:
        super().__init__(context, predicate, compiles=compiles)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        parted = self._compiled.parted(batch)
        self.takes_columns = parted is not None
        if parted is not None:
            for port, rows in zip((YES, NO), parted, strict=True):
                out.send(rows, port)
            return
        batch, verdicts = call_each(self._fn, batch, self._failures, out, loop=verdicts_of)
        out.send(batch.compress(verdicts), YES)
        out.send(batch.compress([not verdict for verdict in verdicts]), NO)


class Split(FunctionStep):
    """Sends each record to the streams whose numbers (0 to n - 1) ``fn(value)`` gives: one, several or none.

    Records that go to no stream are counted as filtered.
    """

    makes_columns = False

    def __init__(
        self, context: StepContext, *, n: int, fn: Callable[[Any], Iterable[int]], compiles: bool = True
    ) -> None:
        super().__init__(context, fn, compiles=compiles)
        self._n = n

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        parted = self._compiled.split(batch, self._n)
        self.takes_columns = parted is not None
        if parted is not None:
            streams, nowhere = parted
            self.counters.filtered += nowhere
            for port, rows in enumerate(streams):
                out.send(rows, port)
            return
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
            # The number is not in the message: it may be a value of the record.
            numbered = all(isinstance(number, int) for number in chosen)
            got = "another number" if numbered else "something that is not an int"
            raise mark_safe(IndexError(f"streams are numbered from 0 to {self._n - 1}, got {got}"))
        return chosen


class Cloned(Operator):
    """Sends every record to each of ``n`` streams. (Using a builder twice does the same, without a step.)"""

    takes_columns = True
    passes_all = True

    def __init__(self, context: StepContext, *, n: int) -> None:
        super().__init__(context)
        self._n = n

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        for port in range(self._n):
            out.send(batch, port)


class Union(Operator):
    """Passes the records of all its inputs on, each input's in order."""

    takes_columns = True
    passes_all = True

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        out.send(batch)
