"""`check_operator`: the laws, the report, the streams of its strategies. (tests/laws checks that laws catch faults.)"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py import testing
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, DataMessage, Epoch
from malstrom_py.errors import OperatorError
from malstrom_py.rescale.keys.key_types import check_key
from malstrom_py.testing import LAWS, LawError, LawReport, check_operator, strategies
from malstrom_py.testing.laws.scenario import SLOTS, Scenario, Tick


def test_only_the_laws_that_are_asked_for_are_held() -> None:
    report = check_operator(lambda s: s.count("n"), laws=["key kept", "forwarding"], max_examples=3)
    assert list(report.cases) == ["forwarding", "key kept"]


def test_an_unknown_law_is_named() -> None:
    with pytest.raises(ValueError, match="'justice' is not a law; the laws are determinism"):
        check_operator(lambda s: s.count("n"), laws=["justice"])


def test_a_report_says_what_was_not_tested() -> None:
    report = check_operator(lambda s: s.map("step", str), max_examples=5)
    assert report.cases["migration invariance"] == 0
    lines = str(report).splitlines()
    assert len(lines) == len(LAWS)
    assert lines[0].startswith("determinism")
    assert next(line for line in lines if "migration" in line).endswith("nothing to test")
    assert LawReport() == LawReport({})


def test_values_and_keys_may_be_strategies_or_examples() -> None:
    seen: set[Any] = set()

    def see(value: Any) -> Any:
        seen.add(value)
        return value

    check_operator(lambda s: s.map("step", see), values=["x", "y"], keys=[1, 2], laws=["determinism"])
    assert seen == {"x", "y"}
    seen.clear()
    check_operator(lambda s: s.map("step", see), values=st.just("z"), laws=["determinism"])
    assert seen == {"z"}


def test_the_cases_are_the_same_each_time_unless_there_is_a_seed() -> None:
    def cases(**options: Any) -> list[Any]:
        seen: list[Any] = []
        check_operator(lambda s: s.map("step", seen.append), laws=["determinism"], max_examples=20, **options)
        return seen

    assert cases() == cases()
    assert cases(seed=1) == cases(seed=1)
    assert cases(seed=1) != cases(seed=2)


def test_an_error_of_the_step_is_raised_as_it_is_with_the_input_beside_it() -> None:
    with pytest.raises(OperatorError, match="ZeroDivisionError") as caught:
        check_operator(lambda s: s.map("step", lambda value: 1 // value), values=[0])
    assert any("input (key, value)" in note for note in caught.value.__notes__)


def test_a_step_that_takes_no_numbers_is_told_who_made_them() -> None:
    with pytest.raises(OperatorError, match="'int' object is not subscriptable") as caught:
        check_operator(lambda stream: stream.map("price", lambda row: row["price"]))
    made = "check_operator made these values, whole numbers: pass such as the step takes, values=[…]"
    assert made in caught.value.__notes__
    with pytest.raises(OperatorError) as given:
        check_operator(lambda stream: stream.map("price", lambda row: row["price"]), values=[1])
    assert made not in given.value.__notes__


def test_the_case_is_minimal() -> None:
    def third(message: Any, state: int | None, output: Any) -> int:
        state = (state or 0) + 1
        output.emit(message.key if state < 3 else "other", message.value)
        return state

    with pytest.raises(LawError) as caught:
        check_operator(lambda s: s.stateful_op("step", third))
    assert caught.value.law == "key kept"
    rows = [line for line in caught.value.case.splitlines() if "('a', 0)" in line]
    assert len(rows) == 3


def test_without_hypothesis_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    monkeypatch.delitem(sys.modules, "malstrom_py.testing.strategies", raising=False)
    monkeypatch.delattr(testing, "strategies", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'hypothesis>=") as raised:
        check_operator(lambda s: s.count("n"))
    assert raised.value.__suppress_context__
    assert raised.value.__cause__ is None


def test_keys_made_anew_by_the_step_are_nobodys_fault() -> None:
    report = check_operator(lambda s: s.key_by("other", lambda value: value % 3).count("n"))
    assert report.cases["migration invariance"] > 0
    assert {law for law, cases in report.cases.items() if not cases} == {
        "key kept",
        "key isolation",
        "scale invariance",
        "delta invariance",
        "chain invariance",
    }


# Strategies


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
