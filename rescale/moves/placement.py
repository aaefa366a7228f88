"""Placement: which worker owns which slot, and the moves from one placement to another. Pure.

R10: without measured loads the slot counts of workers differ by at most one, and no more slots move than that needs;
with loads `malstrom_py.rescale.load` finds the table, and the moves to it are planned here. The rule also holds when
only the first move is made and the rest is planned again from the new table with another size: every moved slot
reduces the number of remaining slots by one, and no plan can do better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import TypeVar

from malstrom_py.rescale.moves.protocol import PartMove, RescaleMove, Table

T = TypeVar("T")


def first_table(slots: int, members: Sequence[int]) -> Table:
    """Return the first routing table of a job, slots dealt in turn: ``table[slot]`` is the worker that owns the slot.

    >>> first_table(5, [0, 1])
    (0, 1, 0, 1, 0)
    """
    return (tuple(members) * -(-slots // len(members)))[:slots]


def rebalanced(table: Table, members: Sequence[int]) -> Table:
    """Return ``table`` balanced over ``members``, with the fewest moved slots (R10).

    >>> rebalanced((0, 0, 1, 1), [0, 1, 2])
    (0, 0, 1, 2)
    """
    owned: dict[int, list[int]] = {member: [] for member in members}
    homeless = []
    for slot, owner in enumerate(table):
        owned[owner].append(slot) if owner in owned else homeless.append(slot)
    small, larger = divmod(len(table), len(members))
    # The workers with the most slots keep one more, so that the fewest slots move.
    by_count = sorted(members, key=lambda member: (-len(owned[member]), member))
    share = {member: small + (rank < larger) for rank, member in enumerate(by_count)}
    for member in members:
        homeless += owned[member][share[member] :]
    new = list(table)
    # Slots are given in turn, so that each move, which takes them in order, is spread over all that gain.
    gains = {member: share[member] - len(owned[member]) for member in members}
    takers = (member for turn in range(max(gains.values())) for member in members if gains[member] > turn)
    for slot, taker in zip(sorted(homeless), takers, strict=True):
        new[slot] = taker
    return tuple(new)


def rebalanced_parts(parts: Mapping[tuple[str, str], int], members: Sequence[int]) -> list[PartMove]:
    """Return the moves of parts, source by source, by the same rule."""
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


def dealt_parts(
    parts: Mapping[tuple[str, str], int], new: Sequence[tuple[str, str]], members: Sequence[int]
) -> dict[tuple[str, str], int]:
    """R13: return the worker of each ``new`` part: the one with the fewest parts of its source, the first of several.

    So parts that appear one by one are dealt as those that are there at the start: in turn.

    >>> dealt_parts({("in", "a"): 0}, [("in", "b"), ("in", "c")], [0, 1])
    {('in', 'b'): 1, ('in', 'c'): 0}
    """
    dealt: dict[tuple[str, str], int] = {}
    for source in dict.fromkeys(source for source, _ in new):
        owned = Counter(worker for (other, _), worker in parts.items() if other == source)
        fewest = [(owned[worker], rank, worker) for rank, worker in enumerate(members)]
        heapify(fewest)
        for part in new:
            if part[0] == source:
                count, rank, worker = fewest[0]
                dealt[part] = worker
                heapreplace(fewest, (count + 1, rank, worker))
    return dealt


def plan_moves(
    version: int,
    members: Sequence[int],
    table: Table,
    parts: Mapping[tuple[str, str], int],
    wanted: Sequence[int],
    *,
    slots_max: int,
    target: Table | None = None,
) -> Iterator[RescaleMove]:
    """Yield the moves from ``members`` to ``wanted``, each of at most ``slots_max`` slots and as many parts.

    The moves have equal sizes. Joiners are members from the first move, leavers until the last. There is at least one
    move. ``target``: the table after the last one; None: `rebalanced`.

    >>> [move.table for move in plan_moves(0, [0], (0, 0, 0, 0), {}, [0, 1], slots_max=1)]
    [(0, 0, 1, 0), (0, 0, 1, 1)]
    """
    target = rebalanced(table, wanted) if target is None else target
    changed = [slot for slot, (was, now) in enumerate(zip(table, target, strict=True)) if was != now]
    parts_changed = rebalanced_parts(parts, wanted)
    count = max(1, -(-max(len(changed), len(parts_changed)) // slots_max))
    here, old = list(table), tuple(members)
    between = tuple(sorted({*members, *wanted}))
    spread = zip(_spread(changed, count), _spread(parts_changed, count), strict=True)
    for number, (slots, moved) in enumerate(spread, start=1):
        for slot in slots:
            here[slot] = target[slot]
        more = number < count
        new = between if more else tuple(sorted(wanted))
        yield RescaleMove(version + number, old, new, tuple(here), tuple(moved), more)
        old = between


def opening_move(
    version: int, members: Sequence[int], table: Table, wanted: Sequence[int], *, target: Table | None = None
) -> RescaleMove | None:
    """Return an empty move before those of `plan_moves` to ``target``; None if it would not shorten a pause.

    After a marker, rows of slots that have not arrived are held. A worker that loses slots has to find their keys
    before it switches, which may take long. With this move all workers find their keys while no row is held.

    >>> opening_move(3, [0, 1], (0, 1, 0, 1), [0]).losing
    (1,)
    """
    target = rebalanced(table, wanted) if target is None else target
    losing = tuple(sorted({was for was, now in zip(table, target, strict=True) if was != now}))
    if len(members) == 1 or not losing:
        return None
    between = tuple(sorted({*members, *wanted}))
    return RescaleMove(version + 1, tuple(members), between, table, more=True, losing=losing)


def _spread(items: Sequence[T], count: int) -> Iterator[Sequence[T]]:
    """Yield ``items`` in ``count`` slices whose lengths differ by at most one, longer slices first."""
    size, longer = divmod(len(items), count)
    start = 0
    for number in range(count):
        end = start + size + (number < longer)
        yield items[start:end]
        start = end
