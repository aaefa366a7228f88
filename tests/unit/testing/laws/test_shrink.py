"""Shrinking removes everything that the failure does not need, and keeps related parts in place."""

from __future__ import annotations

from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.testing.laws.scenario import CHUNK_MAX, Scenario, SlotMove, shrunk

ROWS = tuple(DataMessage("ab"[number % 2], number) for number in range(8))
SCENARIO = Scenario(
    (*ROWS, Epoch(MAX_EPOCH)),
    cuts=frozenset(range(1, 8)),
    at=5,
    owners=(1, 0, 0, 0),
    moves=(SlotMove(1, 3, (0, None, 1, None), chunk=1, lag=2), SlotMove(5, 7, (None, 2, None, 0), chunk=2)),
    slots={"a": 0, "b": 1},
    before={"a": 0, "b": 1},
    after={"a": 0, "b": 0},
    instances=(2, 1),
)


def test_what_the_failure_does_not_need_is_left_out() -> None:
    small = shrunk(SCENARIO, lambda scenario: ROWS[3] in scenario.atoms)
    assert small.atoms == (ROWS[3], Epoch(MAX_EPOCH))
    assert (small.cuts, small.moves, small.owners) == (frozenset(), (), (0, 0, 0, 0))
    assert (small.before, small.after, small.slots) == ({"b": 1}, {"b": 0}, {"b": 1})


def test_places_move_with_their_atoms() -> None:
    def breaks(scenario: Scenario) -> bool:
        moves, atoms = scenario.moves, scenario.atoms
        return bool(moves) and atoms[moves[-1].at : moves[-1].until + 1] == (ROWS[5], ROWS[6], ROWS[7])

    small = shrunk(SCENARIO, breaks)
    assert small.atoms == (ROWS[5], ROWS[6], ROWS[7], Epoch(MAX_EPOCH))
    assert small.moves == (SlotMove(0, 2, (None, None, None, None)),)
    assert small.at == 0


def test_a_move_becomes_one_that_is_over_at_once_of_all_keys_of_one_slot() -> None:
    small = shrunk(SCENARIO, lambda s: any(move.owners[2] == 1 for move in s.moves))
    (move,) = small.moves
    assert (move.owners, move.chunk, move.lag) == ((None, None, 1, None), CHUNK_MAX, 0)
    assert move.at == move.until


def test_a_move_begins_on_instance_0() -> None:
    small = shrunk(SCENARIO, lambda s: any(move.owners[0] not in (None, s.owners[0]) for move in s.moves))
    assert (small.owners, small.moves[0].owners) == ((0, 0, 0, 0), (1, None, None, None))


def test_nothing_is_left_out_of_what_needs_all() -> None:
    assert shrunk(SCENARIO, lambda scenario: False) is SCENARIO
