"""``sum``: the running sum per key."""

from __future__ import annotations

from typing import Any

from malstrom_py.operators.keyed import KeyedOperator, Rows


class Sum(KeyedOperator):
    """Per record the sum of its key's values so far, or of what ``by`` (function or column name) takes of them.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> sales = job.source("sales", sources.Memory([{"shop": "a", "n": 2}, {"shop": "a", "n": 3}]))
    >>> mp.collect(sales.key_by("shop", "shop").sum("sold", by="n"))
    [2, 5]
    """

    def update(self, rows: Rows, results: list[Any]) -> None:
        states = self.states
        get = states.get
        for key, value in rows:
            states[key] = total = get(key, 0) + value
            results.append(total)
