"""`fold` on columns gives what its function gives row by row: results, types, errors and states."""

from __future__ import annotations

import logging
import math
import operator
import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.row_form import SCALAR
from malstrom_py.errors import InternalError
from malstrom_py.operators import compiled_folds
from malstrom_py.operators.aggregate import Count, Fold, Reduce
from malstrom_py.operators.base import StepContext
from malstrom_py.operators.compiled_folds import CompiledFold
from malstrom_py.operators.keyed import StatefulOperator
from malstrom_py.operators.stateful_map import StatefulMap
from malstrom_py.state.figure_states import FigureStates
from malstrom_py.state.group_index import keys_as_columns
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.testing.exact import same
from tests.unit.operators.stepping import Stepped
from tests.unit.traced.test_traced_law import MOMENT, NUMBERS, TABLE, batches, expressions

TOTAL = partial(Fold, fn=lambda total, row: total + row["v"], default=int)


def columns(keys: list[Any], **of: Any) -> ColumnBatch:
    return ColumnBatch(pa.RecordBatch.from_pydict(of), key_column=pa.array(keys))


def states(step: Stepped) -> Any:
    assert isinstance(step.operator, StatefulOperator)
    return step.operator.state.values


def both(factory: Any, *given: ColumnBatch) -> tuple[Stepped, Stepped]:
    by_columns = Stepped(factory).push(*given)  # first, because then no rows have been made
    return by_columns, Stepped(factory).push(*(Batch(batch.values, keys=batch.keys) for batch in given))


FOLDS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[], Any]]] = {
    "sum": (lambda total, row: total + row["v"], int),
    "sum of floats from 0": (lambda total, row: total + row["x"], int),
    "integers among floats": (lambda total, row: total + row["v"], float),
    "sum from another number": (lambda total, row: row["v"] + total, lambda: 7),
    "difference": (lambda total, row: total - row["v"], int),
    "count": (lambda n, _: n + 1, int),
    "count of some": (lambda n, row: n + 1 if row["x"] > 1 else n, int),
    "sum of some": (lambda total, row: total + (row["v"] if row["x"] > 1 else 0), int),
    "floats of some": (lambda total, row: total + row["x"] if row["v"] > 1 else total, float),
    "several parts": (lambda total, row: total + row["v"] + row["v"] * 2, int),
    "largest": (lambda best, row: max(best, row["v"]), int),
    "smallest": (lambda best, row: min(row["x"], best), lambda: float("inf")),
    "by comparing": (lambda best, row: row["v"] if best < row["v"] else best, lambda: 2),  # noqa: FURB136
    "largest or none": (lambda best, row: row["v"] if best is None or row["v"] > best else best, lambda: None),
    "sum or none": (lambda total, row: (total or 0) + row["x"], lambda: None),
    "begun sum": (lambda total, row: row["x"] if total is None else total + row["x"], lambda: None),
    "last": (lambda _, row: row["v"], int),
    "fields": (
        lambda state, row: {
            "n": state["n"] + 1,
            "total": state["total"] + row["x"],
            "most": max(state["most"], row["v"]),
            "least": min(state["least"], row["v"]),
            "last": row["v"],
        },
        lambda: {"n": 0, "total": 0.0, "most": 0, "least": 100, "last": 0},
    ),
    "another field": (lambda state, row: {**state, "n": state["n"] + 1}, lambda: {"n": 0}),
}


@pytest.mark.parametrize("name", FOLDS)
def test_what_is_known_is_done_in_arrays(name: str) -> None:
    fn, default = FOLDS[name]
    given = [columns(list("aba"), v=[1, 2, 300], x=[0.1, 2.5, 0.2]), columns(list("ca"), v=[-5, 4], x=[1.5, -1e300])]
    one, other = both(partial(Fold, fn=fn, default=default), *given)
    assert same(one.rows(), other.rows())
    assert same(dict(states(one).items()), states(other))
    assert isinstance(states(one), FigureStates)
    assert one.counters.rows_made == 0


@pytest.mark.parametrize("function", [max, min, operator.add])
def test_values_that_are_numbers(function: Any) -> None:
    given = ColumnBatch(pa.RecordBatch.from_pydict({"value": [3, 4, 1]}), key_column=pa.array(list("aba")), form=SCALAR)
    one, other = both(partial(Fold, fn=function, default=int), given)
    assert one.values() == other.values()
    assert isinstance(states(one), FigureStates)


