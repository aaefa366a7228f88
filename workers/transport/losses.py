"""Which peers are lost, and when that is said: after what they had sent, so that a last word is heard.

Rule: a loss is told within `LAST_WORDS_S` however much else comes, and again until the peer is disconnected.
"""

from __future__ import annotations

from typing import Final

from malstrom_py.errors import PeerError

QUIET_S: Final = 0.05
"""A loss is told when nothing more has come for so long."""
LAST_WORDS_S: Final = 0.5


class Losses:
    """The lost peers of one end. Times are in seconds, of any one clock."""

    def __init__(self) -> None:
        self._losses: dict[int, tuple[float, PeerError]] = {}
        self._busy_at = 0.0

    def add(self, peer: int, now: float, error: PeerError) -> None:
        """``peer`` was found lost, which ``error`` says."""
        self._losses.setdefault(peer, (now, error))
        self._busy_at = now

    def forget(self, peer: int) -> None:
        """``peer`` was disconnected: its end is no error."""
        self._losses.pop(peer, None)

    def check(self, now: float, *, quiet: bool) -> None:
        """Raise the first loss, if it is time. ``quiet``: nothing is there that came before."""
        if not quiet:
            self._busy_at = now
        for since, error in self._losses.values():
            if (quiet and now - self._busy_at >= QUIET_S) or now - since >= LAST_WORDS_S:
                raise error.with_traceback(None)

    def due(self, now: float) -> float:
        """When to `check` again."""
        return now + QUIET_S if self._losses else float("inf")

    def __contains__(self, peer: int) -> bool:
        return peer in self._losses

    def __bool__(self) -> bool:
        return bool(self._losses)
