"""What every step does when a user's function raises, and how errors name functions and objects of users."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import agg, sinks, sources
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import DeadLetter
from malstrom_py.errors import OperatorError, SourceError, shown
from malstrom_py.errors.text import describe_error, describe_function, redacting
from malstrom_py.operators.aggregate import Aggregate, Distinct, Fold, Max, Mean, Min, Reduce, Sum, TopN
from malstrom_py.operators.base import OnError, OperatorFactory, StepContext
from malstrom_py.operators.branching import Branch, Split
from malstrom_py.operators.event_time import AssignTimestamps
from malstrom_py.operators.failures import ErrorPolicy
from malstrom_py.operators.key_by import KeyBy, KeyLocal
from malstrom_py.operators.stateful_map import StatefulFlatMap, StatefulMap, TtlMap
from malstrom_py.operators.stateful_op import StatefulOp
from malstrom_py.operators.stateless import Filter, FilterMap, FlatMap, Inspect, Map
from malstrom_py.operators.stateless_op import StatelessOp
from malstrom_py.sources.base import Part, SourcePart
from tests.unit.operators.stepping import Recorder, Stepped


def function(value: int) -> int:
    return value


def logged(wrapped: Callable[[int], int]) -> Callable[[int], int]:
    @functools.wraps(wrapped)
    def wrapper(value: int) -> int:
        return wrapped(value)

    return wrapper


@logged
def decorated(value: int) -> int:
    return value


@functools.lru_cache
def cached(value: int) -> int:
    return value


class Caller:
    def __call__(self, value: int) -> int:
        return value

    def method(self, value: int) -> int:
        return value

    @staticmethod
    def static(value: int) -> int:
        return value

    @classmethod
    def of_class(cls, value: int) -> int:
        return value


class Made:
    def __init__(self, value: int) -> None:
        self.value = value


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip() == text)


@pytest.mark.parametrize(
    ("described", "name", "line"),
    [
        (function, "function", "def function(value: int) -> int:"),
        (functools.partial(functools.partial(function), 1), "function", "def function(value: int) -> int:"),
        (decorated, "decorated", "@logged"),
        (cached, "cached", "@functools.lru_cache"),
        (Caller(), "Caller", "def __call__(self, value: int) -> int:"),
        (Caller().method, "Caller.method", "def method(self, value: int) -> int:"),
        (Caller.static, "Caller.static", "@staticmethod"),
        (Caller.of_class, "Caller.of_class", "@classmethod"),
        (Made, "Made", "def __init__(self, value: int) -> None:"),
    ],
    ids=lambda given: given if isinstance(given, str) else None,
)
def test_a_function_is_told_by_name_file_and_line(described: object, name: str, line: str) -> None:
    assert describe_function(described) == f"{name} at {__file__}:{line_of(line)}"


def test_a_lambda_is_told_by_file_and_line() -> None:
    reported = describe_function(lambda value: value)
    assert reported.startswith("test_a_lambda_is_told_by_file_and_line.<locals>.<lambda> at ")


@pytest.mark.parametrize(("described", "reported"), [(str.upper, "str.upper"), (len, "len"), (int, "int"), (7, "int")])
def test_what_has_no_code_is_told_by_name(described: object, reported: str) -> None:
    assert describe_function(described) == reported


def test_a_column_is_told_as_one() -> None:
    assert describe_function(operator.itemgetter("shop")) == "column 'shop'"


def test_a_letter_is_counted_also_where_nothing_takes_it() -> None:
    context = StepContext("test", "under-test", on_error="dead-letter", dead_letter_port=None)
    recorder = Recorder()
    letter = DeadLetter("under-test", None, 1, None, "ValueError: no")
    ErrorPolicy(context).bury([letter], None, Stepped(lambda _: recorder).call(lambda out: out))
    assert context.counters.dead_letters == 1


# Broken hooks


@dataclass(frozen=True)
class WithoutHash:
    number: int

    def __hash__(self) -> int:
        raise ValueError("no hash")


@dataclass(frozen=True)
class WithoutRepr:
    number: int

    def __repr__(self) -> str:
        raise ValueError("no repr")


class WithoutText(OSError):
    def __str__(self) -> str:
        raise ValueError("no text")


class Anything:
    """Has every attribute there is."""

    def __getattr__(self, name: str) -> Any:
        return Anything()

    def __call__(self, value: int) -> int:
        return value


class Nothing:
    """Fails when it is asked for an attribute."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __call__(self, value: int) -> int:
        return value


def failing(*_: object) -> Any:
    raise ValueError("secret-4711")


def numbers(*values: int) -> mp.StreamBuilder[None, int]:
    return mp.Job("broken").source("in", sources.Memory(list(values)))


