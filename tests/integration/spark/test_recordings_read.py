"""Spark reads what a job has recorded: keys, timestamps and values, by streams."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import capture, sources
from malstrom_py.spark import register

pytestmark = pytest.mark.only_classic

BEGIN = datetime(2013, 1, 1, tzinfo=UTC)


def record(folder: Path, rows: list[Any], *, name: str = "seen", workers: int = 2, **options: Any) -> None:
    job = mp.Job("recorded")
    stream = job.source("in", sources.Memory(rows, parts=2))
    timed = stream.assign_timestamps("time", lambda row: BEGIN + timedelta(minutes=row[0]), unit="s")
    keyed = timed.map("value", lambda row: row[1]).key_by("key", lambda row: len(str(row)))
    keyed.capture_into(name, folder)
    mp.InProcess(workers, progress=False, **options).run(job)


def load(spark: Any, folder: Path, **options: str) -> Any:
    register(spark)
    return spark.read.format("malstrom").option("what", "recording").options(**options).load(str(folder))


def in_capture(folder: Path, name: str = "seen") -> list[tuple[Any, Any, Any]]:
    """The records as `capture.read` has them."""
    batches = [content for _, content in capture.read(folder, name) if isinstance(content, capture.Batch)]
    return [row for one in batches for row in zip(one.keys or [], one.timestamps or [], one.values, strict=True)]


def in_spark(frame: Any) -> list[tuple[Any, Any, Any]]:
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    return [(row["key"], row["timestamp"], row["value"]) for row in rows]


def alike(rows: list[tuple[Any, Any, Any]]) -> list[str]:
    return sorted(map(repr, rows))


def test_fields_are_those_of_a_struct_and_streams_are_tasks(spark: Any, tmp_path: Path) -> None:
    rows = [(n, {"n": n, "price": n / 2, "day": BEGIN.date(), "to": None if n % 2 else "a"}) for n in range(500)]
    kept = mp.Snapshots(tmp_path / "kept", interval_s=0.01)
    record(tmp_path / "at", rows, snapshots=kept)
    frame = load(spark, tmp_path / "at")
    assert frame.schema.simpleString() == (
        "struct<key:bigint,timestamp:bigint,value:struct<n:bigint,price:double,day:date,to:string>>"
    )
    assert frame.rdd.getNumPartitions() == 2
    assert alike(in_spark(frame)) == alike(in_capture(tmp_path / "at"))
    assert [row.n for row in frame.where("timestamp % 86400 = 60").select("value.n").collect()] == [1]


def test_columns_are_read_as_columns_and_values_that_differ_as_json(spark: Any, tmp_path: Path) -> None:
    record(tmp_path, [(n, {"n": n}) for n in range(50)], name="plain")
    record(tmp_path, [(0, ("a", 1)), (1, {"n": 2}), (2, "x"), (3, None), (4, 2**70)], name="mixed", workers=1)
    record(tmp_path, [(n, {"n": n} if n % 2 else {"m": float(n), "in": {"a": [n]}}) for n in range(40)], name="fields")
    mixed = load(spark, tmp_path, step="mixed")
    assert mixed.schema["value"].dataType.simpleString() == "string"
    assert [row.value for row in mixed.orderBy("timestamp").collect()] == [
        '["a", 1]',
        '{"n": 2}',
        '"x"',
        None,
        str(2**70),
    ]
    fields = load(spark, tmp_path, step="fields")
    assert fields.selectExpr("sum(value.n)", "sum(value.m)", "sum(value.in.a[0])").collect()[0][:] == (400, 380.0, 380)
    with pytest.raises(Exception, match="it has those of 'fields', 'mixed', 'plain': name one"):
        load(spark, tmp_path).collect()


def test_a_recording_that_is_cut_or_changed(spark: Any, tmp_path: Path) -> None:
    record(tmp_path, [(n, {"n": n}) for n in range(5_000)], workers=1)
    (segment,) = tmp_path.glob("seen.*.capture")
    whole = segment.read_bytes()
    segment.write_bytes(whole[: len(whole) - 200])
    with pytest.raises(Exception, match=r"segment 'seen\.g.*it ends at byte"):
        load(spark, tmp_path).collect()
    segment.rename(segment.with_suffix(".open"))  # as a worker leaves it that is killed
    read = [value["n"] for _, _, value in in_spark(load(spark, tmp_path))]
    assert 0 < len(read) == len(set(read))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"step": "other"}, "must have one recording called 'other', and there is none"),
        ({"job": "recorded"}, "unknown option job"),
    ],
    ids=["step", "option"],
)
def test_what_is_not_there_is_told(options: dict[str, str], said: str, spark: Any, tmp_path: Path) -> None:
    record(tmp_path, [(1, "a")])
    with pytest.raises(Exception, match=said):
        load(spark, tmp_path, **options).collect()


def test_a_schema_chooses_columns(spark: Any, tmp_path: Path) -> None:
    record(tmp_path, [(1, "a"), (2, "bb")])
    reader = spark.read.format("malstrom").option("what", "recording")
    assert sorted(row.value for row in reader.schema("value string").load(str(tmp_path)).collect()) == ["a", "bb"]
    for schema, said in (("value int", "is string, and the schema has it as int"), ("v int", "has no column 'v'")):
        with pytest.raises(Exception, match=said):
            reader.schema(schema).load(str(tmp_path)).collect()
