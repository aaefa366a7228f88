"""Files are pinned directly only if Arrow reads them as Spark would; their footers give the row groups to read."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from malstrom_py.errors import SourceError
from malstrom_py.sources.spark.footers import ReadOtherwiseError, inspect_files
from tests.unit.sources.spark.copies import parquet

NUMBERS = pa.schema([("n", pa.int64())])


def groups_of(path: Path, schema: pa.Schema, keep: Any = None, partitioned: tuple[str, ...] = ()) -> tuple[int, ...]:
    (inspected,) = inspect_files([str(path)], schema, keep=keep, partitioned=partitioned)
    return inspected.file.groups


def test_a_file_is_pinned_with_its_size_time_rows_and_row_groups(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", {"n": range(100), "other": ["x"] * 100}, row_group_size=30)
    (inspected,) = inspect_files([str(path)], NUMBERS)
    assert (inspected.rows, inspected.file.groups, inspected.file.values) == (100, (0, 1, 2, 3), {})
    assert (inspected.file.size, inspected.file.mtime_ns) == (path.stat().st_size, path.stat().st_mtime_ns)


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
    path = parquet(tmp_path / "year=2013" / "a.parquet", {"x": [3.0, nan], "n": [1, 2], "s": inside})
    assert groups_of(path, FLOATS, keep) == (0,)
    assert groups_of(path, FLOATS, pc.field("n") > 5) == ()
    schema = FLOATS.append(pa.field("year", pa.int32()))
    assert groups_of(path, schema, keep & (pc.field("year") == 2013), ("year",)) == (0,)
    assert groups_of(path, schema, keep & (pc.field("year") == 2012), ("year",)) == ()


def test_files_in_which_a_filter_finds_nothing_by_their_folders_are_left_out(tmp_path: Path) -> None:
    path = parquet(tmp_path / "year=2013" / "day=__HIVE_DEFAULT_PARTITION__" / "a.parquet", {"n": range(10)})
    schema = pa.schema([*NUMBERS, ("year", pa.int32()), ("day", pa.date32())])
    partitioned = ("year", "day")
    assert groups_of(path, schema, pc.field("year") == 2013, partitioned) == (0,)
    assert groups_of(path, schema, pc.field("year") > 2013, partitioned) == ()
    assert groups_of(path, schema, pc.field("day").is_null(), partitioned) == (0,)
    assert groups_of(path, schema, pc.field("day") == date(2013, 1, 1), partitioned) == ()


def test_statistics_of_values_that_are_stored_as_others_leave_nothing_out(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", {"n": pa.array(range(10), pa.int64())})
    lengths = pa.schema([("n", pa.duration("us"))])
    assert groups_of(path, lengths, pc.field("n") > pa.scalar(100, pa.duration("us"))) == (0,)


def test_an_empty_file_has_no_row_groups(tmp_path: Path) -> None:
    assert groups_of(parquet(tmp_path / "a.parquet", {"n": pa.array([], pa.int64())}), NUMBERS) == ()


FITS: list[tuple[Any, pa.DataType]] = [
    (pa.array([1], pa.int32()), pa.int64()),
    (pa.array([1.0], pa.float32()), pa.float64()),
    (pa.array([None], pa.null()), pa.int64()),
    (pa.array(["a"], pa.large_string()), pa.string()),
    (pa.array(["a"]).dictionary_encode(), pa.string()),
    (pa.array([1], pa.timestamp("ms", "Europe/Berlin")), pa.timestamp("us", "UTC")),
    (pa.array([1], pa.timestamp("ns", "UTC")), pa.timestamp("us", "UTC")),
    (pa.array([1], pa.int64()), pa.duration("us")),
    (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), pa.map_(pa.string(), pa.duration("us"))),
    (pa.array([[{"x": 1}]], pa.large_list(pa.struct([("x", pa.int32())]))), pa.list_(pa.struct([("x", pa.int32())]))),
]

OTHERWISE: list[tuple[Any, pa.DataType]] = [
    (pa.array([1], pa.int64()), pa.int32()),
    (pa.array([1], pa.timestamp("us")), pa.timestamp("us", "UTC")),
    (pa.array([1], pa.timestamp("us", "UTC")), pa.timestamp("us")),
    (pa.array(["1"]), pa.int64()),
    (pa.array([[1]], pa.list_(pa.int32())), pa.list_(pa.int64())),
    (pa.array([{"x": 1}], pa.struct([("x", pa.int32())])), pa.struct([("x", pa.int32()), ("y", pa.int32())])),
]


@pytest.mark.parametrize(("column", "kind"), FITS, ids=lambda value: str(getattr(value, "type", value))[:30])
def test_a_file_may_hold_values_in_a_type_that_becomes_the_one_of_spark(
    tmp_path: Path, column: Any, kind: pa.DataType
) -> None:
    assert groups_of(parquet(tmp_path / "a.parquet", {"c": column}), pa.schema([("c", kind)])) == (0,)


@pytest.mark.parametrize(("column", "kind"), OTHERWISE, ids=lambda value: str(getattr(value, "type", value))[:30])
def test_other_types_are_left_to_spark(tmp_path: Path, column: Any, kind: pa.DataType) -> None:
    with pytest.raises(ReadOtherwiseError, match="has column 'c' in another type"):
        groups_of(parquet(tmp_path / "a.parquet", {"c": column}), pa.schema([("c", kind)]))


def test_moments_in_96_bits_are_in_utc_and_local_times_beside_them_are_left_to_spark(tmp_path: Path) -> None:
    moments = {
        "c": pa.array([1], pa.timestamp("ns")),
        "s": pa.array([{"t": 1}], pa.struct([("t", pa.timestamp("ns"))])),
    }
    path = parquet(tmp_path / "a.parquet", moments, use_deprecated_int96_timestamps=True)
    utc = pa.timestamp("us", "UTC")
    assert groups_of(path, pa.schema([("c", utc), ("s", pa.struct([("t", utc)]))])) == (0,)
    with pytest.raises(ReadOtherwiseError):
        groups_of(path, pa.schema([("c", pa.timestamp("us"))]))


def with_notes(path: Path, notes: dict[str, str]) -> Path:
    pq.write_table(pa.table({"n": [1]}).replace_schema_metadata(notes), path)
    return path


@pytest.mark.parametrize(
    "notes",
    [
        {"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""},
        {"org.apache.spark.version": "4.0.0", "org.apache.spark.legacyINT96": ""},
        {"org.apache.spark.version": "2.4.8"},
        {"org.apache.spark.version": "3.0.1"},
        {"org.apache.spark.version": "of my own"},
    ],
    ids=str,
)
def test_days_of_the_former_calendar_are_left_to_spark(tmp_path: Path, notes: dict[str, str]) -> None:
    with pytest.raises(ReadOtherwiseError, match="may hold dates of the former calendar"):
        groups_of(with_notes(tmp_path / "a.parquet", notes), NUMBERS)
    assert groups_of(with_notes(tmp_path / "b.parquet", {"org.apache.spark.version": "3.1.0"}), NUMBERS) == (0,)


def test_names_that_spark_takes_for_the_same_are_left_to_it(tmp_path: Path) -> None:
    with pytest.raises(ReadOtherwiseError, match="spells column 'n' differently"):
        groups_of(parquet(tmp_path / "a.parquet", {"N": [1]}), NUMBERS)
    both = parquet(tmp_path / "b.parquet", {"n": [1], "N": [1]})
    with pytest.raises(ReadOtherwiseError, match="has columns with equal names"):
        groups_of(both, NUMBERS)
    assert inspect_files([str(both)], NUMBERS, is_case_sensitive=True)[0].rows == 1
    streets = {"straße": [1], "strasse": [2]}
    assert groups_of(parquet(tmp_path / "c.parquet", streets), pa.table(streets).schema) == (0,)


def test_folder_names_that_hold_a_column_of_the_file_or_of_an_odd_type_are_left_to_spark(tmp_path: Path) -> None:
    path = parquet(tmp_path / "n=2" / "x=1.5" / "a.parquet", {"n": [1]})
    with pytest.raises(ReadOtherwiseError, match="its folder names hold column 'n'"):
        groups_of(path, NUMBERS, partitioned=("n",))
    with pytest.raises(ReadOtherwiseError, match="its folder names hold column 'x'"):
        groups_of(path, pa.schema([("x", pa.float64())]), partitioned=("x",))
    odd = parquet(tmp_path / "p=+1" / "a.parquet", {"n": [1]})
    with pytest.raises(ReadOtherwiseError, match="only Spark reads column 'p' from folder names"):
        groups_of(odd, pa.schema([("n", pa.int64()), ("p", pa.int32())]), partitioned=("p",))


def test_an_unreadable_or_non_parquet_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("text")
    with pytest.raises(SourceError, match=r"a\.parquet is not a whole Parquet file: replace it"):
        inspect_files([str(tmp_path / "a.parquet")], NUMBERS)
    with pytest.raises(SourceError, match=r"b\.parquet cannot be read: No such file or directory"):
        inspect_files([str(tmp_path / "b.parquet")], NUMBERS)
