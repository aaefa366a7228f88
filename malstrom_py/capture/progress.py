"""The progress protocol of a captured stream: which times it may still send.

Each stream begins with one capability, at the minimum time. Progress is changes (time, delta): a time may be added only
while one that is earlier or equal is held. A stream is complete when it holds none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.errors import CaptureError


class ProtocolError(CaptureError):
    """A stream breaks the progress protocol: another program has written it, or it is not complete."""


class Held:
    """The capabilities of one stream.

    >>> held = Held()
    >>> held.update([(11, 1), (MIN_EPOCH, -1)])
    >>> held.epoch, held.allows(11), held.allows(10)
    (10, True, False)
    """

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count: dict[int, int] = {MIN_EPOCH: 1}

    @property
    def epoch(self) -> int:
        """No record with a timestamp at or below it follows."""
        if not self._count:
            return MAX_EPOCH
        least = min(self._count)
        return least if least == MIN_EPOCH else least - 1

    @property
    def is_complete(self) -> bool:
        """Whether nothing more may be sent."""
        return not self._count

    def allows(self, time: int) -> bool:
        """Return whether a record with the timestamp ``time`` may be sent."""
        return any(held <= time for held in self._count)

    def update(self, changes: Iterable[tuple[int, int]]) -> None:
        """Apply ``changes``, together.

        Raises:
            ProtocolError: a time is added without a capability, or removed more often than it is held.
        """
        after = dict(self._count)
        for time, delta in changes:
            if delta > 0 and not self.allows(time):
                raise ProtocolError(f"time {time} is added while no earlier or equal time is held")
            after[time] = after.get(time, 0) + delta
        if any(count < 0 for count in after.values()):
            raise ProtocolError("a time is given up more often than it is held")
        self._count = {time: count for time, count in after.items() if count}

    def image(self) -> list[list[int]]:
        """Return what is held, in plain types."""
        return [[time, count] for time, count in sorted(self._count.items())]

    @classmethod
    def of_image(cls, image: Sequence[Sequence[int]]) -> Held:
        """Return what an `image` held."""
        held = cls()
        held._count = {time: count for time, count in image}  # noqa: C416  # of lists
        return held
