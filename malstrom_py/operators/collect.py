"""``collect``: gathers the values of a key into lists, by number and by time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any

from malstrom_py.clock import Clock
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, AbsBarrier, Acquire, Epoch, StateMessage
from malstrom_py.data.messages import Collect as CollectMessage
from malstrom_py.errors import CodecError
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.keyed import StatefulOperator, distinct, keys_of
from malstrom_py.state.keyed_state import KeyedState, Migrate


class CollectStep(StatefulOperator):
    """Sends a key's values as one list once there are ``size`` of them, once ``every_s`` seconds of the runtime's
    clock have passed since the first of them, and at the end of the stream.

    On a timed stream a list has the largest timestamp of its values, and is sent before an epoch that would make it
    late. The gathered values are state: they move with their key and are persisted.

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
        self.keeps_on_disk = every_s is None  # lists with a time to wait are as many as come in that time
        self.state.due_at = (lambda key, state: state[1]) if context.timed else None
        # A key's state is its values, their largest timestamp, and the time of its first value on this worker's clock.
        # A state in flight or in a snapshot holds the time waited instead, because clocks differ. A restored key
        # continues to wait from the moment at which this operator was built.
        self._built_s: float | None = context.clock.monotonic_s() if self.scheduled else None

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        states, size = self.state.values, self._size
        full: list[tuple[Any, list[Any], int]] = []
        timestamps = batch.timestamps or [0] * len(batch)
        self._look_for_restored()
        now_s = self._now_s()
        keys = keys_of(batch, self.context.step)
        self.state.note(distinct(keys, self.context.step))
        for key, value, timestamp in zip(keys, batch.values, timestamps, strict=True):
            values, latest, since_s = states.get(key, ((), timestamp, now_s))
            values, latest = [*values, value] if not values else _appended(values, value), max(latest, timestamp)
            if size is not None and len(values) >= size:
                states.pop(key, None)
                full.append((key, values, latest))
            else:
                states[key] = (values, latest, since_s)
        if self.state.untried:
            self.state.try_first()
        self._send(full, out)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        if self.context.timed or epoch.time == MAX_EPOCH:
            self._take_out([key for key, (_, latest, _) in self.state.values.items() if latest <= epoch.time], out)
            ended = epoch.time == MAX_EPOCH
            for keys in self.state.bring_all() if ended else self.state.bring_due(epoch.time):
                self._take_out(keys, out)
        out.forward(epoch)

    def on_schedule(self, out: Outlet, clock: Clock) -> None:
        if self._every_s is not None:
            self._look_for_restored()
            every_s, now_s = self._every_s, clock.monotonic_s()
            self._take_out([key for key, (*_, since) in self.state.values.items() if now_s - since >= every_s], out)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        if self._every_s is None:
            super().on_control(message, out)
            return
        self._look_for_restored()
        state, now_s = self.state, self._now_s()
        before = len(state.values)
        if isinstance(message, CollectMessage):
            self._turn(message.keys, now_s)
        elif isinstance(message, AbsBarrier) and not state.tracked:
            message.backend.persist(self.context.step, self._waiting(now_s))
            out.forward(message)
            return
        state.handle(message, remark=self.context.codec.encode_at_rest(float(now_s), step=self.context.step))
        if isinstance(message, Acquire):
            # The acquired keys are the last in the dict.
            self._turn(list(islice(reversed(state.values), len(state.values) - before)), now_s)
        out.forward(message)

    @property
    def packs_ahead(self) -> KeyedState | None:
        self._look_for_restored()
        return self.state

    def install(self, chain: Sequence[bytes], slots: Collection[int], *, migrate: Migrate | None = None) -> None:
        keys, remark = self.take_over(chain, slots, migrate)
        if self._every_s is not None:
            # A waiting key is written once, with the time of its first value; the remark has each barrier's time.
            self._turn(keys, _seconds(self.context.codec.decode_at_rest(remark, step=self.context.step)))

    def continue_chain(self, snapshot: str) -> None:
        # Times in a chain are those of one clock, which another process does not have.
        if self._every_s is None:
            super().continue_chain(snapshot)

    def _now_s(self) -> float:
        return 0.0 if self._every_s is None else self.context.clock.monotonic_s()

    def _look_for_restored(self) -> None:
        if self._built_s is not None:
            self._turn(list(self.state.values), self._built_s)
            self._built_s = None

    def _turn(self, keys: Iterable[Any], now_s: float) -> None:
        """Convert the start time of ``keys`` into the time waited at ``now_s``, or the reverse."""
        states = self.state.values
        for key in keys:
            if key in states:
                values, latest, seconds = states[key]
                states[key] = (values, latest, now_s - seconds)

    def _waiting(self, now_s: float) -> bytes:
        """Return all state, with the time that each key has waited."""
        states = dict(self.state.values)
        self._turn(states, now_s)
        waiting = self.state.snapshot()
        self.state.values.update(states)
        return waiting

    def _take_out(self, keys: Collection[Any], out: Outlet) -> None:
        """Send the lists of ``keys`` and drop their state."""
        self.state.note(keys)
        states = self.state.values
        self._send([(key, *states.pop(key)[:2]) for key in keys], out)

    def _send(self, lists: list[tuple[Any, list[Any], int]], out: Outlet) -> None:
        if not lists:
            return
        keys, values, timestamps = (list(column) for column in zip(*lists, strict=True))
        out.send(Batch(values, keys=keys, timestamps=timestamps if self.context.timed else None))


def _appended(values: list[Any], value: Any) -> list[Any]:
    values.append(value)
    return values


def _seconds(remark: Any) -> float:
    if type(remark) is not float:
        raise CodecError(
            "the snapshot of a collect step is damaged: its clock time is not a number. Restore an older snapshot"
        )
    return remark
