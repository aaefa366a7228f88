"""``branch``: two streams, by a predicate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from malstrom_py.batches import Batch
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import Failures, call_each, verdicts_of
from malstrom_py.operators.returning import silence_of

YES: Final = 0
NO: Final = 1


class Branch(Operator):
    """Sends each record to the first stream where ``predicate(value)`` is true, else to the second.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> even, odd = job.source("numbers", sources.Memory([1, 2, 3])).branch("even", lambda n: n % 2 == 0)
    >>> mp.collect(even), mp.collect(odd)
    ([2], [1, 3])
    """

    def __init__(self, context: StepContext, *, predicate: Callable[[Any], Any]) -> None:
        super().__init__(context)
        self._predicate = predicate
        self._failures = Failures(context)
        self._silence = silence_of(context, predicate, "branch")

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        batch, verdicts = call_each(self._predicate, batch, self._failures, out, loop=verdicts_of)
        if self._silence is not None and self._silence.over_after(len(batch)):
            self._silence = None
        out.send(batch.compress(verdicts), YES)
        out.send(batch.compress([not verdict for verdict in verdicts]), NO)
