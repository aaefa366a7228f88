"""Parquet that is written without Spark, as Spark reads it; and real processes that are killed while they publish."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.data.batch import ColumnBatch
from malstrom_py.errors import SinkError
from malstrom_py.sinks.spark import Spark
from malstrom_py.worker_context import WorkerId, WorkerInfo
from tests.unit.sinks.spark.publishing import pre_committed, run
from tests.unit.sinks.writing import context, visible

AT = dt.datetime(2024, 2, 29, 12, 30, 0, 1, tzinfo=dt.UTC)
DAY = dt.date(2024, 2, 29)


def test_spark_reads_all_types_and_all_files_of_a_folder_together(spark: Any, tmp_path: Path) -> None:
    batch = pa.record_batch(
        {
            "u8": pa.array([1, None], pa.uint8()),
            "u64": pa.array([2**64 - 1, 0], pa.uint64()),
            "f16": pa.array([1.5, None], pa.float16()),
            "text": pa.array(["a", None], pa.large_string()),
            "dict": pa.array(["x", "y"]).dictionary_encode(),
            "bytes": pa.array([b"ab", None], pa.binary(2)),
            "day": pa.array([DAY, None], pa.date64()),
            "at": pa.array([AT, None], pa.timestamp("ns", "Europe/Berlin")),
            "here": pa.array([AT.replace(tzinfo=None), None], pa.timestamp("s" if AT.microsecond == 0 else "ns")),
            "price": pa.array([Decimal("1.25"), None], pa.decimal256(10, 2)),
            "list": pa.array([[1, None], None], pa.large_list(pa.uint32())),
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int8())),
            "struct": pa.array([{"a": 1, "b": None}, None], pa.struct([("a", pa.uint16()), ("b", pa.null())])),
            "none": pa.nulls(2),
        }
    )
    sink = Spark(tmp_path)
    writer = sink.open(WorkerInfo("job", "out", WorkerId(0)))
    writer.write(ColumnBatch(batch))
    first = writer.pre_commit(context())
    writer.close()
    sink.commit(context(), [first])
    run(sink, [dict.fromkeys(batch.schema.names)], snapshot="s2")
    frame = spark.read.parquet(str(tmp_path))
    assert dict(frame.dtypes) == {
        "u8": "smallint",
        "u64": "decimal(20,0)",
        "f16": "float",
        "text": "string",
        "dict": "string",
        "bytes": "binary",
        "day": "date",
        "at": "timestamp",
        "here": "timestamp_ntz",
        "price": "decimal(10,2)",
        "list": "array<bigint>",
        "map": "map<string,tinyint>",
        "struct": "struct<a:int,b:string>",
        "none": "string",
    }
    (row,) = frame.where("u8 = 1").selectExpr("*", "unix_micros(at) as micros").collect()
    assert (row.u64, row.f16, row.text, row.dict, bytes(row.bytes)) == (2**64 - 1, 1.5, "a", "x", b"ab")
    assert (row.day, row.here, row.price) == (DAY, AT.replace(tzinfo=None), Decimal("1.25"))
    assert row.micros == (AT - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    assert (row.list, row.map, row.struct.asDict(), row.none) == ([1, None], {"k": 1}, {"a": 1, "b": None}, None)
    assert frame.count() == 3


def test_spark_reads_partitions_and_leaves_out_what_is_hidden(spark: Any, tmp_path: Path) -> None:
    job = mp.Job("partitioned")
    rows = [{"n": n, "to": ["a/b", "c d", None][n % 3], "day": DAY} for n in range(60)]
    job.source("in", sources.Memory(rows, parts=3)).sink("out", Spark(tmp_path, partition_by=["day", "to"]))
    mp.run(job, workers=3)
    pre_committed(Spark(tmp_path, partition_by=["day", "to"]), rows)  # another run is under way
    frame = spark.read.parquet(str(tmp_path))
    assert dict(frame.dtypes) == {"n": "bigint", "day": "date", "to": "string"}
    assert {(row.to, row["count"]) for row in frame.groupBy("to").count().collect()} == {
        ("a/b", 20),
        ("c d", 20),
        (None, 20),
    }


def test_it_appends_to_what_spark_has_written_if_the_columns_are_the_same(spark: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    spark.range(3).selectExpr("id as n", "timestamp'2024-01-01' as at", "date'2024-01-01' as day").write.parquet(
        str(out)
    )
    run(Spark(out), [{"n": 7, "at": AT, "day": None}])
    frame = spark.read.parquet(str(out))
    assert (frame.count(), dict(frame.dtypes)) == (4, {"n": "bigint", "at": "timestamp", "day": "date"})
    assert frame.where("n = 7").selectExpr("year(at)").collect()[0][0] == 2024
    before = visible(out)
    with pytest.raises(SinkError, match=r"'day' \(only in .*\), 'x' \(only now\), 'n' \(int64 in .*, string now\)"):
        run(Spark(out), [{"n": "a", "at": AT, "x": 1}], snapshot="s2")
    schema = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us")), ("day", pa.date32())])
    with pytest.raises(SinkError, match="'at'"):
        Spark(out, schema=schema).recover(context("s3"), [])
    with pytest.raises(SinkError, match="partition_by"):
        Spark(out, partition_by="day").recover(context("s3"), [])
    assert visible(out) == before


def test_a_schema_of_spark_is_taken(spark: Any, tmp_path: Path) -> None:
    schema = (
        spark.range(0).selectExpr("cast(id as int) as n", "map('a', 1.5D) as m", "array(struct(1 as a)) as l").schema
    )
    run(Spark(tmp_path, schema=schema), [{"n": 1, "m": {"x": 1}, "l": [{"a": 2}]}, {"n": 2, "m": {}, "l": []}])
    frame = spark.read.parquet(str(tmp_path))
    assert [kind for _, kind in frame.dtypes] == ["int", "map<string,double>", "array<struct<a:int>>"]
    assert [(row.n, row.m) for row in frame.orderBy("n").collect()] == [(1, {"x": 1.0}), (2, {})]


def test_an_empty_table_that_is_appended_to_in_partitions_is_read_with_its_columns(spark: Any, tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("t", pa.string())])
    run(Spark(tmp_path / "out", partition_by="t", schema=schema), [])
    assert spark.read.parquet(str(tmp_path / "out")).dtypes == [("n", "bigint"), ("t", "string")]
    run(Spark(tmp_path / "out", partition_by="t"), [{"n": 1, "t": "a"}], snapshot="s2")
    assert [tuple(row) for row in spark.read.parquet(str(tmp_path / "out")).collect()] == [(1, "a")]
    assert mp.collect(mp.Job("docs").source("in", sources.Spark(path=tmp_path / "out", session=spark))) == [
        {"n": 1, "t": "a"}
    ]
