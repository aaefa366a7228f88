"""`check_operator`: the laws, the cases and the report. (tests/laws checks that each law catches faults.)"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import strategies as st

from malstrom_py import testing
from malstrom_py.errors import OperatorError
from malstrom_py.testing import LAWS, LawError, LawReport, check_operator


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
