"""``key_by``: gives each record a key and distributes by it. The exchange between workers stands here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.messages import PartMessage
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import Failures, call_each


class KeyBy(Operator):
    """Keys each record by ``fn(value)``. With one worker nothing is hashed (F3).

    Keys must be hashable. The source region ends here: parts are not known further down.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> words = job.source("words", sources.Memory(["ant", "bee", "asp"]))
    >>> mp.collect(words.key_by("letter", lambda word: word[0]).count("seen"))
    [1, 1, 2]
    """

    def __init__(self, context: StepContext, *, fn: Callable[[Any], Any]) -> None:
        super().__init__(context)
        self._fn = fn
        self._failures = Failures(context)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        batch, keys = call_each(self._fn, batch, self._failures, out)
        out.send(batch.with_keys(keys))

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        """Parts belong to the source region, which ends here; records that got no key are still in it."""
        if self.context.dead_letter_port is not None:
            out.send(message, self.context.dead_letter_port)
