"""Parquet files whose columns grew or widened are read as their union; names of folders are columns."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import SourceError
from malstrom_py.object_stores import Bucket
from malstrom_py.sources.files import Files
from malstrom_py.testing.contracts import check_source
from tests.unit.sources.files.test_objects import Waiting
from tests.unit.sources.reading import Bad, file_with, poll_once, read_source


def parquet(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


@pytest.fixture
def grown(tmp_path: Path) -> Path:
    parquet(tmp_path / "1.parquet", pa.table({"n": pa.array([1, 2], pa.int32()), "s": [{"a": 1}, None]}))
    parquet(tmp_path / "2.parquet", pa.table({"t": ["x"], "n": pa.array([2**40]), "s": [{"a": 2, "b": "y"}]}))
    parquet(tmp_path / "3.parquet", pa.table({"n": pa.array([0.5], pa.float32())}))
    return tmp_path / "*.parquet"


UNION: list[Any] = [
    {"n": 1.0, "s": {"a": 1, "b": None}, "t": None},
    {"n": 2.0, "s": None, "t": None},
    {"n": float(2**40), "s": {"a": 2, "b": "y"}, "t": "x"},
    {"n": 0.5, "s": None, "t": None},
]


def test_parquet_files_are_read_as_their_union(grown: Path) -> None:
    assert read_source(Files(grown)) == UNION
    assert read_source(Files(grown, columns=["t"])) == [{"t": row["t"]} for row in UNION]
    check_source(Files(grown))
    with pytest.raises(SourceError, match="has no column 'u'"):
        read_source(Files(grown, columns=["u"]))


class Some(NamedTuple):
    t: str | None
    n: float


def test_a_union_is_the_same_in_rows_columns_and_plans_that_read_few_of_them(grown: Path) -> None:
    assert read_source(Files(grown, rows=Some)) == [Some(row["t"], row["n"]) for row in UNION]
    few = mp.collect(mp.Job("few").source("in", Files(grown)).select("few", "t", "n"))
    assert few == [{"t": row["t"], "n": row["n"]} for row in UNION]


def test_a_value_that_the_wider_type_cannot_hold_is_malformed(tmp_path: Path) -> None:
    parquet(tmp_path / "1.parquet", pa.table({"n": [2**53 + 1, 3]}))
    parquet(tmp_path / "2.parquet", pa.table({"n": [0.5]}))
    assert read_source(Files(tmp_path / "*.parquet")) == [Bad({"n": str(2**53 + 1)}), {"n": 3.0}, {"n": 0.5}]


def test_names_of_folders_are_columns(tmp_path: Path) -> None:
    rows = [
        {"n": 1, "day": date(2024, 1, 1), "who": "A/B", "no": 7},
        {"n": 2, "day": date(2024, 1, 2), "who": "x", "no": -1},
        {"n": 3, "day": date(2024, 1, 2), "who": None, "no": 0},
    ]
    job = mp.Job("write")
    job.source("in", sources.Memory(rows)).sink("out", sinks.Files(tmp_path / "x=1", partition_by=["day", "who", "no"]))
    mp.run(job)
    pattern = tmp_path / "x=1" / "**" / "*.parquet"

    def by_n(found: list[Any]) -> list[Any]:
        return sorted(found, key=lambda row: row["n"])

    assert by_n(read_source(Files(pattern))) == rows
    assert by_n(mp.collect(mp.Job("read").source("in", Files(pattern)))) == rows
    assert by_n(read_source(Files(pattern, columns=["who", "n"]))) == [
        {"who": one["who"], "n": one["n"]} for one in rows
    ]
    assert sorted(map(str, read_source(Files(pattern, columns=["no"])))) == ["{'no': -1}", "{'no': 0}", "{'no': 7}"]
    check_source(Files(pattern))
    frame = pl.read_parquet(tmp_path / "x=1" / "**/*.parquet", hive_partitioning=True).sort("n")
    assert frame["no"].to_list() == [7, -1, 0]


def test_names_of_folders_are_columns_of_csv_too_and_give_way_to_those_of_the_file(tmp_path: Path) -> None:
    file_with(tmp_path, "day=2024-01-01/zip=007/a.csv", "n,day\n1,mine\nx\n2,mine\n")
    file_with(tmp_path, "day=2024-01-02/zip=8/a.csv", "n,day\n3,mine\n")
    for options in ({}, {"newlines_in_values": False, "split_bytes": 4}, {"follow": True}):
        source = Files(tmp_path / "*" / "*" / "a.csv", **options)
        opened = [source.build_part(part, None) for part in source.list_parts()]
        found = [row for part in opened for _ in range(6) for row in poll_once(part, 10)]
        for part in opened:
            part.close()
        rows = [{"n": n, "day": "mine", "zip": "007" if n < 3 else "8"} for n in (1, 2, 3)]
        assert found == [rows[0], Bad("x"), *rows[1:]]
    typed = Files(tmp_path / "*" / "*" / "a.csv", types={"zip": "int64"}, columns=["zip"])
    assert read_source(typed) == [{"zip": 7}, Bad("x"), {"zip": 7}, {"zip": 8}]


def test_objects_have_the_columns_of_their_folders(tmp_path: Path) -> None:
    root = f"memory://{tmp_path.name}"
    for day in (1, 2):
        Bucket(root).put(f"in/day={day}/a.csv", b"n\n5\n")
    assert read_source(Waiting(f"{root}/in/*/*.csv")) == [{"n": 5, "day": 1}, {"n": 5, "day": 2}]


def test_a_folder_of_another_type_than_those_before_is_refused(tmp_path: Path) -> None:
    source = Files(tmp_path / "*" / "a.csv", follow=True)
    file_with(tmp_path, "day=1/a.csv", "n\n1\n")
    (part,) = source.list_parts()
    opened = source.build_part(part, None)
    assert poll_once(opened, 10) == [{"n": 1, "day": 1}]
    file_with(tmp_path, "day=x/a.csv", "n\n1\n")
    with pytest.raises(SourceError, match=r"the folder of .* does not read as int64, the type of column 'day'"):
        poll_once(opened, 10)
    opened.close()
