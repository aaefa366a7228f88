"""How long a region has held the keys of one move: what the size of the next one goes by.

Rule: only what grows with the move counts. How long markers stand in queues before the cut, and `Shipped` behind it,
has nothing to do with how many slots move.
"""

from __future__ import annotations

from malstrom_py.clock import Clock


class MovePause:
    """Of one move after the other, by ``clock``.

    >>> from malstrom_py.testing import VirtualClock
    >>> clock = VirtualClock()
    >>> pause = MovePause(clock)
    >>> pause.marked()
    >>> clock.advance(2.0)
    >>> pause.shipped()
    >>> pause.taken(), pause.taken()
    (2.0, 0.0)
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cut_s = 0.0
        self._began_s: float | None = None
        self._longest_s = 0.0

    def marked(self) -> None:
        """A marker has come; the last one makes the cut."""
        self._cut_s = self._clock.monotonic_s()

    def shipped(self) -> None:
        """All that leaves has left: it was held from the cut on."""
        self._lasted(self._cut_s)

    def begins(self) -> None:
        """A parcel is about to be put in."""
        if self._began_s is None:
            self._began_s = self._clock.monotonic_s()

    def put_in(self) -> None:
        """It has been: what comes was held from the first one on."""
        if self._began_s is not None:
            self._lasted(self._began_s)

    def taken(self) -> float:
        """How long it was, in seconds; the next move begins."""
        longest_s, self._longest_s, self._began_s = self._longest_s, 0.0, None
        return longest_s

    def _lasted(self, since_s: float) -> None:
        self._longest_s = max(self._longest_s, self._clock.monotonic_s() - since_s)
