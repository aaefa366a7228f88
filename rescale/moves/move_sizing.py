"""The number of slots in the next move of a rescale: as many as can be moved within a target pause. Pure.

Rule: the first move of a rescale is small. A move is at most four times as large as the one before it; it may be
smaller by any factor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

TARGET_PAUSE_S: Final = 0.05
"""The target time for which a move holds its keys."""

AIM: Final = 0.4
"""The fraction of the target that moves are sized for: moves differ, and a record also waits for other reasons."""

FIRST: Final = 64
"""The first move takes 1/FIRST of all slots; two or three more moves find the right size."""

MOST: Final = 4
"""No move takes more than 1/MOST of all slots, because the state of a move is in memory as a whole."""

GROWTH: Final = 4

MOVE_BYTES: Final = 64 << 20
"""The aim for the state of a move, in bytes: what is sent ahead of it is in memory twice until the cut (R12)."""

SLOWEST_KEYS_PER_S: Final = 20_000
SLOWEST_BYTES_PER_S: Final = 20 << 20
"""The lowest speed of state transfer on a worker that has a processor to itself."""


def pause_by_size(pause_s: float, *, keys: int, size: int) -> float:
    """Return the part of ``pause_s`` that is due to the ``keys`` and the ``size`` in bytes of a move.

    The rest was waiting, for example for a busy processor. Smaller moves would only add more such waits.

    >>> pause_by_size(2.0, keys=100, size=1000) < 0.01, pause_by_size(2.0, keys=100_000, size=100 << 20)
    (True, 2.0)
    """
    return min(pause_s, keys / SLOWEST_KEYS_PER_S + size / SLOWEST_BYTES_PER_S)


@dataclass(frozen=True, slots=True)
class Pacing:
    """The size of the next move: at most ``slots_max`` slots, and never more than ``most``.

    ``target_s``: the pause that moves are sized for, in seconds; None: all moves have one size.

    >>> pacing = Pacing.of(1024)
    >>> pacing.slots_max, pacing.after(16, 0.002).slots_max, pacing.after(16, 0.2).slots_max
    (16, 64, 1)
    """

    slots_max: int
    most: int
    target_s: float | None = TARGET_PAUSE_S

    @classmethod
    def of(cls, slots: int, *, target_s: float = TARGET_PAUSE_S) -> Pacing:
        """Return the size of the first move in a job with ``slots`` slots."""
        most = max(1, slots // MOST)
        return cls(min(most, max(1, slots // FIRST)), most, target_s)

    @classmethod
    def fixed(cls, slots_max: int) -> Pacing:
        """Return a size that never changes."""
        return cls(slots_max, slots_max, None)

    @property
    def adapts(self) -> bool:
        """Whether the size follows from the measured pauses."""
        return self.target_s is not None

    def after(self, moved: int, pause_s: float, *, size: int = 0) -> Pacing:
        """Return the size after a move of ``moved`` slots that held its keys for ``pause_s`` seconds.

        ``size``: the bytes of their state.
        """
        if self.target_s is None or not moved:
            return self
        slots_max = min(GROWTH * self.slots_max, self.most)
        if pause_s > 0:
            # A pause of zero, for example of a virtual clock, measures nothing: the size may grow.
            slots_max = int(min(slots_max, moved * AIM * self.target_s / pause_s))
        if size > 0:
            slots_max = min(slots_max, moved * MOVE_BYTES // size)
        return replace(self, slots_max=max(1, slots_max))
