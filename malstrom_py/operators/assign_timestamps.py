"""``assign_timestamps``: gives each record its event time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import Failures, call_each
from malstrom_py.time import Unit, to_time


class AssignTimestamps(Operator):
    """Times each record by ``fn(value)``: an int in ``unit`` or an aware datetime. Values and keys stay.

    None, naive datetimes, other types and times outside int64 go the way of ``on_error``.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> readings = job.source("readings", sources.Memory([{"at": 5}, {"at": 7}]))
    >>> mp.collect(readings.assign_timestamps("at", lambda r: r["at"], unit="s"))
    [{'at': 5}, {'at': 7}]
    """

    def __init__(self, context: StepContext, *, fn: Callable[[Any], int | datetime], unit: Unit) -> None:
        super().__init__(context)
        self._fn = fn
        self._unit: Unit = unit
        self._failures = Failures(context)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
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