MAPS: dict[str, tuple[Callable[[Any, Any, Any], Any], Callable[[], Any] | None]] = {
    "number": (lambda _, row, n: (n + 1, n + 1), int),
    "number of the row": (lambda _, row, n: ({"v": row["v"], "n": (n or 0) + 1}, (n or 0) + 1), None),
    "rise": (lambda _, row, most: (row["v"] > most, max(row["v"], most)), int),
    "state before": (lambda _, row, total: (total, total + row["x"]), float),
    "difference": (lambda _, row, last: (0 if last is None else row["v"] - last, row["v"]), None),
    "key": (lambda key, row, total: (key + "!", total + row["v"]), lambda: 7),
    "fields": (
        lambda key, row, state: (
            {"key": key, "mean": (state["total"] + row["v"]) / (state["n"] + 1), "was": state["most"]},
            {"n": state["n"] + 1, "total": state["total"] + row["v"], "most": max(state["most"], row["v"])},
        ),
        lambda: {"n": 0, "total": 0, "most": -9},
    ),
}


@pytest.mark.parametrize("name", MAPS)
def test_outputs_are_computed_of_the_state_before_each_row(name: str) -> None:
    fn, default = MAPS[name]
    given = [
        columns(list("abab"), v=[1, 2, 300, 2], x=[0.1, 2.5, 0.2, 1.0]),
        columns(list("ca"), v=[-5, 4], x=[1.5, -1e300]),
    ]
    one, other = both(partial(StatefulMap, fn=fn, default=default), *given)
    assert same(one.rows(), other.rows())
    assert same(dict(states(one).items()), states(other))
    assert isinstance(states(one), FigureStates)
    assert one.counters.rows_made == 0


