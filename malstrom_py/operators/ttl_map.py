"""``ttl_map``: ``stateful_map`` whose state goes when a key has been silent for a while of event time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.messages import Epoch
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.keyed import keys_of
from malstrom_py.operators.stateful_map import StatefulMap


class TtlMap(StatefulMap):
    """Calls ``fn(key, value, state) -> (output, new state)``. A key's state goes once the step's frontier passes
    its last record + ``ttl`` (in the stream's unit); the key then starts from ``default()`` again.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> visits = job.source("visits", sources.Memory([("a", 1), ("a", 5), ("b", 50), ("a", 51)]))
    >>> timed = visits.assign_timestamps("at", lambda visit: visit[1])
    >>> on_time, late = timed.generate_epochs("epochs", mp.limit_out_of_orderness(0))
    >>> keyed = on_time.key_by("who", lambda visit: visit[0])
    >>> seen = keyed.ttl_map("seen", lambda key, visit, seen: (seen + 1, seen + 1), ttl=10, default=int)
    >>> mp.collect(seen, batch=mp.Batching(rows_max=1))
    [1, 2, 1, 1]
    """

    def __init__(
        self,
        context: StepContext,
        *,
        fn: Callable[[Any, Any, Any], tuple[Any, Any]],
        ttl: int,
        default: Callable[[], Any] | None,
    ) -> None:
        super().__init__(context, fn=fn, default=default)
        self._ttl = ttl

    def emit(self, batch: Batch, results: list[Any], out: Outlet) -> None:
        # Here the records that fn raised on are gone: they prolong nothing.
        timers, values = self.state.timers, self.state.values
        latest: dict[Any, int] = {}
        for key, timestamp in zip(keys_of(batch, self.context.step), batch.timestamps or (), strict=True):
            if timestamp >= latest.get(key, timestamp):
                latest[key] = timestamp
        for key, timestamp in latest.items():
            # A key has one timer, at the latest time any of its records asked for; a key without state has none.
            times = [timestamp + self._ttl, *timers.take(key)]
            if key in values:
                timers.set(key, max(times))
        super().emit(batch, results, out)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        # "Passes": a record exactly ttl behind the last one still meets its state.
        for key, _ in self.state.timers.due(epoch.time - 1):
            self.state.values.pop(key, None)  # noted: its timer has gone as well
        out.forward(epoch)
