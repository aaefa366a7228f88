"""The rounds in which state goes ahead of a move: how many there are, and what bounds them (R12)."""

from __future__ import annotations

from malstrom_py.rescale.moves.move_sizing import MOVE_BYTES, Pacing
from malstrom_py.rescale.moves.pre_copy import CopyRounds


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
