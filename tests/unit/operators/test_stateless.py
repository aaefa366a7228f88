"""The steps without state: what each sends of a batch, beside what `test_base` and the tests of failures check."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, Control, Epoch, PartFinished, PartOpened
from malstrom_py.errors import CodecError, OperatorError
from malstrom_py.operators.base import Operator, OperatorFactory, Outlet, StepContext
from malstrom_py.operators.branching import NO, YES, Branch, Cloned, Split
from malstrom_py.operators.key_by import KeyBy, KeyLocal
from malstrom_py.operators.stateless import Filter, FilterMap, FlatMap, Flatten, Inspect, Map, MapWithKey
from malstrom_py.validation import field_getter
from malstrom_py.workers.engine.executor import Executor, NodeSpec
from tests.unit.operators.stepping import Row, Stepped, cut

ROWS = Batch([1, 2, 3], keys=["a", "b", "c"], timestamps=[10, 20, 30], part="p")
BOTH_LAYOUTS = pytest.mark.parametrize("columns", [{}, {"keys": ["a", "b", "c"], "timestamps": [1, 2, 3]}])


@pytest.mark.parametrize(
    ("factory", "rows"),
    [
        (partial(Map, fn=lambda n: n * 2), [("a", 2, 10), ("b", 4, 20), ("c", 6, 30)]),
        (partial(Map, fn=lambda n: None), [("a", None, 10), ("b", None, 20), ("c", None, 30)]),
        (partial(MapWithKey, fn=lambda key, n: key * n), [("a", "a", 10), ("b", "bb", 20), ("c", "ccc", 30)]),
        (partial(Filter, predicate=lambda n: n % 2), [("a", 1, 10), ("c", 3, 30)]),
        (partial(FilterMap, fn=lambda n: n * 10 if n != 2 else None), [("a", 10, 10), ("c", 30, 30)]),
        (partial(FilterMap, fn=lambda n: [0, "", []][n - 1]), [("a", 0, 10), ("b", "", 20), ("c", [], 30)]),
        (partial(FlatMap, fn=lambda n: np.arange(n % 3)), [("a", 0, 10), ("b", 0, 20), ("b", 1, 20)]),
        (partial(Inspect, fn=lambda n: "ignored"), [("a", 1, 10), ("b", 2, 20), ("c", 3, 30)]),
        (partial(Branch, predicate=lambda n: n % 2), [("a", 1, 10), ("c", 3, 30)]),
        (partial(KeyBy, fn=lambda n: None if n == 1 else n % 2), [(None, 1, 10), (0, 2, 20), (1, 3, 30)]),
        (partial(KeyLocal, fn=lambda n: n % 2), [(1, 1, 10), (0, 2, 20), (1, 3, 30)]),
    ],
)
def test_a_batch_becomes_the_rows_that_the_function_makes_of_it(factory: OperatorFactory, rows: list[Row]) -> None:
    step = Stepped(factory, ports=2).push(ROWS)
    assert step.rows() == rows
    # Parts are not known after key_by: the source region ends there.
    assert step.batches()[0].part == (None if isinstance(step.operator, KeyBy) else "p")
    assert rows_of(ROWS) == [("a", 1, 10), ("b", 2, 20), ("c", 3, 30)]


def test_a_record_whose_function_of_key_and_value_raises_leaves_the_others_their_keys() -> None:
    def share(key: str, n: int) -> str:
        return f"{key}{6 // (n - 2)}"

    step = Stepped(partial(MapWithKey, fn=share), on_error="skip").push(ROWS)
    assert (step.rows(), step.counters.skipped) == ([("a", "a-6", 10), ("c", "c6", 30)], 1)


def rows_of(batch: Batch) -> list[Row]:
    return list(zip(batch.keys or (), batch.values, batch.timestamps or (), strict=True))


@pytest.mark.parametrize(
    "factory",
    [
        partial(Filter, predicate=lambda _: False),
        partial(FilterMap, fn=lambda _: None),
        partial(FlatMap, fn=lambda _: []),
    ],
)
@BOTH_LAYOUTS
def test_a_batch_of_which_nothing_is_left_is_not_sent(factory: OperatorFactory, columns: dict[str, Any]) -> None:
    step = Stepped(factory).push(Batch([1, 2, 3], **columns))
    assert step.messages() == []
    assert step.counters.filtered == (0 if isinstance(step.operator, FlatMap) else 3)


@BOTH_LAYOUTS
def test_the_truth_of_a_verdict_is_that_of_python_and_one_without_follows_on_error(columns: dict[str, Any]) -> None:
    def verdict(value: Any) -> object:
        return np.array([True, False]) if value == 2 else np.bool_(value == 1)

    for step in (partial(Filter, predicate=verdict), partial(Branch, predicate=verdict)):
        skipping = Stepped(step, on_error="skip", ports=2).push(Batch([1, 2, 3], **columns))
        assert (skipping.values(), skipping.counters.skipped) == ([1], 1)
        assert skipping.counters.filtered == (1 if isinstance(skipping.operator, Filter) else 0)
        with pytest.raises(OperatorError, match=r"'under-test'.*verdict at .*test_stateless\.py:\d+"):
            Stepped(step, ports=2).push(Batch([1, 2, 3], **columns))


def test_flat_map_gives_no_items_of_a_record_whose_generator_raises_midway() -> None:
    def items(number: int) -> Iterator[int]:
        yield number
        if number == 2:
            raise ValueError("midway")
        yield number

    step = Stepped(partial(FlatMap, fn=items), on_error="skip").push(Batch([1, 2, 3], keys=["a", "b", "c"]))
    assert step.rows() == [("a", 1, None), ("a", 1, None), ("c", 3, None), ("c", 3, None)]
    with pytest.raises(OperatorError, match=r"items at .*test_stateless\.py:\d+"):
        Stepped(partial(FlatMap, fn=items)).push(Batch([2]))
    with pytest.raises(OperatorError, match="<lambda> at") as caught:
        Stepped(partial(FlatMap, fn=lambda n: n)).push(Batch([7]))
    assert isinstance(caught.value.__cause__, TypeError)


def test_flat_map_holds_only_a_slice_of_much_that_is_made_of_little() -> None:
    """The queue after the step never grows past about one slice of outputs, however many one record gives."""
    held: list[int] = []

    class Holding(Operator):
        def on_batch(self, batch: Batch, out: Outlet) -> None:
            held.append(len(batch))

    flat = FlatMap(StepContext("test", "flat"), fn=lambda n: range(1000))
    executor = Executor([NodeSpec("flat", flat), NodeSpec("held", Holding(StepContext("test", "held")), ((0, 0),))])
    executor.push(0, Batch(list(range(1024))))
    executor.run()
    assert sum(held) == 1024 * 1000
    assert max(held) <= 16_000
    assert max(held[1:]) <= 4096


def test_flatten_takes_one_level_and_a_value_without_items_follows_on_error() -> None:
    values = [[1, 2], (), {3}, iter("ab"), [[4], [5]], 6]
    step = Stepped(Flatten, on_error="dead-letter").push(Batch(values, keys=list("abcdef")))
    assert [row[:2] for row in step.rows()] == [
        *[("a", 1), ("a", 2), ("c", 3), ("d", "a"), ("d", "b"), ("e", [4]), ("e", [5])]
    ]
    assert [(letter.key, letter.value) for letter in step.dead_letters] == [("f", 6)]
    said = r"'under-test' failed: TypeError: the value is of type int, which has no items. Filter"
    with pytest.raises(OperatorError, match=said):
        Stepped(Flatten).push(Batch([2]))


def test_inspect_sees_each_value_once_and_passes_the_batch_untouched() -> None:
    seen: list[Any] = []
    assert Stepped(partial(Inspect, fn=seen.append)).push(ROWS).messages() == [ROWS]
    assert seen == [1, 2, 3]


def test_branch_sends_the_others_the_other_way_and_epochs_both_ways() -> None:
    step = Stepped(partial(Branch, predicate=lambda n: 1 // (n - 1) > 0), ports=2, on_error="dead-letter")
    step.push(ROWS, Epoch(50), Epoch(MAX_EPOCH))
    assert (step.rows(YES), step.rows(NO)) == ([("b", 2, 20)], [("c", 3, 30)])
    assert step.epochs(YES) == step.epochs(NO) == [50, MAX_EPOCH]
    assert [(letter.key, letter.value) for letter in step.dead_letters] == [("a", 1)]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_cloned_sends_the_same_batch_and_all_control_messages_to_every_stream(n: int) -> None:
    step = Stepped(partial(Cloned, n=n), ports=n, timed=True)
    sent: list[Batch | Control] = [PartOpened("p"), ROWS, Epoch(30), PartFinished("p"), Epoch(MAX_EPOCH)]
    step.push(*sent)
    for port in range(n):
        assert step.messages(port) == sent
        assert step.batches(port)[0] is ROWS
    assert step.counters.rows_out == [3] * n


def splitting(fn: Any, on_error: Any = "fail") -> Stepped:
    return Stepped(partial(Split, n=3, fn=fn), ports=3, on_error=on_error)


@given(
    choices=st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=20),
    sizes=st.lists(st.integers(1, 5), max_size=10),
)
def test_split_gives_each_stream_its_records_once_and_in_order(choices: list[list[int]], sizes: list[int]) -> None:
    numbers = list(range(len(choices)))
    step = splitting(lambda n: iter(choices[n]))
    step.push(*cut(Batch(numbers, keys=list(map(str, numbers)), timestamps=numbers), sizes), Epoch(MAX_EPOCH))
    for port in range(3):
        assert step.rows(port) == [(str(row), row, row) for row, chosen in enumerate(choices) if port in chosen]
        assert step.epochs(port) == [MAX_EPOCH]
    assert step.counters.filtered == sum(not chosen for chosen in choices)


@pytest.mark.parametrize("wrong", [[3], [-1], [0, 7], "01", 0, None, ["0"], [[]], [0.5]], ids=repr)
def test_split_by_what_names_no_stream_is_the_fault_of_the_function(wrong: Any) -> None:
    def choose(value: int) -> Any:
        return wrong

    with pytest.raises(OperatorError, match=r"'under-test' failed.*choose at .*test_stateless\.py"):
        splitting(choose).push(Batch([1]))
    step = splitting(choose, on_error="dead-letter").push(Batch([1]))
    assert [letter.value for letter in step.dead_letters] == [1]
    assert (step.counters.filtered, step.counters.rows_out) == (0, [0, 0, 0, 1])


def test_key_by_looks_a_column_up_and_names_one_that_is_missing() -> None:
    by_shop = partial(KeyBy, fn=field_getter("shop", "by-shop"))
    assert [key for key, _, _ in Stepped(by_shop).push(Batch([{"shop": "a"}, {"shop": "b"}])).rows()] == ["a", "b"]
    with pytest.raises(OperatorError, match="column 'shop'") as caught:
        Stepped(by_shop).push(Batch([{"store": "a"}]))
    assert isinstance(caught.value.__cause__, KeyError)


def test_key_by_passes_epochs_and_leaves_parts_and_dead_letters_in_the_source_region() -> None:
    step = Stepped(partial(KeyBy, fn=lambda n: 1 // n), on_error="dead-letter")
    step.push(PartOpened("p"), Epoch(5), Batch([0], part="p"), PartFinished("p"), Epoch(MAX_EPOCH))
    assert step.messages() == [Epoch(5), Epoch(MAX_EPOCH)]
    opened, letters, finished, end = step.messages(port=1)
    assert (opened, finished, end) == (PartOpened("p"), PartFinished("p"), Epoch(MAX_EPOCH))
    assert isinstance(letters, Batch)
    assert letters.part == "p"


def test_after_key_local_generate_epochs_may_follow() -> None:
    job = mp.Job("local")
    timed = job.source("in", sources.Memory([100, 50, 110])).assign_timestamps("at", lambda n: n)
    on_time, late = timed.key_local("local", lambda n: n % 3).generate_epochs("epochs", mp.limit_out_of_orderness(10))
    assert (mp.collect(on_time), mp.collect(late)) == ([100, 110], [50])


def test_after_key_local_every_worker_keeps_its_own_records_and_key_by_may_follow() -> None:
    job, out, counted = mp.Job("local"), sinks.Memory(), sinks.Memory()
    local = job.source("in", sources.Memory(range(20), parts=4)).key_local("local", lambda n: n % 2)
    local.sink("out", out)
    local.key_by("key", lambda n: n % 2).count("count").sink("counted", counted)
    mp.run(job, 3)
    assert {key: sorted(values) for key, values in out.by_key.items()} == {
        0: list(range(0, 20, 2)),
        1: list(range(1, 20, 2)),
    }
    assert {key: values[-1] for key, values in counted.by_key.items()} == {0: 10, 1: 10}


@pytest.mark.parametrize("key", [[1], float("nan"), {}], ids=repr)
def test_f4_a_key_that_is_not_legal_is_refused(key: object) -> None:
    stream = mp.Job("test").source("in", sources.Memory([1, 2]))
    with pytest.raises(CodecError, match="'local'"):
        mp.collect(stream.key_local("local", lambda _: key))
    assert mp.collect(stream.key_local("skipping", lambda n: key if n == 1 else n, on_error="skip")) == [2]
