"""When the next turn of a worker begins: immediately if there is much to do, else some milliseconds after the last one.

Rule: a wait ends by itself after `GATHER_S` at most. No message ends it, and so none needs to be looked at: a barrier,
an order or an end that comes in it waits for these milliseconds, and those that follow it do not. A turn after a
pause costs several times as much as one after another turn, because the processor's caches are cold; so what a trickle
costs is the number of turns.
"""

from __future__ import annotations

from typing import Final

from malstrom_py.workers.engine.flow_limits import Batching

GATHER_S: Final = 0.01
"""The longest time from the beginning of a turn to that of the next one, if there is anything to do."""

ROWS_BUSY: Final = 32
"""A worker that gets so many rows, polled or sent, within the time between two turns does not wait."""

AWAKE_S: Final = 0.05
"""For so long a worker does not wait after an order, a barrier or many rows."""


class Gathering:
    """The pauses between the turns of a worker, in which the rows, credit and reports of a trickle gather.

    A turn begins twice ``linger_s`` after the last one, at most `GATHER_S`. Where as many rows as `ROWS_BUSY` come in
    that time, or half the credit of a channel, or anything but rows and credit, or rows wait for credit or for a call,
    or state moves, no turn waits for the next `AWAKE_S`.

    >>> gathering = Gathering(Batching())
    >>> gathering.begins(0.5, rows=1), gathering.pause_s(0.504, wait_s=0.5) > 0.005  # then a message ends the wait
    (True, True)
    >>> gathering.ended(0.502, rows=500, waits=False)
    >>> gathering.begins(0.503, rows=0), gathering.pause_s(0.503, wait_s=0.5)
    (False, 0.0)
    """

    __slots__ = ("_awake_until_s", "_began_s", "_rows", "_rows_busy", "turn_s")

    def __init__(self, batching: Batching) -> None:
        self.turn_s = min(2 * batching.linger_s, GATHER_S)
        self._rows_busy = min(ROWS_BUSY, batching.credit.rows // 2)
        self._began_s = 0.0
        self._rows = 0
        self._awake_until_s = 0.0

    def begins(self, now_s: float, rows: int, *, urgent: bool = False) -> bool:
        """Note that a turn begins, to which ``rows`` were sent; ``urgent``: and anything but rows and credit. Return
        whether the next turn may wait.
        """
        if now_s >= self._began_s + self.turn_s:
            self._began_s, self._rows = now_s, 0
        self._rows += rows
        if urgent:
            self._awake_until_s = now_s + AWAKE_S
        return now_s >= self._awake_until_s and self.turn_s > 0

    def ended(self, now_s: float, rows: int, *, waits: bool) -> None:
        """Note the end of a turn, with the ``rows`` that it has polled; ``waits``: whether any row waits."""
        self._rows += rows
        if waits or self._rows >= self._rows_busy:
            self._awake_until_s = now_s + AWAKE_S

    def pause_s(self, now_s: float, wait_s: float) -> float:
        """Return how much of a wait, of ``wait_s`` at most, no message ends."""
        if now_s < self._awake_until_s:
            return 0.0
        left_s = max(0.0, self._began_s + self.turn_s - now_s)
        return max(left_s, wait_s) if wait_s <= self.turn_s else left_s  # two waits would be two cold turns
