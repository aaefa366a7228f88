"""Every type of Spark comes as Spark itself gives it, as dicts and as columns."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.row_form import rows_of
from malstrom_py.errors import SourceError
from malstrom_py.spark.types import arrow_schema

EVERYTHING = """
SELECT id, CAST(id % 2 = 0 AS BOOLEAN) AS flag, CAST(id AS TINYINT) AS tiny, CAST(id AS SMALLINT) AS small,
    CAST(id AS INT) AS whole, CAST(id AS FLOAT) / 3 AS narrow, id / 3D AS wide,
    CAST(id AS DECIMAL(5, 2)) AS d5, CAST(id AS DECIMAL(15, 4)) AS d15, CAST(id AS DECIMAL(38, 10)) AS d38,
    concat('é', id) AS text, CAST('ab' AS CHAR(4)) AS fixed, 'Ab' COLLATE UTF8_LCASE AS collated,
    unhex('00ff') AS bytes, date'0001-01-01' + CAST(id AS INT) * 211000 AS day,
    timestamp'1500-06-01 12:00:00.123456' + make_dt_interval(id * 60000) AS moment,
    timestamp_ntz'1500-06-01 12:00:00.123456' + make_dt_interval(id * 60000) AS local,
    make_dt_interval(id, 1, 2, 3.000004) AS length, interval '3' hour AS hours, NULL AS nothing,
    array(id, NULL) AS numbers, array(timestamp'1582-10-04 00:00:00', timestamp'1899-12-31 23:59:59') AS moments,
    map('a', id, 'b', NULL) AS counts, map(1, interval '2' second) AS lengths,
    named_struct('x', IF(id = 3, NULL, id), 'inner', IF(id = 4, NULL, array(IF(id = 5, NULL,
        named_struct('at', IF(id = 6, NULL, date'1582-10-15')))))) AS nested,
    array(map('k', CAST(1.5 AS DECIMAL(3, 1)))) AS deep, CAST(array() AS ARRAY<STRING>) AS empty
