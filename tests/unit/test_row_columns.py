"""`RowColumns`: names of the first rows, types that widen, the same answer wherever the batches are cut."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.batches import rows_of
from malstrom_py.errors import PlanError, SinkError, SourceError
from malstrom_py.row_columns import RowColumns, check_names, fields_of


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
        ([[{"n": 1}], [{"n": "a"}]], "column 'n' holds values of type 'str' after int64"),
        ([[{"n": "a"}], [{"n": b"a"}]], "column 'n' holds bytes and str"),
        ([[{1: 2}]], "named by a int"),
        ([[{}]], "no fields"),
    ):
        with pytest.raises(error, match=match) as raised:
            convert_all(error, batches)
        assert type(raised.value) is error
    columns = RowColumns(error)
    with pytest.raises(error, match="column 'n' holds int64 that cannot be written as list"):
        columns.widened(pa.record_batch({"n": [1]}), pa.schema([("n", pa.list_(pa.int64()))]))
    with pytest.raises(error, match="named by a NoneType"):
        check_names(["a", None], error)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(dt.UTC)),
    st.lists(st.integers(-9, 9), max_size=2),
)


def converted(values: list[Any], cuts: list[int]) -> Any:
    """What ``values`` come back as when they are cut at ``cuts``, and the types; or that they are refused."""
    columns = RowColumns(SinkError)
    bounds = [0, *sorted(cuts), len(values)]
    try:
        batches = [columns.convert(values[start:end]) for start, end in itertools.pairwise(bounds)]
        batches = [columns.widened(batch, columns.schema) for batch in batches if batch.num_columns]
    except SinkError:
        return "refused"
    return repr([row for batch in batches for row in rows_of(batch)]), columns.schema


@given(st.lists(VALUES, min_size=1, max_size=6), st.data())
def test_what_a_value_becomes_does_not_depend_on_where_the_batches_are_cut(values: list[Any], data: Any) -> None:
    cuts = data.draw(st.lists(st.integers(1, len(values)), max_size=3))
    assert converted(values, cuts) == converted(values, [])
