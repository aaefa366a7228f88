"""``mean``: the running mean per key."""

from __future__ import annotations

from typing import Any

from malstrom_py.operators.keyed import KeyedOperator, Rows


class Mean(KeyedOperator):
    """Per record the mean of its key's values so far, or of what ``by`` (function or column name) takes of them.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> numbers = job.source("numbers", sources.Memory([2, 4, 9])).key_by("all", lambda n: "all")
    >>> mp.collect(numbers.mean("mean"))
    [2.0, 3.0, 5.0]
    """

    def update(self, rows: Rows, results: list[Any]) -> None:
        states = self.states
        get = states.get
        for key, value in rows:
            count, total = get(key, (0, 0))
            count, total = count + 1, total + value
            mean = total / count
            states[key] = (count, total)
            results.append(mean)
