"""The size of moves: small at first, towards the target pause, within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.rescale.moves.move_sizing import GROWTH, MOVE_BYTES, TARGET_PAUSE_S, Pacing, pause_by_size
from malstrom_py.rescale.moves.pre_copy import CopyRounds

PAUSES = st.floats(0, 1_000, allow_nan=False)


@pytest.mark.parametrize(("slots", "first", "most"), [(1024, 16, 256), (64, 1, 16), (4, 1, 1), (1, 1, 1)])
def test_a_rescale_begins_with_a_small_move(slots: int, first: int, most: int) -> None:
    assert (Pacing.of(slots).slots_max, Pacing.of(slots).most) == (first, most)


def sizes(pause_per_slot_s: float, moves: int, pacing: Pacing) -> list[int]:
    found = []
    for _ in range(moves):
        found.append(pacing.slots_max)
        pacing = pacing.after(pacing.slots_max, pause_per_slot_s * pacing.slots_max)
    return found


def test_what_takes_no_time_grows_to_the_most() -> None:
    assert sizes(0.0, 5, Pacing.of(1024)) == [16, 64, 256, 256, 256]


def test_moves_come_to_the_target() -> None:
    """Short of it, for a record also waits for other reasons."""
    assert sizes(0.0005, 5, Pacing.of(1024)) == [16, 40, 40, 40, 40]
    assert sizes(0.01, 3, Pacing.of(1024)) == [16, 2, 2]


def test_a_slot_that_takes_longer_than_the_target_moves_alone() -> None:
    assert sizes(3.0, 3, Pacing.of(1024)) == [16, 1, 1]


def test_a_move_that_was_held_up_shrinks_the_next_and_not_those_behind_it() -> None:
    pacing = Pacing.of(1024).after(16, 0.001).after(64, 0.004)
    assert pacing.slots_max == 256
    held_up = pacing.after(256, 1.6)
    assert held_up.slots_max == 3
    assert held_up.after(3, 0.0003).after(12, 0.0012).slots_max == 48


def test_a_move_of_parts_alone_tells_nothing_of_slots() -> None:
    assert Pacing.of(1024).after(0, 5.0) == Pacing.of(1024)


def test_moves_can_be_of_one_size() -> None:
    assert sizes(3.0, 3, Pacing.fixed(7)) == [7, 7, 7]


@given(st.integers(1, 1 << 20), st.lists(st.tuples(st.integers(0, 1 << 20), PAUSES)))
def test_a_move_takes_at_least_one_slot_and_grows_within_bounds(slots: int, moves: list[tuple[int, float]]) -> None:
    pacing = Pacing.of(slots)
    for moved, pause_s in moves:
        after = pacing.after(moved, pause_s)
        assert 1 <= after.slots_max <= min(max(1, slots // 4), GROWTH * pacing.slots_max)
        if moved and pause_s:
            assert after.slots_max <= max(1, moved * TARGET_PAUSE_S / pause_s)
        pacing = after


def test_a_pause_owes_no_more_to_a_move_than_its_keys_and_its_size_can_take() -> None:
    """On a machine that others keep busy each move is held up, and smaller ones would only be more of them."""
    assert pause_by_size(4.0, keys=0, size=0) == 0.0
    assert pause_by_size(4.0, keys=200, size=0) == pytest.approx(0.01)
    assert pause_by_size(4.0, keys=0, size=2 << 20) == pytest.approx(0.1)
    assert pause_by_size(0.003, keys=100_000, size=100 << 20) == 0.003


def gone_through(rounds: CopyRounds, size: int = 1) -> list[int]:
    """The slots of one round, each with ``size`` bytes."""
    slots = []
    while (now := rounds.now) is not None:
        slots.append(now[1])
        rounds.sent(size)
        rounds.slot_over()
    return slots


def test_r12_slots_are_gone_through_by_owner() -> None:
    assert gone_through(CopyRounds([(7, 1), (3, 2), (5, 1)])) == [5, 7, 3]


def test_r12_there_are_two_rounds_at_most_however_much_changes() -> None:
    rounds = CopyRounds([(0, 1), (1, 1)])
    assert gone_through(rounds) == [0, 1]
    assert rounds.again(1 << 30)
    assert gone_through(rounds) == [0, 1]
    assert not rounds.again(1 << 30)
    assert rounds.now is None


def test_r12_a_round_for_few_changes_is_not_worth_it() -> None:
    rounds = CopyRounds([(0, 1)], again_at=100)
    gone_through(rounds)
    assert not rounds.again(99)


def test_r12_the_bytes_of_all_rounds_together_are_bounded() -> None:
    rounds = CopyRounds([(slot, 1) for slot in range(10)], bytes_max=12, again_at=1)
    assert len(gone_through(rounds)) == 10
    assert rounds.again(10)
    assert len(gone_through(rounds)) == 2
    assert not rounds.again(10)


def test_r12_a_move_of_much_state_is_followed_by_a_smaller_one_though_its_pause_was_short() -> None:
    pacing = Pacing.of(1024)
    assert pacing.after(16, 0.001, size=4 * MOVE_BYTES).slots_max == 4
    assert pacing.after(16, 0.001, size=1000).slots_max == 64
