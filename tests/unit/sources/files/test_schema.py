"""The column types of a source: merged, packed, checked."""

from __future__ import annotations

import pyarrow as pa
import pytest

from malstrom_py.errors import SourceError
from malstrom_py.sources.files.options import (
    check_columns,
    merge_types,
    without_nanoseconds,
)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pa.timestamp("ns"), pa.timestamp("us")),
        (pa.timestamp("ns", "Asia/Tokyo"), pa.timestamp("us", "Asia/Tokyo")),
        (pa.timestamp("ms"), pa.timestamp("ms")),
        (pa.duration("ns"), pa.duration("us")),
        (pa.time64("ns"), pa.time64("us")),
        (pa.list_(pa.timestamp("ns")), pa.list_(pa.timestamp("us"))),
        (pa.large_list(pa.duration("ns")), pa.large_list(pa.duration("us"))),
        (pa.struct([("a", pa.time64("ns"))]), pa.struct([("a", pa.time64("us"))])),
        (pa.list_(pa.timestamp("ns"), 2), pa.list_(pa.timestamp("us"), 2)),
        (pa.map_(pa.string(), pa.timestamp("ns")), pa.map_(pa.string(), pa.timestamp("us"))),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.int64(), pa.int64()),
    ],
    ids=str,
)
def test_nanoseconds_become_microseconds(found: pa.DataType, expected: pa.DataType) -> None:
    assert without_nanoseconds(found) == expected


def test_only_as_many_schemas_are_looked_at_as_are_needed() -> None:
    schemas = iter(
        [
            pa.schema([("a", pa.int64()), ("b", pa.null())]),
            pa.schema([("b", pa.bool_()), ("a", pa.string())]),
            pa.schema([("a", pa.string())]),
        ]
    )
    assert merge_types(schemas) == pa.schema([("a", pa.int64()), ("b", pa.bool_())])
    assert len(list(schemas)) == 1


def test_a_column_without_any_value_is_text_and_no_columns_are_none() -> None:
    assert merge_types(iter([pa.schema([("a", pa.null())])])) == pa.schema([("a", pa.string())])
    assert merge_types(iter([])) is None


def test_other_columns_are_told_by_name() -> None:
    check_columns("b", ["y", "x"], "a", ["x", "y"])
    with pytest.raises(SourceError, match=r"^b has other columns than a: it lacks 'x' and has 'z' besides\."):
        check_columns("b", ["y", "z"], "a", ["x", "y"])
    with pytest.raises(SourceError, match="and 90 more"):
        check_columns("b", [], "a", [f"c{n}" for n in range(100)])
