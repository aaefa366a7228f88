"""Placement: which worker owns which slot, and the moves from one placement to another. Pure.

R10: slot counts stay within one of each other, and no more slots move than that takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from typing import TypeVar

from malstrom_py.rescale.protocol import Move, PartMove, Table

T = TypeVar("T")


def first_table(slots: int, members: Sequence[int]) -> Table:
    """The routing table a job starts with: ``table[slot]`` is the worker that owns it, dealt in turn.

    >>> first_table(5, [0, 1])
    (0, 1, 0, 1, 0)
    """
    return tuple(members[slot % len(members)] for slot in range(slots))


def rebalanced(table: Table, members: Sequence[int]) -> Table:
    """``table`` for ``members``: balanced within one, with as few slots moved as that takes (R10).

    >>> rebalanced((0, 0, 1, 1), [0, 1, 2])
    (0, 0, 1, 2)
    """
    owned: dict[int, list[int]] = {member: [] for member in members}
    homeless = []
    for slot, owner in enumerate(table):
        owned[owner].append(slot) if owner in owned else homeless.append(slot)
    small, larger = divmod(len(table), len(members))
    # Who has most keeps one more, so that the fewest move.
    by_count = sorted(members, key=lambda member: (-len(owned[member]), member))
    share = {member: small + (rank < larger) for rank, member in enumerate(by_count)}
    for member in members:
        homeless += owned[member][share[member] :]
    new = list(table)
    takers = (member for member in members for _ in range(share[member] - len(owned[member])))
    for slot, taker in zip(sorted(homeless), takers, strict=True):
        new[slot] = taker
    return tuple(new)


def rebalanced_parts(parts: Mapping[tuple[str, str], int], members: Sequence[int]) -> list[PartMove]:
    """The moves of parts, source by source, by the same rule."""
    moves: list[PartMove] = []
    for source in sorted({source for source, _ in parts}):
        names = sorted(name for other, name in parts if other == source)
        before = tuple(parts[source, name] for name in names)
        after = rebalanced(before, members)
        moves += [
            PartMove(source, name, giver, taker)
            for name, giver, taker in zip(names, before, after, strict=True)
            if giver != taker
        ]
    return moves


def plan_moves(
    version: int,
    members: Sequence[int],
    table: Table,
    parts: Mapping[tuple[str, str], int],
    wanted: Sequence[int],
    *,
    slots_max: int,
) -> list[Move]:
    """The moves from ``members`` to ``wanted``: each of at most ``slots_max`` slots and as many parts.

    Joiners are members from the first move on, leavers up to the last. There is at least one move.

    >>> [move.table for move in plan_moves(0, [0], (0, 0, 0, 0), {}, [0, 1], slots_max=1)]
    [(0, 0, 1, 0), (0, 0, 1, 1)]
    """
    target = rebalanced(table, wanted)
    changed = [slot for slot, (was, now) in enumerate(zip(table, target, strict=True)) if was != now]
    chunks = zip_longest(_chunks(changed, slots_max), _chunks(rebalanced_parts(parts, wanted), slots_max), fillvalue=())
    moves: list[Move] = []
    here, old = list(table), tuple(members)
    between = tuple(sorted({*members, *wanted}))
    for slots, moved in [*chunks] or [((), ())]:
        for slot in slots:
            here[slot] = target[slot]
        version += 1
        moves.append(Move(version, old, between, tuple(here), tuple(moved)))
        old = between
    last = moves[-1]
    moves[-1] = Move(last.version, last.old, tuple(sorted(wanted)), last.table, last.parts)
    return moves


def _chunks(items: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    iterator = iter(items)
    while chunk := tuple(islice(iterator, size)):
        yield chunk
