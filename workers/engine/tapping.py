"""Samples the records that steps of one worker emit, for the clients that have asked for them lately.

Rule: a step that is not tapped costs nothing, since its node is another one while it is tapped. A tapped step never
waits: some records are copied as their batch passes, the others are counted, and a tap ends by itself when its lease
does. Nothing that goes wrong with a record here is an error of the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from malstrom_py.builder.plan import Plan
from malstrom_py.clock import Clock
from malstrom_py.codec import Codec, Limits
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.errors import CodecError, shown
from malstrom_py.workers.engine.executor import Tap
from malstrom_py.workers.engine.graph_builder import WorkerGraph
from malstrom_py.workers.engine.rough_sizes import rough_size
from malstrom_py.workers.reports.taps import Keys, Tapped, TapRow, TapStep
from malstrom_py.workers.transport.messages import COORDINATOR, Outgoing

ROWS_MAX: Final = 100
"""How many records of a step a worker copies per message."""

BYTES_MAX: Final = 256 << 10
"""And at most about how many bytes."""

VALUE_MAX: Final = 32 << 10
"""The largest value, in bytes; a text with its type replaces a larger one."""

_TEXT_MAX: Final = 1_000
_DEPTH: Final = 4

_EVERY_S: Final = 0.5
_COST: Final = 200
"""Copying takes at most a two-hundredth of the time, and messages are half a second apart."""


class Tapping:
    """The taps of the worker ``number``, which runs ``graph`` of ``plan``."""

    def __init__(self, number: int, plan: Plan, graph: WorkerGraph, clock: Clock) -> None:
        self.number = number
        self.plan = plan
        self.graph = graph
        self.clock = clock
        self._taps: dict[tuple[str, Keys], _StepTap] = {}

    def obey(self, order: TapStep) -> list[Outgoing]:
        """Begin or renew a tap. Return what it holds back."""
        tap = self._taps.get((order.step, order.keys))
        if tap is None:
            tap = self._taps[order.step, order.keys] = _StepTap(self, order)
        tap.until_s = self.clock.monotonic_s() + order.lease_s
        return tap.taken()

    def forget(self, order: TapStep) -> None:
        """Forget a tap that has ended."""
        self._taps.pop((order.step, order.keys), None)


class _StepTap:
    """The tap of one step on one worker."""

    def __init__(self, tapping: Tapping, order: TapStep) -> None:
        self.until_s = 0.0
        self._tapping = tapping
        self._order = order
        # Apart from the codec of the worker: with limits that this one has not.
        self._codec = Codec(tapping.plan.types, limits=Limits(bytes_max=VALUE_MAX, items_max=VALUE_MAX))
        self._wanted = None if order.keys is None else frozenset(self._keys(order.keys))
        self._rows: list[TapRow] = []
        self._bytes = self._passed = self._offset = 0
        self._next_s = 0.0
        self._counts_until_s = 0.0
        self._taken_s = 0.0
        graph = tapping.graph
        ports = tapping.plan.steps[tapping.plan.rank(order.step)].ports
        self._names = [port.name for port in ports]
        self._taps: list[tuple[int, Tap]] = []
        for node, port in graph.executor.outputs(graph.nodes[order.step]):
            tap = partial(self._saw, port)
            self._taps.append((node, tap))
            graph.executor.tap(node, tap)

    def taken(self) -> list[Outgoing]:
        """Take what has been sampled, as a message if there is anything."""
        passed, rows = self._passed, self._rows
        self._passed, self._bytes, self._rows, self._counts_until_s = 0, 0, [], 0.0
        if not passed:
            return []
        order = self._order
        return [(COORDINATOR, Tapped(self._tapping.number, order.step, order.keys, tuple(rows), passed))]

    def _keys(self, stored: Sequence[bytes]) -> Iterator[Any]:
        for one in stored:
            with suppress(Exception):  # of a class that this job does not know
                key = self._codec.decode_at_rest(one)
                hash(key)
                yield key

    def _saw(self, only: int | None, batch: Batch, port: int) -> None:
        """Take part of a batch that leaves by ``port``, if that is the ``only`` one wanted."""
        if only not in (None, port):
            return
        now_s = self._tapping.clock.monotonic_s()
        if now_s < self._counts_until_s:  # most batches of a fast step: they cost this and no more
            self._passed += len(batch)
            return
        if now_s >= self.until_s:
            self._end()
            return
        with suppress(Exception):  # a key or value of the user's may raise when it is compared or shown
            self._sample(batch, "" if only is not None else self._names[port])
        if self._passed and now_s >= self._next_s:
            self._tapping.graph.messages.extend(self.taken())
            took_s, self._taken_s = self._taken_s, 0.0
            self._next_s = now_s + max(_EVERY_S, _COST * took_s)
        elif self._wanted is None and not self._has_room:
            self._counts_until_s = min(self._next_s, self.until_s)

    def _sample(self, batch: Batch, output: str) -> None:
        """Count the wanted records of ``batch``, and copy some of them, evenly, in order."""
        if isinstance(batch, ColumnBatch):
            # A batch keeps the forms that it was read in, by which later steps decide: read a copy, of the same memory.
            batch = batch.with_form(batch.form)
        wanted, rows = self._wanted, range(len(batch))
        found: Sequence[int] = rows
        if wanted is not None:
            found = [row for row, key in enumerate(batch.keys or ()) if key in wanted]
        self._passed += len(found)
        if not (found and self._has_room):
            return
        room = ROWS_MAX - len(self._rows)
        began_s = self._tapping.clock.monotonic_s()
        stride = max(1, len(found) // room)
        self._offset = (self._offset + 1) % stride
        # Taken out before they are read, so that no rows are made of the other records of columns.
        some = batch.take(list(found[self._offset :: stride][:room]))
        number, nothing = self._tapping.number, [None] * len(some)
        for key, value, time in zip(some.keys or nothing, some.values, some.timestamps or nothing, strict=True):
            if self._bytes >= BYTES_MAX:
                break
            at = None if time is None else int(time)
            row = TapRow(number, output, at, self._stored(key), self._stored(value))
            self._rows.append(row)
            self._bytes += row.size
        self._taken_s += self._tapping.clock.monotonic_s() - began_s

    @property
    def _has_room(self) -> bool:
        return len(self._rows) < ROWS_MAX and self._bytes < BYTES_MAX

    def _stored(self, value: Any) -> bytes:
        """Return the stored form of ``value`` or, if it has none or is large, of a text on it."""
        kind = type(value).__qualname__
        if rough_size(value, depth=_DEPTH) <= VALUE_MAX:
            try:
                return self._codec.encode_at_rest(value, step=self._order.step)
            except CodecError:
                text = shown(value, characters_max=_TEXT_MAX)
                return self._codec.encode_at_rest(text, step=self._order.step)
        return self._codec.encode_at_rest(f"<{kind}: too large to show>", step=self._order.step)

    def _end(self) -> None:
        for node, tap in self._taps:
            self._tapping.graph.executor.untap(node, tap)
        self._tapping.forget(self._order)
