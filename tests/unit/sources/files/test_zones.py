"""Times without a zone are converted from the named zone, in rows and columns, for csv and Parquet."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import malstrom_py as mp
from malstrom_py import sources

TEXT = "t,n\n2024-05-01 12:00:00,1\n,2\n2024-12-01 12:00:00.5,3\n"
NAIVE = [datetime(2024, 5, 1, 12), None, datetime(2024, 12, 1, 12, 0, 0, 500_000)]  # noqa: DTZ001
BERLIN = [datetime(2024, 5, 1, 10, tzinfo=UTC), None, datetime(2024, 12, 1, 11, 0, 0, 500_000, tzinfo=UTC)]


def file(folder: Path, kind: str, unit: str = "us") -> Path:
    path = folder / f"times.{kind}"
    if kind == "csv":
        path.write_text(TEXT)
    else:
        times = pa.array(NAIVE, pa.timestamp(unit))
        pq.write_table(pa.table({"t": times, "n": pa.array([1, 2, 3], pa.int64())}), path)
    return path


def stream(path: Path, **options: Any) -> mp.StreamBuilder[None, Any]:
    return mp.Job("docs").source("in", sources.Files(path, **options))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_times_are_those_of_the_zone_in_utc(kind: str, tmp_path: Path) -> None:
    path = file(tmp_path, kind)
    assert [row["t"] for row in mp.collect(stream(path))] == NAIVE
    aware = mp.collect(stream(path, timezone="Europe/Berlin"))
    assert [row["t"] for row in aware] == BERLIN
    assert [row["n"] for row in aware] == [1, 2, 3]
    # In columns too, for a step that needs aware times.
    by_column = stream(path, timezone="Europe/Berlin").filter("there", pl.col("t").is_not_null())
    assert mp.collect(by_column.assign_timestamps("at", "t").map("n", lambda row: row["n"])) == [1, 3]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_every_unit_of_parquet_is_taken(unit: str, tmp_path: Path) -> None:
    path = tmp_path / "times.parquet"
    pq.write_table(pa.table({"t": pa.array([datetime(2024, 5, 1, 12)], pa.timestamp(unit))}), path)  # noqa: DTZ001
    assert mp.collect(stream(path, timezone="UTC")) == [{"t": datetime(2024, 5, 1, 12, tzinfo=UTC)}]


def test_many_rows_of_parquet_that_would_be_read_as_wholes(tmp_path: Path) -> None:
    path = tmp_path / "many.parquet"
    pq.write_table(pa.table({"t": pa.array(range(50_000), pa.timestamp("us"))}), path)
    timed = stream(path, timezone="UTC").assign_timestamps("at", "t", unit="us").select("only", pl.col("t"))
    found = mp.collect(timed, batch=mp.Batching(rows_max=20_000))
    assert len(found) == 50_000
    assert found[-1] == {"t": datetime(1970, 1, 1, 0, 0, 0, 49_999, tzinfo=UTC)}


def test_a_given_type_and_a_zone_read_times(tmp_path: Path) -> None:
    path = file(tmp_path, "csv")
    timed = stream(path, types={"t": "timestamp"}, timezone="UTC").filter("there", lambda row: row["t"] is not None)
    assert len(mp.collect(timed.assign_timestamps("at", lambda row: row["t"]))) == 2


def test_without_a_zone_the_error_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(mp.OperatorError, match=r'sources\.Files\(\.\.\., timezone="UTC"\)'):
        mp.collect(stream(file(tmp_path, "csv")).assign_timestamps("at", "t"))


def test_times_with_a_zone_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "aware.csv"
    path.write_text("t\n2024-05-01T12:00:00Z\n2024-05-01T12:00:00+02:00\n")
    assert [row["t"].hour for row in mp.collect(stream(path, timezone="Europe/Berlin"))] == [12, 10]


def test_who_asks_for_times_with_a_zone_where_there_is_none_is_told_of_the_option(tmp_path: Path) -> None:
    with pytest.raises(
        mp.SourceError, match=r"in types=; for times without a zone: types=\{'t': 'timestamp'\}, timezone="
    ):
        mp.collect(stream(file(tmp_path, "csv"), types={"t": "timestamp_utc"}))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_time_that_a_zone_has_twice_or_not_at_all_is_a_malformed_record(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"changed.{kind}"
    times = ["2024-03-31 01:30:00", "2024-03-31 02:30:00", "2024-10-27 02:30:00", "2024-10-27 03:30:00"]
    if kind == "csv":
        path.write_text("\n".join(["t", *times, ""]))
    else:
        moments = [datetime.fromisoformat(time) for time in times]
        pq.write_table(pa.table({"t": pa.array(moments, pa.timestamp("us"))}), path)
    job = mp.Job("docs")
    rows = job.source("in", sources.Files(path, timezone="Europe/Berlin"), on_error="dead-letter")
    assert [row["t"].isoformat() for row in mp.collect(rows)] == [
        "2024-03-31T00:30:00+00:00",
        "2024-10-27T02:30:00+00:00",
    ]
    letters = mp.collect(job.dead_letters("in"))
    assert len(letters) == 2
    assert "column 't' has a time that is ambiguous or does not exist in Europe/Berlin" in letters[0].error
    if kind == "parquet":
        assert [letter.value for letter in letters] == [{"t": f"{time}.000000"} for time in times[1:3]]
    with pytest.raises(mp.SourceError, match="record 2: column 't' has a time that is ambiguous") as raised:
        mp.collect(stream(path, timezone="Europe/Berlin"))
    assert "2:30" not in str(raised.value)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("timezone", "time"), [("Asia/Tokyo", "0001-01-01 00:00:00"), ("America/New_York", "9999-12-31 23:00:00")]
)
def test_a_time_that_no_datetime_can_hold_in_utc_is_a_malformed_record(
    kind: str, timezone: str, time: str, tmp_path: Path
) -> None:
    path = tmp_path / f"ends.{kind}"
    if kind == "csv":
        path.write_text(f"t\n2024-05-01 12:00:00\n{time}\n")
    else:
        moments = [datetime(2024, 5, 1, 12), datetime.fromisoformat(time)]  # noqa: DTZ001
        pq.write_table(pa.table({"t": pa.array(moments, pa.timestamp("us"))}), path)
    rows = stream(path, timezone=timezone)
    with pytest.raises(mp.SourceError, match="record 2: column 't' has a time that is not within the years 1 to 9999"):
        mp.collect(rows)
    skipping = mp.Job("docs").source("in", sources.Files(path, timezone=timezone), on_error="skip")
    assert len(mp.collect(skipping)) == 1


def test_times_in_structs_and_lists_are_those_of_the_zone(tmp_path: Path) -> None:
    path = tmp_path / "nested.parquet"
    naive, aware = datetime(2024, 5, 1, 12), datetime(2024, 5, 1, 10, tzinfo=UTC)  # noqa: DTZ001
    kind = pa.struct([("at", pa.timestamp("us")), ("all", pa.list_(pa.timestamp("us"))), ("n", pa.int64())])
    column = [{"at": naive, "all": [naive, None], "n": 1}, None, {"at": None, "all": None, "n": 2}]
    lists = [[{"at": naive}], [], None]
    table = {"s": pa.array(column, kind), "l": pa.array(lists, pa.list_(pa.struct([("at", pa.timestamp("ms"))])))}
    pq.write_table(pa.table(table), path)
    assert mp.collect(stream(path, timezone="Europe/Berlin"), batch=mp.Batching(rows_max=2)) == [
        {"s": {"at": aware, "all": [aware, None], "n": 1}, "l": [{"at": aware}]},
        {"s": None, "l": []},
        {"s": {"at": None, "all": None, "n": 2}, "l": None},
    ]


def test_times_in_a_map_cannot_be_given_a_zone(tmp_path: Path) -> None:
    path = tmp_path / "map.parquet"
    kind = pa.map_(pa.string(), pa.timestamp("us"))
    pq.write_table(pa.table({"m": pa.array([[("a", datetime(2024, 5, 1))]], kind)}), path)  # noqa: DTZ001
    with pytest.raises(mp.SourceError, match=r"column 'm' has times without a zone in a map<.*leave it out"):
        mp.collect(stream(path, timezone="UTC"))
    assert len(mp.collect(stream(path))) == 1


def test_times_with_a_zone_where_none_is_expected_are_told_of_the_type(tmp_path: Path) -> None:
    path = tmp_path / "aware.csv"
    path.write_text("t\n2024-05-01T12:00:00Z\n")
    with pytest.raises(mp.SourceError, match=r"in types=; for times with a zone: types=\{'t': 'timestamp_utc'\}"):
        mp.collect(stream(path, types={"t": "timestamp"}, timezone="UTC"))


@pytest.mark.parametrize("timezone", ["Mars/Olympus", "", "../etc", 5])
def test_a_zone_that_nobody_knows_is_told_at_once(timezone: Any) -> None:
    with pytest.raises(mp.PlanError, match=r"sources\.Files: timezone"):
        sources.Files("x.csv", timezone=timezone)


def test_a_zone_is_for_files_that_have_times() -> None:
    with pytest.raises(mp.PlanError, match="timezone is for csv and parquet files, these are json"):
        sources.Files("x.json", timezone="UTC")
