"""``reduce``: combines all values of a key into one, running."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.keyed import KeyedOperator, Rows
from malstrom_py.operators.returning import silence_of

_ABSENT: Any = object()


class Reduce(KeyedOperator):
    """Per record the key's values so far, combined: the first as it is, then ``fn(accumulated, value)``.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> words = job.source("words", sources.Memory(["ab", "xy", "ac"])).key_by("first", lambda word: word[0])
    >>> mp.collect(words.reduce("joined", lambda joined, word: joined + word))
    ['ab', 'xy', 'abac']
    """

    def __init__(self, context: StepContext, *, fn: Callable[[Any, Any], Any]) -> None:
        super().__init__(context, function=fn)
        self._fn = fn
        self._silence = silence_of(context, fn, "reduce")

    def update(self, rows: Rows, results: list[Any]) -> None:
        states, fn = self.states, self._fn
        get = states.get
        for key, value in rows:
            accumulated = get(key, _ABSENT)
            states[key] = combined = value if accumulated is _ABSENT else fn(accumulated, value)
            results.append(combined)

    def emit(self, batch: Batch, results: list[Any], out: Outlet) -> None:
        if self._silence is not None and self._silence.over_after(sum(result is None for result in results)):
            self._silence = None
        super().emit(batch, results, out)
