"""Shrinking leaves out all that the failure does not need, and keeps what belongs together in place."""

from __future__ import annotations

from malstrom_py.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.testing.laws.scenario import Scenario
from malstrom_py.testing.laws.shrink import shrunk

ROWS = tuple(DataMessage("ab"[number % 2], number) for number in range(8))
SCENARIO = Scenario(
    (*ROWS, Epoch(MAX_EPOCH)),
    cuts=frozenset(range(1, 8)),
    at=5,
    back=7,
    moved=frozenset("ab"),
    before={"a": 0, "b": 1},
    after={"a": 0, "b": 0},
    instances=(2, 1),
)


def test_what_the_failure_does_not_need_is_left_out() -> None:
    small = shrunk(SCENARIO, lambda scenario: ROWS[3] in scenario.atoms)
    assert small.atoms == (ROWS[3], Epoch(MAX_EPOCH))
    assert (small.cuts, small.moved) == (frozenset(), frozenset())
    assert (small.before, small.after) == ({"b": 1}, {"b": 0})


def test_places_move_with_their_atoms() -> None:
    small = shrunk(
        SCENARIO, lambda s: len(s.atoms) > s.back and s.atoms[s.at] == ROWS[5] and s.atoms[s.back] == ROWS[7]
    )
    assert small.atoms == (ROWS[5], ROWS[7], Epoch(MAX_EPOCH))
    assert (small.at, small.back) == (0, 1)


def test_nothing_is_left_out_of_what_needs_all() -> None:
    assert shrunk(SCENARIO, lambda scenario: False) is SCENARIO
