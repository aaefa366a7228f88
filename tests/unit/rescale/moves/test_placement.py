"""Placement: balanced, with as few slots moved as that takes; and the moves between two placements."""

from __future__ import annotations

import itertools
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.rescale.moves.placement import first_table, opening_move, plan_moves, rebalanced, rebalanced_parts
from malstrom_py.rescale.moves.protocol import PartMove, Table

WORKERS = st.sets(st.integers(0, 30), min_size=1, max_size=12).map(sorted)


def sizes(table: Table, members: list[int]) -> list[int]:
    counts = Counter(table)
    return [counts[member] for member in members]


def fewest_moves(table: Table, members: list[int]) -> int:
    small, larger = divmod(len(table), len(members))
    most_first = sorted(sizes(table, members), reverse=True)
    return len(table) - sum(min(count, small + (rank < larger)) for rank, count in enumerate(most_first))


def moved(before: Table, after: Table) -> int:
    return sum(was != now for was, now in zip(before, after, strict=True))


@given(st.integers(1, 200), WORKERS, WORKERS, WORKERS)
def test_r10_any_rescale_is_balanced_and_moves_the_fewest(
    slots: int, first: list[int], second: list[int], third: list[int]
) -> None:
    table = first_table(slots, first)
    for members in (second, third):
        new = rebalanced(table, members)
        assert max(sizes(new, members)) - min(sizes(new, members)) <= 1
        assert moved(table, new) == fewest_moves(table, members)
        table = new


@given(st.integers(1, 60), st.integers(1, 20), WORKERS, WORKERS)
def test_moves_are_bounded_and_lead_from_here_to_there(
    slots: int, slots_max: int, members: list[int], wanted: list[int]
) -> None:
    table = first_table(slots, members)
    parts = {("S", str(number)): members[number % len(members)] for number in range(7)}
    here = table
    for number, move in enumerate(plans := list(plan_moves(4, members, table, parts, wanted, slots_max=slots_max))):
        assert move.version == 5 + number
        assert moved(here, move.table) <= slots_max
        assert len(move.parts) <= slots_max
        here = move.table
    assert here == rebalanced(table, wanted)
    assert plans[0].old == tuple(members)
    assert plans[-1].new == tuple(wanted)
    for before, after in itertools.pairwise(plans):
        assert before.new == after.old == tuple(sorted({*members, *wanted}))
    assert [move.more for move in plans] == [True] * (len(plans) - 1) + [False]


@given(st.data(), st.integers(1, 200), WORKERS, WORKERS, WORKERS)
def test_r10_planned_anew_after_each_move_it_is_as_balanced_and_no_more_slots_move(
    data: st.DataObject, slots: int, first: list[int], second: list[int], wanted: list[int]
) -> None:
    table = rebalanced(first_table(slots, first), second)
    parts = {(source, str(number)): second[number % len(second)] for source in "ST" for number in range(9)}
    fewest, parts_fewest = fewest_moves(table, wanted), len(rebalanced_parts(parts, wanted))
    slots_moved = parts_moved = version = 0
    here, members, more = table, tuple(second), True
    while more:
        slots_max = data.draw(st.integers(1, 60))
        move = next(plan_moves(version, members, here, parts, wanted, slots_max=slots_max))
        assert (move.version, move.old) == (version + 1, members)
        assert moved(here, move.table) <= slots_max
        assert moved(here, move.table) + len(move.parts) > 0 or not move.more
        slots_moved += moved(here, move.table)
        parts_moved += len(move.parts)
        parts |= {(part.source, part.part): part.taker for part in move.parts}
        version, here, members, more = move.version, move.table, move.new, move.more
    assert max(sizes(here, wanted)) - min(sizes(here, wanted)) <= 1
    assert slots_moved == moved(table, here) == fewest
    assert parts_moved == parts_fewest
    assert rebalanced_parts(parts, wanted) == []
    assert sorted(members) == sorted(wanted)


