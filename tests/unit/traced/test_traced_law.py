"""The law of traced functions: columns give what the function returns for each row, in value and type."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import make_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py.data.row_form import TUPLES
from malstrom_py.data.rows_to_columns import RowColumns
from malstrom_py.errors import SinkError
from malstrom_py.testing.exact import same
from malstrom_py.traced.evaluation import results, some_results, streams, truths
from malstrom_py.traced.in_python import Unproven, kind_in_python, kinds_of
from malstrom_py.traced.nodes import Failing
from malstrom_py.traced.proxies import RowKind
from malstrom_py.traced.returned import by_place, fields_returned, why_no_columns, why_no_numbers
from malstrom_py.traced.tracing import KEY, Traced, trace


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
        for name, (of, kind) in ((name, COLUMNS[name]) for name in draw(st.permutations(sorted(COLUMNS))))
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
        st.builds('{{"x": {}}} if {} else {{"x": {}}} if {} else None'.format, *[anything, conditions] * 2),
        st.builds("{} if {} else None".format, anything, conditions),
        st.builds("[{}]".format, numbers),
        st.builds("({}, {})".format, anything, anything),
        st.builds("({}, {}, 1) if {} else ({}, {}, 2)".format, numbers, texts, conditions, numbers, texts),
        st.builds("({} % 3, {} % 2) if {} else [{}]".format, numbers, numbers, conditions, numbers),
        st.builds("(1, {}) if {} else {{2}}".format, numbers | texts, conditions),
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


Arguments = Callable[[pa.RecordBatch], list[tuple[Any, ...]]]

FORMS: dict[str, tuple[str, Arguments]] = {
    "a row": ("r", lambda batch: [(row,) for row in batch.to_pylist()]),
    "a value": ("v", lambda batch: [(value,) for value in batch.column(0).to_pylist()]),
    "an object": ("o", lambda batch: [(instance_of(batch)(**row),) for row in batch.to_pylist()]),
    "a tuple": ("t", lambda batch: [(tuple(row[name] for name in sorted(row)),) for row in batch.to_pylist()]),
    "a key and a row": ("k, r", lambda batch: [(row["i"], row) for row in batch.to_pylist()]),
    "a key and a value": ("k, v", lambda batch: [(value, value) for value in batch.column(0).to_pylist()]),
}


def instance_of(batch: pa.RecordBatch) -> Any:
    """Return a class with the columns of ``batch`` as fields."""
    return make_dataclass("Instance", batch.schema.names)


def function_of(source: str, form: str = "a row", of: Sequence[str] = tuple(COLUMNS)) -> Callable[..., Any]:
    """Return a function of ``form``. Where that has a value, each field is this value; a key is the field ``i``."""
    arguments = FORMS[form][0]
    if "k" in arguments:
        source = source.replace('r["i"]', "k", 1)
    if "t" in arguments:
        places = {name: place for place, name in enumerate(sorted(of))}
        source = re.sub(r'r(?:\["|\.get\(")(\w)(?:"\]|", 1\))', lambda found: f"t[{places.get(found[1], 99)}]", source)
        source = re.sub(r"\br\b", "t", source)
    if "o" in arguments:
        source = re.sub(r'r\["(\w)"\]|r\.get\("(\w)", 1\)', r"o.\1\2", source)
        source = re.sub(r"\br\b", "o", source)
    if "v" in arguments:
        source = re.sub(r'r\["\w"\]|r\.get\("\w", 1\)', "v", source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ``is`` with a literal
        names = {"TABLE": TABLE, "NUMBERS": NUMBERS, "MOMENT": MOMENT}
        made: Callable[..., Any] = eval(f"lambda {arguments}: {source}", names)
    return made


def rows_of(function: Callable[..., Any], batch: pa.RecordBatch, form: str) -> list[Any] | None:
    """Return the results of the rows; None if one raises."""
    try:
        return [function(*arguments) for arguments in FORMS[form][1](batch)]
    except Exception:
        return None


def traced_of(function: Callable[..., Any], batch: pa.RecordBatch, form: str) -> tuple[Traced | str, pa.RecordBatch]:
    """Return what is known of ``function``, and the columns of its arguments."""
    arguments, names, columns = FORMS[form][0], list(batch.schema.names), list(batch.columns)
    if "v" in arguments:
        names, columns = ["value"], columns[:1]
    if "t" in arguments:
        names, columns = sorted(names), [batch.column(name) for name in sorted(names)]
    kinds = kinds_of(pa.RecordBatch.from_arrays(columns, names=names).schema)
    key = None
    if "k" in arguments:
        column = columns[0] if "v" in arguments else batch.column("i")
        names, columns, key = [*names, KEY], [*columns, column], kind_in_python(column.type)
    given = pa.RecordBatch.from_arrays(columns, names=names)
    nullable = frozenset(name for name in names if given.column(name).null_count)
    rows: dict[str, RowKind] = {"o": "class", "t": "tuple", "r": "dict", "k, r": "dict", "v": "value", "k, v": "value"}
    return trace(function, kinds, nullable, row=rows[arguments], key=key), given


def columns_of(
    function: Callable[..., Any], batch: pa.RecordBatch, form: str
) -> tuple[pa.RecordBatch | None, bool, list[bool] | None]:
    """Return the results on columns, whether they are dicts, and whether each is true; None for what rows must do."""
    traced, given = traced_of(function, batch, form)
    if isinstance(traced, str):
        return None, False, None
    values: pa.RecordBatch | None = None
    flags: list[bool] | None = None
    if why_no_columns(traced.tree) is None:
        with suppress(Unproven, pa.ArrowException):
            values = results(traced.tree, given)
    with suppress(Unproven, pa.ArrowException):
        flags = truths(traced.tree, given).tolist()
    return values, fields_returned(traced.tree) is not None, flags


def as_rows(values: pa.RecordBatch, expected: list[Any], is_dict: bool) -> bool:
    """Whether columns have the values of rows, and the types that a sink makes of these."""
    rows = expected if is_dict else [{"value": value} for value in expected]
    return same(values.to_pylist(), rows) and values.schema.types == RowColumns(SinkError).convert(rows).schema.types


def holds_without_none(
    function: Callable[..., Any], expected: list[Any] | None, batch: pa.RecordBatch, form: str
) -> bool:
    """Whether the results that are not None are right where None is left out."""
    traced, given = traced_of(function, batch, form)
    if isinstance(traced, str) or why_no_columns(traced.tree, without_none=True) is not None:
        return True
    try:
        values, places = some_results(traced.tree, given)
    except (Unproven, pa.ArrowException):
        return True
    if expected is None or places.tolist() != [place for place, one in enumerate(expected) if one is not None]:
        return False
    some = [one for one in expected if one is not None]
    return not some if values is None else as_rows(values, some, fields_returned(traced.tree) is not None)


def holds_of_streams(
    function: Callable[..., Any], expected: list[Any] | None, batch: pa.RecordBatch, form: str
) -> bool:
    """Whether rows go to the streams whose numbers the function returns."""
    traced, given = traced_of(function, batch, form)
    if isinstance(traced, str) or why_no_numbers(traced.tree) is not None:
        return True
    try:
        flags = streams(traced.tree, given, STREAMS)
    except (Unproven, pa.ArrowException):
        return True
    every = set(range(STREAMS))
    if expected is None or not all(type(one) in (tuple, list, set) and every.issuperset(one) for one in expected):
        return False
    return bool(flags.T.tolist() == [[number in one for number in range(STREAMS)] for one in expected])


def holds_of_tuples(function: Callable[..., Any], expected: list[Any] | None, batch: pa.RecordBatch, form: str) -> bool:
    """Whether the values of the tuples that the function returns are right."""
    traced, given = traced_of(function, batch, form)
    tree = Failing() if isinstance(traced, str) else by_place(traced.tree)
    if isinstance(traced, str) or fields_returned(traced.tree) or why_no_columns(tree) or not fields_returned(tree):
        return True
    try:
        values = results(tree, given)
    except (Unproven, pa.ArrowException):
        return True
    return expected is not None and same(TUPLES.rows(values), expected)


STREAMS = 3


def holds(source: str, batch: pa.RecordBatch, form: str = "a row") -> bool:
    function = function_of(source, form, batch.schema.names)
    expected = rows_of(function, batch, form)
    values, is_dict, flags = columns_of(function, batch, form)
    if values is not None and (expected is None or not as_rows(values, expected, is_dict)):
        return False
    for holds_otherwise in (holds_without_none, holds_of_streams, holds_of_tuples):
        if not holds_otherwise(function, expected, batch, form):
            return False
    return flags is None or (expected is not None and flags == list(map(bool, expected)))


@settings(max_examples=int(os.environ.get("TRACED_EXAMPLES", "100")), deadline=None)
@given(expressions(), batches(), st.sampled_from([*FORMS, "a row", "a row"]))
def test_columns_give_what_the_function_returns(source: str, batch: pa.RecordBatch, form: str) -> None:
    assert holds(source, batch, form), (source, form)


def test_a_method_that_a_value_lacks_fails_whether_or_not_its_result_is_used() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1], pa.timestamp("ms", "UTC"))], names=["z"])
    assert holds('{"x": r["z"].startswith("a")}', batch)


def test_texts_that_begin_within_their_buffer_are_changed_right() -> None:
    texts = within(pa.array(["Ab", "B"]))
    batch = pa.RecordBatch.from_arrays([texts], names=["s"])
    for method in ("lower", "upper", "strip"):
        function = function_of(f'{{"x": r["s"].{method}() + "-"}}')
        columns, _, _ = columns_of(function, batch, "a row")
        assert columns is not None
        assert columns.to_pylist() == rows_of(function, batch, "a row")
