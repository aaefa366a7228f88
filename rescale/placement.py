"""Placement: which worker owns which slot. Pure.

R10: slot counts stay within one of each other.
"""

from __future__ import annotations

from collections.abc import Sequence


def first_table(slots: int, members: Sequence[int]) -> tuple[int, ...]:
    """The routing table a job starts with: ``table[slot]`` is the worker that owns it, dealt in turn.

    >>> first_table(5, [0, 1])
    (0, 1, 0, 1, 0)
    """
    return tuple(members[slot % len(members)] for slot in range(slots))