def test_a_key_whose_hash_raises_is_told_as_a_key_that_cannot_be_hashed() -> None:
    keyed = numbers(1).key_by("key", WithoutHash)
    with pytest.raises(OperatorError, match=r"'count': a key of type WithoutHash .*its __hash__ raised ValueError"):
        mp.collect(keyed.count("count"))
    with pytest.raises(OperatorError, match="'distinct': a key of type WithoutHash"):
        mp.collect(keyed.distinct("distinct"))


@pytest.mark.parametrize(
    ("key", "text"),
    [(WithoutRepr(1), "<WithoutRepr>"), (10**5000, "<int>"), ("x" * 1_000_000, f"'{'x' * 76}...")],
    ids=["no repr", "too long for a repr", "long"],
)
def test_a_key_is_shown_in_80_characters_whatever_it_is(key: object, text: str) -> None:
    assert shown(key) == text
    assert len(shown(key)) <= 80
    with pytest.raises(OperatorError) as caught:
        mp.collect(numbers(1).key_by("key", lambda _: key).stateful_map("map", failing))
    assert f"for key {text}: ValueError" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_an_error_without_text_is_told_by_its_type_and_goes_the_way_of_on_error() -> None:
    def mute(number: int) -> int:
        raise WithoutText

    assert describe_error(WithoutText()) == "WithoutText"
    stream = numbers(1).map("map", mute, on_error="dead-letter")
    assert mp.collect(stream) == []
    assert [letter.error for letter in mp.collect(stream.job.dead_letters("map"))] == ["WithoutText"]


@pytest.mark.parametrize("function", [Anything(), Nothing()], ids=["has all attributes", "raises for attributes"])
def test_a_callable_with_odd_attributes_can_be_a_step(function: Callable[[int], int]) -> None:
    assert describe_function(function) == type(function).__qualname__
    assert mp.collect(numbers(1, 2).map("map", function)) == [1, 2]


class OddSource:
    """Lists ``parts``, and cannot be shown."""

    def __init__(self, parts: object) -> None:
        self.parts = parts

    def __repr__(self) -> str:
        raise ValueError("no repr")

    def list_parts(self) -> list[Part]:
        return cast("list[Part]", self.parts)

    def build_part(self, part: Part, state: Any) -> SourcePart[int]:
        raise AssertionError("no part of it is opened")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([[1]], "'in' lists a partition of type list: .* must be a str.*OddSource.list_parts"),
        ([1], "'in' lists a partition of type int"),
        (None, "'in' could not list its partitions: TypeError"),
    ],
)
def test_parts_that_are_no_names_are_refused(parts: object, message: str) -> None:
    stream = mp.Job("odd").source("in", OddSource(parts))
    with pytest.raises(SourceError, match=message):
        mp.collect(stream)


def test_a_source_without_repr_is_explained_by_its_type() -> None:
    job = mp.Job("odd")
    job.source("in", OddSource([])).sink("out", sinks.Memory())
    assert "[OddSource]" in job.explain()


class Tracker:
    """An epoch tracker, and the generator that makes it, which finds the rows ``late`` late."""

    def __init__(self, late: object, epoch: object = 0) -> None:
        self.late = late
        self.epoch = cast("int", epoch)

    def tracker(self, unit: str) -> Tracker:
        return self

    def observe(self, timestamps: list[int]) -> list[int]:
        return cast("list[int]", self.late)

    def raise_to(self, epoch: int) -> None:
        """It does not judge by epochs."""

    def snapshot(self) -> Any:
        return None

    def restore(self, state: Any) -> None:
        """It keeps nothing."""


@pytest.mark.parametrize(
    "late", [[2], [-1], [1, 0], [0, 0], iter([0]), None, (0,), ["0"], [True]], ids=lambda late: repr(late)[:10]
)
def test_late_rows_that_are_none_are_refused(late: object) -> None:
    timed = numbers(1, 2).assign_timestamps("at", int)
    with pytest.raises(OperatorError, match=r"'epochs': observe did not return .*Tracker.observe at .*ascending"):
        mp.collect(timed.generate_epochs("epochs", Tracker(late))[0])


def test_late_rows_of_a_tracker_of_ones_own_are_parted_and_its_epoch_is_an_int() -> None:
    timed = numbers(1, 2, 3).assign_timestamps("at", int)
    on_time, late = timed.generate_epochs("epochs", Tracker([0, 2]))
    assert (mp.collect(on_time), mp.collect(late)) == ([2], [1, 3])
    with pytest.raises(OperatorError, match="'other': the tracker's epoch is not an int"):
        mp.collect(timed.generate_epochs("other", Tracker([], "1"))[0])


def test_the_text_of_a_partitioners_error_is_shown() -> None:
    keyed = numbers(1).key_by("key", str, partitioner=failing)
    keyed.count("count").sink("out", sinks.Memory())
    with pytest.raises(OperatorError, match=r"the partitioner failing .* failed: ValueError") as caught:
        mp.run(keyed.job, workers=2)
    assert "secret-4711" in str(caught.value)


# Every step


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
    assert re.search(r"user at \S*test_failures\.py:\d+", str(raised))
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
