"""The plain form of types, and the type that two types join to."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute
import pytest

from malstrom_py.data.schema import plain, plain_type, recast, wider_type


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
