"""What a rescale did, once it has ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RescaleReport:
    """A rescale that has ended.

    ``members``: the workers that are there now. ``version``: of the routing table they route by. ``moves``: how many
    moves it took. ``slots`` and ``parts``: how many of each changed worker. ``duration_s``: how long it took by the
    runtime's clock, in seconds. ``superseded_by``: how many workers the later request asked for that overtook this one;
    None if none did.

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
