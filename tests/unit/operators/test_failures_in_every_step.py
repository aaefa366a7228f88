"""What every step that calls a user's function does when that function raises, the same for each step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py import agg
from malstrom_py.data.batch import Batch
from malstrom_py.errors import OperatorError
from malstrom_py.errors.text import redacting
from malstrom_py.operators.aggregate import Aggregate, Distinct, Fold, Max, Mean, Min, Reduce, Sum, TopN
from malstrom_py.operators.base import OnError, OperatorFactory
from malstrom_py.operators.branching import Branch, Split
from malstrom_py.operators.event_time import AssignTimestamps
from malstrom_py.operators.key_by import KeyBy, KeyLocal
from malstrom_py.operators.stateful_map import StatefulFlatMap, StatefulMap, TtlMap
from malstrom_py.operators.stateful_op import StatefulOp
from malstrom_py.operators.stateless import Filter, FilterMap, FlatMap, Inspect, Map
from malstrom_py.operators.stateless_op import StatelessOp
from tests.unit.operators.stepping import Stepped

Fn = Callable[[int], int]


def flat_map(fn: Fn) -> OperatorFactory:
    def user(value: int) -> list[int]:
        return [fn(value)]

    return partial(FlatMap, fn=user)


def stateful_map(fn: Fn) -> OperatorFactory:
    def user(_: str, value: int, state: int) -> tuple[int, int]:
        return fn(value), state + 1

    return partial(StatefulMap, fn=user, default=int)


def stateful_op(fn: Fn) -> OperatorFactory:
    def user(message: Any, state: int, output: Any) -> int:
        output.send(message)
        fn(message.value)
        return state + 1

    return partial(StatefulOp, logic=user, default=int)


def stateful_flat_map(fn: Fn) -> OperatorFactory:
    def user(_: str, value: int, state: int) -> tuple[Iterator[int], int]:
        return (fn(value) for _ in range(1)), state + 1  # lazy: raises while it is read

    return partial(StatefulFlatMap, fn=user, default=int)


def ttl_map(fn: Fn) -> OperatorFactory:
    def user(_: str, value: int, state: int) -> tuple[int, int]:
        return fn(value), state + 1

    return partial(TtlMap, fn=user, ttl=10, default=int)


def stateless_op(fn: Fn) -> OperatorFactory:
    def user(message: Any, output: Any) -> None:
        output.send(message)
        fn(message.value)

    return partial(StatelessOp, logic=user)


def split(fn: Fn) -> OperatorFactory:
    def user(value: int) -> Iterator[int]:
        yield fn(value)

    return partial(Split, n=2, fn=user)


def distinct(fn: Fn) -> OperatorFactory:
    def user(value: int) -> tuple[int, int]:
        return fn(value), value

    return partial(Distinct, by=user)


def top_n(fn: Fn) -> OperatorFactory:
    known: dict[int, int] = {}

    def user(value: int) -> int:
        # The rank of a value it has kept is asked for again, with each record that is compared to it.
        if value not in known:
            known[value] = fn(value)
        return known[value]

    return partial(TopN, n=2, by=user)


def reduce(fn: Fn) -> OperatorFactory:
    def user(accumulated: int, value: int) -> int:
        return accumulated + fn(value)

    return partial(Reduce, fn=user)


def fold(fn: Fn) -> OperatorFactory:
    def user(accumulated: int, value: int) -> int:
        return accumulated + fn(value)

    return partial(Fold, fn=user, default=int)


def aggregate(fn: Fn) -> OperatorFactory:
    def user(value: int) -> int:
        return fn(value)

    # Before and after the aggregate that raises there are others, whose states must not change either.
    return partial(Aggregate, aggregations={"b": agg.sum(user), "a": agg.n_unique(), "c": agg.std()})


def plain(operator: Any, argument: str) -> Callable[[Fn], OperatorFactory]:
    def make(fn: Fn) -> OperatorFactory:
        def user(value: int) -> int:
            return fn(value)

        return partial(operator, **{argument: user})

    return make


@dataclass(frozen=True)
class Case:
    step: str
    make: Callable[[Fn], OperatorFactory]
    timed: bool = True
    ports: int = 1

    def stepped(self, fn: Fn, on_error: OnError) -> Stepped:
        return Stepped(self.make(fn), on_error=on_error, ports=self.ports, timed=self.timed)

    def batch(self, values: list[int]) -> Batch:
        keys = [f"key-{value}" if self.step == "stateful_op" else "all" for value in values]
        return Batch(values, keys=keys, timestamps=list(values) if self.timed else None)


CASES = [
    Case("map", plain(Map, "fn")),
    Case("filter", plain(Filter, "predicate")),
    Case("filter", plain(Filter, "predicate"), timed=False),
    Case("filter_map", plain(FilterMap, "fn")),
    Case("flat_map", flat_map),
    Case("inspect", plain(Inspect, "fn")),
    Case("branch", plain(Branch, "predicate"), ports=2),
    Case("key_by", plain(KeyBy, "fn")),
    Case("assign_timestamps", partial(plain(partial(AssignTimestamps, unit="ms"), "fn"))),
    Case("split", split, ports=2),
    Case("key_local", plain(KeyLocal, "fn")),
    Case("stateless_op", stateless_op),
    Case("stateful_map", stateful_map),
    Case("stateful_flat_map", stateful_flat_map),
    Case("ttl_map", ttl_map),
    Case("distinct", distinct),
    Case("top_n", top_n),
    Case("stateful_op", stateful_op),
    Case("reduce", reduce),
    Case("fold", fold),
    Case("aggregate", aggregate),
    Case("sum", plain(Sum, "by")),
    Case("min", plain(Min, "by")),
    Case("max", plain(Max, "by")),
    Case("mean", plain(Mean, "by")),
]

EVERY_STEP = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.step}{'' if case.timed else '-untimed'}")


class Picky:
    """Raises ``error`` on the values in ``bad``; keeps all it was called with. It never sees 0: see `reduce`."""

    def __init__(self, bad: set[int], error: BaseException) -> None:
        self.bad, self.error = bad, error
        self.calls: list[int] = []

    def __call__(self, value: int) -> int:
        if value:
            self.calls.append(value)
        if value in self.bad:
            raise self.error
        return 1


@EVERY_STEP
def test_fail_names_step_key_place_and_text(case: Case) -> None:
    error = ValueError("secret-4711")
    with pytest.raises(OperatorError) as caught:
        case.stepped(Picky({4711}, error), "fail").push(case.batch([0, 1, 4711, 2]))
    raised = caught.value
    key = "key-4711" if case.step == "stateful_op" else "all"
    assert raised.__cause__ is error
    assert (raised.step, raised.key) == ("under-test", key)
    assert "'under-test'" in str(raised)
    assert f"key {key!r}" in str(raised)
    assert re.search(r"user at \S*test_failures_in_every_step\.py:\d+", str(raised))
    assert raised.function in str(raised)
    assert "on_error=" in str(raised)
    assert ": secret-4711. " in str(raised)
    with redacting(True), pytest.raises(OperatorError) as hidden:
        case.stepped(Picky({4711}, error), "fail").push(case.batch([0, 1, 4711, 2]))
    assert "4711" not in str(hidden.value).replace(key, "")


@EVERY_STEP
def test_fail_stops_at_the_record_and_sends_nothing_of_its_batch(case: Case) -> None:
    picky = Picky({2}, ValueError())
    step = case.stepped(picky, "fail")
    with pytest.raises(OperatorError):
        step.push(case.batch([0, 1, 2, 3]))
    assert picky.calls == [1, 2]
    assert [step.messages(port) for port in range(case.ports)] == [[]] * case.ports


@EVERY_STEP
@given(bad=st.sets(st.integers(1, 6)))
def test_skip_drops_what_raises_and_calls_the_function_once_per_record(case: Case, bad: set[int]) -> None:
    picky = Picky(bad, ValueError())
    step = case.stepped(picky, "skip").push(case.batch([0, 1, 2, 3, 4, 5, 6]))
    assert picky.calls == [1, 2, 3, 4, 5, 6]
    assert step.counters.skipped == len(bad)
    assert sum(step.counters.rows_out) == 7 - len(bad)
    clean = case.stepped(Picky(set(), ValueError()), "skip")
    clean.push(case.batch([value for value in range(7) if value not in bad]))
    # As if the records that raised had never been: state, outputs, keys and timestamps.
    assert [step.rows(port) for port in range(case.ports)] == [clean.rows(port) for port in range(case.ports)]
    assert step.operator.keys == clean.operator.keys


@EVERY_STEP
@given(bad=st.sets(st.integers(1, 6)))
def test_dead_letters_hold_the_whole_record_in_order(case: Case, bad: set[int]) -> None:
    step = case.stepped(Picky(bad, ValueError("secret")), "dead-letter")
    batch = case.batch([0, 1, 2, 3, 4, 5, 6])
    step.push(batch)
    assert step.counters.dead_letters == len(bad)
    assert step.counters.skipped == 0
    assert batch.keys is not None
    assert [(letter.key, letter.value, letter.timestamp) for letter in step.dead_letters] == [
        (batch.keys[value], value, value if case.timed else None) for value in sorted(bad)
    ]
    assert {(letter.step, letter.error) for letter in step.dead_letters} <= {("under-test", "ValueError: secret")}
    assert sum(len(step.rows(port)) for port in range(case.ports)) == 7 - len(bad)


@EVERY_STEP
def test_stop_iteration_is_an_error_like_any_other_and_ends_no_loop(case: Case) -> None:
    step = case.stepped(Picky({2}, StopIteration()), "skip").push(case.batch([0, 1, 2, 3]))
    assert sum(step.counters.rows_out) == 3
    assert step.counters.skipped == 1
    with pytest.raises(OperatorError):
        case.stepped(Picky({2}, StopIteration()), "fail").push(case.batch([0, 1, 2, 3]))


@EVERY_STEP
@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("on_error", ["fail", "skip", "dead-letter"])
def test_what_is_no_error_of_a_record_passes_through(case: Case, on_error: OnError, stop: type[BaseException]) -> None:
    error = stop()
    with pytest.raises(stop) as caught:
        case.stepped(Picky({2}, error), on_error).push(case.batch([0, 1, 2, 3]))
    assert caught.value is error


@EVERY_STEP
def test_a_batch_of_which_every_record_raises_sends_nothing(case: Case) -> None:
    step = case.stepped(Picky({1, 2}, ValueError()), "skip").push(case.batch([0]))
    before = [len(step.batches(port)) for port in range(case.ports)]
    step.push(case.batch([1, 2]))
    assert [len(step.batches(port)) for port in range(case.ports)] == before
    assert step.counters.skipped == 2


@EVERY_STEP
def test_dead_letters_stay_with_the_part_of_their_batch(case: Case) -> None:
    step = case.stepped(Picky({1}, ValueError()), "dead-letter")
    batch = case.batch([1, 2]) if case.step != "reduce" else case.batch([0, 1])
    step.push(Batch(batch.values, keys=batch.keys, timestamps=batch.timestamps, part="p"))
    assert [letters.part for letters in step.batches(case.ports)] == ["p"]
