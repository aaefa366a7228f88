"""``fold``: accumulates the values of a key into something else, running."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.keyed import KeyedOperator, Rows
from malstrom_py.operators.returning import silence_of

_ABSENT: Any = object()


class Fold(KeyedOperator):
    """Per record ``fn(accumulated, value)``, from ``default()`` on. ``fn`` returns a new accumulation.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> words = job.source("words", sources.Memory(["ab", "x", "acd"])).key_by("first", lambda word: word[0])
    >>> mp.collect(words.fold("letters", lambda total, word: total + len(word), default=int))
    [2, 1, 5]
    """

    def __init__(self, context: StepContext, *, fn: Callable[[Any, Any], Any], default: Callable[[], Any]) -> None:
        super().__init__(context, function=fn)
        self._fn = fn
        self._silence = silence_of(context, fn, "fold")
        self._default = default

    def update(self, rows: Rows, results: list[Any]) -> None:
        states, fn, default = self.states, self._fn, self._default
        get = states.get
        for key, value in rows:
            accumulated = get(key, _ABSENT)
            if accumulated is _ABSENT:
                accumulated = default()
            states[key] = accumulated = fn(accumulated, value)
            results.append(accumulated)

    def emit(self, batch: Batch, results: list[Any], out: Outlet) -> None:
        if self._silence is not None and self._silence.over_after(len(batch)):
            self._silence = None
        super().emit(batch, results, out)
