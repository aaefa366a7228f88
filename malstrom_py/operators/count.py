"""``count``: how many records a key has had."""

from __future__ import annotations

from typing import Any

from malstrom_py.operators.keyed import KeyedOperator, Rows


class Count(KeyedOperator):
    """Per record the number of records of its key so far, this one included.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> mp.collect(job.source("words", sources.Memory(["a", "b", "a"])).key_by("word", str).count("seen"))
    [1, 1, 2]
    """

    needs_values = False

    def update(self, rows: Rows, results: list[Any]) -> None:
        states = self.states
        get = states.get
        for key, _ in rows:
            states[key] = count = get(key, 0) + 1
            results.append(count)
