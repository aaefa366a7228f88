"""Event time: ``assign_timestamps`` gives each record its timestamp, ``generate_epochs`` derives epochs (watermarks)
from the timestamps, per source part, and separates late records from those on time.

T1: lateness is decided here, once, per record. T2: the epoch sent is the minimum over the parts that are open here and
not idle; if all are idle, it is sent with that flag and follows the epoch of other workers. T4: records too far ahead
of the clock do not advance the epoch. T5: the maximum epoch comes from the source, after all its parts.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.epochs import ArrayTracker, EpochGenerator, EpochTracker
from malstrom_py.data.messages import (
    MAX_EPOCH,
    MIN_EPOCH,
    AbsBarrier,
    Epoch,
    PartEpoch,
    PartFinished,
    PartMessage,
    PartOpened,
    PartQuiet,
    PartReleased,
    StateMessage,
)
from malstrom_py.data.time import PER_SECOND, Unit, from_clock, to_time
from malstrom_py.errors import InternalError, OperatorError
from malstrom_py.errors.text import describe_function
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import ErrorPolicy, call_each
from malstrom_py.operators.first_rows import UnitWatch
from malstrom_py.operators.stateless import FunctionStep

if TYPE_CHECKING:
    import pyarrow as pa

    from malstrom_py.data.epochs import Late, Times


class AssignTimestamps(FunctionStep):
    """Times each record by ``fn(value)``: an int in ``unit`` or an aware datetime. Values and keys stay.

    None, naive datetimes, other types and times outside int64 are handled by ``on_error``. With ``column``, a batch of
    columns takes its times from that column, without converting rows.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> readings = job.source("readings", sources.Memory([{"at": 5}, {"at": 7}]))
    >>> mp.collect(readings.assign_timestamps("at", lambda r: r["at"], unit="s"))
    [{'at': 5}, {'at': 7}]
    """

    def __init__(
        self,
        context: StepContext,
        *,
        fn: Callable[[Any], int | datetime],
        unit: Unit,
        column: str | None = None,
        compiles: bool = True,
    ) -> None:
        super().__init__(context, fn, column=column, compiles=compiles)
        self._unit: Unit = unit
        self._unit_watch = UnitWatch(context, fn, unit)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        if isinstance(batch, ColumnBatch) and self._send_columns(batch, out):
            return
        batch, times = call_each(self._fn, batch, self._failures, out)
        span = self._span_of(times)
        if span is None:
            batch, times = self._convert(batch, times, out)
        elif self._unit_watch.active:
            self._unit_watch.looked_at(*span)
        out.send(batch.with_timestamps(times, span))

    def _send_columns(self, batch: ColumnBatch, out: Outlet) -> bool:
        """Time ``batch`` by a column; False if there is none, or it has a moment that needs separate treatment."""
        moments = self._compiled.column(batch) if self._column is None else batch.column(self._column)
        column = None if moments is None else time_column(moments, self._unit)
        self.takes_columns = self._column is not None or column is not None
        if moments is None or column is None:
            return False
        if self._unit_watch.active:
            self._look_at(moments, column)
        out.send(batch.with_time_column(column))
        return True

    def _look_at(self, moments: pa.Array, times: pa.Array) -> None:
        """Look at the first times in columns, if they are numbers."""
        import pyarrow as pa
        import pyarrow.compute as pc

        self._unit_watch.active = False
        if pa.types.is_integer(moments.type):
            ends = pc.call_function("min_max", [times]).as_py()
            self._unit_watch.looked_at(ends["min"], ends["max"])

    def _convert(self, batch: Batch, moments: list[Any], out: Outlet) -> tuple[Batch, list[int]]:
        times: list[int] = []
        failed: list[int] = []
        for index, moment in enumerate(moments):
            try:
                times.append(to_time(moment, self._unit))
            except Exception as error:
                self._failures.record(error, self._fn, batch, index, out)
                failed.append(index)
        return (batch.drop(failed) if failed else batch), times

    @staticmethod
    def _span_of(times: list[Any]) -> tuple[int, int] | None:
        """Return the smallest and the largest of ``times`` if all are plain ints in range: at C speed."""
        if set(map(type, times)) != {int}:
            return None
        least, most = min(times), max(times)
        return (least, most) if least > MIN_EPOCH and most < MAX_EPOCH else None


def time_column(moments: pa.Array, unit: Unit) -> pa.Array | None:
    """Convert a column of moments to int64 in ``unit``, as `to_time` does; None if one needs separate treatment."""
    import pyarrow as pa

    kind = moments.type
    is_moment = pa.types.is_timestamp(kind) and kind.tz is not None
    if moments.null_count or not len(moments) or not (pa.types.is_integer(kind) or is_moment):
        return None
    try:
        times = moments.cast(pa.int64())
        if is_moment:
            times = _scaled(times, PER_SECOND[kind.unit], PER_SECOND[unit])
    except pa.ArrowInvalid:  # beyond int64
        return None
    return times if _all_fit(times) else None


def _scaled(times: pa.Array, given: int, wanted: int) -> pa.Array:
    """Convert ``times`` from ``given`` to ``wanted`` units per second, rounded down; ArrowInvalid beyond int64."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if wanted >= given:
        return pc.call_function("multiply_checked", [times, pa.scalar(wanted // given, pa.int64())])
    step = pa.scalar(given // wanted, pa.int64())
    quotient = pc.call_function("divide", [times, step])  # rounded towards zero
    is_above = pc.call_function("less", [times, pc.call_function("multiply", [quotient, step])])
    return pc.call_function("subtract", [quotient, is_above.cast(pa.int64())])


def _all_fit(times: pa.Array) -> bool:
    import pyarrow.compute as pc

    ends = pc.call_function("min_max", [times]).as_py()
    return bool(ends["min"] > MIN_EPOCH and ends["max"] < MAX_EPOCH)


ON_TIME: Final = 0
LATE: Final = 1


class _Part:
    """A part that is open here. ``ways``: the number of paths to this step, several after branches that join again.

    ``is_empty``: it holds the place of parts that may still be found, and is idle for ever (R13).
    """

    __slots__ = ("arrays", "idle", "is_empty", "tracker", "ways")

    def __init__(self, tracker: EpochTracker, *, is_empty: bool) -> None:
        self.tracker = tracker
        self.arrays = tracker if isinstance(tracker, ArrayTracker) else None
        self.ways = 0
        self.idle = self.is_empty = is_empty


class GenerateEpochs(Operator):
    """Sends on-time records and epochs to the first stream, late records (no epochs) to the second.

    A part without records for ``idle_after_s`` does not hold the epoch back. A record more than ``max_ahead`` (in
    ``unit``) ahead of the runtime's clock is sent with the late ones, counted apart, and does not advance the epoch.
    """

    takes_columns = True
    passes_all = True

    def __init__(
        self,
        context: StepContext,
        *,
        generator: EpochGenerator,
        unit: Unit,
        idle_after_s: float | None = None,
        max_ahead: int | None = None,
    ) -> None:
        super().__init__(context)
        self.idle_after_s = idle_after_s
        self.sent = MIN_EPOCH
        self.idle = False
        """Whether the last epoch sent has the idle flag: at least one part is open here, and all are idle."""
        self._generator = generator
        self.unit: Unit = unit
        self._max_ahead = max_ahead
        self._parts: dict[str, _Part] = {}
        # Whether the minimum over the parts may have changed for another reason than a part that held it back.
        self._stale = False
        self._failures = ErrorPolicy(context)

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        match message:
            case PartOpened():
                self._open(message, out)
            case PartReleased():
                if (part := self._ended(message.part)) is not None:
                    self._catch_up(part, out)
                    message.state[self.context.step] = part.tracker.snapshot()
                    self._stale = True  # R2: no epoch is sent between hand-over and marker
            case PartFinished():
                if self._ended(message.part) is not None:
                    self._advance(out)
            case PartQuiet():
                part = self._parts.get(message.part)
                if part is not None and self.idle_after_s is not None and message.quiet_s >= self.idle_after_s:
                    stale, part.idle = self._stale or not part.idle, True
                    if stale:
                        self._advance(out)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        if isinstance(message, AbsBarrier):
            for part in self._parts.values():
                self._catch_up(part, out)
            state = {name: part.tracker.snapshot() for name, part in self._parts.items() if not part.is_empty}
            message.backend.persist(self.context.step, self.context.codec.encode_at_rest(state, step=self.context.step))
        out.forward(message)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        part = self._part_of(batch)
        wakes = part.idle
        if wakes:
            self._catch_up(part, out)
            part.idle = False
        before = part.tracker.epoch
        late, on_time = self._split(part, batch)
        if late is not None:
            self.counters.late += len(late)
            out.send(late, LATE)
        out.send(on_time, ON_TIME)
        # A part that was ahead of the epoch did not hold it back.
        if wakes or self._stale or before <= self.sent:
            self._advance(out)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        self.sent, self.idle = epoch.time, epoch.idle
        out.forward(epoch)

    def parts(self) -> Iterator[tuple[str, int, bool]]:
        """Return the parts that are open here: name, running epoch, and whether it is idle."""
        return ((name, part.tracker.epoch, part.idle) for name, part in self._parts.items() if not part.is_empty)

    def follow(self, out: Outlet, *, time: int) -> None:
        """Send ``time``, which the active workers or the clock have reached, if all parts here are idle (T2, T7)."""
        if self.idle and time > self.sent:
            self.sent = time
            out.send(Epoch(time, idle=True), ON_TIME)

    def rewind(self, epoch: Epoch) -> Epoch:
        """Lower the epoch if a gained part is below it (R2)."""
        if epoch.time != MAX_EPOCH:
            reached, self.idle = self._reached()
            self.sent = min(self.sent, reached)
        return Epoch(self.sent, self.idle)

    def keep(self, out: Outlet) -> None:
        """Raise idle parts to the epoch sent without them, before a switch gains parts (T2)."""
        for part in self._parts.values():
            self._catch_up(part, out)

    def advance(self, out: Outlet) -> None:
        """Send the epoch of the parts that are open here, unless the stream has ended."""
        if self._parts and self.sent != MAX_EPOCH:
            self._advance(out)

    def _part_of(self, batch: Batch) -> _Part:
        if batch.part is None:
            raise OperatorError(
                f"step {self.context.step!r} received records that come from no partition of a source, so their "
                f"lateness cannot be decided: let steps before it send in on_data only, not in on_epoch",
                step=self.context.step,
            )
        part = self._parts.get(batch.part)
        if batch.time_column is None and batch.timestamps is None:
            raise OperatorError(
                f"step {self.context.step!r} received records without timestamps, from which it derives event time: "
                f"give each record one before this step",
                step=self.context.step,
            )
        if part is None:
            raise InternalError(f"step {self.context.step!r} was sent {batch} of part {batch.part!r}, not open here")
        return part

    def _open(self, message: PartOpened, out: Outlet) -> None:
        part = self._parts.get(message.part)
        if part is None:
            if self.idle:
                out.drain()
            state = (message.state or {}).get(self.context.step)
            part = self._parts[message.part] = self._new(state, out, is_empty=message.is_empty)
            self._stale = True
            if self.idle:
                self._advance(out)
        part.ways += 1

    def _ended(self, name: str) -> _Part | None:
        """Remove and return the part ``name`` once it has ended on every path to this step."""
        part = self._parts.get(name)
        if part is None:
            return None
        part.ways -= 1
        return self._parts.pop(name) if part.ways == 0 else None

    def _catch_up(self, part: _Part, out: Outlet) -> None:
        """Raise an idle part to the epoch sent without it, never to the maximum (T2)."""
        if part.idle:
            out.drain()  # records of another branch of this region may be in flight to the same union
            with self._failures.of_hook(part.tracker.raise_to):
                part.tracker.raise_to(out.passed())

    def _new(self, state: Any, out: Outlet, *, is_empty: bool) -> _Part:
        """Return a part whose tracker continues from ``state``, if given.

        T2: a gained part keeps its frontier, even if this worker is ahead; the rescale informs the steps downstream. A
        new part starts at the epoch already sent.
        """
        with self._failures.of_hook(self._generator.tracker):
            tracker = self._generator.tracker(self.unit)
            if state is not None:
                tracker.restore(state)
            else:
                tracker.raise_to(out.passed())
            part = _Part(tracker, is_empty=is_empty)
        self._check_epoch(part)
        return part

    def _split(self, part: _Part, batch: Batch) -> tuple[Batch | None, Batch]:
        """Return the rows that are late or too far ahead, None for none, and the others, which advance the epoch."""
        limit: int | None = None
        if self._max_ahead is not None:
            limit = from_clock(self.context.clock.now_s(), self.unit) + self._max_ahead
        if part.arrays is not None and batch.time_column is not None and isinstance(batch, ColumnBatch):
            is_late = self._late_of_columns(part.arrays, batch.time_column.to_numpy(), limit)
            return (None, batch) if is_late is None else (_rows_where(batch, is_late), _rows_where(batch, ~is_late))
        timestamps = batch.timestamps or []
        if limit is not None and max(timestamps) > limit:
            late = self._ahead(part, timestamps, limit)
        else:
            late = self._observe(part, timestamps)
        return (batch.take(late), batch.drop(late)) if late else (None, batch)

    def _late_of_columns(self, tracker: ArrayTracker, times: Times, limit: int | None) -> Late | None:
        """Return whether each row is late or above ``limit``; None if none is."""
        if limit is None or int(times.max()) <= limit:
            return tracker.observe_array(times)
        is_late: Late = times > limit
        self.counters.ahead += int(is_late.sum())
        others = times[~is_late]
        if len(others) and (late := tracker.observe_array(others)) is not None:
            is_late[~is_late] = late
        return is_late

    def _ahead(self, part: _Part, timestamps: list[int], limit: int) -> list[int]:
        """Return late rows and those above ``limit``, which the tracker does not observe (T4)."""
        ahead = [row for row, timestamp in enumerate(timestamps) if timestamp > limit]
        self.counters.ahead += len(ahead)
        rows = [row for row, timestamp in enumerate(timestamps) if timestamp <= limit]
        late = self._observe(part, [timestamps[row] for row in rows]) if rows else []
        return sorted([*ahead, *(rows[index] for index in late)])

    def _observe(self, part: _Part, timestamps: list[int]) -> list[int]:
        observe = part.tracker.observe
        try:
            late = observe(timestamps)
        except Exception as error:
            raise self._failures.error(error, observe, policy=False) from error
        if not _is_of_rows(late, len(timestamps)):
            raise self._broken(
                "observe did not return the indices of the late records",
                "Return a list of them, ascending, each once, from 0 to len(timestamps) - 1, empty if none is late",
                observe,
            )
        self._check_epoch(part)
        return late

    def _check_epoch(self, part: _Part) -> None:
        if not isinstance(part.tracker.epoch, int):
            raise self._broken("the tracker's epoch is not an int", "Set it to an int at all times", part.tracker)

    def _broken(self, what: str, remedy: str, hook: object) -> OperatorError:
        """Return the error about a user's tracker that breaks the contract of `EpochTracker`."""
        where = describe_function(hook)
        step = self.context.step
        return OperatorError(f"step {step!r}: {what} (in {where}). {remedy}.", step=step, function=where)

    def _advance(self, out: Outlet) -> None:
        """Send the epoch of the parts if it is higher than the last one, or if the idle flag has changed."""
        self._stale = False
        epoch, idle = self._reached()
        if epoch > self.sent or idle is not self.idle:
            self.sent, self.idle = max(epoch, self.sent), idle
            out.send(Epoch(self.sent, idle), ON_TIME)

    def _reached(self) -> tuple[int, bool]:
        """Return the minimum epoch of the active parts, and whether all are idle.

        If all are idle, those that have never had a record do not count (T7), nor does an empty one beside others.
        """
        parts = self._parts.values()
        active = [part.tracker.epoch for part in parts if not part.idle]
        if active:
            return min(active), False
        begun = [part for part in parts if part.tracker.epoch != MIN_EPOCH]
        counted = [part for part in begun if not part.is_empty] or begun
        return min((part.tracker.epoch for part in counted), default=MIN_EPOCH), bool(parts)


class RestoreEpochs(GenerateEpochs):
    """Sends the epochs that the source itself gives for each part: no record of it is late."""

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        self._part_of(batch)
        out.send(batch, ON_TIME)

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        if not isinstance(message, PartEpoch):
            super().on_part(message, out)
            return
        part = self._parts[message.part]
        held_back = self._stale or part.tracker.epoch <= self.sent
        part.tracker.raise_to(message.time)
        if held_back:
            self._advance(out)


def _rows_where(batch: ColumnBatch, chosen: Late) -> ColumnBatch:
    import pyarrow as pa

    return batch.take(pa.array(chosen.nonzero()[0]))


def _is_of_rows(late: object, rows: int) -> bool:
    """Whether ``late``, from a user's tracker, is a valid result of `EpochTracker.observe`."""
    if not isinstance(late, list) or not set(map(type, late)) <= {int}:
        return False
    return not late or (late[0] >= 0 and late[-1] < rows and all(map(operator.lt, late, late[1:])))
