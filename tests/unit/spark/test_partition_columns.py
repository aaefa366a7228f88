"""Columns of partitions, read back from the names of folders."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa
import pytest

from malstrom_py.errors import SourceError
from malstrom_py.sinks.files.partitions import folder_of
from malstrom_py.sources.files.footers import constant
from malstrom_py.spark.output_files import partition_schema, partition_texts


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, -7, None, 0], pa.int64()),
        ([date(2013, 1, 1), None], pa.date32()),
        ([True, False], pa.bool_()),
        (["a/b=c %", "ü", "x"], pa.string()),
        ([1, "x"], pa.string()),
        (["007", "1"], pa.string()),
        (["-0"], pa.string()),
        (["2013-02-30"], pa.string()),
        (["9" * 30], pa.string()),
        ([None], pa.null()),
    ],
    ids=str,
)
def test_values_come_back_where_their_names_tell_them(values: list[Any], kind: pa.DataType) -> None:
    texts = [partition_texts(f"{folder_of(['c'], [value])}/out.csv") for value in values]
    assert partition_schema(texts) == pa.schema([("c", kind)])
    wanted = [value if value is None or kind != pa.string() else str(value) for value in values]
    assert [constant(text["c"], kind).as_py() for text in texts] == wanted


def test_a_folder_that_is_no_partition_is_refused() -> None:
    with pytest.raises(SourceError, match="is not in a partition folder"):
        partition_texts("folder/out.csv")


def test_files_of_other_partitions_are_refused() -> None:
    with pytest.raises(SourceError, match="not partitioned by the same columns"):
        partition_schema([{"a": "1"}, {"b": "1"}])
