"""A target that must not exist yet, published by Spark: what another writer made in that time is not touched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from malstrom_py.errors import SinkError
from malstrom_py.sinks.spark import Spark
from malstrom_py.sinks.spark.journal import Journal
from malstrom_py.sinks.spark.through_spark import PROPERTY, ThroughSparkCommitter
from tests.unit.sinks.spark.publishing import Died, pre_committed, run
from tests.unit.sinks.writing import context, everything

ROWS: list[Any] = [{"n": 1, "t": "a"}, {"n": 2, "t": "b"}]
TABLE = "malstrom_new"


def dead(*args: Any, **options: Any) -> None:
    raise Died


def died(sink: Spark, monkeypatch: pytest.MonkeyPatch, where: type[Any], what: str) -> None:
    payload = pre_committed(sink, ROWS)
    with monkeypatch.context() as patched:
        patched.setattr(where, what, dead)
        with pytest.raises(Died):
            sink.commit(context(), [payload])


@pytest.fixture
def table(spark: Any) -> Iterator[str]:
    spark.sql(f"drop table if exists {TABLE}")
    yield TABLE
    spark.sql(f"drop table if exists {TABLE}")


def counted(spark: Any) -> list[int]:
    return sorted(row.n for row in spark.table(TABLE).collect())


def test_a_table_that_somebody_made_meanwhile_is_told_and_left_as_it_is(
    table: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Spark(table=table, mode="error", session=spark, staging=tmp_path)
    died(sink, monkeypatch, ThroughSparkCommitter, "note")
    spark.sql(f"create table {table} using parquet as select 7L n")
    (intent,) = tmp_path.rglob("commit.json")
    for _ in range(2):
        with pytest.raises(SinkError, match="another program has created table") as raised:
            sink.recover(context("s2"), [])
        assert str(intent) in str(raised.value)
    assert counted(spark) == [7]
    spark.sql(f"drop table {table}")
    with pytest.raises(SinkError, match="exists already"):
        sink.recover(context("s2"), [])
    assert counted(spark) == [1, 2]
    assert everything(tmp_path) == []


def test_a_table_of_ours_that_others_have_appended_to_is_not_made_again(
    table: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Spark(table=table, mode="error", session=spark, staging=tmp_path, format="orc", partition_by="t")
    died(sink, monkeypatch, Journal, "end")
    spark.sql(f"insert into {table} values (3L, 'c')")
    with pytest.raises(SinkError, match="exists already"):
        sink.recover(context("s2"), [])
    assert counted(spark) == [1, 2, 3]
    assert [column.name for column in spark.catalog.listColumns(table) if column.isPartition] == ["t"]
    assert everything(tmp_path) == []


def test_a_table_of_ours_that_spark_made_and_never_filled_is_made_again(
    table: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Spark(table=table, mode="error", session=spark, staging=tmp_path)
    died(sink, monkeypatch, ThroughSparkCommitter, "note")
    spark.sql(f"create table {table} (n bigint, t string) using parquet tblproperties ('{PROPERTY}' = 'job/out/s1')")
    with pytest.raises(SinkError, match="exists already"):
        sink.recover(context("s2"), [])
    assert counted(spark) == [1, 2]


def test_a_folder_that_somebody_filled_meanwhile_is_told_and_left_as_it_is(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Spark(tmp_path / "out", format="json", mode="error", session=spark)
    died(sink, monkeypatch, ThroughSparkCommitter, "note")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "theirs").touch()
    for _ in range(2):
        with pytest.raises(SinkError, match=r"cannot be finished: .*is not empty, and mode"):
            sink.recover(context("s2"), [])
    assert everything(tmp_path / "out") == ["theirs"]
    (tmp_path / "out" / "theirs").unlink()
    with pytest.raises(SinkError, match="is not empty, and mode"):
        sink.recover(context("s2"), [])
    assert sorted(row.n for row in spark.read.json(str(tmp_path / "out")).collect()) == [1, 2]
    assert not list(tmp_path.rglob("_staging"))


def test_a_table_that_is_made_during_the_run_is_told_at_the_commit(table: str, spark: Any, tmp_path: Path) -> None:
    sink = Spark(table=table, mode="error", session=spark, staging=tmp_path)
    payload = pre_committed(sink, ROWS)
    spark.sql(f"create table {table} using parquet as select 7L n")
    with pytest.raises(SinkError, match="exists already"):
        sink.commit(context(), [payload])
    sink.abort(context(), [payload])
    assert counted(spark) == [7]
    run(Spark(table=table, session=spark, staging=tmp_path), [{"n": 8}])
    assert counted(spark) == [7, 8]