def test_rows_that_fail_leave_the_state_that_was_before_the_batch() -> None:
    step = Stepped(
        partial(StatefulMap, fn=lambda _, row, n: (row["v"] // n, n + 1), default=lambda: 0), on_error="skip"
    )
    step.push(columns(list("aab"), v=[1, 2, 3]), columns(list("aa"), v=[1, 2]))
    assert dict(states(step)) == {}
    assert step.counters.skipped == 5
    also = Stepped(partial(StatefulMap, fn=lambda _, row, n: (9 // row["v"], n + 1), default=int), on_error="skip")
    also.push(columns(list("ab"), v=[1, 2]))
    assert isinstance(states(also), FigureStates)
    also.push(columns(list("aca"), v=[1, 0, 3]))
    assert dict(states(also)) == {"a": 3, "b": 1}
    assert also.values() == [9, 4, 9, 3]


def test_reduce_of_numbers() -> None:
    for function in (lambda one, other: one + other, max):
        step = Stepped(Count).push(columns(list("aba"), v=[1, 2, 3]))
        (counts,) = step.batches()
        assert isinstance(counts, ColumnBatch)
        one, other = both(partial(Reduce, fn=function), counts, counts)
        assert one.values() == other.values()
        assert isinstance(states(one), FigureStates)


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], Callable[[], Any]]] = {
    "product": (lambda total, row: total * row["v"], int),
    "decay": (lambda total, row: total * 0.5 + row["x"], float),
    "bound": (lambda total, row: total + row["v"] if total < 10 else total, int),
    "two fields": (lambda s, row: {"a": s["a"] + 1, "b": s["a"]}, lambda: {"a": 0, "b": 0}),
    "a list": (lambda _, row: [row["v"]], list),
    "text": (lambda total, row: total + row["s"], str),
    "another default": (lambda total, row: total + row["v"], iter([0, 5, 9, 9]).__next__),
    "an integer that stays": (lambda total, row: total + row["x"] if row["v"] > 2 else total, int),
    "largest of floats from an integer": (lambda best, row: max(best, row["x"]), int),
    "zero becomes an integer": (lambda total, row: (total or 0) + row["v"], float),
    "true, then two": (lambda n, row: row["v"] > 1 if n is None else n + (row["v"] > 1), lambda: None),
    "no state at first": (lambda total, row: total + row["v"], lambda: None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_done_by_rows(name: str) -> None:
    fn, default = REFUSED[name]
    step = Stepped(partial(Fold, fn=fn, default=default), on_error="skip")
    step.push(columns(list("aba"), v=[1, 2, 3], x=[0.1, 2.5, 0.2], s=["a", "b", "c"]))
    assert not isinstance(states(step), FigureStates)


ODD: dict[str, list[ColumnBatch]] = {
    "none": [columns(["a"], v=[1]), columns(["a", "b"], v=[None, 3])],
    "large": [columns(["a"], v=[2**62]), columns(["a"], v=[2**62])],
    "floats": [columns(["a"], v=[1]), columns(["a"], v=[0.5])],
    "text": [columns(["a"], v=[1]), columns(["a"], v=["b"])],
    "no column": [columns(["a"], v=[1]), columns(["a"], w=[2])],
    "nan": [columns(["a", "a"], v=[1.5, math.nan]), columns(["a"], v=[2.5])],
    "zeros": [columns(["a", "b", "a"], v=[0.0, -0.0, -0.0]), columns(["b"], v=[0.0])],
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("fold", ["sum", "largest", "last", "fields"])
def test_odd_values_are_those_of_rows(name: str, fold: str) -> None:
    fn, default = FOLDS[fold]
    ones, others = (Stepped(partial(Fold, fn=fn, default=default), on_error="skip") for _ in range(2))
    for batch in ODD[name]:
        ones.push(batch)
        others.push(Batch(batch.values, keys=batch.keys))
        assert same(ones.rows(), others.rows())
        assert same(dict(states(ones).items()), states(others))
    assert ones.counters.skipped == others.counters.skipped


def test_states_are_arrays_again_after_one_batch_among_many_that_only_rows_do() -> None:
    fn, default = FOLDS["largest or none"]
    ones, others = (Stepped(partial(Fold, fn=fn, default=default)) for _ in range(2))
    for turn in range(12):
        batch = columns(list("abcd"), v=[float(turn), 2.5, 3.5, math.nan if turn == 5 else 4.5])
        ones.push(batch)
        others.push(Batch(batch.values, keys=batch.keys))
        assert isinstance(states(ones), FigureStates) == (turn != 5)
    assert same(ones.rows(), others.rows())
    assert same(dict(states(ones).items()), states(others))


def test_what_a_function_reads_from_outside_may_change() -> None:
    more = {"n": 1}
    step = Stepped(partial(Fold, fn=lambda total, row: total + row["v"] * more["n"], default=int))
    step.push(columns(["a"], v=[1]))
    assert isinstance(states(step), FigureStates)
    more["n"] = 10
    assert step.push(columns(["a"], v=[1])).values() == [1, 11]


def test_rows_that_an_earlier_step_has_changed_are_taken() -> None:
    step = Stepped(TOTAL).push(columns(["a"], v=[1]))
    changed = columns(["a", "b"], v=[1, 2])
    for row in changed.values:
        row["v"] += 10
    assert step.push(changed, columns(["a"], v=[1])).values() == [1, 12, 12, 13]
    assert not isinstance(states(step), FigureStates)


def test_not_compiled_on_request() -> None:
    step = Stepped(partial(TOTAL, compiles=False)).push(columns(["a"], v=[1]))
    assert not isinstance(states(step), FigureStates)


def wrong(plan: Any, batch: ColumnBatch, of: Any) -> Any:
    compiled_folds._computed_rightly(plan, batch, of)  # type: ignore[attr-defined]
    return batch.with_columns(pa.RecordBatch.from_pydict({"value": [0] * len(batch)}), form=SCALAR)


def test_a_difference_is_found(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(compiled_folds, "_computed_rightly", compiled_folds._computed, raising=False)
    monkeypatch.setattr(compiled_folds, "_computed", wrong)
    with caplog.at_level(logging.WARNING):
        assert Stepped(TOTAL).push(columns(["a", "a"], v=[1, 2])).values() == [1, 3]
    assert "gave other results on columns" in caplog.text
    state = KeyedState("x", Codec())
    fold = CompiledFold(StepContext("test", "x", checked=True), state, TOTAL.keywords["fn"], int)
    with pytest.raises(InternalError, match="compile=False"):
        fold.scan(columns(["a", "a"], v=[1, 2]))


def test_nan_keeps_its_sign_where_it_is_subtracted() -> None:
    state = KeyedState("x", Codec())
    compiled = CompiledFold(StepContext("test", "x"), state, lambda total, row: total - row["f"], lambda: -2.5)
    given = columns(["a", "a"], f=[0.0, math.nan])
    made = compiled.scan(given)
    assert made is not None
    assert same(made.values, [-2.5 - 0.0, -2.5 - 0.0 - math.nan])


# The law

KEYS = st.sampled_from(["a", "b"])
TUPLES = st.sampled_from([("a", 1), ("a", 2), (None, 1)])
NAMES = {"TABLE": TABLE, "NUMBERS": NUMBERS, "MOMENT": MOMENT}


def function_of(source: str, arguments: str) -> Callable[..., Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ``is`` with a literal
        made: Callable[..., Any] = eval(f"lambda {arguments}: {source}", NAMES)
    return made


PARTS = st.sampled_from(['r["i"]', 'r["f"]', 'r["j"]', 'r["b"]', 'r["t"]', "1"]) | expressions()
FORMS = [
    "state + {0}",
    "{0} + state",
    "state - {0}",
    "max(state, {0})",
    "max({0}, state)",
    "min(state, {0})",
    "({0} if {0} > state else state)",
    "(state if state <= {0} else {0})",
    "(state + {0} if {1} else state)",
    "state + ({0} if {1} else 0)",
    "(state or 0) + {0}",
    "({0} if state is None else state + {0})",
    "({0} if state is None or {0} < state else state)",
    "{0}",
    "(state + {0} + {1})",
    "(state * {0})",
    "(state + {0} if state > 0 else {1})",
]
DEFAULTS: dict[str, Callable[[], Any]] = {
    "0": int,
    "0.0": float,
    "None": lambda: None,
    "7": lambda: 7,
    "-2.5": lambda: -2.5,
    "-inf": lambda: -math.inf,
    "False": lambda: False,
}


@st.composite
def folds(draw: st.DrawFn) -> tuple[str, Callable[[], Any]]:
    def change(state: str) -> str:
        form = draw(st.sampled_from(FORMS))
        return form.format(f"({draw(PARTS)})", f"({draw(PARTS)})").replace("state", state)

    if draw(st.booleans()):
        return change("state"), DEFAULTS[draw(st.sampled_from(sorted(DEFAULTS)))]
    of = {name: DEFAULTS[draw(st.sampled_from(sorted(DEFAULTS)))]() for name in "ab"}
    items = ", ".join(f'"{name}": {change(f"state[{name!r}]")}' for name in "ab")
    # Only constants: what a default reads from outside must be one.
    return f"{{{items}}}", eval(f"lambda: {of!r}".replace("-inf", "-1e999"))


def by_rows(function: Any, default: Any, keys: list[Any], rows: list[Any], model: dict[Any, Any]) -> list[Any] | None:
    sent = []
    try:
        for key, row in zip(keys, rows, strict=True):
            model[key] = function(model[key] if key in model else default(), row)
            sent.append(model[key])
    except Exception:
        return None
    return sent


OUTPUTS = [
    "state",
    "{0}",
    "state > {0}",
    "(state or 0) + {0}",
    "{0} - state",
    "key",
    "(0 if state is None else state)",
    '{{"k": key, "x": {0}, "s": state}}',
    "(state if {1} else {0})",
]


@st.composite
def maps(draw: st.DrawFn) -> tuple[str, Callable[[], Any]]:
    change = draw(st.sampled_from(FORMS)).format(f"({draw(PARTS)})", f"({draw(PARTS)})")
    output = draw(st.sampled_from(OUTPUTS)).format(f"({draw(PARTS)})", f"({draw(PARTS)})")
    return f"({output}, {change})", DEFAULTS[draw(st.sampled_from(sorted(DEFAULTS)))]


@settings(max_examples=int(os.environ.get("TRACED_EXAMPLES", "150")), deadline=None)
@given(maps(), st.lists(batches(), min_size=1, max_size=3), st.data())
def test_columns_give_the_outputs_that_the_function_gives(
    made: tuple[str, Callable[[], Any]], given: list[pa.RecordBatch], data: st.DataObject
) -> None:
    source, default = made
    of_keys = data.draw(st.sampled_from([KEYS, TUPLES]))
    function = function_of(source, "key, r, state")
    ones, others = (partial(StatefulMap, fn=function, default=default, compiles=compiles) for compiles in (True, False))
    one, other = Stepped(ones, on_error="skip"), Stepped(others, on_error="skip")
    assert isinstance(one.operator, StatefulMap)
    one.operator._compiled._compare = lambda *_: None  # type: ignore[method-assign]  # the proof alone
    for batch in given:
        keys = data.draw(st.lists(of_keys, min_size=len(batch), max_size=len(batch)))
        for step in (one, other):
            step.push(ColumnBatch(batch, key_column=keys_as_columns(keys)))
        assert same(one.rows(), other.rows()), source
        assert same(dict(states(one).items()), states(other)), source


@settings(max_examples=int(os.environ.get("TRACED_EXAMPLES", "150")), deadline=None)
@given(folds(), st.lists(batches(), min_size=1, max_size=3), st.data())
def test_columns_give_what_the_function_gives(
    fold: tuple[str, Callable[[], Any]], given: list[pa.RecordBatch], data: st.DataObject
) -> None:
    source, default = fold
    of_keys = data.draw(st.sampled_from([KEYS, TUPLES]))
    function = function_of(source, "state, r")
    state = KeyedState("x", Codec())
    compiled = CompiledFold(StepContext("test", "x"), state, function, default)
    compiled._compare = lambda *_: None  # type: ignore[method-assign]  # the proof alone
    model: dict[Any, Any] = {}
    for batch in given:
        keys = data.draw(st.lists(of_keys, min_size=len(batch), max_size=len(batch)))
        before = dict(state.values.items())
        made = compiled.scan(ColumnBatch(batch, key_column=keys_as_columns(keys)))
        expected = by_rows(function, default, keys, batch.to_pylist(), model)
        if made is None:
            assert same(dict(state.values.items()), before)
            return
        assert same(made.values, expected), source
        assert same(dict(state.values.items()), model), source
