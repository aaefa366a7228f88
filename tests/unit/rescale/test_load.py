"""Placement by load: balanced where slots allow it, with few moved slots; and the weights that it takes."""

from __future__ import annotations

import itertools
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py.metrics import HotKey
from malstrom_py.rescale.hot_keys import COOL, HOT_MAX, TARGET_BUSY, HotKeys
from malstrom_py.rescale.load import (
    COUNTED_MAX,
    KNOWN,
    KNOWN_S,
    TOLERANCE,
    SlotLoads,
    fair_share,
    imbalance,
    pays,
    placed,
)
from malstrom_py.rescale.moves.placement import first_table, rebalanced
from malstrom_py.rescale.moves.protocol import Table

WORKERS = st.sets(st.integers(0, 12), min_size=1, max_size=6).map(sorted)
WEIGHTS = st.lists(st.floats(0, 100), min_size=1, max_size=60)


def moved(before: Table, after: Table) -> int:
    return sum(was != now for was, now in zip(before, after, strict=True))


def is_even(table: Sequence[int], members: Sequence[int], weights: Sequence[float]) -> bool:
    """R10: no member is below 0.9 fair shares; none is above 1.1, or above its heaviest slot and a tenth beside it."""
    fair = fair_share(weights, len(members))
    beside = TOLERANCE * fair + 1e-9 * sum(weights)
    for member in members:
        own = [weight for owner, weight in zip(table, weights, strict=True) if owner == member]
        if not fair - beside <= sum(own) <= max([fair, *own]) + beside:
            return False
    return True


def at_least(table: Table, members: Sequence[int], weights: Sequence[float]) -> int:
    """A number of slots that must move: those of leavers, and the heaviest of members that have too much; or
    as many of the heaviest as those need that have too little, each by itself and all together.
    """
    fair = fair_share(weights, len(members))
    beside = TOLERANCE * fair + 1e-9 * sum(weights)
    heaviest = list(itertools.accumulate(sorted(weights, reverse=True)))
    given, needed = sum(owner not in members for owner in table), list[float]()
    for member in members:
        own = sorted(weight for owner, weight in zip(table, weights, strict=True) if owner == member)
        load = sum(own)
        needed.append(fair - beside - load)
        while own and load > max(fair, own[-1]) + beside:
            load -= own.pop()
            given += 1
    needs = [bisect_left(heaviest, need) + 1 for need in needed if need > 0]
    together = bisect_left(heaviest, sum(need for need in needed if need > 0)) + 1 if needs else 0
    return max(given, sum(needs), together)


def fewest(table: Table, members: Sequence[int], weights: Sequence[float]) -> int | None:
    """By trying all placements; None if none is even."""
    return min(
        (moved(table, new) for new in itertools.product(members, repeat=len(table)) if is_even(new, members, weights)),
        default=None,
    )


@given(st.integers(1, 60), WORKERS, WORKERS)
def test_r10_without_weights_slots_are_placed_by_number(slots: int, first: list[int], members: list[int]) -> None:
    table = first_table(slots, first)
    assert placed(table, members, None) == rebalanced(table, members)
    assert placed(table, members, [0.0] * slots) == rebalanced(table, members)


@pytest.mark.parametrize(
    ("slots", "workers", "known", "every"),
    [(4, 2, (1, 2, 4), 5), (4, 3, (1, 5), 29), (5, 2, (1, 3), 23), (5, 3, (1, 2), 331)],
)
def test_r10_no_placement_is_as_even_with_fewer_moves(
    slots: int, workers: int, known: tuple[int, ...], every: int
) -> None:
    """All weights, with some of the tables of one worker more, which leaves; by trying all placements."""
    members = list(range(workers))
    for weights in itertools.product(known, repeat=slots):
        for table in list(itertools.product(range(workers + 1), repeat=slots))[sum(weights) % 5 :: every]:
            least, new = fewest(table, members, weights), placed(table, members, weights)
            if least is not None:
                assert is_even(new, members, weights), (table, weights)
                assert moved(table, new) == least, (table, weights)
            assert set(new) <= set(members)


