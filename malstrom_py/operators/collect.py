"""``collect``: gathers the values of a key into lists, by number and by time."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.clock import Clock
from malstrom_py.messages import MAX_EPOCH, AbsBarrier, Acquire, Epoch, StateMessage
from malstrom_py.messages import Collect as CollectMessage
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.keyed import StatefulOperator, distinct, keys_of


class Collect(StatefulOperator):
    """Sends a key's values as one list once there are ``size`` of them, once ``every_s`` seconds of the runtime's
    clock have passed since the first of them, and at the end of the stream.

    On a timed stream a list has the largest timestamp of its values, and goes before an epoch that would make it
    late. What has been gathered is state: it moves and is persisted.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> words = job.source("words", sources.Memory(["ant", "bee", "ape", "asp"])).key_by("letter", lambda w: w[0])
    >>> mp.collect(words.collect("pairs", size=2))
    [['ant', 'ape'], ['bee'], ['asp']]
    """

    def __init__(self, context: StepContext, *, size: int | None, every_s: float | None) -> None:
        super().__init__(context)
        self._size = size
        self._every_s = every_s
        self.scheduled = every_s is not None
        # When a key began to wait, on this worker's clock. What moves is how long it has waited, for clocks differ.
        self._since_s: dict[Any, float] = {}
        # What is restored waits from the moment on at which this was built: no message tells of it.
        self._built_s: float | None = context.clock.monotonic_s() if self.scheduled else None

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        states, size = self.state.values, self._size
        full: list[tuple[Any, list[Any], int]] = []
        timestamps = batch.timestamps or [0] * len(batch)
        self._look_for_restored()
        keys = keys_of(batch, self.context.step)
        distinct(keys, self.context.step)
        for key, value, timestamp in zip(keys, batch.values, timestamps, strict=True):
            values, latest, waited_s = states.get(key, ((), timestamp, 0.0))
            values, latest = [*values, value] if not values else _appended(values, value), max(latest, timestamp)
            if size is not None and len(values) >= size:
                self._take_out(key)
                full.append((key, values, latest))
            else:
                states[key] = (values, latest, waited_s)
        if self._every_s is not None:
            self._begin_to_wait(keys, self.context.clock.monotonic_s())
        self._send(full, out)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        if self.context.timed or epoch.time == MAX_EPOCH:
            due = [key for key, (_, latest, _) in self.state.values.items() if latest <= epoch.time]
            self._send([(key, *self._take_out(key)) for key in due], out)
        out.forward(epoch)

    def on_schedule(self, out: Outlet, clock: Clock) -> None:
        if self._every_s is None:
            return
        self._look_for_restored()
        now_s = clock.monotonic_s()
        due = [key for key, since_s in self._since_s.items() if now_s - since_s >= self._every_s]
        self._send([(key, *self._take_out(key)) for key in due], out)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        if self._every_s is None:
            super().on_control(message, out)
            return
        self._look_for_restored()
        states, since, now_s = self.state.values, self._since_s, self.context.clock.monotonic_s()
        if isinstance(message, CollectMessage | AbsBarrier):
            for key in message.keys if isinstance(message, CollectMessage) else since:
                if key in since:
                    states[key] = (*states[key][:2], now_s - since[key])
        super().on_control(message, out)
        if isinstance(message, CollectMessage):
            for key in message.keys:
                since.pop(key, None)
        elif isinstance(message, Acquire):
            # Those that have come stand behind the others.
            self._begin_to_wait(list(takewhile(lambda key: key not in since, reversed(states))), now_s)

    def _look_for_restored(self) -> None:
        if self._built_s is not None:
            self._begin_to_wait(self.state.values, self._built_s)
            self._built_s = None

    def _begin_to_wait(self, keys: Iterable[Any], now_s: float) -> None:
        states, since = self.state.values, self._since_s
        for key in keys:
            if key not in since and key in states:
                since[key] = now_s - states[key][2]

    def _take_out(self, key: Any) -> tuple[list[Any], int]:
        self._since_s.pop(key, None)
        values, latest, _ = self.state.values.pop(key, ([], 0, 0.0))
        return values, latest

    def _send(self, lists: list[tuple[Any, list[Any], int]], out: Outlet) -> None:
        if not lists:
            return
        keys, values, timestamps = (list(column) for column in zip(*lists, strict=True))
        out.send(Batch(values, keys=keys, timestamps=timestamps if self.context.timed else None))


def _appended(values: list[Any], value: Any) -> list[Any]:
    values.append(value)
    return values
