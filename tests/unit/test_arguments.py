"""Checks of the arguments of a builder: functions that return coroutines, and functions that make states."""

from __future__ import annotations

import functools
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import agg, sources
from malstrom_py.errors import OperatorError, PlanError
from malstrom_py.errors.text import redacting
from malstrom_py.testing import OperatorTester
from malstrom_py.validation import (
    checked_flag,
    checked_number,
    checked_whole,
    function_of,
    is_coroutine_function,
)
from tests.ids import shown


async def later(*values: Any) -> Any:
    return values


async def some(*values: Any) -> AsyncIterator[Any]:
    yield values


class Asked:
    async def __call__(self, *values: Any) -> Any:
        return values


ASYNCHRONOUS = [later, some, functools.partial(later, 1), Asked(), Asked().__call__]


def numbers() -> Any:
    return mp.Job("numbers").source("in", sources.Memory([1]))


def keyed() -> Any:
    return numbers().key_by("key", str)


STEPS: dict[str, Callable[[Any], Any]] = {
    "map": lambda fn: numbers().map("s", fn),
    "filter": lambda fn: numbers().filter("s", fn),
    "filter_map": lambda fn: numbers().filter_map("s", fn),
    "flat_map": lambda fn: numbers().flat_map("s", fn),
    "inspect": lambda fn: numbers().inspect("s", fn),
    "inspect_frontier": lambda fn: numbers().inspect_frontier("s", fn),
    "branch": lambda fn: numbers().branch("s", fn),
    "split": lambda fn: numbers().split("s", 2, fn),
    "map_batches": lambda fn: numbers().map_batches("s", fn),
    "key_by": lambda fn: numbers().key_by("s", fn),
    "key_local": lambda fn: numbers().key_local("s", fn),
    "assign_timestamps": lambda fn: numbers().assign_timestamps("s", fn),
    "sum": lambda fn: keyed().sum("s", by=fn),
    "distinct": lambda fn: keyed().distinct("s", by=fn),
    "reduce": lambda fn: keyed().reduce("s", fn),
    "fold": lambda fn: keyed().fold("s", fn, default=int),
    "stateful_map": lambda fn: keyed().stateful_map("s", fn),
    "stateful_flat_map": lambda fn: keyed().stateful_flat_map("s", fn),
    "enrich(by=)": lambda fn: keyed().enrich("s", later, by=fn),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("function", ASYNCHRONOUS, ids=shown)
def test_a_function_that_nobody_would_await_is_refused(step: str, function: Any) -> None:
    with pytest.raises(PlanError, match=r"step 's': .* is an asynchronous function, .* use enrich on a keyed stream"):
        STEPS[step](function)


@pytest.mark.parametrize("function", [later, Asked()], ids=shown)
def test_aggregates_and_states_are_not_awaited_either(function: Any) -> None:
    with pytest.raises(PlanError, match=r"agg\.sum: .* is a coroutine function, which is not awaited"):
        agg.sum(function)
    with pytest.raises(PlanError, match=r"agg\.custom: add must be a function, got a coroutine function"):
        agg.custom(int, function, max, int)
    with pytest.raises(PlanError, match=r"step 's': default must be a function that makes a state, .* got a coroutine"):
        keyed().fold("s", max, default=function)


class Odd:
    """Raises for every name that it does not have, and is a function all the same."""

    def __call__(self, value: int) -> int:
        return value

    def __getattr__(self, name: str) -> Any:
        raise ValueError(name)


@pytest.mark.parametrize("function", [len, int, Odd(), functools.partial(max, 1), lambda value: value], ids=shown)
def test_ordinary_functions_are_taken(function: Any) -> None:
    assert function_of(function, "s") is function
    assert not is_coroutine_function(function)


def test_a_state_that_asks_for_a_workers_thing_is_told_that_no_worker_is_at_work() -> None:
    model: mp.PerWorker[dict[str, int]] = mp.per_worker(dict)
    text = r"is called once while the job is built, and failed there.*: per_worker\(dict\) was called outside a worker"
    with pytest.raises(PlanError, match=f"step 's': default {text}"):
        keyed().fold("s", max, default=lambda: [model()])
    with pytest.raises(PlanError, match=f"step 's': init of best {text}"):
        keyed().aggregate("s", best=agg.custom(lambda: [model()], max, max, len))


def test_an_init_that_raises_is_called_by_its_name() -> None:
    with pytest.raises(
        PlanError, match=r"step 's': init of best raised ZeroDivisionError: .* \(in .*while the job was built"
    ):
        keyed().aggregate("s", best=agg.custom(lambda: 1 // 0, max, max, int))


# Columns by name.


class Row:
    """Has a field, and no way to look it up by name."""

    price = 3


BY_COLUMN: dict[str, Callable[[Any, str], Any]] = {
    "key_by": lambda s, name: s.key_by("s", name),
    "key_local": lambda s, name: s.key_local("s", name),
    "assign_timestamps": lambda s, name: s.assign_timestamps("s", name),
    "sum": lambda s, name: s.key_by("k", id).sum("s", by=name),
    "aggregate": lambda s, name: s.key_by("k", id).aggregate("s", n=agg.sum(name)),
    "top_n": lambda s, name: s.key_by("k", id).top_n("s", 1, by=name),
    "enrich": lambda s, name: s.key_by("k", id).enrich("s", later, by=name),
}


@pytest.mark.parametrize("step", BY_COLUMN)
def test_a_column_that_is_not_there_is_named(step: str) -> None:
    stream = mp.Job("j").source("in", sources.Memory([{"price": "secret", "shop": 1, 7: 1}]))
    with pytest.raises(
        OperatorError, match=r"KeyError: .* dict has no column 'prize', did you mean 'price'\? Name"
    ) as caught:
        mp.collect(BY_COLUMN[step](stream, "prize"))
    assert "secret" not in str(caught.value)
    assert "function" not in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("step", BY_COLUMN)
def test_a_value_without_columns_is_told_as_such(step: str) -> None:
    stream = mp.Job("j").source("in", sources.Memory([Row()]))
    with pytest.raises(OperatorError, match=r"of type Row has no columns .* Pass a function, such as .* value\.price"):
        mp.collect(BY_COLUMN[step](stream, "price"))


def test_the_keys_of_a_dict_are_listed_and_while_texts_are_hidden_counted() -> None:
    stream = mp.Job("j").source("in", sources.Memory([{f"c{number}": 1 for number in range(50)}, {}]))
    with pytest.raises(OperatorError, match=r"only 'c0', .*'c11', … Name one"):
        mp.collect(stream.key_by("s", "zz"))
    with redacting(True), pytest.raises(OperatorError, match=r"only 50 others\. Name one"):
        mp.collect(stream.key_by("t", "zz"))
    with pytest.raises(OperatorError, match="has no column 'zz', only 0 others"):
        mp.collect(mp.Job("j").source("in", sources.Memory([{}])).key_by("s", "zz"))


def test_a_value_of_a_column_that_cannot_be_taken_is_no_matter_of_a_function() -> None:
    stream = mp.Job("j").source("in", sources.Memory([{"price": None}])).key_by("k", str)
    for added in (stream.sum("s", by="price"), stream.aggregate("a", n=agg.sum("price"))):
        with pytest.raises(OperatorError, match=r"TypeError in column 'price': .*'NoneType'\. Leave None out"):
            mp.collect(added)


def test_a_letter_tells_what_the_lookup_raised() -> None:
    tester = OperatorTester(lambda s: s.sum("s", by="prize", on_error="dead-letter"), keyed=True)
    letters: list[Any] = tester.send_local([("a", {"price": 1})]).step().receive_dead_letters()
    assert [letter.value.error for letter in letters] == ["KeyError: 'prize'"]


@pytest.mark.parametrize(
    ("checked", "wrong", "text"),
    [
        (checked_flag, (1, None, "yes"), "x: y must be True or False, got "),
        (checked_whole, (0, True, 1.5, "3"), "x: y must be a whole number of at least 1, got "),
        (checked_number, (0, True, math.inf, math.nan, "3"), "x: y must be a number above 0, got "),
    ],
)
def test_flags_and_numbers_are_checked_in_one_way(
    checked: Callable[[object, str], object], wrong: tuple[object, ...], text: str
) -> None:
    for value in wrong:
        with pytest.raises(PlanError, match=text):
            checked(value, "x: y")


def test_a_whole_number_has_limits() -> None:
    assert checked_whole(3, "x: y", most=3) == 3
    with pytest.raises(PlanError, match="x: y must be a whole number from 1 to 3, got 4"):
        checked_whole(4, "x: y", most=3)
