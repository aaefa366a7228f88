"""``key_local``: gives each record a key without distributing by it. No stateful step may follow (R11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import Failures, call_each
from malstrom_py.operators.key_by import legal_keys
from malstrom_py.operators.returning import silence_of


class KeyLocal(Operator):
    """Keys each record by ``fn(value)`` where it is: records of one key stay on as many workers as before.

    F4: a key that is not legal (NaN, a list, …) is a `CodecError`, or goes the way of ``on_error``.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sinks, sources
    >>> job, out = mp.Job("docs"), sinks.Memory()
    >>> job.source("words", sources.Memory(["ant", "bee"])).key_local("letter", lambda w: w[0]).sink("out", out)
    >>> _ = mp.run(job)
    >>> out.by_key
    {'a': ['ant'], 'b': ['bee']}
    """

    def __init__(self, context: StepContext, *, fn: Callable[[Any], Any]) -> None:
        super().__init__(context)
        self._fn = fn
        self._failures = Failures(context)
        self._silence = silence_of(context, fn, "key_local")

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        batch, keys = call_each(self._fn, batch, self._failures, out)
        batch, keys = legal_keys(self.context, self._failures, self._fn, batch, keys, out)
        if self._silence is not None and self._silence.over_after(len(batch)):
            self._silence = None
        # Unlike at an exchange the part stays known, so generate_epochs may still follow.
        out.send(Batch(batch.values, keys=keys, timestamps=batch.timestamps, part=batch.part))