def test_parts_are_spread_over_the_moves() -> None:
    parts = {("S", str(number)): 0 for number in range(6)}
    plans = list(plan_moves(0, [0], (0,) * 16, parts, [0, 1], slots_max=4))
    assert [len(move.parts) for move in plans] == [2, 1]
    assert [moved(before, after) for before, after in itertools.pairwise([(0,) * 16, *(p.table for p in plans)])] == [
        4,
        4,
    ]
    many = {("S", str(number)): 0 for number in range(40)}
    assert [len(move.parts) for move in plan_moves(0, [0], (0, 0), many, [0, 1], slots_max=8)] == [7, 7, 6]


def test_only_the_moves_that_are_asked_for_are_made() -> None:
    moves = plan_moves(0, [0], (0,) * 4096, {}, [0, 1], slots_max=1)
    assert moved((0,) * 4096, next(moves).table) == 1


def test_parts_move_by_the_same_rule() -> None:
    parts = {("S", "0"): 0, ("S", "1"): 0, ("T", "0"): 0}
    assert rebalanced_parts(parts, [0, 1]) == [PartMove("S", "1", 0, 1)]
    assert rebalanced_parts(parts, [1]) == [PartMove(source, part, 0, 1) for source, part in sorted(parts)]


def test_there_is_a_move_though_nothing_moves() -> None:
    (move,) = plan_moves(0, [0, 1, 2], (0,), {}, [0, 1], slots_max=4)
    assert (move.table, move.old, move.new) == ((0,), (0, 1, 2), (0, 1))


@pytest.mark.parametrize(("before", "after"), [(1_000, 1_001), (1_000, 500), (500, 1_000)])
def test_r10_a_thousand_workers_with_32768_slots(before: int, after: int, capsys: pytest.CaptureFixture[str]) -> None:
    members, wanted = list(range(before)), list(range(after))
    table = first_table(32_768, members)
    start = time.perf_counter()
    plans = list(plan_moves(0, members, table, {}, wanted, slots_max=1_024))
    spent = time.perf_counter() - start
    tables = [table, *(plan.table for plan in plans)]
    moves, fewest = sum(moved(a, b) for a, b in itertools.pairwise(tables)), fewest_moves(table, wanted)
    with capsys.disabled():
        print(f"\n{before:,} -> {after:,} workers: {spent * 1e3:.0f} ms, {moves:,} slots of {fewest:,} moved")
    counts = sizes(tables[-1], wanted)
    assert max(counts) - min(counts) <= 1
    assert moves <= 1.1 * fewest


def test_an_opening_move_tells_who_will_lose_and_moves_nothing() -> None:
    table = first_table(12, [0, 1, 2])
    move = opening_move(4, [0, 1, 2], table, [0, 1])
    assert move is not None
    assert (move.version, move.table, move.parts, move.more) == (5, table, (), True)
    assert (move.old, move.new, move.losing) == ((0, 1, 2), (0, 1, 2), (2,))
    grown = opening_move(4, [0, 1], first_table(12, [0, 1]), [0, 1, 2])
    assert grown is not None
    assert (grown.new, grown.losing) == ((0, 1, 2), (0, 1))


def test_a_single_worker_or_one_that_loses_nothing_needs_no_opening_move() -> None:
    assert opening_move(0, [0], first_table(12, [0]), [0, 1]) is None
    assert opening_move(0, [0, 1], first_table(12, [0, 1]), [0, 1]) is None


def test_each_move_is_spread_over_all_who_gain() -> None:
    before, wanted = first_table(4_096, range(100)), range(110)
    table = before
    for move in plan_moves(0, range(100), before, {}, wanted, slots_max=64):
        gained = Counter(now for was, now in zip(table, move.table, strict=True) if was != now)
        assert max(gained.values()) <= -(-gained.total() // 10) + 1, "no joiner installs most of a move alone"
        table = move.table
