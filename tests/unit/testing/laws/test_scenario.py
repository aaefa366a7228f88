"""A scenario has the same rows and events for any cuts, is shown, and shrinks to what a failure needs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.testing import strategies
from malstrom_py.testing.laws.scenario import CHUNK_MAX, Scenario, SlotMove, Tick, shrunk

A, B, C = (DataMessage(key, number, number) for number, key in enumerate("abc", 1))
SCENARIO = Scenario((A, B, Epoch(2), C, Tick(1), Epoch(MAX_EPOCH)))


def test_rows_of_different_inputs_do_not_share_a_batch() -> None:
    scenario = Scenario((A, B, C, Epoch(MAX_EPOCH)), inputs=(0, 1, 1, 0))
    assert [(delivery.input, delivery.rows) for delivery in scenario.deliveries(0, 3, ())] == [(0, (A,)), (1, (B, C))]


@given(
    strategies.scenarios(values=None, keys=strategies.keys(), timed=True, inputs=1, ticks=True, size_max=12),
    st.data(),
)
def test_the_pieces_of_two_halves_are_those_of_the_whole(scenario: Scenario, data: st.DataObject) -> None:
    size = len(scenario.atoms)
    at = data.draw(st.integers(0, size))
    cuts = scenario.cuts | {at}
    whole = list(scenario.deliveries(0, size, cuts))
    assert [*scenario.deliveries(0, at, cuts), *scenario.deliveries(at, size, cuts)] == whole
    flat = [atom for delivery in whole for atom in (delivery.rows or (delivery.event,))]
    assert flat == list(scenario.atoms)


def test_it_is_shown_as_the_stream_has_it_with_marks_in_their_places() -> None:
    shown = SCENARIO.shown(keyed=True, timed=True, marks={3: "here", 6: "end"})
    assert shown.splitlines() == [
        "  input (key, value, timestamp):",
        "     0  ('a', 1, 1)",
        "     1  ('b', 2, 2)",
        "     2  watermark 2",
        "       -- here",
        "     3  ('c', 3, 3)",
        "     4  the clock advances by 1 s",
        "     5  watermark MAX",
        "       -- end",
    ]
    assert "     0  1\n" in SCENARIO.shown(keyed=False, timed=False, marks={})


# Shrinking


EIGHT = tuple(DataMessage("ab"[number % 2], number) for number in range(8))
LARGE = Scenario(
    (*EIGHT, Epoch(MAX_EPOCH)),
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
    small = shrunk(LARGE, lambda scenario: EIGHT[3] in scenario.atoms)
    assert small.atoms == (EIGHT[3], Epoch(MAX_EPOCH))
    assert (small.cuts, small.moves, small.owners) == (frozenset(), (), (0, 0, 0, 0))
    assert (small.before, small.after, small.slots) == ({"b": 1}, {"b": 0}, {"b": 1})


def test_places_move_with_their_atoms() -> None:
    def breaks(scenario: Scenario) -> bool:
        moves, atoms = scenario.moves, scenario.atoms
        return bool(moves) and atoms[moves[-1].at : moves[-1].until + 1] == (EIGHT[5], EIGHT[6], EIGHT[7])

    small = shrunk(LARGE, breaks)
    assert small.atoms == (EIGHT[5], EIGHT[6], EIGHT[7], Epoch(MAX_EPOCH))
    assert small.moves == (SlotMove(0, 2, (None, None, None, None)),)
    assert small.at == 0


def test_a_move_becomes_one_that_is_over_at_once_of_all_keys_of_one_slot() -> None:
    small = shrunk(LARGE, lambda s: any(move.owners[2] == 1 for move in s.moves))
    (move,) = small.moves
    assert (move.owners, move.chunk, move.lag) == ((None, None, 1, None), CHUNK_MAX, 0)
    assert move.at == move.until


def test_a_move_begins_on_instance_0() -> None:
    small = shrunk(LARGE, lambda s: any(move.owners[0] not in (None, s.owners[0]) for move in s.moves))
    assert (small.owners, small.moves[0].owners) == ((0, 0, 0, 0), (1, None, None, None))


def test_nothing_is_left_out_of_what_needs_all() -> None:
    assert shrunk(LARGE, lambda scenario: False) is LARGE
