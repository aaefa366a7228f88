"""``min``: the smallest value per key so far."""

from __future__ import annotations

from typing import Any

from malstrom_py.operators.keyed import KeyedOperator, Rows

_ABSENT: Any = object()


class Min(KeyedOperator):
    """Per record the smallest of its key's values so far, or of what ``by`` (function or column name) takes of
    them. Of equal values the first stays.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> numbers = job.source("numbers", sources.Memory([4, 2, 6])).key_by("parity", lambda n: n % 2)
    >>> mp.collect(numbers.min("smallest"))
    [4, 2, 2]
    """

    def update(self, rows: Rows, results: list[Any]) -> None:
        states = self.states
        get = states.get
        for key, value in rows:
            best = get(key, _ABSENT)
            # The first value is compared as well, with itself: one without order must not stay and spoil the others.
            if value < (value if best is _ABSENT else best) or best is _ABSENT:
                states[key] = best = value
            results.append(best)
