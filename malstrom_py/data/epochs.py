"""How event time advances: epoch generators, and what they keep per source part (T1, T2).

Rule: lateness is decided per record against the running epoch of its own part, never per batch.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

from malstrom_py.data.messages import MIN_EPOCH
from malstrom_py.data.time import Unit, to_span
from malstrom_py.errors import PlanError, shown


class EpochTracker(Protocol):
    """The running epoch of one part."""

    epoch: int

    def observe(self, timestamps: list[int]) -> list[int]:
        """Take the timestamps of consecutive records (at least one) and advance ``epoch`` record by record.

        Returns the indices of the late ones: those at or below the running epoch when their turn came.
        """
        ...

    def raise_to(self, epoch: int) -> None:
        """Never judge by less than ``epoch`` from here on."""
        ...

    def snapshot(self) -> Any:
        """What `restore` needs to go on here or on another worker, in plain types."""
        ...

    def restore(self, state: Any) -> None:
        """Go on where `snapshot` was taken."""
        ...


@runtime_checkable
class SpanTracker(EpochTracker, Protocol):
    """A tracker that can tell by the smallest and the largest timestamp of some records that none of them is late."""

    def observe_span(self, smallest: int, largest: int) -> bool:
        """Take records with timestamps from ``smallest`` to ``largest``, if none can be late whatever their order.

        False: one may be late, nothing was taken, and `observe` is to be asked.
        """
        ...


class EpochGenerator(Protocol):
    """What ``generate_epochs`` takes."""

    def tracker(self, unit: Unit) -> EpochTracker:
        """A tracker for one part, whose timestamps are in ``unit``."""
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
    """Records of one part are at most ``bound`` out of order: epoch = largest timestamp - bound - 1 unit.

    A record exactly ``bound`` behind is on time. ``bound`` is a timedelta, or an int in the stream's unit.

    >>> tracker = limit_out_of_orderness(10).tracker("ms")
    >>> tracker.observe([100, 90, 89, 120, 105]), tracker.epoch
    ([2, 4], 109)
    """
    return LimitOutOfOrderness(bound)


def idle_after_s(idle_after: timedelta | None, step: str) -> float | None:
    """``idle_after`` of a ``generate_epochs`` in seconds; `PlanError` naming ``step`` if it is no time above 0."""
    if idle_after is None:
        return None
    if not isinstance(idle_after, timedelta) or idle_after <= timedelta(0):
        raise PlanError(f"step {step!r}: idle_after is a timedelta above 0, got {shown(idle_after)}")
    return idle_after.total_seconds()


def max_ahead_of(max_ahead: timedelta | int | None, unit: Unit, step: str) -> int | None:
    """``max_ahead`` of a ``generate_epochs`` in ``unit``; `PlanError` naming ``step`` if it is no such time."""
    if max_ahead is None:
        return None
    if not isinstance(max_ahead, timedelta | int) or isinstance(max_ahead, bool):
        raise PlanError(
            f"step {step!r}: max_ahead is a timedelta, or an int in the stream's unit, got {shown(max_ahead)}"
        )
    span = to_span(max_ahead, unit)
    if span < 0:
        raise PlanError(f"step {step!r}: max_ahead cannot be negative, got {shown(max_ahead)}")
    return span


class _BoundTracker:
    __slots__ = ("_bound", "_orderly", "epoch")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        # Whether none were late among the last: where some are, there will be more, and looking first costs the more.
        self._orderly = True
        self.epoch = MIN_EPOCH

    def observe_span(self, smallest: int, largest: int) -> bool:
        final = max(self.epoch, largest - self._bound - 1)
        # Whatever their order, no record can be late that is above the epoch the whole batch ends with.
        if smallest <= final:
            return False
        self.epoch = final
        return True

    def observe(self, timestamps: list[int]) -> list[int]:
        if self._orderly and self.observe_span(min(timestamps), max(timestamps)):
            return []
        late: list[int] = []
        reach, epoch = self._bound + 1, self.epoch
        for index, timestamp in enumerate(timestamps):
            if timestamp <= epoch:
                late.append(index)
            elif timestamp - reach > epoch:
                epoch = timestamp - reach
        self.epoch = epoch
        self._orderly = not late
        return late

    def raise_to(self, epoch: int) -> None:
        self.epoch = max(self.epoch, epoch)

    def snapshot(self) -> Any:
        return self.epoch

    def restore(self, state: Any) -> None:
        self.epoch = state
