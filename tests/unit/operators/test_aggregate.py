"""Running figures per key: several in one step, and the steps with one figure."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import agg, sinks, sources
from malstrom_py.agg import Aggregation
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.errors import OperatorError
from malstrom_py.operators.aggregate import Aggregate, Count, Distinct, Fold, Max, Mean, Min, Reduce, Sum, TopN
from malstrom_py.operators.base import OnError, OperatorFactory
from malstrom_py.testing import OperatorTester
from malstrom_py.testing.exact import same
from malstrom_py.validation import field_getter
from tests.unit.operators.stepping import Stepped, cut


def stepped(on_error: OnError = "fail", /, **aggregations: Aggregation[Any, Any]) -> Stepped:
    return Stepped(partial(Aggregate, aggregations=aggregations), on_error=on_error)


def test_figures_stand_in_the_order_in_which_they_were_named_and_may_be_called_anything() -> None:
    aggregations: dict[str, Aggregation[Any, Any]] = {
        "z": agg.count(),
        "not a name'": agg.sum(),
        "a": agg.last(),
        "def": agg.first(),
        "": agg.max(),
    }
    (row,) = stepped(**aggregations).push(Batch([3], keys=["k"])).values()
    assert list(row) == list(aggregations)


def test_fields_are_columns_or_functions_and_each_is_looked_up_once() -> None:
    calls: list[int] = []

    def price(sale: dict[str, int]) -> int:
        calls.append(sale["price"])
        return sale["price"]

    step = stepped(total=agg.sum(price), mean=agg.mean(price), dearest=agg.max(price), items=agg.n_unique("item"))
    step.push(Batch([{"item": "a", "price": 3}, {"item": "a", "price": 5}], keys=["k", "k"]))
    assert step.values()[-1] == {"total": 8, "mean": 4.0, "dearest": 5, "items": 1}
    assert calls == [3, 5]


FIGURES: dict[str, Aggregation[Any, Any]] = {
    "mean": agg.mean("x"),
    "n": agg.count(),
    "std": agg.std("x"),
    "top": agg.max("x"),
    "kinds": agg.n_unique("s"),
}
ROWS = st.lists(
    st.fixed_dictionaries(
        {"k": st.sampled_from("abc"), "x": st.floats(-1e6, 1e6), "s": st.none() | st.sampled_from("xyz")}
    ),
    min_size=1,
    max_size=30,
)


@given(rows=ROWS, sizes=st.lists(st.integers(1, 5), max_size=20))
def test_the_last_figures_of_a_key_are_those_of_polars(rows: list[dict[str, Any]], sizes: list[int]) -> None:
    step = stepped(**FIGURES).push(*cut(Batch(rows, keys=[row["k"] for row in rows]), sizes))
    frame = pl.DataFrame(rows, schema={"k": pl.String, "x": pl.Float64, "s": pl.String}, orient="row")
    column = pl.col("x")
    expected = frame.group_by("k").agg(
        mean=column.mean(), n=pl.len(), std=column.std(), top=column.max(), kinds=pl.col("s").n_unique()
    )
    last = {key: figures for key, figures, _ in step.rows()}
    for row in expected.to_dicts():
        found = last.pop(row.pop("k"))
        for name, value in row.items():
            assert found[name] == (value if value is None else pytest.approx(value, rel=1e-9, abs=1e-6)), name
    assert last == {}


def test_a_column_that_is_not_there_fails_as_in_rows() -> None:
    for batch in (
        Batch([{"y": 1}], keys=["k"]),
        ColumnBatch(pa.RecordBatch.from_pylist([{"y": 1}]), keys=["k"]),
    ):
        with pytest.raises(OperatorError, match="column 'x'") as caught:
            stepped(total=agg.sum("x")).push(batch)
        assert isinstance(caught.value.__cause__, KeyError)


EVERY = [agg.count(), agg.sum(), agg.min(), agg.max(), agg.mean(), agg.std(), agg.first(), agg.last(), agg.n_unique()]


@given(values=st.lists(st.integers(-3, 3) | st.floats(-3, 3) | st.sampled_from([math.nan, None, "x"]), max_size=6))
def test_what_is_written_out_does_what_the_functions_do(values: list[Any]) -> None:
    for one in EVERY:
        step = stepped("skip", figure=one).push(Batch(values, keys=["k"] * len(values)))
        state, results = one.init(), []
        for value in values:
            try:
                state = one.add(state, value)
            except TypeError:
                continue
            results.append({"figure": one.finish(state)})
        assert same(step.values(), results), one


# A record that fails.


def broken_finish(state: int) -> float:
    return 1 / (state - 2)


BAD_FINISH = agg.custom(
    init=int, add=lambda seen, value: seen + 1, merge=lambda left, right: left + right, finish=broken_finish
)


@pytest.mark.parametrize(
    ("one", "values"),
    [
        (agg.sum(), [1, None, 2]),
        (agg.std(), [1, "x", 2]),
        (agg.n_unique(), [1, [], 2]),
        (agg.min(), [1, 1j, 2]),
        (agg.mean(), [1, 10**400, 2]),
    ],
    ids=["sum", "std", "n_unique", "min", "mean"],
)
def test_a_record_that_one_cannot_take_leaves_all_of_them_as_they_were(one: Any, values: list[Any]) -> None:
    # The others come before and after it, by name.
    others = {name: agg.custom(list, lambda seen, value: [*seen, value], lambda a, b: a + b, tuple) for name in "az"}
    step = stepped("skip", **others, m=one, seen=agg.n_unique(repr))
    step.push(Batch(values, keys=["k"] * 3))
    assert step.counters.skipped == 1
    assert step.values()[-1] == {
        "a": (1, 2),
        "z": (1, 2),
        "m": one.finish(one.add(one.add(one.init(), 1), 2)),
        "seen": 2,
    }


def test_a_result_that_cannot_be_told_leaves_them_as_they_were_too() -> None:
    step = stepped("skip", a=agg.n_unique(), b=BAD_FINISH, c=agg.count()).push(Batch([5, 6, 7], keys=["k"] * 3))
    # The second record would make the state 2, which cannot be finished; so would the third.
    assert step.values() == [{"a": 1, "b": -1.0, "c": 1}]
    assert step.operator.state.values == {"k": (({5}, False), 1, 1)}  # type: ignore[attr-defined]


def test_a_failure_names_the_function_of_the_user_that_is_to_be_looked_at() -> None:
    def price(sale: Any) -> Any:
        return sale["price"]

    figures: dict[str, Aggregation[Any, Any]] = {
        "a": agg.count(),
        "b": agg.mean("n"),
        "c": agg.sum(price),
        "d": BAD_FINISH,
    }
    good = {"n": 1, "price": 1}
    for value, named in (({"price": 1}, "column 'n'"), ({"n": 1}, "price at "), ({"n": "x", "price": 1}, "column 'n'")):
        with pytest.raises(OperatorError, match=named):
            stepped(**figures).push(Batch([value], keys=["k"]))
    with pytest.raises(OperatorError, match="broken_finish at "):
        stepped(**figures).push(Batch([good, good], keys=["k", "k"]))
    with pytest.raises(OperatorError, match=r"and 'NoneType'\. Leave None out with skip_nulls") as caught:
        stepped(total=agg.sum()).push(Batch([None], keys=["k"]))
    assert "malstrom_py" not in str(caught.value)


# State.


def test_the_order_of_the_arguments_does_not_matter_to_what_was_persisted() -> None:
    def one_way(stream: Any) -> Any:
        return stream.aggregate("figures", b=agg.sum(), a=agg.count(), c=agg.n_unique())

    def other_way(stream: Any) -> Any:
        return stream.aggregate("figures", c=agg.n_unique(), a=agg.count(), b=agg.sum())

    persisted = OperatorTester(one_way, keyed=True).send_local([("k", 3), ("k", 4)]).step().barrier()
    restored = OperatorTester(other_way, keyed=True)
    restored.restore(persisted)
    (message,) = restored.send_local([("k", 4)]).step().receive_local()
    assert message.value == {"c": 2, "a": 3, "b": 11}  # type: ignore[union-attr]


def test_what_a_fold_or_reduce_changes_was_sent_as_a_copy() -> None:
    def extend(values: list[int], more: list[int]) -> list[int]:
        values.extend(more)
        return values

    rows = [[1], [2], [3]]
    for rows_max in (1, 100):
        job, folded, reduced, both = mp.Job("copies"), sinks.Memory(), sinks.Memory(), sinks.Memory()
        keyed = job.source("rows", sources.Memory(rows)).key_by("all", lambda row: 0)
        keyed.fold("fold", extend, default=list).sink("folded", folded)
        keyed.reduce("reduce", extend).sink("reduced", reduced)
        keyed.sink("both", both)
        mp.run(job, progress=False, batch=mp.Batching(rows_max=rows_max), checks=True)
        assert folded.items == reduced.items == [[1], [1, 2], [1, 2, 3]]
        assert both.items == rows == [[1], [2], [3]]


# One figure per key


NUMBERS: list[Any] = [Decimal("0.1"), Fraction(1, 3), np.float64(0.5), 1 << 200, 1j]


def pair(left: Any, right: Any) -> Any:
    return left, right


@pytest.mark.parametrize(
    ("factory", "values", "expected"),
    [
        (Count, [None, None], [1, 2]),
        (Min, [1, 1.0, True], [1, 1, 1]),
        (Max, [1, 1.0, True], [1, 1, 1]),
        *((Sum, [n, n], [n, n + n]) for n in NUMBERS),
        (Mean, [Decimal(1), Decimal(2)], [Decimal(1), Decimal("1.5")]),
        (Mean, [np.float64(1)], [np.float64(1)]),
        (partial(Fold, fn=lambda seen, value: None if seen == 1 else value, default=int), [1, 2, 3], [1, None, 3]),
        (partial(Reduce, fn=pair), ["a", "b", "c"], ["a", ("a", "b"), (("a", "b"), "c")]),
        (partial(Reduce, fn=pair), [None, 1, 2], [None, 1, (1, 2)]),
        (partial(Distinct, by=lambda value: value[0]), ["xa", "xb", "ya"], ["xa", "ya"]),
        (partial(TopN, n=2, by=lambda value: value[0]), ["1x", "1y", "1z"], [["1x"], ["1x", "1y"], ["1x", "1y"]]),
    ],
)
def test_values_of_every_kind_keep_their_kind_and_of_equal_ones_the_first_stays(
    factory: OperatorFactory, values: list[Any], expected: list[Any]
) -> None:
    found = Stepped(factory).push(Batch(values, keys=["a"] * len(values))).values()
    assert found == expected
    assert list(map(type, found)) == list(map(type, expected))


def test_keys_that_are_equal_share_one_figure_and_none_is_a_key() -> None:
    assert Stepped(Count).push(Batch([0, 0, 0, 0], keys=[1, 1.0, True, None])).values() == [1, 2, 3, 1]


@pytest.mark.parametrize(("step", "expected"), [(Sum, [2, 5]), (Min, [2, 2]), (Max, [2, 3]), (Mean, [2.0, 2.5])])
def test_by_takes_a_number_from_each_value(step: Any, expected: list[Any]) -> None:
    factory = partial(step, by=field_getter("n", "step"))
    assert Stepped(factory).push(Batch([{"n": 2}, {"n": 3}], keys=["a", "a"])).values() == expected


@pytest.mark.parametrize(
    ("factory", "values", "expected"),
    [
        (Sum, [1, None, 2, "x"], [1, 3]),
        (Mean, [1, 10**400, None, 3], [1.0, 2.0]),
        (Min, [2, "x", None, np.array([1, 3]), 2], [2, 2]),
        (Max, [2, "x", None, np.array([1, 3]), 2], [2, 2]),
        (Min, [None, 2, 2], [2, 2]),
        (Max, [None, 2, 2], [2, 2]),
        (partial(Distinct, by=None), [[1], 2, {}, 2, [1], 3], [2, 3]),
        (partial(TopN, n=2, by=None), [1, "x", None, 2], [[1], [2, 1]]),
        (partial(TopN, n=2, by=None), [None, 2, 3], [[2], [3, 2]]),
    ],
)
@pytest.mark.parametrize("on_error", ["skip", "dead-letter"])
def test_a_value_that_cannot_be_taken_leaves_the_figure_as_it_was(
    factory: OperatorFactory, values: list[Any], expected: list[Any], on_error: Any
) -> None:
    step = Stepped(factory, on_error=on_error).push(Batch(values, keys=["a"] * len(values)))
    assert step.values() == expected
    refused = step.counters.skipped + step.counters.dead_letters
    assert refused == len(values) - len(expected) - step.counters.filtered


def test_a_dead_letter_holds_the_whole_value_not_what_by_took_of_it() -> None:
    step = Stepped(partial(Sum, by=lambda row: row["n"]), on_error="dead-letter")
    step.push(Batch([{"n": 1}, {"m": 2}, {"n": None}, {"n": 4}], keys=["a", "b", "c", "a"]))
    assert step.rows() == [("a", 1, None), ("a", 5, None)]
    assert [(letter.key, letter.value) for letter in step.dead_letters] == [("b", {"m": 2}), ("c", {"n": None})]


@pytest.mark.parametrize(
    ("factory", "values", "said"),
    [
        (Sum, ["secret"], "TypeError: unsupported operand type"),
        (partial(Sum, by=lambda value: value), ["secret"], r"TypeError in .*<lambda> at .*test_aggregate\.py"),
        (partial(Distinct, by=None), [["secret"]], r"TypeError: unhashable type: 'list'\. Name a column"),
        (partial(Distinct, by=lambda value: [value]), ["secret"], r"TypeError in .*<lambda> at .*test_aggregate\.py"),
        (partial(TopN, n=2, by=None), [1, "secret"], "TypeError: '<' not supported .* Name a column"),
        (partial(Fold, fn=pair, default=lambda: 1 // 0), ["secret"], "ZeroDivisionError"),
    ],
)
def test_a_value_that_cannot_be_taken_fails_naming_step_and_key_not_the_value_nor_a_file_of_ours(
    factory: OperatorFactory, values: list[Any], said: str
) -> None:
    with pytest.raises(OperatorError, match=rf"'under-test' failed for key 'a': {said}") as caught:
        Stepped(factory).push(Batch(values, keys=["a"] * len(values)))
    assert "secret" not in str(caught.value)
    assert "malstrom_py" not in str(caught.value)


def test_the_default_of_a_fold_is_made_once_per_key_and_one_that_raises_leaves_no_state() -> None:
    made: list[int] = []
    step = Stepped(partial(Fold, fn=lambda _, value: value, default=lambda: made.append(1)))
    step.push(Batch([0, 1, 2], keys=["a", "a", "b"]))
    assert len(made) == 2
    failing = Stepped(partial(Fold, fn=pair, default=lambda: 1 // 0), on_error="skip").push(Batch([1], keys=["a"]))
    assert (failing.operator.keys, failing.counters.skipped) == (0, 1)


VALUES = st.sampled_from([0, 1, 2, None, "", (1, 2), 1.0, True])


@given(records=st.lists(st.tuples(st.sampled_from("ab"), VALUES)), sizes=st.lists(st.integers(1, 5), max_size=20))
def test_distinct_passes_each_value_once_per_key_whatever_the_cuts(
    records: list[tuple[str, Any]], sizes: list[int]
) -> None:
    batch = Batch([v for _, v in records], keys=[k for k, _ in records], timestamps=list(range(len(records))))
    step = Stepped(partial(Distinct, by=None), keyed=True, timed=True).push(*cut(batch, sizes))
    seen: set[tuple[str, Any]] = set()
    expected = []
    for at, record in enumerate(records):
        if record not in seen:
            seen.add(record)
            expected.append((*record, at))
    assert step.rows() == expected
    assert step.counters.filtered == len(records) - len(expected)


PAIRS = st.tuples(st.integers(0, 3), st.integers(0, 1000))


@given(
    records=st.lists(st.tuples(st.sampled_from("ab"), PAIRS), max_size=25),
    n=st.integers(1, 5),
    sizes=st.lists(st.integers(1, 5), max_size=20),
)
def test_top_n_gives_what_a_stable_sort_of_all_so_far_gives(
    records: list[tuple[str, tuple[int, int]]], n: int, sizes: list[int]
) -> None:
    """A stable sort by falling rank keeps equal ones in the order they came: of equals the first stays ahead."""
    asked: list[int] = []

    def rank(value: tuple[int, int]) -> int:
        asked.append(value[0])
        return value[0]

    batch = Batch([value for _, value in records], keys=[key for key, _ in records])
    step = Stepped(partial(TopN, n=n, by=rank), keyed=True).push(*cut(batch, sizes))
    seen: dict[str, list[tuple[int, int]]] = {}
    expected = []
    for key, value in records:
        seen.setdefault(key, []).append(value)
        expected.append(sorted(seen[key], key=lambda value: -value[0])[:n])
    assert step.values() == expected  # lists that were sent before have not changed
    assert asked == [value[0] for _, value in records]  # once per record, however many are kept
