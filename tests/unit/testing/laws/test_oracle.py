"""The law of the oracle: a user's function returns the expected output of a step."""

from __future__ import annotations

from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py.testing import LAWS, LawError, check_operator

Readings = list[mp.DataMessage[Any, Any]]


class Merged(mp.KeyedLogic[Any, int, list[int], tuple[int, tuple[int, ...]]]):
    """An early version of sessions: rows that are far apart may share a session."""

    def on_data(self, message: Any, key_state: Any, output: Any) -> Any:
        last, values = key_state or (message.timestamp, ())
        last = max(last, message.timestamp)
        output.set_timer(message.key, last + 10)
        return last, (*values, message.value)

    def on_timer(self, key: Any, time: int, key_state: Any, output: Any) -> Any:
        if key_state is None or time < key_state[0] + 10:
            return key_state
        output.emit(key, list(key_state[1]), time)
        return None


def by_hand(readings: Readings) -> list[list[Any]]:
    found: list[Readings] = []
    for reading in sorted(readings, key=lambda reading: reading.timestamp or 0):
        if found and (reading.timestamp or 0) - (found[-1][-1].timestamp or 0) < 10:
            found[-1].append(reading)
        else:
            found.append([reading])
    return [[reading.value for reading in session] for session in found]


def merged(stream: Any) -> Any:
    return stream.stateful_op("sessions", Merged())


@pytest.mark.long
def test_what_obeys_all_laws_and_is_wrong_is_found_by_an_oracle() -> None:
    assert set(check_operator(merged, timed=True).cases) == {law.name for law in LAWS}
    with pytest.raises(LawError, match="the output is what the oracle expects") as caught:
        check_operator(merged, timed=True, oracle=by_hand)
    assert caught.value.law == "oracle"
    # Two records with the gap between them are the smallest case.
    assert "0  ('a', 0, 1)\n     1  ('a', 0, 11)\n     2  watermark MAX" in caught.value.case
    assert "expected  [[0], [0]]\n    got       [[0, 0]]" in caught.value.case


def test_an_oracle_is_held_whatever_laws_are_picked_and_its_cases_are_counted() -> None:
    report = check_operator(lambda s: s.count("n"), laws=[], oracle=lambda rows: [n + 1 for n in range(len(rows))])
    assert list(report.cases) == ["oracle"]
    assert report.cases["oracle"] > 10
    quiet = check_operator(lambda s: s.filter("none", lambda value: value > 1000), laws=[], oracle=lambda rows: [])
    assert quiet.cases == {"oracle": 0}, "where nothing comes out, nothing was tested"


def test_a_broken_law_is_named_before_the_oracle() -> None:
    seen: list[int] = []

    def number(value: int) -> int:
        seen.append(value)
        return len(seen)

    with pytest.raises(LawError) as caught:
        check_operator(lambda s: s.map("number", number), oracle=lambda rows: [])
    assert caught.value.law == "determinism"


def test_order_counts_only_where_it_is_asked_for() -> None:
    def last_first(rows: Readings) -> list[int]:
        return [row.value for row in reversed(rows)]

    def same(stream: Any) -> Any:
        return stream.map("same", lambda value: value)

    check_operator(same, laws=[], oracle=last_first)
    with pytest.raises(LawError, match=r"expected  \[0, 1\]\n    got       \[1, 0\]|expected  \[1, 0\]") as caught:
        check_operator(same, laws=[], oracle=last_first, in_order=True)
    assert "in any order" not in caught.value.case


def test_messages_have_keys_and_timestamps_compared_and_values_do_not() -> None:
    def echo(stream: Any) -> Any:
        return stream.stateful_op("echo", lambda message, state, output: output.send(message))

    check_operator(echo, timed=True, laws=[], oracle=lambda rows: [row.value for row in rows])
    check_operator(echo, timed=True, laws=[], oracle=lambda rows: rows, in_order=True)

    def later(rows: Readings) -> Readings:
        return [mp.DataMessage(row.key, row.value, (row.timestamp or 0) + 1) for row in rows]

    with pytest.raises(LawError, match=r"as \(key, value, timestamp\), in any order"):
        check_operator(echo, timed=True, laws=[], oracle=later)


def test_without_keys_and_behind_new_keys_it_is_called_once_with_all_records() -> None:
    calls: list[int] = []

    def doubled(rows: Readings) -> list[int]:
        calls.append(len(rows))
        return [2 * row.value for row in rows]

    check_operator(lambda s: s.map("double", lambda v: 2 * v), keyed=False, laws=[], oracle=doubled)
    assert max(calls) > 5

    def counts(rows: Readings) -> list[int]:
        seen: dict[int, int] = {}
        for row in rows:
            seen[row.value % 3] = seen.get(row.value % 3, 0) + 1
        return [n + 1 for times in seen.values() for n in range(times)]

    check_operator(lambda s: s.key_by("rest", lambda value: value % 3).count("n"), laws=[], oracle=counts)


