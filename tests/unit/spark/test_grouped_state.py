"""Functions of `applyInPandasWithState` as keyed steps: arguments, timeouts by the clock, state to begin with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pytest

import malstrom_py as mp
from malstrom_py import sources, spark
from malstrom_py.testing import OperatorTester

OUTPUT = "key string, n long"
STATE = "n long"


def counting(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    """Counts rows, until none has come for a second."""
    (n,) = state.getOption or (0,)
    if state.hasTimedOut:
        state.remove()
        yield pd.DataFrame({"key": [key[0]], "n": [-n]})
    else:
        n += sum(map(len, frames))
        state.update((n,))
        state.setTimeoutDuration(1000)
        yield pd.DataFrame({"key": [key[0]], "n": [n]})


def by_clock() -> OperatorTester:
    def step(stream: Any) -> Any:
        return spark.apply_in_pandas_with_state(
            stream, "step", counting, OUTPUT, STATE, timeout="processingTimeTimeout"
        )

    return OperatorTester(step, keyed=True, timed=False)


def values(tester: OperatorTester) -> list[Any]:
    return [tuple(one.value.values()) for one in tester.receive_local() if isinstance(one, mp.DataMessage)]


def test_a_timeout_by_the_clock_comes_once_and_is_set_again_by_each_call() -> None:
    tester = by_clock()
    tester.send_local([("a", {"n": 1}), ("a", {"n": 2}), ("b", {"n": 3})]).step()
    assert values(tester) == [("a", 2), ("b", 1)]
    tester.clock.advance(0.6)
    tester.send_local([("a", {"n": 4})]).step()
    tester.clock.advance(0.6)
    tester.step()
    assert values(tester) == [("a", 3), ("b", -1)]
    tester.clock.advance(0.6)
    tester.step()
    assert values(tester) == [("a", -3)]
    assert tester.interrogate() == set()


def test_what_a_state_gives_can_be_changed_without_a_change_of_the_state() -> None:
    def emptying(key: Any, frames: Any, state: Any) -> Iterator[Any]:
        if not state.exists:
            state.update(([1, 2],))
        else:
            yield pd.DataFrame({"key": [key[0]], "n": [len(state.get[0])]})
            state.get[0].clear()

    tester = OperatorTester(
        lambda stream: spark.apply_in_pandas_with_state(stream, "step", emptying, OUTPUT, "seen array<int>"),
        keyed=True,
        timed=False,
    )
    for n in range(3):
        tester.send_local([("a", {"n": n})]).step()
    assert values(tester) == [("a", 2), ("a", 2)]


def test_a_job_begins_with_given_state() -> None:
    def known(key: Any, frames: Any, state: Any) -> Iterator[Any]:
        yield pd.DataFrame({0: [key[0]], 1: [state.get[0]]})

    keyed = mp.Job("known").source("in", sources.Memory([{"key": "a"}])).key_by("key", "key")
    step = spark.apply_in_pandas_with_state(
        keyed, "known", known, OUTPUT, STATE, initial_state={"a": {"n": 7}, "b": {"n": 8}}
    )
    assert mp.collect(step) == [{"key": "a", "n": 7}], "columns without names are those of the output, by place"


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        ({"function": 5}, "function must be a function of key, frames and state, got 5"),
        ({"timeout": "never"}, "timeout must be one of NoTimeout, ProcessingTimeTimeout, EventTimeTimeout"),
        ({"timeout": "EventTimeTimeout"}, 'timeout="EventTimeTimeout" needs watermarks'),
        ({"initial_state": {"a": {"m": 1}}}, "initial_state must map keys to dicts with the fields n"),
        ({"stream": 5}, "needs a keyed stream"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], reported: str) -> None:
    keyed = mp.Job("wrong").source("in", sources.Memory([{"key": "a"}])).key_by("key", "key")
    given: dict[str, Any] = {"stream": keyed, "name": "step", "function": counting, "output": OUTPUT, "state": STATE}
    with pytest.raises(mp.PlanError, match=reported):
        spark.apply_in_pandas_with_state(**given | arguments)


def test_a_frame_with_other_columns_is_an_error() -> None:
    def wrong(key: Any, frames: Any, state: Any) -> Iterator[Any]:
        yield pd.DataFrame({"other": [1]})

    keyed = mp.Job("wrong").source("in", sources.Memory([{"key": "a"}])).key_by("key", "key")
    with pytest.raises(mp.OperatorError, match=r"step 'step'.*key"):
        mp.collect(spark.apply_in_pandas_with_state(keyed, "step", wrong, OUTPUT, STATE))
