"""Parquet: types as the first file has them, values as Python has them, damage told with its place."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from malstrom_py.errors import SourceError
from malstrom_py.sources.files import Files
from tests.unit.sources.reading import Bad, file_with, read_source


def parquet(folder: Path, name: str, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), folder / name, **options)
    return folder / name


def test_rows_are_dicts_of_python_values(tmp_path: Path) -> None:
    columns = {
        "n": [1, None],
        "text": pa.array(["a", "b"]).dictionary_encode(),
        "list": [[1, 2], None],
        "struct": [{"x": 1.5}, {"x": None}],
        "at": pa.array([1_000, 2_000], pa.timestamp("ns", "UTC")),
        "took": pa.array([1_000, None], pa.duration("ns")),
    }
    first, second = read_source(Files(parquet(tmp_path, "a.parquet", columns)))
    assert first == {
        "n": 1,
        "text": "a",
        "list": [1, 2],
        "struct": {"x": 1.5},
        "at": dt.datetime(1970, 1, 1, microsecond=1, tzinfo=dt.UTC),
        "took": dt.timedelta(microseconds=1),
    }
    assert type(first["at"]) is dt.datetime
    assert type(first["took"]) is dt.timedelta
    assert second["list"] is None


def test_a_time_that_python_cannot_hold_is_malformed(tmp_path: Path) -> None:
    columns = {"n": list(range(100)), "at": pa.array([1000 * n + (n == 42) for n in range(100)], pa.timestamp("ns"))}
    rows = read_source(Files(parquet(tmp_path, "a.parquet", columns)))
    assert [index for index, row in enumerate(rows) if isinstance(row, Bad)] == [42]
    assert rows[43]["n"] == 43


def test_smaller_types_are_widened_to_those_of_the_first_file(tmp_path: Path) -> None:
    parquet(tmp_path, "a.parquet", {"n": pa.array([1], pa.int64()), "x": [0.5], "t": ["a"]})
    parquet(tmp_path, "b.parquet", {"t": pa.nulls(1), "x": [2], "n": pa.array([3], pa.int16())})
    assert read_source(Files(tmp_path / "*.parquet")) == [
        {"n": 1, "x": 0.5, "t": "a"},
        {"n": 3, "x": 2.0, "t": None},
    ]


def test_other_types_are_told_with_both_files(tmp_path: Path) -> None:
    parquet(tmp_path, "a.parquet", {"n": [1]})
    parquet(tmp_path, "b.parquet", {"n": ["x"]})
    with pytest.raises(SourceError, match=r"column 'n' is string in .*b\.parquet and int64 in .*a\.parquet"):
        read_source(Files(tmp_path / "*.parquet"))


def test_a_column_of_nulls_in_the_first_file_takes_its_type_from_the_next(tmp_path: Path) -> None:
    parquet(tmp_path, "a.parquet", {"n": pa.nulls(1)})
    parquet(tmp_path, "b.parquet", {"n": [2]})
    assert read_source(Files(tmp_path / "*.parquet")) == [{"n": None}, {"n": 2}]


def test_a_file_without_rows_is_finished_at_once(tmp_path: Path) -> None:
    assert read_source(Files(parquet(tmp_path, "a.parquet", {"n": pa.array([], pa.int64())}))) == []


@pytest.mark.parametrize("content", [b"", b"no parquet", b"PAR1" + b"x" * 100])
def test_what_is_no_parquet_file_is_told(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"a\.parquet cannot be read: it is not a whole Parquet file"):
        read_source(Files(file_with(tmp_path, "a.parquet", content)))


def test_a_file_that_is_cut_off_is_told(tmp_path: Path) -> None:
    path = parquet(tmp_path, "a.parquet", {"n": list(range(10_000))})
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(SourceError, match="whole Parquet"):
        read_source(Files(path))


def test_damage_inside_is_told_with_the_row_group_and_the_rows_read(tmp_path: Path) -> None:
    path = parquet(tmp_path, "a.parquet", {"t": [str(n) for n in range(10_000)]}, row_group_size=5_000)
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content = path.read_bytes()
    path.write_bytes(content[:start] + b"\xff" * 50 + content[start + 50 :])
    with pytest.raises(SourceError, match=r"a\.parquet failed in row group 1 after 5000 rows"):
        read_source(Files(path))
