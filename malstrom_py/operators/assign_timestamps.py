"""``assign_timestamps``: gives each record its event time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from malstrom_py.batches import Batch, ColumnBatch
from malstrom_py.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import Failures, call_each
from malstrom_py.time import PER_SECOND, Unit, to_time

if TYPE_CHECKING:
    import pyarrow as pa


class AssignTimestamps(Operator):
    """Times each record by ``fn(value)``: an int in ``unit`` or an aware datetime. Values and keys stay.

    None, naive datetimes, other types and times outside int64 go the way of ``on_error``. With ``column`` the times of
    a batch of columns are that one's, and no row is made for them.

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
    ) -> None:
        super().__init__(context)
        self._column = column
        self.takes_columns = column is not None
        self._fn = fn
        self._unit: Unit = unit
        self._failures = Failures(context)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        if isinstance(batch, ColumnBatch) and (moments := batch.column(self._column)) is not None:
            column = time_column(moments, self._unit)
            if column is not None:
                out.send(batch.with_time_column(column))
                return
        batch, times = call_each(self._fn, batch, self._failures, out)
        if not self._are_times(times):
            batch, times = self._convert(batch, times, out)
        out.send(batch.with_timestamps(times))

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
    def _are_times(times: list[Any]) -> bool:
        """Whether all are plain ints that fit: the common case, told at C speed."""
        return (
            all(kind is int for kind in set(map(type, times)))
            and min(times, default=0) > MIN_EPOCH
            and max(times, default=0) < MAX_EPOCH
        )


def time_column(moments: pa.Array, unit: Unit) -> pa.Array | None:
    """A column of moments as int64 in ``unit``, what `to_time` makes of each; None where one has to be looked at alone.

    >>> import pyarrow as pa
    >>> time_column(pa.array([1500, -1500], pa.timestamp("ms", "UTC")), "s").to_pylist()
    [1, -2]
    """
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
    """``times`` in ``given`` per second as ``wanted`` per second, rounded down; ArrowInvalid beyond int64."""
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
