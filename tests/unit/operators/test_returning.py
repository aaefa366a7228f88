"""A function without ``return``: found by test mode immediately, by a run after a thousand calls, never wrongly."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache, partial, wraps
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import OperatorError
from malstrom_py.operators.forgotten_return import forgets_state, forgets_timer_state, never_returns
from malstrom_py.testing import OperatorTester

# Each of these ends without `return`, in another way.


def forgets(value: Any) -> Any:
    value * 2


def forgets_in_a_branch(value: Any) -> Any:
    if value is None:
        return
    value * 2


def forgets_behind_a_loop(value: Any) -> Any:
    for number in range(3):
        value += number


def forgets_behind_with(value: Any) -> Any:
    with pytest.raises(KeyError):
        value["key"]


def forgets_behind_try(value: Any) -> Any:
    try:
        value += 1
    except TypeError:
        value = 0


def forgets_what_is_inside(value: Any) -> Any:
    def inner() -> Any:
        return value

    inner()


class Forgets:
    def __call__(self, value: Any) -> Any:
        value * 2

    def take(self, value: Any) -> Any:
        self(value)


async def forgets_its_answer(value: Any) -> Any:
    value * 2


def answering(function: Any) -> Any:
    """A decorator that returns something else."""

    @wraps(function)
    def wrapper(value: Any) -> Any:
        result = function(value)
        if result is None:
            result = value
        return result

    return wrapper


@cache
def forgets_in_a_cache(value: Any) -> Any:
    value * 2


FORGETFUL = [
    *(forgets_in_a_cache, forgets, forgets_in_a_branch, forgets_behind_a_loop, forgets_behind_with, forgets_behind_try),
    *(forgets_what_is_inside, Forgets(), Forgets().take, partial(forgets), forgets_its_answer),
]

# None of these does.


def returns(value: Any) -> Any:
    if value:
        return value
    print(value)
    return None


def returns_one_of_two(value: Any) -> Any:
    print(value)
    return value or None


def returns_by_condition(value: Any) -> Any:
    print(value)
    return value if value > 3 else None


def returns_through_with(value: Any) -> Any:  # noqa: RET503  it is what is tested
    with pytest.raises(KeyError):
        return value
    print(value)


def returns_in_the_end(value: Any) -> Any:
    try:
        print(value)
    finally:
        return value  # noqa: B012


def means_none(value: Any) -> None:
    print(value)


def ends_with_none(value: Any) -> Any:
    print(value)
    return None


def does_nothing(value: Any) -> Any:
    pass


def raises(value: Any) -> Any:
    raise ValueError(value)


def yields(value: Any) -> Iterator[Any]:
    yield value


@answering
def returns_by_its_decorator(value: Any) -> Any:
    value * 2


# fmt: off
def drops_or_raises(value: Any) -> Any:
    if value > 2: return None  # noqa: E701
    raise KeyError(value)


def drops_by_hand_or_else(value: Any) -> Any:
    if value: return None  # noqa: E701
    else: return None  # noqa: E701,RET505
# fmt: on


def drops_in_with(value: Any) -> Any:
    with Path(value).open():
        return None


def drops_in_a_loop(value: Any) -> Any:
    while True:
        value += 1
        if value > 3:
            return None


def drops_in_each_way(value: Any) -> Any:
    try:
        value += 1
        return None
    except TypeError:
        raise
    finally:
        print(value)


CAREFUL = [
    returns_by_its_decorator,
    drops_or_raises,
    drops_by_hand_or_else,
    drops_in_with,
    drops_in_a_loop,
    drops_in_each_way,
    returns,
    means_none,
    ends_with_none,
    does_nothing,
    raises,
    yields,
    lambda value: None,
    print,
    [].append,
    str,
    {}.get,
]


@pytest.mark.parametrize("function", FORGETFUL, ids=lambda function: getattr(function, "__qualname__", "object"))
def test_a_function_without_a_return_is_known_by_its_code(function: object) -> None:
    assert never_returns(function)


@pytest.mark.parametrize("function", CAREFUL, ids=lambda function: function.__qualname__)
def test_what_returns_or_means_none_or_is_not_python_is_left_alone(function: object) -> None:
    assert not never_returns(function)


def running(message: Any, total: int | None, output: Any) -> Any:
    total = (total or 0) + message.value
    output.emit(message.key, total, message.timestamp)


def stateless(message: Any, state: Any, output: Any) -> Any:
    output.emit(message.key, message.state if message.value is None else message.value, message.timestamp)


def drops(message: Any, state: Any, output: Any) -> Any:
    output.emit(message.key, state or 0, message.timestamp)
    return None


class Running(mp.KeyedLogic[Any, int, int, int]):
    def on_data(self, message: Any, key_state: int | None, output: Any) -> Any:
        output.emit(message.key, (key_state or 0) + message.value, message.timestamp)


class Ringing(mp.KeyedLogic[Any, int, int, int]):
    """Sets timers and keeps nothing."""

    def on_data(self, message: Any, key_state: int | None, output: Any) -> Any:
        output.set_timer(message.key, message.timestamp + 1)

    def on_timer(self, key: Any, time: int, key_state: int | None, output: Any) -> Any:
        output.emit(key, time, time)


class Counting(mp.KeyedLogic[Any, int, int, int]):
    """Loses what ``on_timer`` makes of the state."""

    def on_data(self, message: Any, key_state: int | None, output: Any) -> Any:
        output.set_timer(message.key, message.timestamp + 1)
        return (key_state or 0) + 1

    def on_timer(self, key: Any, time: int, key_state: int | None, output: Any) -> Any:
        output.emit(key, key_state, time)
        key_state = (key_state or 0) + 1


class Closing(Counting):
    """Means to drop the state when its timer fires."""

    def on_timer(self, key: Any, time: int, key_state: int | None, output: Any) -> Any:
        key_state = key_state or 0
        output.emit(key, key_state, time)


class Repeating(Counting):
    """Reads what it has stored in the next round of a loop."""

    def on_timer(self, key: Any, time: int, key_state: int | None, output: Any) -> Any:
        for _ in range(2):
            output.emit(key, key_state, time)
            key_state = (key_state or 0) + 1


def test_a_timer_forgets_its_state_if_it_makes_a_new_one_that_goes_nowhere() -> None:
    assert forgets_timer_state(Counting().on_timer)
    assert not any(map(forgets_timer_state, (Closing().on_timer, Repeating().on_timer, Ringing().on_timer)))


def test_a_logic_forgets_its_state_if_it_looks_at_it_and_never_returns_one() -> None:
    assert [forgets_state(one) for one in (running, Running().on_data)] == [True, True]
    assert [forgets_state(one) for one in (stateless, drops, Ringing().on_data)] == [False, False, False]
    assert forgets_state(partial(lambda extra, message, state, output: state, 1)) is False


def key(value: Any) -> Any:
    return value % 4


async def ask(value: Any) -> Any:
    return value


def timed(stream: Any) -> Any:
    epochs = mp.limit_out_of_orderness(1)
    return stream.assign_timestamps("at", lambda value: value).generate_epochs("epochs", epochs)[0].key_by("k", key)


def two(one: Any, other: Any) -> Any:
    one + other


def three(one: Any, other: Any, another: Any) -> Any:
    one, other, another  # noqa: B018


STEPS = {
    "map": (lambda s: s.map("step", forgets), "forgets", "every value becomes None"),
    "filter": (lambda s: s.filter("step", forgets), "forgets", "no record passes"),
    "filter_map": (lambda s: s.filter_map("step", forgets), "forgets", "no record passes"),
    "flat_map": (lambda s: s.flat_map("step", forgets), "forgets", "there is nothing to iterate over"),
    "branch": (lambda s: s.branch("step", forgets)[1], "forgets", "no record takes the first stream"),
    "split": (lambda s: s.split("step", 2, forgets)[0], "forgets", "there is no stream to take"),
    "key_by": (lambda s: s.key_by("step", forgets), "forgets", "every record has the key None"),
    "key_local": (lambda s: s.key_local("step", forgets), "forgets", "every record has the key None"),
    "assign_timestamps": (lambda s: s.assign_timestamps("step", forgets), "forgets", "None is not a timestamp"),
    "stateful_map": (lambda s: s.key_by("k", key).stateful_map("step", three), "three", "no output and no state"),
    "stateful_flat_map": (lambda s: s.key_by("k", key).stateful_flat_map("step", three), "three", "no outputs and no"),
    "stateful_op": (lambda s: s.key_by("k", key).stateful_op("step", running), "running", "no key keeps its state"),
    "a logic": (lambda s: s.key_by("k", key).stateful_op("step", Running()), "Running.on_data", "no key keeps its"),
    "fold": (lambda s: s.key_by("k", key).fold("step", two, default=int), "two", "nothing is accumulated"),
    "reduce": (lambda s: s.key_by("k", key).reduce("step", two), "two", "nothing is accumulated"),
    "enrich": (lambda s: s.key_by("k", key).enrich("step", forgets_its_answer), "forgets_its_answer", "every answer"),
    "enrich by combine": (
        lambda s: s.key_by("k", key).enrich("step", ask, combine=two),
        "two",
        "every value becomes None",
    ),
    "a timer": (
        lambda s: timed(s).stateful_op("step", Counting()),
        "Counting.on_timer",
        "a key loses its state when its timer fires",
    ),
}
KINDS = {
    "a logic": "stateful_op",
    "a timer": "stateful_op",
    "enrich by combine": "enrich",
}
SILENT = sorted(STEPS.keys() - {"flat_map", "split", "assign_timestamps", "stateful_map", "stateful_flat_map"})
"""Those that do not fail by themselves."""


def run(step: Any, numbers: Any, workers: int = 1, **options: Any) -> list[Any]:
    job, out = mp.Job("forgetful"), sinks.Memory()
    step(job.source("in", sources.Memory(numbers, parts=2))).sink("out", out)
    mp.run(job, workers, progress=False, **options)
    return out.items


@pytest.mark.parametrize("name", STEPS)
def test_test_mode_names_the_function_and_its_line_before_anything_runs(name: str) -> None:
    step, function, lost = STEPS[name]
    kind = KINDS.get(name, name)
    said = rf"^step 'step' \({kind}\): {function} at .*test_returning.py:\d+ never "
    with pytest.raises(
        OperatorError, match=rf"{said}returns a value, so .*{lost}.*end the function with 'return None'"
    ):
        run(step, [1], checks=True)
    with pytest.raises(OperatorError, match=said) as caught:
        OperatorTester(step)
    assert caught.value.step == "step"
    assert "test_returning.py:" in caught.value.function


MEANT = {
    "map": lambda s: s.map("step", lambda value: None),
    "inspect": lambda s: s.inspect("step", forgets),
    "stateless_op": lambda s: s.stateless_op("step", lambda message, output: output.send(message)),
    "key_by": lambda s: s.key_by("step", lambda value: None),
    "filter_map": lambda s: s.filter_map("step", means_none),
    "filter_map that raises": lambda s: s.filter_map("step", drops_or_raises, on_error="skip"),
    "a logic that ends with a timer": lambda s: timed(s).stateful_op("step", Closing()),
    "map by return None": lambda s: s.map("step", ends_with_none),
    "stateful_op": lambda s: s.key_by("k", key).stateful_op("step", drops),
    "a stateless logic": lambda s: s.key_by("k", key).stateful_op("step", stateless),
}


@pytest.mark.parametrize("name", MEANT)
def test_test_mode_leaves_alone_what_means_none(name: str) -> None:
    run(MEANT[name], range(5), checks=True)
    with OperatorTester(MEANT[name]) as tester:
        tester.send_local([1, 2]).step()


@pytest.mark.parametrize("name", SILENT)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_warns_once_after_a_thousand_calls(name: str, workers: int, caplog: pytest.LogCaptureFixture) -> None:
    step, function, lost = STEPS[name]
    numbers = [None] * 5000 if name == "reduce" else range(5000)
    if name in ("reduce", "fold"):
        step = {
            "reduce": lambda s: s.map("one", lambda _: 1).key_by("k", lambda _: 0).reduce("step", lost_pair),
            "fold": lambda s: s.key_by("k", key).fold("step", lost_pair, default=int),
        }[name]
        function = "lost_pair"
    with caplog.at_level(logging.WARNING):
        run(step, numbers, workers)
    said = [record.getMessage() for record in caplog.records]
    assert len([one for one in said if f"{function} at " in one]) == len(said) == 1
    assert "test_returning.py:" in said[0]
    assert said[0].startswith("job forgetful: step 'step' (")
    assert f"returned None for the first 1,000 records: so far {lost}" in said[0]


def lost_pair(one: Any, other: Any) -> Any:
    str(one) + str(other)


@pytest.mark.parametrize("name", SILENT)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_of_fewer_calls_warns_once_at_its_end(name: str, workers: int, caplog: pytest.LogCaptureFixture) -> None:
    step, function, lost = STEPS[name]
    numbers = [1, 1] if name in ("reduce", "fold") else [1, 2]
    if name == "fold":
        step, function = lambda s: s.key_by("k", key).fold("step", lost_pair, default=int), "lost_pair"
    with caplog.at_level(logging.WARNING):
        run(step, numbers, workers)
    (said,) = caplog.messages
    assert f"{function} at " in said
    assert "returned None for every record, so " in said
    assert lost in said


@pytest.mark.parametrize("name", SILENT)
def test_a_function_that_was_never_called_is_not_warned_of(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run(STEPS[name][0], [])
        run(STEPS["reduce"][0], [1])
    assert caplog.messages == []


def test_a_run_that_fails_behind_the_step_warns_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(OperatorError):
        run(lambda s: s.map("step", forgets).map("next", lambda value: value + 1), [1, 2])
    assert "every value becomes None" in caplog.text


@pytest.mark.parametrize("name", ["map", "filter_map"])
def test_a_lambda_that_gave_none_a_few_times_says_nothing(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run(lambda s: getattr(s, name)("step", lambda value: None), range(999))
        run(lambda s: getattr(s, name)("step", ends_with_none), range(999))
    assert caplog.messages == []


def test_each_run_says_it_again(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            run(STEPS["map"][0], range(2000))
    assert len(caplog.records) == 2


def rarely(message: Any, state: Any, output: Any) -> Any:
    return message.value if message.value == 4999 else state


QUIET = {
    "map with one result": lambda s: s.map("step", lambda value: value if value == 7 else None),
    "map by a column": lambda s: s.map("row", lambda value: {"a": None}).map("step", itemgetter("a")),
    "filter by what may be None": lambda s: s.filter("step", {}.get),
    "filter_map that drops all": lambda s: s.filter_map("step", lambda value: None),
    "key None": lambda s: s.key_by("step", lambda value: None),
    "a logic that keeps little": lambda s: s.key_by("k", key).stateful_op("step", rarely),
    "a logic that drops": lambda s: s.key_by("k", key).stateful_op("step", drops),
    "a logic without state": lambda s: s.key_by("k", key).stateful_op("step", stateless),
    "a lambda without state": lambda s: s.key_by("k", key).stateful_op("step", lambda m, state, o: o.send(m)),
    "a logic of timers": lambda s: (
        s.assign_timestamps("at", lambda value: value)
        .generate_epochs("epochs", mp.limit_out_of_orderness(1))[0]
        .key_by("k", key)
        .stateful_op("step", Ringing())
    ),
    "every second": lambda s: s.key_by("k", key).stateful_op("step", lambda m, state, o: None if state else 1),
}


@pytest.mark.parametrize("name", QUIET)
def test_what_may_well_give_none_is_not_warned_of(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run(QUIET[name], range(5000))
    assert caplog.records == []


def test_the_warning_says_no_more_than_has_been_seen(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run(lambda s: s.map("step", lambda value: value if value >= 1500 else None), range(3000))
    (record,) = caplog.records
    said = record.getMessage()
    assert "returned None for the first 1,000 records: so far every value becomes None" in said
    assert said.endswith("If that is not intended, return the result")


def test_a_lambda_that_loses_its_state_is_noticed_by_its_calls(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        seen = run(
            lambda s: s.key_by("k", key).stateful_op(
                "step", lambda message, total, output: output.emit(message.key, (total or 0) + message.value, None)
            ),
            range(3000),
        )
    assert sorted(seen) == list(range(3000)), "each sum begins from nothing"
    assert "no key keeps its state" in caplog.text
