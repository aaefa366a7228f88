"""Columns into rows: equal to Arrow's own conversion, for every type and value."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.row_form import python_values, rows_of
from malstrom_py.errors import CodecError

NAMES = st.text(min_size=1, max_size=5)
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "text": (pa.string(), st.text()),
    "bytes": (pa.binary(), st.binary()),
    "decimal": (
        pa.decimal128(38, 2),
        st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**9), max_value=10**9),
    ),
    "date": (pa.date32(), st.dates()),
    "time": (pa.time64("us"), st.times()),
    "us": (pa.timestamp("us"), st.datetimes()),
    "ms": (pa.timestamp("ms"), st.datetimes().map(lambda at: at.replace(microsecond=0))),
    "zone": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    "duration": (pa.duration("us"), st.timedeltas(dt.timedelta(days=-9999), dt.timedelta(days=9999))),
    "list": (pa.list_(pa.int64()), st.lists(st.integers(-5, 5), max_size=3)),
    "struct": (pa.struct([("x", pa.int64())]), st.fixed_dictionaries({"x": st.integers(-5, 5) | st.none()})),
}


@pytest.mark.parametrize("name", TYPES)
@given(data=st.data())
def test_every_type_comes_as_arrow_itself_gives_it(name: str, data: st.DataObject) -> None:
    kind, values = TYPES[name]
    column = pa.array(data.draw(st.lists(st.none() | values, max_size=6)), kind)
    found = python_values(column, "x")
    assert found == column.to_pylist()
    assert [type(value) for value in found] == [type(value) for value in column.to_pylist()]


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC")])
@given(hours=st.lists(st.none() | st.sampled_from([-(10**6), 0, 7, 10**6]), max_size=40), start=st.integers(0, 3))
def test_moments_that_repeat_come_as_arrow_itself_gives_them(
    kind: pa.DataType, hours: list[int | None], start: int
) -> None:
    zero = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
    times = [None if hour is None else zero + dt.timedelta(hours=hour) for hour in hours]
    column = pa.array(times, kind).slice(start)
    assert python_values(column, "x") == column.to_pylist() == times[start:]
    assert python_values(pa.chunked_array([column, column], kind), "x") == times[start:] * 2


def test_dates_beyond_those_of_python_are_refused_and_dictionaries_are_decoded() -> None:
    days = pa.array([0, 10**7], pa.int32()).view(pa.date32())
    with pytest.raises(CodecError, match="has a value that Python cannot hold"):
        python_values(days, "x")
    words = pa.array(["a", None, "b", "a"]).dictionary_encode()
    assert python_values(words, "x") == ["a", None, "b", "a"]


@given(names=st.lists(NAMES, min_size=1, max_size=6, unique=True), rows=st.integers(0, 4))
def test_names_are_data_never_code(names: list[str], rows: int) -> None:
    columns = pa.RecordBatch.from_arrays([pa.array([n] * rows, pa.int64()) for n in range(len(names))], names=names)
    assert rows_of(columns) == columns.to_pylist()


@pytest.mark.parametrize("width", [0, 1, 2, 199, 200, 201, 300])
def test_any_number_of_columns(width: int) -> None:
    columns = pa.RecordBatch.from_pydict({f"c{n}": [n, None] for n in range(width)})
    assert rows_of(columns) == columns.to_pylist()


def test_rows_without_columns_are_empty_dicts() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert rows_of(batch) == [{}, {}]


def test_signs_and_kinds_of_floats_stay() -> None:
    values = python_values(pa.array([-0.0, float("nan"), float("-inf")]), "x")
    assert [str(value) for value in values] == ["-0.0", "nan", "-inf"]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("time", [2**63 - 1, -(2**63) + 1])
def test_times_beyond_python_s_years_are_an_error_that_tells_no_value(unit: str, time: int) -> None:
    with pytest.raises(
        CodecError, match=rf"^column 'at' of Arrow type timestamp\[{unit}\] has a value that Python cannot"
    ):
        rows_of(pa.RecordBatch.from_arrays([pa.array([time], pa.timestamp(unit))], names=["at"]))


def test_the_first_and_the_last_moment_are_there() -> None:
    ends = pa.array([-62_135_596_800_000_000, 253_402_300_799_999_999, None], pa.timestamp("us"))
    assert [str(at) for at in python_values(ends, "x")] == ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "None"]
