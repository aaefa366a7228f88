"""The law of traced functions: columns give what the function returns for each row, in value and type."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py.data.rows_to_columns import RowColumns
from malstrom_py.errors import SinkError
from malstrom_py.testing.exact import same
from malstrom_py.traced.evaluation import results, truths
from malstrom_py.traced.in_python import Unproven, kinds_of
from malstrom_py.traced.tracing import trace


def moment(*parts: int) -> datetime:
    return datetime(*parts)  # type: ignore[arg-type]  # noqa: DTZ001  columns without a zone


TABLE = {"a": 1, "B": 2, "": 3}
NUMBERS = frozenset({0, 1, -3})

INTS = st.one_of(st.integers(-4, 4), st.sampled_from([2**53, 2**53 + 1, -(2**63), 2**63 - 1, 10**12]))
FLOATS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.5, -2.5, math.nan, math.inf, -math.inf, 1e308, 2.0**53]), st.floats(-9, 9)
)
TEXTS = st.text("aB é\u2028\x1f", max_size=3)
TIMES = st.datetimes(moment(1, 1, 1), moment(9999, 12, 31)) | st.datetimes(moment(1969, 12, 31), moment(1970, 1, 2))

COLUMNS = {
    "i": (INTS, pa.int64()),
    "j": (st.integers(-4, 4), pa.int8()),
    "f": (FLOATS, pa.float64()),
    "s": (TEXTS, pa.string()),
    "b": (st.booleans(), pa.bool_()),
    "t": (TIMES, pa.timestamp("us")),
    "d": (TEXTS, pa.dictionary(pa.int8(), pa.string())),
    "u": (st.integers(0, 9) | st.integers(2**63 - 2, 2**64 - 1), pa.uint64()),
    "g": (st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf]) | st.floats(width=32), pa.float32()),
    "e": (st.dates(), pa.date32()),
    "z": (st.datetimes(moment(1, 1, 2), moment(9999, 12, 30), timezones=st.just(UTC)), pa.timestamp("ms", "UTC")),
}


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    size = draw(st.integers(1, 6))
    nullable = draw(st.sets(st.sampled_from(sorted(COLUMNS)), max_size=2))
    columns = {
        name: pa.array(draw(st.lists(of | st.none() if name in nullable else of, min_size=size, max_size=size)), kind)
        for name, (of, kind) in COLUMNS.items()
    }
    if draw(st.booleans()):
        columns["s"] = within(columns["s"])
    return pa.RecordBatch.from_pydict(columns)


def within(texts: pa.Array) -> pa.Array:
    """Return ``texts`` as readers of files cut them: without an offset, but they begin within the buffer."""
    whole = pa.concat_arrays([pa.array(["before"]), texts])
    _, offsets, data = whole.buffers()
    if whole.null_count:
        return texts
    return pa.Array.from_buffers(whole.type, len(texts), [None, offsets.slice(4), data])


Texts = st.SearchStrategy[str]


def fields(names: str) -> Texts:
    return st.sampled_from(names).flatmap(lambda name: st.sampled_from([f'r["{name}"]', f'r.get("{name}", 1)']))


def two(left: Texts, signs: list[str], right: Texts) -> Texts:
    return st.builds("({} {} {})".format, left, st.sampled_from(signs), right)


def call(form: str, *of: Texts) -> Texts:
    return st.builds(form.format, *of)


def expressions() -> Texts:
    numbers = fields("iijjfbug") | st.sampled_from(
        ["0", "1", "-3", "7", "0.5", "-0.0", "2", "True", "9007199254740993"]
    )
    texts = fields("ssd") | st.sampled_from(["''", "'a'", "'aB'", "'é'"])
    conditions = fields("b") | st.sampled_from(['r["i"] is None', 'r["s"] is not None', '"j" in r', '"x" in r'])
    for _ in range(3):
        numbers, texts, conditions = (
            deeper_numbers(numbers, texts, conditions),
            deeper_texts(numbers, texts, conditions),
            deeper_conditions(numbers, texts, conditions),
        )
    anything = numbers | texts | conditions | fields("tez")
    return st.one_of(
        anything,
        st.builds('{{"x": {}, "y": {}}}'.format, anything, anything),
        st.builds('{{**r, "i": {}}}'.format, anything),
        st.builds('{{"x": {}}} if {} else {{"x": {}}}'.format, anything, conditions, anything),
        st.builds("{} if {} else None".format, anything, conditions),
    )


PARTS = ["year", "month", "day", "hour", "minute", "second", "microsecond", "weekday()"]


def deeper_numbers(number: Texts, text: Texts, condition: Texts) -> Texts:
    return st.one_of(
        number,
        two(number, ["+", "-", "*", "/", "//", "%", "&", "|", "^"], number),
        call("(-{})", number),
        call("abs({})", number),
        call("int({})", number),
        call("float({})", number),
        call("len({})", text),
        call("min({}, {})", number, number),
        call("max({}, {})", number, number),
        call("({} if {} else {})", number, condition, number),
        call("({} or {})", number, number),
        call("TABLE.get({}, 7)", text),
        call("TABLE[{}]", text),
        call("{{1 + len(r): 5}}.get({}, 2)", number),
        st.sampled_from(PARTS).map('r["t"].{}'.format),
    )


def deeper_texts(number: Texts, text: Texts, condition: Texts) -> Texts:
    return st.one_of(
        text,
        call("{}.lower()", text),
        call("{}.upper()", text),
        call("{}.strip()", text),
        call("{}[:2]", text),
        call("{}[1:]", text),
        call("({} + {})", text, text),
        call("('a' % {})", number | text),
        call("str({})", number),
        call("({} if {} else {})", text, condition, text),
    )


def deeper_conditions(number: Texts, text: Texts, condition: Texts) -> Texts:
    compare = ["==", "!=", "<", "<=", ">", ">="]
    any_one = number | text | condition | fields("tez") | st.just("None")
    return st.one_of(
        condition,
        two(number, compare, number),
        two(text, compare, text),
        two(any_one, ["==", "!=", "<"], any_one),
        two(fields("t"), compare, st.just("MOMENT")),
        two(condition, ["and", "or"], condition),
        call("(not {})", any_one),
        call("({} in ('a', 'B'))", text),
        call("({} in {{'', 'é'}})", text),
        call("({} in NUMBERS)", number),
        call("({} not in TABLE)", any_one),
        call("(({}, {}) in {{(1, 2), (0, 0)}})", number, number),
        call("({} in ({}, 1))", number, number),
        call("({} in {{'a'.upper(): 1}})", text),
        call("('a' in {})", text),
        call("{}.startswith('a')", text),
        call("{}.endswith('é')", text),
        call("({} is None)", any_one),
        call("({} is (True if {} else None))", any_one, condition),
        call("(0 < {} <= 2)", number),
    )


MOMENT = moment(1970, 1, 1) + timedelta(hours=5)


def function_of(source: str) -> Callable[[Any], Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ``is`` with a literal
        names = {"TABLE": TABLE, "NUMBERS": NUMBERS, "MOMENT": MOMENT}
        made: Callable[[Any], Any] = eval(f"lambda r: {source}", names)
    return made


def rows_of(function: Callable[[Any], Any], batch: pa.RecordBatch) -> list[Any] | None:
    """Return the results of the rows; None if one raises."""
    try:
        return [function(row) for row in batch.to_pylist()]
    except Exception:
        return None


def columns_of(
    function: Callable[[Any], Any], batch: pa.RecordBatch
) -> tuple[pa.RecordBatch | None, bool, list[bool] | None]:
    """Return the results on columns, whether they are dicts, and whether each is true; None for what rows must do."""
    nullable = frozenset(name for name in batch.schema.names if batch.column(name).null_count)
    traced = trace(function, kinds_of(batch.schema), nullable)
    if isinstance(traced, str):
        return None, False, None
    values: pa.RecordBatch | None = None
    is_dict = False
    flags: list[bool] | None = None
    try:
        found = results(traced.tree, batch)
        is_dict = isinstance(found, dict)
        columns = found if isinstance(found, dict) else {"value": found}
        values = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    except (Unproven, pa.ArrowException):
        pass
    with suppress(Unproven, pa.ArrowException):
        flags = truths(traced.tree, batch).tolist()
    return values, is_dict, flags


def as_rows(values: pa.RecordBatch, expected: list[Any], is_dict: bool) -> bool:
    """Whether columns have the values of rows, and the types that a sink makes of these."""
    rows = expected if is_dict else [{"value": value} for value in expected]
    return same(values.to_pylist(), rows) and values.schema.types == RowColumns(SinkError).convert(rows).schema.types


def holds(source: str, batch: pa.RecordBatch) -> bool:
    function = function_of(source)
    expected = rows_of(function, batch)
    values, is_dict, flags = columns_of(function, batch)
    if values is not None and (expected is None or not as_rows(values, expected, is_dict)):
        return False
    return flags is None or (expected is not None and flags == list(map(bool, expected)))


@settings(max_examples=int(os.environ.get("TRACED_EXAMPLES", "100")), deadline=None)
@given(expressions(), batches())
def test_columns_give_what_the_function_returns(source: str, batch: pa.RecordBatch) -> None:
    assert holds(source, batch), source


def test_texts_that_begin_within_their_buffer_are_changed_right() -> None:
    texts = within(pa.array(["Ab", "B"]))
    batch = pa.RecordBatch.from_arrays([texts], names=["s"])
    for method in ("lower", "upper", "strip"):
        function = function_of(f'{{"x": r["s"].{method}() + "-"}}')
        columns, _, _ = columns_of(function, batch)
        assert columns is not None
        assert columns.to_pylist() == rows_of(function, batch)
