"""What of the state that leaves in a move is sent ahead, while its old owner works (R12). Pure.

Rule: all slots are gone through once. If much has changed by then, they are gone through again, for what has changed.
The rounds are bounded, and so are the bytes: what is left then, or changes faster than it is sent, is sent at the cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

AHEAD_LEAST: Final = 1 << 20
"""A move with fewer bytes of state takes a few milliseconds; after one, nothing is sent ahead of the next."""

AHEAD_MOST: Final = 128 << 20
"""The largest number of bytes that a region of one worker sends ahead of a move: its new owner keeps them in memory."""

ROUNDS: Final = 2


class CopyRounds:
    """The rounds over ``slots`` (slot, new owner) that leave.

    ``bytes_max``: bounds all rounds together; ``again_at``: with so many changed bytes, another round begins.

    >>> rounds = CopyRounds([(7, 1), (3, 1)], bytes_max=100, again_at=10)
    >>> rounds.now
    (1, 3)
    >>> rounds.sent(40); rounds.slot_over(); rounds.sent(40); rounds.slot_over()
    >>> rounds.now, rounds.again(30), rounds.now
    (None, True, (1, 3))
    >>> rounds.sent(20), rounds.now
    (None, None)
    """

    def __init__(
        self,
        slots: Iterable[tuple[int, int]],
        *,
        bytes_max: int = AHEAD_MOST,
        again_at: int = AHEAD_LEAST,
        rounds: int = ROUNDS,
    ) -> None:
        self._slots = sorted((owner, slot) for slot, owner in slots)
        self._left = deque(self._slots)
        self._room = bytes_max
        self._again_at = again_at
        self._rounds = rounds

    @property
    def now(self) -> tuple[int, int] | None:
        """The new owner and the slot whose state is sent now; None: the round is over, or the room is used up."""
        return self._left[0] if self._left and self._room > 0 else None

    def slot_over(self) -> None:
        """Continue with the next slot."""
        self._left.popleft()

    def sent(self, size: int) -> None:
        """Count the bytes that have been sent."""
        self._room -= size

    def again(self, changed: int) -> bool:
        """Begin another round if ``changed`` bytes are worth it; return whether it has begun. A round is over."""
        self._rounds -= 1
        if self._rounds <= 0 or self._room <= 0 or changed < self._again_at:
            self._left.clear()
            return False
        self._left = deque(self._slots)
        return True
