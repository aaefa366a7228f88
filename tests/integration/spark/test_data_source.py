"""Spark reads what a job has left: the rows of its files, and its counts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.errors import AnalysisException

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.spark import register

Written = Literal["csv", "json", "parquet", "spark"]

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
FLIGHTS: list[dict[str, Any]] = [
    {"carrier": "UA", "delay": 2.5, "n": 1, "day": date(2013, 1, 1), "late": True, "hour": 5},
    {"carrier": "B6", "delay": None, "n": 2, "day": date(2013, 1, 1), "late": None, "hour": 6},
    {"carrier": "a/b %", "delay": 0.0, "n": 3, "day": date(2013, 1, 2), "late": False, "hour": 5},
]


@pytest.fixture(scope="module")
def reads(spark: Any) -> Any:
    """The session, which knows the data source."""
    register(spark)
    return spark


def write(
    folder: Path,
    rows: Sequence[Any],
    *,
    job: str = "flights",
    step: str = "out",
    format: Written = "parquet",
    partition_by: Sequence[str] = (),
) -> None:
    wrote = mp.Job(job)
    by = list(partition_by) or None
    if format == "spark":
        sink: Any = sinks.Spark(folder, partition_by=by)
    else:
        sink = sinks.Files(folder, format=format, partition_by=by)
    wrote.source("in", sources.Memory(rows)).sink(step, sink)
    mp.run(wrote)


def rows_of(frame: Any) -> list[dict[str, Any]]:
    return sorted((row.asDict(recursive=True) for row in frame.collect()), key=lambda row: str(row.get("n")))


def load(reads: Any, folder: Path, **options: str) -> Any:
    return reads.read.format("malstrom").options(**options).load(str(folder))


@pytest.mark.parametrize("format", ["csv", "json", "parquet", "spark"])
def test_partition_columns_are_restored_with_their_types(reads: Any, tmp_path: Path, format: Written) -> None:
    write(tmp_path, FLIGHTS, format=format, partition_by=["day", "late", "hour", "carrier"])
    frame = load(reads, tmp_path)
    assert frame.columns == ["delay", "n", "day", "late", "hour", "carrier"]
    assert [kind for _, kind in frame.dtypes][2:] == ["date", "boolean", "bigint", "string"]
    assert rows_of(frame) == FLIGHTS
    assert frame.where("carrier = 'a/b %'").select("n").collect()[0].n == 3


def test_every_type_of_parquet_is_read(reads: Any, tmp_path: Path) -> None:
    row = {
        "n": 1,
        "at": NOON,
        "local": NOON.replace(tzinfo=None),
        "day": NOON.date(),
        "clock": time(12, 30),
        "took": timedelta(seconds=90),
        "price": Decimal("12.50"),
        "raw": b"\x00\xff",
        "list": [1, 2],
        "nested": {"a": "x", "b": [{"c": 1.5}]},
    }
    write(tmp_path, [row])
    frame = load(reads, tmp_path)
    assert dict(frame.dtypes) == {
        "n": "bigint",
        "at": "timestamp",
        "local": "timestamp_ntz",
        "day": "date",
        "clock": "string",
        "took": "interval day to second",
        "price": "decimal(38,2)",
        "raw": "binary",
        "list": "array<bigint>",
        "nested": "struct<a:string,b:array<struct<c:double>>>",
    }
    [read] = frame.toArrow().to_pylist()
    assert read | {"at": read["at"].astimezone(UTC)} == row | {"clock": "12:30:00.000000"}


def test_the_counts_of_the_run_are_read_as_rows(reads: Any, tmp_path: Path) -> None:
    write(tmp_path, FLIGHTS)
    frame = load(reads, tmp_path, what="result")
    counts = {row.step: row for row in frame.collect()}
    assert list(counts) == ["in", "out"]
    assert (counts["in"].kind, counts["in"].rows_in, counts["in"].ports) == ("source", 3, {"out": 3})
    assert (counts["out"].job, counts["out"].kind, counts["out"].rows_in) == ("flights", "sink", 3)
    assert counts["out"].duration_s > 0
    assert frame.where("kind = 'sink'").select("rows_in").collect()[0][0] == 3


def test_a_schema_that_is_given_is_kept(reads: Any, tmp_path: Path) -> None:
    write(tmp_path, FLIGHTS, format="csv", partition_by=["day"])
    given = "n decimal(5,1), day timestamp_ntz, carrier string not null"
    frame = reads.read.format("malstrom").schema(given).load(str(tmp_path))
    assert dict(frame.dtypes) == {"n": "decimal(5,1)", "day": "timestamp_ntz", "carrier": "string"}
    assert [row["n"] for row in rows_of(frame)] == [Decimal("1.0"), Decimal("2.0"), Decimal("3.0")]
    assert rows_of(frame)[2]["day"] == datetime(2013, 1, 2)  # noqa: DTZ001


def test_a_job_that_has_written_nothing_is_read_by_a_schema(reads: Any, tmp_path: Path) -> None:
    write(tmp_path, [])
    assert reads.read.format("malstrom").schema("n bigint").load(str(tmp_path)).collect() == []


def test_what_cannot_be_read_is_said_where_the_query_is_planned(reads: Any, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match="SourceError: no job has written a record in"):
        _ = reads.read.format("malstrom").load(str(tmp_path)).schema


def test_writing_is_refused_with_what_writes_instead(reads: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"a job reads a DataFrame by sources\.Spark\(df\)"):
        reads.range(1).write.format("malstrom").mode("append").save(str(tmp_path / "other"))
    stream = reads.readStream.format("rate").load().writeStream.format("malstrom")
    with pytest.raises(Exception, match=r"a streaming one by sources\.Spark\(df, staging=folder\)"):
        stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start(
            str(tmp_path / "other")
        ).awaitTermination(60)
