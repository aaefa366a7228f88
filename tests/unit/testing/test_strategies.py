"""The strategies give legal streams: epochs that increase, rows above them, cuts and schedules in range."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, DataMessage, Epoch
from malstrom_py.rescale.keys.key_types import check_key
from malstrom_py.testing import strategies
from malstrom_py.testing.laws.scenario import SLOTS, Scenario, Tick


@given(strategies.sequences(keys=strategies.keys(), timed=True, ticks=True))
def test_a_sequence_keeps_its_promises_and_ends(sequence: tuple[Any, ...]) -> None:
    epoch = MIN_EPOCH
    for atom in sequence:
        if isinstance(atom, Epoch):
            assert atom.time > epoch
            epoch = atom.time
        elif isinstance(atom, DataMessage):
            assert atom.timestamp is not None
            assert atom.timestamp > epoch
            assert atom.key in "abcd"
        else:
            assert isinstance(atom, Tick)
    assert sequence[-1] == Epoch(MAX_EPOCH)


@given(strategies.sequences(values=["x"]))
def test_an_unkeyed_untimed_sequence_has_neither_keys_nor_times(sequence: tuple[Any, ...]) -> None:
    assert all(row == DataMessage(None, "x", None) for row in sequence[:-1])


@given(st.data(), st.integers(0, 20))
def test_cuts_stand_between_rows(data: st.DataObject, size: int) -> None:
    cuts = data.draw(strategies.batch_cuts(size))
    assert all(0 < cut < size for cut in cuts)


@given(strategies.schedules(3))
def test_a_schedule_says_whose_turn_it_is(schedule: list[int]) -> None:
    assert set(schedule) <= {0, 1, 2}


@given(strategies.legal_keys())
def test_f4_legal_keys_are_legal(key: Any) -> None:
    check_key(key)


@given(
    strategies.scenarios(values=None, keys=strategies.keys(), timed=True, inputs=2, ticks=True, size_max=9),
)
def test_r7_a_scenario_has_owners_for_its_keys_and_only_rows_during_its_moves(
    scenario: Scenario,
) -> None:
    before, after = scenario.instances
    assert scenario.at <= len(scenario.atoms)
    assert set(scenario.before) == set(scenario.after) == set(scenario.slots) == set(scenario.keys)
    assert all(owner < before for owner in scenario.before.values())
    assert all(owner < after for owner in scenario.after.values())
    assert len(scenario.inputs) == len(scenario.atoms)
    place = 0
    for move in scenario.moves:
        assert place <= move.at <= move.until <= len(scenario.atoms)
        place = move.until
        assert all(isinstance(atom, DataMessage) for atom in scenario.atoms[move.at : move.until])
        assert len(move.owners) == len(scenario.owners) == SLOTS
    epochs = [atom.time for atom in scenario.atoms if isinstance(atom, Epoch)]
    assert epochs == sorted(epochs)
    assert set(scenario.slots.values()) <= set(range(SLOTS))
