"""`Spark`: its arguments, its columns from the first batch on, and what a copy of it takes along."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from malstrom_py import sinks
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.sinks.spark import Spark
from tests.unit.sinks.spark.publishing import pre_committed, rows, run
from tests.unit.sinks.writing import context, everything, visible


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        ({}, "one of path=, table= and foreach_snapshot="),
        ({"path": "a", "table": "b"}, "one of path=, table= and foreach_snapshot="),
        ({"path": "a", "mode": "ignore"}, "mode must be one of"),
        ({"path": "a", "mode": "overwrite-partitions"}, "replaces partitions of a path: give partition_by="),
        ({"path": "a", "format": ""}, "format must be a str"),
        ({"table": 5}, "table must be a str"),
        ({"path": "s3://a/b"}, r"sinks\.Spark takes a local folder.*not 's3://a/b'"),
        ({"path": "a", "options": {"compression": "gzip"}}, "options are for Spark's writer"),
        ({"path": "a", "format": "csv", "options": {1: 2}}, "options maps names"),
        ({"path": "a", "staging": "b"}, "leave out staging="),
        ({"path": "a", "partition_by": []}, "partition_by is a column name"),
        (
            {"path": "a", "partition_by": "x", "schema": pa.schema([("n", pa.int64())])},
            "lacks the partition columns 'x'",
        ),
        ({"path": "a", "schema": "n long"}, "schema must be a pyarrow.Schema or a StructType"),
        ({"foreach_snapshot": 5}, "must be a function of a DataFrame and an id"),
        ({"foreach_snapshot": print, "mode": "overwrite"}, "the function decides"),
    ],
)
def test_arguments_that_do_not_go_together_are_told_at_once(arguments: dict[str, Any], reported: str) -> None:
    with pytest.raises(PlanError, match=reported):
        Spark(**arguments)


def test_only_what_spark_publishes_needs_the_program_that_starts_the_job() -> None:
    for mode in ("append", "error"):
        assert not Spark("out", mode=mode).commits_in_driver
    for sink in (
        Spark("out", mode="overwrite"),
        Spark("out", format="csv"),
        Spark(table="t"),
        Spark(foreach_snapshot=print),
    ):
        assert sink.commits_in_driver is True
        assert isinstance(sink, sinks.TransactionalSink)


def test_a_copy_takes_no_session_and_no_function_along(tmp_path: Path) -> None:
    unpicklable = lambda frame, snapshot: open(frame)  # noqa: E731, PTH123, SIM115
    sink = Spark(foreach_snapshot=unpicklable, session=object().__reduce_ex__, staging=tmp_path)
    copy: Spark = pickle.loads(pickle.dumps(sink))
    payload = pre_committed(copy, [{"n": 1}])
    assert len(everything(tmp_path)) == 5
    copy.abort(context(), [payload])
    assert everything(tmp_path) == []


def test_it_says_what_it_is() -> None:
    assert repr(Spark("/out", partition_by="a")) == (
        "Spark(path='/out', mode='append', format='parquet', partition_by=['a'])"
    )
    assert repr(Spark(table="t", mode="overwrite")) == "Spark(table='t', mode='overwrite', format='parquet')"


@pytest.mark.parametrize(
    ("second", "reported"),
    [
        ([{"a": 2, "b": None, "c": 1}], "columns 'c' are not among those of the first batch"),
        ([{"a": "x", "b": None}], "column 'a' holds int and str"),
        ([{"a": 0.5, "b": None}], r"'a' \(int64 before, double now\)"),
        ([{"a": 1, "b": {"x": 1}}, {"a": 1, "b": {"y": 1}}], r"'b' \(struct<x: int64> before"),
    ],
)
def test_drift_in_one_worker_names_the_column(second: list[Any], reported: str, tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=reported):
        pre_committed(Spark(tmp_path), [{"a": 1, "b": {"x": 1}}], *[[row] for row in second])


def test_none_takes_any_type_later_and_ints_go_into_floats(tmp_path: Path) -> None:
    sink = Spark(tmp_path)
    payload = pre_committed(sink, [{"n": None, "f": 0.5}], [{"n": 1, "f": 2}], [{"n": None}])
    sink.commit(context(), [payload])
    assert rows(tmp_path) == [{"n": 1, "f": 2.0}, {"n": None, "f": 0.5}, {"n": None, "f": None}]
    (name,) = visible(tmp_path)
    assert pq.read_schema(tmp_path / name).types == [pa.int64(), pa.float64()]


@pytest.mark.parametrize("mode", ["append", "overwrite", "error"])
def test_workers_that_differ_are_told_at_the_commit_and_nothing_is_published(mode: Any, tmp_path: Path) -> None:
    for other in ([{"n": "a", "x": 1}], [{"m": 1, "x": 1}]):
        with pytest.raises(SinkError, match=r"'n' .*on one worker"):
            run(Spark(tmp_path / "out", mode=mode), [{"n": 1, "x": 1}], other)
        assert [name for name in everything(tmp_path) if name != "out"] == []


def test_workers_of_none_only_take_the_types_of_the_others(tmp_path: Path) -> None:
    run(Spark(tmp_path, partition_by="p"), [{"p": 1, "n": None}], [{"p": 1, "n": 5}], [{"p": 2, "n": None}], [])
    assert {pq.read_schema(tmp_path / name).field("n").type for name in visible(tmp_path)} == {pa.int64()}
    assert [row["n"] for row in rows(tmp_path)] == [5, None, None]


def test_what_is_appended_must_be_like_what_is_there(tmp_path: Path) -> None:
    run(Spark(tmp_path), [{"n": 1, "t": "a"}], snapshot="s1")
    run(Spark(tmp_path), [{"t": "b", "n": None}], snapshot="s2")
    before = everything(tmp_path)
    for wrong in ([{"n": 1}], [{"n": 1, "t": 2}], [{"n": 1, "t": "a", "x": 1}]):
        with pytest.raises(SinkError, match="the columns are not alike"):
            run(Spark(tmp_path), wrong, snapshot="s3")
        assert everything(tmp_path) == before
    with pytest.raises(SinkError, match=r"'n' .*'t'|'t' .*'n'"):
        Spark(tmp_path, schema=pa.schema([("n", pa.string()), ("t", pa.int64())])).recover(context("s4"), [])
    with pytest.raises(SinkError, match=r"is partitioned by \[\], and partition_by is \['t'\]"):
        Spark(tmp_path, partition_by="t").recover(context("s4"), [])
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    with pytest.raises(SinkError, match=r"a\.parquet is not a readable Parquet file"):
        Spark(tmp_path).recover(context("s4"), [])


def test_the_case_of_names_and_times_of_day_are_told_with_the_first_batch(tmp_path: Path) -> None:
    import datetime as dt

    for row in ({"a": 1, "A": 2}, {"t": dt.time(5)}, {"t": dt.timedelta(5)}):
        with pytest.raises(SinkError, match="Spark"):
            pre_committed(Spark(tmp_path / "out"), [row])


def test_a_payload_that_is_damaged_is_told(tmp_path: Path) -> None:
    sink = Spark(tmp_path)
    for payload in (
        b"",
        b"{}",
        b'{"files": ["_staging/job/out/0123456789abcdef/s1-0.parquet"], "folders": [""], "schema": "?"}',
        b'{"files": [], "folders": [], "schema": 5}',
    ):
        with pytest.raises(SinkError, match="damaged"):
            sink.commit(context(), [payload])
        assert everything(tmp_path) == []