@settings(max_examples=40)
@given(st.data(), WORKERS, WORKERS)
def test_r10_where_slots_are_light_workers_are_even_and_few_slots_move(
    data: st.DataObject, first: list[int], members: list[int]
) -> None:
    slots = 40 * max(len(first), len(members))
    seed = data.draw(st.lists(st.floats(0.7, 1.3), min_size=8, max_size=8))
    weights = [seed[slot % 8] * seed[slot // 8 % 8] * seed[slot // 64 % 8] for slot in range(slots)]
    table = placed(first_table(slots, first), first, weights[::-1])
    new = placed(table, members, weights)
    assert is_even(new, members, weights)
    assert max(1.0, imbalance(new, members, weights)) <= 1 + TOLERANCE + 1e-6
    # What must move at least is not always enough, so it may be one more.
    assert moved(table, new) <= 1.1 * at_least(table, members, weights) + 1
    assert new == placed(table, members, weights)


@given(st.data(), WEIGHTS, WORKERS, WORKERS)
def test_r10_any_weights_give_each_slot_a_member_and_leave_what_is_even(
    data: st.DataObject, weights: list[float], first: list[int], members: list[int]
) -> None:
    table = tuple(data.draw(st.sampled_from(first)) for _ in weights)
    new = placed(table, members, weights)
    assert set(new) <= set(members)
    if is_even(new, members, weights) and sum(weights) > 0:
        assert placed(new, members, weights) == new
    if not set(table) - set(members) and pays(table, new, members, weights):
        assert moved(table, new) > 0


def test_a_slot_that_is_heavier_than_a_fair_share_stays_and_others_leave_it() -> None:
    weights = [30.0, *[1.0] * 11]
    assert placed((0,) * 12, [0, 1], weights) == (1, *[0] * 11), "the fewest moves: the heavy one itself"
    assert placed((0, *[1] * 6, *[0] * 5), [0, 1], weights).count(0) == 2, "a tenth stays beside it"
    grown = placed((0,) * 12, [0, 1, 2], weights)
    assert sorted(map(grown.count, (0, 1, 2))) == [1, 5, 6]


def test_a_move_that_does_not_help_is_not_made() -> None:
    assert placed((0, 1), [0, 1], [10.0, 1.0]) == (0, 1)
    assert not pays((0, 1), (0, 1), [0, 1], [10.0, 1.0])
    table = (0, 0, 0, 1, 1)
    weights = [2.0, 1.0, 1.05, 2.0, 2.0]
    assert imbalance(table, [0, 1], weights) < 1.1
    assert not pays(table, placed(table, [0, 1], weights), [0, 1], weights)


def test_a_rebalance_moves_the_one_slot_that_pays() -> None:
    table = first_table(1_024, [0, 1, 2, 3])
    weights = [1.0] * 1_024
    weights[0] = weights[4] = 40.0
    new = placed(table, [0, 1, 2, 3], weights)
    assert pays(table, new, [0, 1, 2, 3], weights)
    (slot,) = (slot for slot in range(1_024) if table[slot] != new[slot])
    assert slot in (0, 4)
    assert imbalance(new, [0, 1, 2, 3], weights) < 1.1


def test_r10_several_heavy_slots_of_one_worker_are_shared_though_others_have_to_make_room() -> None:
    members = range(64)
    table = tuple(slot * 64 // 1_024 for slot in range(1_024))
    weights = [6.4] * 3 + [1.0] * 1_021
    new = placed(table, members, weights)
    assert is_even(new, members, weights)
    assert moved(table, new) <= 14, "two heavy slots, two light ones, and five of each that took a heavy one"


def noted(loads: SlotLoads, now_s: float, counted: Mapping[int, Mapping[int, float]], *, sampled: int) -> None:
    """Note counts of which each sampled row counts for as much."""
    total = sum(sum(slots.values()) for slots in counted.values())
    loads.note(now_s, counted, sampled=sampled, squares=total**2 / sampled if sampled else 0.0)


def test_a_slot_that_was_left_out_of_the_largest_counts_is_not_new() -> None:
    loads = SlotLoads(COUNTED_MAX + 1)
    counts = dict.fromkeys(range(COUNTED_MAX), 1000.0)
    noted(loads, 0.0, {0: counts}, sampled=0)
    del counts[0]
    noted(
        loads, KNOWN_S, {0: {**{slot: rows + 1 for slot, rows in counts.items()}, COUNTED_MAX: 1_001.0}}, sampled=KNOWN
    )
    weights = loads.weights
    assert weights is not None
    assert weights[COUNTED_MAX] == pytest.approx(weights[1])


def test_128_workers_with_8192_slots() -> None:
    weights = [1.0 + (slot * 7919 % 1_000) / 500 for slot in range(8_192)]
    table = first_table(8_192, range(64))
    for members in (list(range(128)), list(range(64))):
        new = placed(table, members, weights)
        assert is_even(new, members, weights)
        assert moved(table, new) <= 1.1 * max(1, at_least(table, members, weights))
        table = new


def test_weights_are_known_after_enough_rows_and_follow_what_is_lately() -> None:
    loads = SlotLoads(4)
    noted(loads, 0.0, {0: {0: 10.0}}, sampled=0)
    noted(loads, KNOWN_S, {0: {0: 5_000.0}}, sampled=KNOWN - 1)
    assert loads.weights is None
    noted(loads, KNOWN_S + 1, {0: {0: 10_000.0}}, sampled=KNOWN)
    first = loads.weights
    assert first is not None
    assert max(first) == first[0]
    assert min(first) > 0
    assert sum(first) == pytest.approx(1.0)
    for second in range(5, 65):
        noted(loads, float(second), {0: {0: 10_000.0, 1: second * 5_000.0}}, sampled=second * KNOWN)
    later = loads.weights
    assert later is not None
    assert later[1] > 0.8


def test_weights_wait_for_workers_whose_first_counts_come_later() -> None:
    loads = SlotLoads(2)
    noted(loads, 0.0, {0: {0: 0.0}}, sampled=0)
    noted(loads, 1.0, {0: {0: 5_000.0}}, sampled=2 * KNOWN)
    assert loads.weights is None
    for second in (2, 3):
        noted(loads, float(second), {0: {0: 5_000.0 * second}, 1: {1: 5_000.0 * second}}, sampled=4 * KNOWN * second)
    assert loads.weights == pytest.approx([0.5, 0.5], abs=0.03)


def test_a_slot_that_moves_is_counted_by_its_new_owner_only() -> None:
    loads, still = SlotLoads(2), SlotLoads(2)
    for second in range(10):
        sampled = second * KNOWN
        noted(still, float(second), {0: {0: sampled}, 1: {1: sampled}}, sampled=sampled)
        there = {0: min(second, 4) * KNOWN}, {0: max(0, second - 4) * KNOWN, 1: sampled}
        noted(loads, float(second), dict(enumerate(there)), sampled=sampled)
    assert loads.weights == still.weights
    assert still.weights == pytest.approx([0.5, 0.5])


def test_counts_of_a_new_worker_begin_at_nothing() -> None:
    loads = SlotLoads(2)
    noted(loads, 0.0, {3: {0: 50_000.0}}, sampled=0)
    noted(loads, KNOWN_S, {3: {1: 5_000.0}}, sampled=KNOWN)
    assert loads.weights is not None
    assert loads.weights[1] > 0.9


def test_r10_slots_that_differ_by_chance_alone_weigh_the_same() -> None:
    rng = random.Random(1)
    loads, counted = SlotLoads(1024), Counter[int]()
    noted(loads, 0.0, {0: {}}, sampled=0)
    for second in range(1, 6):
        counted.update(7 if rng.random() < 0.2 else rng.randrange(1024) for _ in range(200))
        noted(loads, float(second), {0: counted}, sampled=200 * second)
    weights = loads.weights
    assert weights is not None
    assert weights[7] == pytest.approx(0.2, abs=0.05)
    assert len(set(weights[:7] + weights[8:])) == 1


def test_r10_half_of_the_load_leaves_although_few_rows_were_sampled() -> None:
    rng = random.Random(2)
    loads, counted = SlotLoads(1024), Counter(rng.randrange(1024) for _ in range(600))
    noted(loads, 0.0, {0: {}}, sampled=0)
    noted(loads, 4.0, {0: counted}, sampled=600)
    after = placed((0,) * 1024, [0, 1], loads.weights)
    assert 440 <= after.count(1) <= 584


def test_r10_half_of_the_load_leaves_although_some_sampled_rows_count_for_thousands() -> None:
    rng = random.Random(3)
    loads, counted, squares = SlotLoads(1024), Counter(rng.randrange(1024) for _ in range(6_000)), 6_000.0
    for _ in range(32):  # a sample after ten seconds without one
        counted[rng.randrange(1024)] += 5_000
        squares += 5_000.0**2
    loads.note(0.0, {0: {}}, sampled=0, squares=0.0)
    loads.note(4.0, {0: counted}, sampled=6_032, squares=squares)
    after = placed((0,) * 1024, [0, 1], loads.weights)
    assert 440 <= after.count(1) <= 584


def test_r10_weights_of_a_job_that_has_been_idle_for_hours_are_unknown() -> None:
    loads = SlotLoads(4)
    noted(loads, 0.0, {0: {}}, sampled=0)
    noted(loads, KNOWN_S, {0: {0: 1e9}}, sampled=KNOWN)
    assert loads.weights is not None
    for hours in range(1, 20):
        noted(loads, 3600.0 * hours, {0: {0: 1e9}}, sampled=KNOWN)
        assert loads.weights is None


# Hot keys.


def key(share: float, busy: float, *, name: str = "'ann'", worker: int = 0) -> HotKey:
    return HotKey("by-user", name, share, busy, worker)


def test_a_key_is_hot_by_its_share_and_its_work() -> None:
    for share, busy, workers, hot in (
        (0.3, 0.9, 4, True),
        (0.2, 0.9, 4, False),
        (0.3, 0.5, 4, False),
        (0.9, TARGET_BUSY, 2, True),
        (1.0, 1.0, 1, False),
    ):
        begun, ended = HotKeys().update([key(share, busy)], workers=workers)
        assert (len(begun), ended) == (int(hot), []), (share, busy, workers)


def test_a_key_at_the_bound_changes_once() -> None:
    keys, seen = HotKeys(), []
    for share, busy in ((0.49, 0.9), (0.51, 0.9), (0.49, 0.9), (0.51, 0.69), (0.45, 0.6), (0.39, 0.9), (0.49, 0.9)):
        begun, ended = keys.update([key(share, busy)], workers=2)
        seen.append((len(begun), len(ended)))
    assert seen == [(0, 0), (1, 0), (0, 0), (0, 0), (0, 0), (0, 1), (0, 0)]
    assert COOL * 0.5 > 0.39


def test_a_key_that_is_not_measured_any_more_has_cooled_and_workers_count() -> None:
    keys = HotKeys()
    keys.update([key(0.4, 0.9)], workers=4)
    assert keys.update([], workers=4) == ([], [key(0.4, 0.9)])
    keys.update([key(0.4, 0.9)], workers=4)
    assert keys.update([key(0.4, 0.9)], workers=2)[1], "with fewer workers its share is fair"


def test_a_key_that_has_moved_is_the_same_key() -> None:
    keys = HotKeys()
    keys.update([key(0.6, 0.9)], workers=2)
    moved = [key(0.1, 0.1), key(0.5, 0.8, worker=1)]
    assert keys.update(moved, workers=2) == ([], [])
    assert keys.hot == [key(0.5, 0.8, worker=1)]


def test_the_number_of_hot_keys_is_bounded() -> None:
    keys = HotKeys()
    many = [key(0.5, 0.9, name=str(number)) for number in range(2 * HOT_MAX)]
    assert len(keys.update(many, workers=128)[0]) == len(keys.hot) == HOT_MAX
