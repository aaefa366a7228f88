"""What a rescale has done: so far, and once it has ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RescaleReport:
    """A rescale that has ended.

    ``members``: the workers that are there now. ``version``: of the routing table they route by. ``moves``: how many
    moves it took. ``slots`` and ``parts``: how many of each changed worker. ``duration_s``: how long it took by the
    runtime's clock, in seconds. ``superseded_by``: how many workers the later request asked for that overtook this one;
    None if none did. ``keys``: how many keys with state changed worker, counted once for each region that keeps
    something of them. ``bytes``: how large their state was, as it was sent.

    >>> RescaleReport((0, 1), version=1, moves=1, slots=512, parts=2, duration_s=0.1).superseded_by is None
    True
    """

    members: tuple[int, ...]
    version: int
    moves: int
    slots: int
    parts: int
    duration_s: float
    superseded_by: int | None = None
    keys: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Moving:
    """A rescale while it moves what it is to move.

    ``move``: which move is under way, from 1. ``slots``: how many of the ``of_slots`` that are to change worker have
    done so. ``keys``, ``bytes``: what has been sent with them, as in `RescaleReport`.

    >>> print(Moving(2, slots=16, of_slots=512, keys=1_600, bytes=2_000_000))
    move 2, 16 of 512 slots moved, with 1,600 keys and 2.0 MB of state
    """

    move: int
    slots: int
    of_slots: int
    keys: int
    bytes: int

    def __str__(self) -> str:
        return (
            f"move {self.move}, {self.slots:,} of {self.of_slots:,} slots moved, with {self.keys:,} keys and "
            f"{self.bytes / 1e6:,.1f} MB of state"
        )