def test_it_takes_a_list_per_input_and_returns_a_list_per_output() -> None:
    def both(left: Readings, right: Readings) -> list[int]:
        return [row.value for row in (*left, *right)]

    check_operator(lambda one, other: one.union("both", other), inputs=2, laws=[], oracle=both)

    def halves(rows: Readings) -> tuple[list[int], list[int]]:
        return [row.value for row in rows if row.value % 2], [row.value for row in rows if not row.value % 2]

    def branched(stream: Any) -> Any:
        return stream.branch("odd", lambda value: value % 2)

    check_operator(branched, laws=[], oracle=halves)
    with pytest.raises(ValueError, match=r"the step has 2 outputs, and the oracle returned 3 lists"):
        check_operator(branched, laws=[], oracle=lambda rows: ([], [], []))


def test_an_oracle_that_raises_shows_the_input_and_cannot_change_it() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        check_operator(lambda s: s.count("n"), laws=[], oracle=lambda rows: [1 // 0])
    assert any("the oracle, or its result, raised" in note for note in caught.value.__notes__)

    def greedy(rows: Readings) -> list[Any]:
        said = [[*row.value] for row in rows]
        for row in rows:
            row.value.clear()
        return said

    check_operator(lambda s: s.map("same", lambda v: [*v]), values=[[1], [2, 3]], laws=[], oracle=greedy)


@pytest.mark.long
def test_the_input_on_which_an_oracle_raises_is_shrunk() -> None:
    def seldom(rows: Readings) -> list[int]:
        if len(rows) > 1 and rows[-1].value > 3:
            raise KeyError("no such rule")
        return [n + 1 for n in range(len(rows))]

    with pytest.raises(KeyError, match="no such rule") as caught:
        check_operator(lambda s: s.count("n"), oracle=seldom, max_examples=100)
    said = "\n".join(caught.value.__notes__)
    assert said.count("the oracle, or its result, raised") == 1
    (_, first, second, end) = said.splitlines()[1:]
    assert (first, second) == ("     0  ('a', 0)", "     1  ('a', 4)")
    assert end == "     2  watermark MAX"


async def later(rows: Readings) -> list[int]:
    return [1 for _ in rows]


FORMS = {
    "nothing": (lambda rows: None, "the oracle returned None: return a list of the expected values"),
    "a number": (len, "the oracle returned a value of type int: return a list"),
    "a text": (lambda rows: "1", "the oracle returned a value of type str: return a list"),
    "a dict": (lambda rows: {1: 1}, "the oracle returned a value of type dict: return a list"),
    "a coroutine": (later, "the oracle returned a coroutine: make it a function without async, which returns a list"),
}


@pytest.mark.parametrize("name", FORMS)
def test_an_oracle_that_returns_no_list_is_told_what_to_return(name: str) -> None:
    oracle, said = FORMS[name]
    with pytest.raises(ValueError, match=rf"^{said}") as caught:
        check_operator(lambda s: s.map("same", lambda value: value), laws=[], oracle=oracle)
    assert "input (key, value)" in "\n".join(caught.value.__notes__)


def test_an_oracle_of_several_outputs_returns_a_list_for_each() -> None:
    def branched(stream: Any) -> Any:
        return stream.branch("odd", lambda value: value % 2)

    for oracle, said in (
        (lambda rows: [1, 2], "for output 0, the oracle returned a value of type int: return 2 lists, one for each"),
        (lambda rows: ([row.value for row in rows], None), "for output 1, the oracle returned None: return 2 lists"),
        (lambda rows: "ab", "the oracle returned a value of type str: return 2 lists"),
    ):
        with pytest.raises(ValueError, match=said):
            check_operator(branched, laws=[], oracle=oracle)


def test_the_oracle_may_be_named_among_the_laws() -> None:
    report = check_operator(
        lambda s: s.map("same", lambda v: v), laws=["oracle"], oracle=lambda rows: [row.value for row in rows]
    )
    assert list(report.cases) == ["oracle"]
    with pytest.raises(ValueError, match=r"law 'oracle' needs a function .*: pass it as oracle="):
        check_operator(lambda s: s.count("n"), laws=["oracle"])


def test_what_is_no_oracle_is_refused() -> None:
    with pytest.raises(ValueError, match="oracle must be a function from records"):
        check_operator(lambda s: s.count("n"), oracle=[1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="returns no stream"):
        check_operator(lambda s: s.sink("end", mp.sinks.Memory()), laws=[], oracle=lambda rows: [])
