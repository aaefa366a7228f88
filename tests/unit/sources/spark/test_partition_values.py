"""Partition values in the names of folders, as Hive and Spark write them."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pytest

from malstrom_py.sources.files.footers import constant
from malstrom_py.sources.spark.footers import is_exact_as_text, partition_values


def test_an_escape_is_a_character_as_it_is_to_spark_and_no_byte_of_one() -> None:
    assert partition_values("/c=%C3%A9/d=é/e=%zz%4/a.parquet", ["c", "d", "e"]) == {"c": "Ã©", "d": "é", "e": "%zz%4"}


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("2013", pa.int32(), 2013),
        ("-5", pa.int64(), -5),
        ("2013-02-28", pa.date32(), date(2013, 2, 28)),
        ("007", pa.string(), "007"),
        (None, pa.int32(), None),
    ],
)
def test_a_text_becomes_a_value_of_the_type_of_its_column(text: str | None, kind: pa.DataType, value: object) -> None:
    scalar = constant(text, kind)
    assert (scalar.type, scalar.as_py()) == (kind, value)
    assert is_exact_as_text(kind)


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.float64(), pa.decimal128(5, 2), pa.bool_()], ids=str)
def test_what_arrow_might_read_otherwise_than_spark_is_left_to_spark(kind: pa.DataType) -> None:
    assert not is_exact_as_text(kind)
