"""Types of columns: their plain form, the type that two types join to, and kinds that must not be mixed."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest

from malstrom_py.data.rows_to_columns import KindCheck
from malstrom_py.data.schema import plain, plain_type, recast, wider_type
from malstrom_py.errors import PlanError


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
