"""Epoch generators: how event time advances, and the watermark of each partition of a source (T1, T2).

Rule: whether a record is late is decided by the watermark of its partition, record by record, never per batch.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.data.time import Unit, to_span
from malstrom_py.errors import PlanError, shown

if TYPE_CHECKING:
    import numpy as np

    Times = np.ndarray[tuple[int], np.dtype[np.int64]]
    Late = np.ndarray[tuple[int], np.dtype[np.bool_]]


class EpochTracker(Protocol):
    """The watermark of one partition, ``epoch``. That of a new tracker is `MIN_EPOCH`: no record is late yet."""

    epoch: int

    def observe(self, timestamps: list[int]) -> list[int]:
        """Advance ``epoch`` by the timestamps of consecutive records (at least one), record by record.

        Return the indices of the late records: those at or below the watermark that the records before them left.
        """
        ...

    def raise_to(self, epoch: int) -> None:
        """Raise the watermark to at least ``epoch``."""
        ...

    def snapshot(self) -> Any:
        """Return the state for `restore`, here or on another worker, in plain types."""
        ...

    def restore(self, state: Any) -> None:
        """Continue from a `snapshot`."""
        ...


@runtime_checkable
class ArrayTracker(EpochTracker, Protocol):
    """A tracker that takes the timestamps of columns as an array, at a tenth of the cost of a list."""

    def observe_array(self, times: Times) -> Late | None:
        """Advance the watermark as `observe` does; return whether each record is late, None if none is."""
        ...


class EpochGenerator(Protocol):
    """The argument of ``generate_epochs``."""

    def tracker(self, unit: Unit) -> EpochTracker:
        """Return a tracker for one partition, whose timestamps are in ``unit``."""
        ...


class LimitOutOfOrderness:
    """See `limit_out_of_orderness`."""

    def __init__(self, bound: timedelta | int) -> None:
        if not isinstance(bound, timedelta | int) or isinstance(bound, bool):
            raise PlanError(f"limit_out_of_orderness takes a timedelta, or an int in the stream's unit, got {bound!r}")
        if to_span(bound, "us") < 0:
            raise PlanError(f"limit_out_of_orderness: the bound cannot be negative, got {bound!r}")
        self.bound = bound

    def __repr__(self) -> str:
        return f"limit_out_of_orderness({self.bound})"

    def tracker(self, unit: Unit) -> EpochTracker:
        return _BoundTracker(to_span(self.bound, unit))


def limit_out_of_orderness(bound: timedelta | int) -> LimitOutOfOrderness:
    """Return a generator for partitions whose records are at most ``bound`` out of order.

    The watermark is the largest timestamp - bound - 1 unit: a record exactly ``bound`` older is on time. ``bound`` is a
    timedelta, or an int in the stream's unit.

    >>> tracker = limit_out_of_orderness(10).tracker("ms")
    >>> tracker.observe([100, 90, 89, 120, 105]), tracker.epoch
    ([2, 4], 109)
    """
    return LimitOutOfOrderness(bound)


def after_s(after: timedelta | None, step: str, option: str) -> float | None:
    """Return ``after`` in seconds; raise `PlanError` naming ``step`` and ``option`` unless it is above 0."""
    if after is None:
        return None
    if not isinstance(after, timedelta) or after <= timedelta(0):
        raise PlanError(f"step {step!r}: {option} must be a timedelta above 0, got {shown(after)}")
    return after.total_seconds()


def max_ahead_of(max_ahead: timedelta | int | None, unit: Unit, step: str) -> int | None:
    """Return ``max_ahead`` in ``unit``; raise `PlanError` naming ``step`` if it is not a span of time."""
    if max_ahead is None:
        return None
    if not isinstance(max_ahead, timedelta | int) or isinstance(max_ahead, bool):
        raise PlanError(
            f"step {step!r}: max_ahead must be a timedelta, or an int in the stream's unit, got {shown(max_ahead)}"
        )
    span = to_span(max_ahead, unit)
    if span < 0:
        raise PlanError(f"step {step!r}: max_ahead cannot be negative, got {shown(max_ahead)}")
    return span


_FIRST: Final = 9
"""How many timestamps are looked at first: they show whether to look at all."""


def _ascending(timestamps: list[int]) -> bool:
    """Whether each timestamp is at least the one before it. Sorting such a list costs a fifth of a loop.

    >>> _ascending([3, 3, 5]), _ascending([3, 5, 4])
    (True, False)
    """
    first = timestamps[:_FIRST]
    return first == sorted(first) and timestamps == sorted(timestamps)


class _BoundTracker:
    __slots__ = ("_bound", "epoch")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self.epoch = MIN_EPOCH

    def observe(self, timestamps: list[int]) -> list[int]:
        reach, epoch = self._bound + 1, self.epoch
        if timestamps[0] > epoch and _ascending(timestamps):
            self.epoch = max(epoch, timestamps[-1] - reach)
            return []
        top = epoch + reach
        for timestamp in timestamps:
            if timestamp > top:
                top, epoch = timestamp, timestamp - reach
            elif timestamp <= epoch:
                return self._observe_late(timestamps)
        self.epoch = epoch
        return []

    def _observe_late(self, timestamps: list[int]) -> list[int]:
        """Observe timestamps of which some are late: with their indices, at twice the cost."""
        late: list[int] = []
        reach, epoch = self._bound + 1, self.epoch
        for index, timestamp in enumerate(timestamps):
            if timestamp <= epoch:
                late.append(index)
            elif timestamp - reach > epoch:
                epoch = timestamp - reach
        self.epoch = epoch
        return late

    def observe_array(self, times: Times) -> Late | None:
        import numpy as np

        reach, top = self._bound + 1, self.epoch + self._bound + 1
        after = max(self.epoch, int(times.max()) - reach)
        smallest = int(times.min())
        # Above the epoch after the whole batch: on time in any order; in order of time, above the one before it.
        if smallest > after or (smallest > self.epoch and bool((times[1:] >= times[:-1]).all())):
            self.epoch = after
            return None
        if max(reach, top) > MAX_EPOCH:  # beyond what the array holds
            late = np.zeros(len(times), np.bool_)
            late[self.observe(times.tolist())] = True
            return late if late.any() else None
        epochs = np.empty(len(times), np.int64)
        epochs[0], epochs[1:] = top, times[:-1]
        np.maximum.accumulate(epochs, out=epochs)
        epochs -= reach
        self.epoch = after
        late = times <= epochs
        return late if late.any() else None

    def raise_to(self, epoch: int) -> None:
        self.epoch = max(self.epoch, epoch)

    def snapshot(self) -> Any:
        return self.epoch

    def restore(self, state: Any) -> None:
        self.epoch = state
