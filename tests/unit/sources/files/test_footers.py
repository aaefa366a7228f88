"""Parquet footers: read once for all parts of a file, never sent to another worker; row groups that filters leave."""

from __future__ import annotations

import os
import pickle
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from malstrom_py.errors import SourceError
from malstrom_py.sources.files.footers import Footers, constant, read_footer
from tests.unit.sources.pinned.pinned_files import parquet


def written(path: Path, rows: int) -> Path:
    pq.write_table(pa.table({"n": [1] * rows}), path, row_group_size=10)
    return path


def footer(footers: Footers, path: Path) -> pq.FileMetaData:
    opened, _ = footers.open(path)
    try:
        return opened.metadata
    finally:
        opened.close(force=True)


def test_a_footer_is_shared_by_those_who_open_the_file(tmp_path: Path) -> None:
    footers, path = Footers(), written(tmp_path / "a.parquet", 30)
    footer(footers, path)
    with path.open("r+b") as file:
        status = path.stat()
        file.seek(-8, 2)
        file.write(b"\0" * 4)
    # The footer is not read again while size and time of change are the same.
    os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert footer(footers, path).num_row_groups == 3
    with pytest.raises(SourceError, match="not a whole Parquet file"):
        footer(Footers(), path)


def test_few_footers_are_kept_and_none_is_sent_along(tmp_path: Path) -> None:
    footers = Footers()
    for number in range(20):
        footer(footers, written(tmp_path / f"{number}.parquet", 10))
    assert len(footers._kept) < 10
    assert pickle.loads(pickle.dumps(footers))._kept == {}


NUMBERS = pa.schema([("n", pa.int64())])


def groups_of(path: Path, schema: pa.Schema, keep: Any = None, partition: Any = None) -> tuple[int, ...]:
    return read_footer(path, schema, keep=keep, partition=partition).groups


def test_a_footer_has_size_time_rows_and_row_groups_of_its_file(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", {"n": range(100), "other": ["x"] * 100}, row_group_size=30)
    found = read_footer(path, NUMBERS)
    assert (found.rows, found.groups, found.columns.names) == (100, (0, 1, 2, 3), ["n", "other"])
    assert (found.size, found.mtime_ns) == (path.stat().st_size, path.stat().st_mtime_ns)


def test_row_groups_in_which_a_filter_finds_nothing_are_left_out(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", {"n": range(100)}, row_group_size=30)
    assert groups_of(path, NUMBERS, pc.field("n") > 65) == (2, 3)
    assert groups_of(path, NUMBERS, pc.field("n") > 100) == ()
    assert groups_of(path, NUMBERS, (pc.field("n") < 5) | (pc.field("n") == 95)) == (0, 3)


FLOATS = pa.schema([("x", pa.float64()), ("n", pa.int64()), ("s", pa.struct([("x", pa.float32())]))])


@pytest.mark.parametrize(
    "keep",
    [
        pc.field("x") != 3.0,
        ~(pc.field("x") < 5.0),
        ~(pc.field("x") == 3.0),
        (pc.field("x") != 3.0) & (pc.field("n") > 0),
        pc.field("s", "x") != 3.0,
    ],
    ids=str,
)
def test_rows_with_nan_of_which_statistics_say_nothing_are_not_left_out(tmp_path: Path, keep: Any) -> None:
    nan = float("nan")
    inside = pa.array([{"x": 3.0}, {"x": nan}], FLOATS.field("s").type)
    path = parquet(tmp_path / "a.parquet", {"x": [3.0, nan], "n": [1, 2], "s": inside})
    assert groups_of(path, FLOATS, keep) == (0,)
    assert groups_of(path, FLOATS, pc.field("n") > 5) == ()
    schema, year = FLOATS.append(pa.field("year", pa.int32())), pc.field("year")
    assert groups_of(path, schema, keep & (year == 2013), year == 2013) == (0,)
    assert groups_of(path, schema, keep & (year == 2012), year == 2013) == ()


def test_files_in_which_a_filter_finds_nothing_by_their_partition_are_left_out(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", {"n": range(10)})
    schema = pa.schema([*NUMBERS, ("year", pa.int32()), ("day", pa.date32())])
    year, day = pc.field("year"), pc.field("day")
    partition = (year == 2013) & day.is_null()
    assert groups_of(path, schema, year == 2013, partition) == (0,)
    assert groups_of(path, schema, year > 2013, partition) == ()
    assert groups_of(path, schema, day.is_null(), partition) == (0,)
    assert groups_of(path, schema, day == date(2013, 1, 1), partition) == ()


def test_statistics_of_values_that_are_stored_as_others_leave_nothing_out(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", {"n": pa.array(range(10), pa.int64())})
    lengths = pa.schema([("n", pa.duration("us"))])
    assert groups_of(path, lengths, pc.field("n") > pa.scalar(100, pa.duration("us"))) == (0,)


def test_an_empty_file_has_no_row_groups(tmp_path: Path) -> None:
    assert groups_of(parquet(tmp_path / "a.parquet", {"n": pa.array([], pa.int64())}), NUMBERS) == ()


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