FROM range(17)
UNION ALL SELECT id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM range(17, 19)
"""


@pytest.fixture(params=["UTC", "America/Los_Angeles"])
def in_zone(spark: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The session in some time zone."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


def test_all_types_come_as_spark_gives_them_itself(in_zone: Any) -> None:
    frame = in_zone.sql(EVERYTHING)
    expected = frame.toArrow()
    rows = mp.collect(mp.Job("types").source("in", sources.Spark(frame)))
    assert by_id(rows) == by_id(expected.to_pylist())
    assert [(name, type(value)) for name, value in by_id(rows)[0].items()] == [
        (name, type(value)) for name, value in by_id(expected.to_pylist())[0].items()
    ]


def test_steps_that_take_columns_get_them_in_the_types_of_arrow(spark: Any) -> None:
    seen: list[pa.RecordBatch] = []

    def see(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch)
        return batch

    frame = spark.sql(EVERYTHING)
    job = mp.Job("types")
    job.source("in", sources.Spark(frame)).map_batches("see", see).sink("out", sinks.Memory())
    mp.run(job)
    assert {batch.schema for batch in seen} == {arrow_schema(frame.schema)}
    assert by_id([row for batch in seen for row in rows_of(batch)]) == by_id(frame.toArrow().to_pylist())


def test_files_are_read_as_spark_reads_them_whichever_way_moments_are_stored(in_zone: Any, tmp_path: Path) -> None:
    frame = in_zone.sql(EVERYTHING).drop("nothing")
    for kind in ("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"):
        path = str(tmp_path / kind)
        frame.write.option("spark.sql.parquet.outputTimestampType", kind).parquet(path)
        rows = mp.collect(mp.Job("types").source("in", sources.Spark(path=path)))
        assert by_id(rows) == by_id(in_zone.read.parquet(path).toArrow().to_pylist())


def test_days_that_were_written_in_the_former_calendar_are_those_that_spark_reads(in_zone: Any, tmp_path: Path) -> None:
    days = in_zone.sql("SELECT id, date'1500-03-01' AS day, timestamp'1500-03-01 00:00:00' AS moment FROM range(3)")
    calendars = ["spark.sql.parquet.datetimeRebaseModeInWrite", "spark.sql.parquet.int96RebaseModeInWrite"]
    before = {name: in_zone.conf.get(name) for name in calendars}
    for name in calendars:
        in_zone.conf.set(name, "LEGACY")
    try:
        days.write.parquet(str(tmp_path / "old"))
        staged = mp.collect(mp.Job("days").source("in", sources.Spark(days)))
        assert [in_zone.conf.get(name) for name in calendars] == ["LEGACY", "LEGACY"]
    finally:
        for name, value in before.items():
            in_zone.conf.set(name, value)
    read = mp.collect(mp.Job("days").source("in", sources.Spark(path=tmp_path / "old")))
    assert by_id(staged) == by_id(read) == by_id(days.toArrow().to_pylist())


def test_files_that_do_not_say_their_calendar_are_in_the_one_that_the_session_says(spark: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"day": [date(1500, 1, 1)]}), tmp_path / "a.parquet")
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", "LEGACY")
    try:
        read = mp.collect(mp.Job("days").source("in", sources.Spark(path=tmp_path)))
        assert read == spark.read.parquet(str(tmp_path)).toArrow().to_pylist() != [{"day": date(1500, 1, 1)}]
    finally:
        spark.conf.unset("spark.sql.parquet.datetimeRebaseModeInRead")


def test_rows_are_staged_in_the_format_of_today_whatever_the_session_writes(spark: Any) -> None:
    spark.conf.set("spark.sql.parquet.writeLegacyFormat", "true")
    try:
        frame = spark.sql("SELECT array(array(1, NULL)) AS a, map('k', array(1)) AS m, 1.5BD AS d")
        rows = mp.collect(mp.Job("types").source("in", sources.Spark(frame)))
        assert rows == frame.toArrow().to_pylist()
    finally:
        spark.conf.unset("spark.sql.parquet.writeLegacyFormat")


REFUSED = {
    "interval '1' year": "an interval of months is not a length of time",
    "make_interval(1)": "make it an interval of days",
    "parse_json('1')": "make it a string by to_json",
    "array(named_struct('v', parse_json('1')))": r"\[\]\.v' is of the Spark type variant",
}


@pytest.mark.parametrize("value", REFUSED)
def test_a_type_that_cannot_be_carried_is_told_with_its_column(spark: Any, value: str) -> None:
    with pytest.raises(SourceError, match=rf"source 'in': column 'c.*{REFUSED[value]}"):
        mp.collect(mp.Job("types").source("in", sources.Spark(spark.sql(f"SELECT {value} AS c"))))
    chosen = sources.Spark(spark.sql(f"SELECT {value} AS c, 1 AS n"), columns=["n"])
    assert mp.collect(mp.Job("types").source("in", chosen)) == [{"n": 1}]


def test_an_empty_map_is_refused_by_name(spark: Any) -> None:
    with pytest.raises(SourceError, match=r"column 'm' is of the Spark type map<void,void>, an empty map\(\).*cast it"):
        sources.Spark(sql="SELECT map() AS m", session=spark).pin("docs")


def test_values_that_python_cannot_hold_are_malformed_records(spark: Any) -> None:
    """Beyond the year 9999, before the year 1, and text that is not UTF-8: one record each, with its file."""
    rows = spark.sql(
        "SELECT * FROM VALUES (1, date'2020-01-01', timestamp_micros(0), 'a'), "
        "(2, date_add(date'9999-12-31', 1), timestamp_micros(0), 'a'), "
        "(3, date'2020-01-01', timestamp_micros(253402300800000000), 'a'), "
        "(4, date'2020-01-01', timestamp_micros(-62135596800000001), 'a'), "
        "(5, date'2020-01-01', timestamp_micros(0), CAST(unhex('61ff') AS STRING)), "
        "(6, date'2020-01-01', timestamp_micros(0), 'z') AS (n, day, at, text)"
    ).coalesce(1)
    out, dead, job = sinks.Memory(), sinks.Memory(), mp.Job("hold")
    read = job.source("in", sources.Spark(rows), on_error="dead-letter")
    read.map("n", lambda row: row["n"]).sink("out", out)
    job.dead_letters("in").sink("dead", dead)
    mp.run(job)
    assert sorted(out.items) == [1, 6]
    assert sorted(letter.value["n"] for letter in dead.items) == ["2", "3", "4", "5"]
    assert all("part-" in letter.error for letter in dead.items)
    job = mp.Job("fails")
    job.source("in", sources.Spark(rows)).sink("out", sinks.Memory())
    with pytest.raises(SourceError, match=r"part-.*on_error='skip'"):
        mp.run(job)
