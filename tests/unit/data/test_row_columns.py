"""`RowColumns`: names of the first rows, types that widen, the same result wherever batches are cut; and schemas."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.row_form import fields_of, python_values, rows_of
from malstrom_py.data.rows_to_columns import KindCheck, RowColumns, check_names
from malstrom_py.data.schema import plain, plain_type, recast, wider_type
from malstrom_py.data.unfit_values import why_unfit
from malstrom_py.errors import PlanError, SinkError, SourceError


@dataclasses.dataclass
class Leg:
    carrier: str


def test_fields_of_values_that_are_no_dict() -> None:
    assert fields_of([{"a": 1}]) == [{"a": 1}]
    assert fields_of([Leg("UA"), None]) == [{"carrier": "UA"}, {"value": None}]
    assert fields_of([Leg]) == [{"value": Leg}]


def test_names_are_those_of_the_first_rows_and_types_widen() -> None:
    columns = RowColumns(SinkError)
    assert columns.schema is None
    first = columns.convert([{"n": None}, {"m": 1}])
    assert first.to_pydict() == {"n": [None, None], "m": [None, 1]}
    second = columns.convert([{"n": 2, "m": 0.5}])
    assert columns.schema == second.schema == pa.schema([("n", pa.int64()), ("m", pa.float64())])
    assert columns.widened(first, second.schema).to_pydict() == {"n": [None, None], "m": [None, 1.0]}


def test_no_values_decide_nothing() -> None:
    columns = RowColumns(SinkError)
    assert (columns.convert([]).num_columns, columns.schema) == (0, None)
    columns.convert([{"n": 1}])
    assert columns.convert([]).schema == columns.schema == pa.schema([("n", pa.int64())])


def test_leading_columns_stand_before_those_of_the_values() -> None:
    columns = RowColumns(SinkError)
    assert columns.convert([{"n": 1}], leading={"key": ["a"]}).to_pydict() == {"key": ["a"], "n": [1]}
    assert RowColumns(SinkError).convert([{}], leading={"key": ["a"]}).to_pydict() == {"key": ["a"]}


def convert_all(error: Any, batches: Any) -> None:
    columns = RowColumns(error)
    for batch in batches:
        columns.convert(batch)


@pytest.mark.parametrize("error", [SinkError, PlanError, SourceError])
def test_every_error_is_of_the_type_that_was_asked_for(error: Any) -> None:
    for batches, match in (
        ([[{"n": 1}], [{"n": 1, "m": 2}]], "columns 'm' are not among those of the first batch"),
        ([[{"n": 1}], [{"n": "a"}]], "column 'n' holds int and str"),
        ([[{"n": 1}], [{"n": 2**64}]], "column 'n' holds an int beyond 64 bits"),
        ([[{"n": "a"}], [{"n": b"a"}]], "column 'n' holds bytes and str"),
        ([[{1: 2}]], "column's name is of type int"),
        ([[{}]], "no fields"),
    ):
        with pytest.raises(error, match=match) as raised:
            convert_all(error, batches)
        assert type(raised.value) is error
    columns = RowColumns(error)
    with pytest.raises(error, match="column 'n' holds int64 that cannot be written as list"):
        columns.widened(pa.record_batch({"n": [1]}), pa.schema([("n", pa.list_(pa.int64()))]))
    with pytest.raises(error, match="column's name is of type NoneType"):
        check_names(["a", None], error)


def test_columns_that_are_there_already_join_the_rows() -> None:
    columns = RowColumns(SinkError)
    columns.convert([{"n": None, "t": "a", "at": None}])
    at = pa.array([0], pa.timestamp("s", "Europe/Berlin"))
    found = columns.admit(pa.record_batch({"at": at, "t": pa.array(["b"]).dictionary_encode(), "n": [1]}))
    assert found.schema == columns.schema
    assert found.schema == pa.schema([("n", pa.int64()), ("t", pa.string()), ("at", pa.timestamp("s", "UTC"))])
    assert columns.admit(found.replace_schema_metadata({"a": "b"})).equals(found, check_metadata=True)
    assert columns.admit(pa.record_batch({"n": pa.array([1.5], pa.float32())})).to_pylist() == [
        {"n": 1.5, "t": None, "at": None}
    ]
    assert columns.admit(pa.record_batch({"n": pa.array([], pa.int8())})).schema == columns.schema
    assert columns.convert([{"n": 7}]).to_pylist() == [{"n": 7.0, "t": None, "at": None}]


def test_columns_that_come_first_say_names_and_types() -> None:
    columns = RowColumns(SinkError)
    first = columns.admit(pa.record_batch({"n": pa.array([None], pa.int8())}), leading={"key": pa.array(["a"])})
    assert first.schema == pa.schema([("key", pa.string()), ("n", pa.int8())])
    assert columns.convert([{"n": 300}], leading={"key": ["b"]}).schema.field("n").type == pa.int64()


@pytest.mark.parametrize(
    ("first", "then", "match"),
    [
        (pa.array([1]), pa.array(["a"]), "column 'n' holds int and str"),
        (pa.array([b"a"]), pa.array(["a"], pa.large_string()), "column 'n' holds bytes and str"),
        (pa.array([[1.5]]), pa.array([[Decimal(1)]]), r"column 'n\[\]' holds Decimal and float"),
        (pa.array([{"m": True}]), pa.array([{"m": 1}]), r"column 'n\.m' holds bool and int"),
        (pa.array([0], pa.date32()), pa.array([0], pa.timestamp("us")), "column 'n' holds date and datetime without"),
        (pa.array([1]), pa.array([[1]]), r"column 'n' holds list<item: int64> after int64"),
        (pa.array([1]), pa.array([2**64 - 1], pa.uint64()), "column 'n' holds uint64 after int64"),
        (pa.array([2**53 + 1]), pa.array([0.5]), "column 'n'"),
    ],
)
def test_columns_that_do_not_go_together_are_refused_in_both_layouts(first: Any, then: Any, match: str) -> None:
    for is_first_rows in (False, True):
        for is_then_rows in (False, True):
            columns = RowColumns(SinkError)
            with pytest.raises(SinkError, match=match if not is_then_rows else "column 'n"):
                join_all(columns, [(first, is_first_rows), (then, is_then_rows)])


def join_all(columns: RowColumns, parts: list[tuple[pa.Array, bool]]) -> list[pa.RecordBatch]:
    """Return the arrays as column ``n``, each given as rows or as columns, all in the last schema."""
    batches = [
        columns.convert([{"n": value} for value in array.to_pylist()])
        if is_rows
        else columns.admit(pa.record_batch({"n": array}))
        for array, is_rows in parts
    ]
    return [columns.widened(batch, columns.schema) for batch in batches]


def test_two_columns_of_one_name_are_refused() -> None:
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    with pytest.raises(SinkError, match="two columns have the same name"):
        RowColumns(SinkError).admit(twice)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64),
    st.integers(-3, 3),
    st.floats(),
    st.just(1.5),
    st.decimals(allow_nan=False, allow_infinity=False, places=2),
    st.just(Decimal(2**70)),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=5))])),
    st.times(),
    st.timedeltas(),
    st.uuids(),
)
NESTED = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


def converted(values: list[Any], cuts: list[int]) -> Any:
    """Return ``values`` converted in batches cut at ``cuts``, or that they are refused."""
    columns = RowColumns(SinkError)
    bounds = [0, *sorted(cuts), len(values)]
    rows = [{"n": value} for value in values]
    try:
        batches = [columns.convert(rows[start:end]) for start, end in itertools.pairwise(bounds)]
        batches = [columns.widened(batch, columns.schema) for batch in batches if batch.num_columns]
    except SinkError:
        return "refused"
    return same_text([row for batch in batches for row in rows_of(batch)])


def same_text(value: Any) -> str:
    """Return ``value`` as text that also distinguishes NaN, -0.0 and zones, which == does not."""
    if isinstance(value, Decimal):
        return f"Decimal {value.normalize()}" if value else "Decimal 0"
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return repr(value.astimezone(dt.UTC))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {same_text(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(same_text, value)) + "]"
    return repr(value)


def alike(draw: Any) -> list[Any]:
    """Draw values of one or two kinds, so that most of them fit one column."""
    kinds = draw(st.lists(st.sampled_from([VALUES, NESTED]), min_size=1, max_size=1))[0]
    few = draw(st.lists(kinds, min_size=1, max_size=2))
    return list(draw(st.lists(st.sampled_from([None, *few]), min_size=1, max_size=5)))


@settings(max_examples=60)
@given(st.data())
def test_what_a_value_becomes_does_not_depend_on_where_the_batches_are_cut(data: Any) -> None:
    values = alike(data.draw)
    cuts = data.draw(st.lists(st.integers(0, len(values)), max_size=3))
    assert converted(values, cuts) == converted(values, [])


@pytest.mark.parametrize(
    "values",
    [
        [1.5, True],
        [dt.timedelta(1), 1],
        [Decimal(1), 2**70],
        [Decimal("0.1"), 1.5],
        [1, Decimal("0.5")],
        [[1], [Decimal("0.5")]],
        [Decimal("1E-60"), Decimal("1E20")],
        [[Decimal(1)], [2**70]],
        [1, 2**63],
        [{"a": 1}, {"a": 1.5}],
        [{"a": dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=n)))} for n in (1, 2)],
    ],
)
def test_each_cut_of_two_values_gives_the_same(values: list[Any]) -> None:
    for two in (values, values[::-1]):
        assert converted(two, [1]) == converted(two, [])


COLUMNS = [
    pa.array([1, None, 2**31 - 1], pa.int32()),
    pa.array([2**63 - 1, -(2**63), None]),
    pa.array([0.1, None, float("nan")], pa.float32()),
    pa.array([0.5, -0.0, None, float("-inf")], pa.float16()),
    pa.array(["é\0", "", None]).dictionary_encode(),
    pa.array(["é", None], pa.string_view()),
    pa.array([b"\xff", None], pa.large_binary()),
    pa.array([b"abcd", None], pa.binary(4)),
    pa.array([Decimal("-1.10"), None], pa.decimal128(38, 10)),
    pa.array([Decimal("1.1"), None], pa.decimal32(5, 2)),
    pa.array([0, -1, None], pa.timestamp("ms", "America/New_York")),
    pa.array([0, 1_000, None], pa.timestamp("ns")),
    pa.array([0, None], pa.date64()),
    pa.array([1, None], pa.time32("s")),
    pa.array([1, None], pa.duration("s")),
    pa.array([True, None]),
    pa.array([None, None], pa.int16()),
    pa.array([None, None]),
    pa.array([["x", None], None], pa.large_list(pa.dictionary(pa.int8(), pa.string()))),
    pa.array([[1, None], None], pa.list_(pa.int64(), 2)),
    pa.array([{"a": 1, "b": [{"c": "x"}]}, None]),
]


@pytest.mark.parametrize("array", COLUMNS, ids=lambda array: str(array.type))
def test_rows_and_columns_of_one_stream_may_take_turns(array: pa.Array) -> None:
    expected = [same_text(value) for value in python_values(array, "n")] * 3
    for layouts in itertools.product([False, True], repeat=3):
        batches = join_all(RowColumns(SinkError), [(array, is_rows) for is_rows in layouts])
        assert [same_text(row["n"]) for batch in batches for row in rows_of(batch)] == expected


# Schemas


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.int8(), pa.int8()),
        (pa.dictionary(pa.int8(), pa.string_view()), pa.string()),
        (pa.run_end_encoded(pa.int32(), pa.int64()), pa.int64()),
        (pa.binary_view(), pa.binary()),
        (pa.timestamp("ns", "Asia/Tokyo"), pa.timestamp("ns", "UTC")),
        (pa.timestamp("s"), pa.timestamp("s")),
        (pa.large_list(pa.string_view()), pa.large_list(pa.string())),
        (pa.list_(pa.field("element", pa.string_view(), nullable=False)), pa.list_(pa.string())),
        (pa.list_(pa.binary_view(), 2), pa.list_(pa.binary(), 2)),
        (pa.map_(pa.string_view(), pa.binary_view()), pa.map_(pa.string(), pa.binary())),
        (pa.struct([pa.field("a", pa.string_view(), nullable=False)]), pa.struct([("a", pa.string())])),
        (pa.uuid(), pa.uuid()),
    ],
    ids=str,
)
def test_plain_types(kind: pa.DataType, expected: pa.DataType) -> None:
    assert plain_type(kind) == plain_type(expected) == expected


def test_plain_columns_hold_what_they_held() -> None:
    pc: Any = pyarrow.compute
    for column in (
        pa.array(["a", None, "a"]).dictionary_encode(),
        pc.run_end_encode(pa.array(["a", None, None])),
        pc.run_end_encode(pa.array(["a", None, None])).slice(1),
        pa.array([{"a": "x"}, None], pa.struct([("a", pa.dictionary(pa.int8(), pa.string()))])),
        pa.array([["a"], None], pa.list_(pa.string_view())),
    ):
        assert plain(column).type == plain_type(column.type)
        assert plain(column).to_pylist() == column.to_pylist()


def test_the_wider_type_does_not_depend_on_the_order() -> None:
    for one, other, expected in (
        (pa.null(), pa.int8(), pa.int8()),
        (pa.int64(), pa.float32(), pa.float64()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.timestamp("ms", "UTC"), pa.timestamp("us", "Asia/Tokyo"), pa.timestamp("us", "UTC")),
        (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64())])),
    ):
        assert wider_type(one, other) == wider_type(plain_type(other), one) == expected
    with pytest.raises(pa.ArrowException):
        wider_type(pa.int8(), pa.string())


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([[None, None], None, []], pa.list_(pa.null())),
        ([[None, None], None, []], pa.list_(pa.int64())),
        ([{"a": [None, None], "b": None}, None], pa.struct([("a", pa.list_(pa.null())), ("b", pa.int64())])),
        ([[{"a": [None, None]}]], pa.list_(pa.struct([("a", pa.list_(pa.null())), ("b", pa.string())]))),
    ],
)
def test_lists_of_none_stay_whole(values: list[Any], kind: pa.DataType) -> None:
    found = recast(pa.array(values), kind)
    found.validate(full=True)
    assert found.type == kind
    assert found.equals(pa.array(values, kind))


DAY, AT = dt.date(2013, 1, 1), dt.datetime(2013, 1, 1)  # noqa: DTZ001
ZONED = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)


def check_all(batches: list[list[Any]]) -> None:
    kinds = KindCheck(PlanError)
    for values in batches:
        kinds.check("n", values)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (DAY, AT),
        (AT, ZONED),
        (ZONED, DAY),
        ("a", b"a"),
        (bytearray(b"a"), "a"),
        (True, 1),
        (False, 0.5),
        (dt.timedelta(1), 1),
        (Decimal(1), 1.5),
        (Decimal(1), 1),
        (dt.time(1), DAY),
        (1, "a"),
    ],
)
def test_two_kinds_are_refused_in_one_column_and_taken_in_two(one: Any, other: Any) -> None:
    for batches in ([[one, other]], [[one], [other]], [[None], [one], [None, other]]):
        with pytest.raises(PlanError, match=r"column 'n' holds .* and .*: convert them to one type"):
            check_all(batches)
    kinds = KindCheck(PlanError)
    kinds.check("n", [one])
    kinds.check("m", [other])


@pytest.mark.parametrize(
    ("values", "column"),
    [([[DAY], [AT]], r"n\[\]"), ([{"m": "a"}, {"m": b"a"}], r"n\.m"), ([[{"m": DAY}, {"m": AT}]], r"n\[\]\.m")],
)
def test_kinds_inside_lists_and_dicts_are_told_apart_too(values: list[Any], column: str) -> None:
    with pytest.raises(PlanError, match=f"column '{column}' holds"):
        KindCheck(PlanError).check("n", values)


def test_whole_numbers_go_with_floats() -> None:
    for numbers in ([1, 2.5], [np.int64(1), np.float32(1)]):
        for batches in ([numbers], [[numbers[0]], [numbers[1]], [numbers[0]]]):
            check_all(batches)


def test_the_type_of_a_column_says_its_kind_whatever_it_holds() -> None:
    kinds = KindCheck(PlanError)
    kinds.check_type("n", pa.struct([("m", pa.list_(pa.int8())), ("none", pa.null())]))
    kinds.check("n", [{"m": [1], "none": "a"}])
    with pytest.raises(PlanError, match=r"column 'n\.m\[\]' holds int and str"):
        kinds.check("n", [{"m": ["a"]}])
    for kind, value in (
        (pa.bool_(), True),
        (pa.uint64(), 1),
        (pa.float16(), 1.5),
        (pa.decimal256(50, 2), Decimal(1)),
        (pa.date64(), DAY),
        (pa.timestamp("ns"), AT),
        (pa.timestamp("s", "UTC"), ZONED),
        (pa.time32("s"), dt.time(1)),
        (pa.duration("ms"), dt.timedelta(1)),
        (pa.large_string(), "a"),
        (pa.large_binary(), b"a"),
        (pa.binary(1), b"a"),
    ):
        kinds = KindCheck(PlanError)
        kinds.check_type("n", kind)
        kinds.check("n", [value])
        with pytest.raises(PlanError, match="column 'n' holds"):
            kinds.check("n", [DAY if value is not DAY else "a"])


def test_other_values_are_left_to_arrow() -> None:
    KindCheck(PlanError).check("n", [None, object(), uuid.uuid4()])


# Values that do not fit


UNFIT = [
    (2**63, "an int beyond 64 bits: make it"),
    (-(2**63) - 1, "an int beyond 64 bits: make it"),
    (Decimal("NaN"), "a Decimal that is NaN or infinite: make it"),
    (Decimal("-Infinity"), "a Decimal that is NaN or infinite: make it"),
    (Decimal(10**80), "a Decimal of more than 76 digits: round it"),
    ("a\ud800", "text that is not valid Unicode, with a lone surrogate: repair it"),
]


@pytest.mark.parametrize("inside", [lambda value: value, lambda value: [value], lambda value: {"x": value}])
@pytest.mark.parametrize(("value", "words"), UNFIT, ids=[words[:30] for _, words in UNFIT])
@pytest.mark.parametrize("target", ["parquet", "spark"])
def test_the_error_says_what_the_value_is_and_what_to_make_of_it(
    tmp_path: Path, value: Any, words: str, inside: Any, target: str
) -> None:
    job = mp.Job("docs")
    sink: Any = sinks.Files(tmp_path, format="parquet") if target == "parquet" else sinks.Spark(path=tmp_path)
    job.source("in", sources.Memory([{"a": inside(value)}])).sink("out", sink)
    with pytest.raises(SinkError, match=f"column 'a' holds {words}"):
        mp.run(job)


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_lone_surrogates_in_text_and_in_names(tmp_path: Path, format: Any) -> None:
    for row, words in (({"b": 1, "a": "\ud800"}, "column 'a' holds text"), ({"\ud800": 1}, "a column's name is")):
        job = mp.Job("docs")
        job.source("in", sources.Memory([row])).sink("out", sinks.Files(tmp_path, format=format))
        with pytest.raises(SinkError, match=f"{words} .*lone surrogate: repair it"):
            mp.run(job)


def test_other_values_are_not_blamed() -> None:
    assert why_unfit([2**63 - 1, -(2**63), True, None, Decimal("1e300"), "a", [b"x"], {"x": 1.5}]) is None


def test_a_table_name_with_a_space_says_how_to_write_it() -> None:
    for make in (sinks.Spark, sources.Spark):
        with pytest.raises(mp.PlanError, match=r"table 'my sales' has a space: .* in back-quotes"):
            make(table="my sales")
        make(table="shop.`my sales`")
