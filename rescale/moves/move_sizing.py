"""How many slots the next move of a rescale takes: as many as are moved within a target pause. Pure.

Rule: what is not known is tried with little. The first move of a rescale is small, and from one to the next they grow
at most fourfold; they shrink at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

TARGET_PAUSE_S: Final = 0.05
"""How long the keys of one move are to be held for."""

AIM: Final = 0.7
"""Moves are sized for this part of the target, for they are not all alike, and a record waits a little besides."""

FIRST: Final = 64
"""The first move takes this part of all slots: two or three more such moves find the right size, whatever it is."""

MOST: Final = 4
"""No move takes more than this part of all slots, for what moves at once also lies in memory at once."""

GROWTH: Final = 4

SLOWEST_KEYS_PER_S: Final = 20_000
SLOWEST_BYTES_PER_S: Final = 20 << 20
"""State moves at this pace at least, where a worker has a processor to itself."""


def pause_by_size(pause_s: float, *, keys: int, size: int) -> float:
    """What a pause of ``pause_s`` seconds owes to the ``keys`` and the ``size`` in bytes of a move; the rest of it was
    waiting, for a processor that others keep busy, say, and smaller moves would only be more of them.

    >>> pause_by_size(2.0, keys=100, size=1000) < 0.01, pause_by_size(2.0, keys=100_000, size=100 << 20)
    (True, 2.0)
    """
    return min(pause_s, keys / SLOWEST_KEYS_PER_S + size / SLOWEST_BYTES_PER_S)


@dataclass(frozen=True, slots=True)
class Pacing:
    """The next move takes at most ``slots_max`` slots; none ever more than ``most``.

    ``target_s``: the pause that moves are sized for, in seconds; None: all are of one size.

    >>> pacing = Pacing.of(1024)
    >>> pacing.slots_max, pacing.after(16, 0.002).slots_max, pacing.after(16, 0.2).slots_max
    (16, 64, 2)
    """

    slots_max: int
    most: int
    target_s: float | None = TARGET_PAUSE_S

    @classmethod
    def of(cls, slots: int, *, target_s: float = TARGET_PAUSE_S) -> Pacing:
        """How a rescale of a job with ``slots`` slots begins."""
        most = max(1, slots // MOST)
        return cls(min(most, max(1, slots // FIRST)), most, target_s)

    @classmethod
    def fixed(cls, slots_max: int) -> Pacing:
        """Moves of the same size, whatever they take."""
        return cls(slots_max, slots_max, None)

    @property
    def adapts(self) -> bool:
        """Whether moves are sized by what they take."""
        return self.target_s is not None

    def after(self, moved: int, pause_s: float) -> Pacing:
        """What comes after a move of ``moved`` slots whose keys were held for ``pause_s`` seconds."""
        if self.target_s is None or not moved:
            return self
        slots_max = min(GROWTH * self.slots_max, self.most)
        if pause_s > 0:
            # A clock that has stood still says nothing, and what took no time may grow.
            slots_max = int(min(slots_max, moved * AIM * self.target_s / pause_s))
        return replace(self, slots_max=max(1, slots_max))
