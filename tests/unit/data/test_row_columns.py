"""`RowColumns`: names of the first rows, types that widen, the same result wherever batches are cut."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py.data.row_form import fields_of, python_values, rows_of
from malstrom_py.data.rows_to_columns import RowColumns, check_names
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
