"""What Spark itself publishes: what is promised for each mode, wherever the program dies; and what is refused."""

from __future__ import annotations

import datetime as dt
import sqlite3
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import SinkError
from malstrom_py.sinks.output_record import read_output
from malstrom_py.sinks.spark import Spark, through_spark
from malstrom_py.sinks.spark.journal import Journal
from malstrom_py.sinks.spark.through_spark import ThroughSparkCommitter
from malstrom_py.spark import register
from tests.unit.sinks.spark.publishing import Died, pre_committed, run
from tests.unit.sinks.writing import context, everything

BEFORE: list[Any] = [{"n": 0, "t": "old"}]
WORKERS: list[list[Any]] = [[{"n": 1, "t": "a"}, {"n": 2, "t": "b"}], [{"n": 3, "t": "a"}]]
ALL = [row for worker in WORKERS for row in worker]
TABLE = "malstrom_sink"
KINDS: dict[str, dict[str, Any]] = {
    "table append": {"table": TABLE, "mode": "append"},
    "table overwrite": {"table": TABLE, "mode": "overwrite"},
    "table error": {"table": TABLE, "mode": "error"},
    "partitioned table append": {"table": TABLE, "mode": "append", "partition_by": "t", "format": "orc"},
    "csv append": {"format": "csv", "mode": "append", "options": {"header": True}},
    "json overwrite": {"format": "json", "mode": "overwrite"},
    "parquet overwrite": {"mode": "overwrite"},
    "orc append partitioned": {"format": "orc", "mode": "append", "partition_by": "t"},
    "json error": {"format": "json", "mode": "error"},
    "partitions of a table": {"table": TABLE, "mode": "overwrite-partitions", "partition_by": "t"},
    "partitions of parquet": {"mode": "overwrite-partitions", "partition_by": "t"},
    "function": {},
}

LONG = pytest.mark.long("csv append*", "json*", "partitioned table append*")


class Target:
    """Where a kind of sink writes to, and what is there."""

    def __init__(self, spark: Any, kind: str, folder: Path) -> None:
        self.spark = spark
        self.kind = kind
        self.folder = folder
        self.options = KINDS[kind]

    def sink(self, **others: Any) -> Spark:
        options = self.options | others
        if self.kind == "function":
            return Spark(foreach_snapshot=self._stored, session=self.spark, staging=self.folder, **others)
        if "table" in options:
            return Spark(session=self.spark, staging=self.folder, **options)
        return Spark(self.folder / "out", session=self.spark, **options)

    def rows(self) -> list[Any]:
        if self.kind == "function":
            with sqlite3.connect(self.folder / "db") as database:
                database.execute("create table if not exists stored (n, t)")
                found = [{"n": n, "t": t} for n, t in database.execute("select n, t from stored")]
            database.close()
            return sorted(found, key=repr)
        if "table" in self.options:
            self.spark.catalog.refreshTable(TABLE) if self.spark.catalog.tableExists(TABLE) else None
            frame = self.spark.table(TABLE) if self.spark.catalog.tableExists(TABLE) else None
        else:
            reader = (
                self.spark.read.format(self.options.get("format", "parquet"))
                .schema("n long, t string")
                .option("header", True)
            )
            frame = reader.load(str(self.folder / "out")) if (self.folder / "out").exists() else None
        found = [] if frame is None else [{"n": row.n, "t": row.t} for row in frame.select("n", "t").collect()]
        return sorted(found, key=repr)

    def _stored(self, frame: Any, snapshot: str) -> None:
        """Stores the id in the transaction of the rows, as the docs say."""
        rows = [(row.n, row.t) for row in frame.collect()]
        with sqlite3.connect(self.folder / "db") as database:
            database.execute("create table if not exists snapshots (id primary key)")
            database.execute("create table if not exists stored (n, t)")
            if database.execute("insert or ignore into snapshots values (?)", (snapshot,)).rowcount:
                database.executemany("insert into stored values (?, ?)", rows)
        database.close()


@pytest.fixture
def no_table(spark: Any) -> Iterator[None]:
    """The table is not there before, nor after."""
    spark.sql(f"drop table if exists {TABLE}")
    yield
    spark.sql(f"drop table if exists {TABLE}")


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, spark: Any, tmp_path: Path, no_table: None) -> Target:
    made = Target(spark, request.param, tmp_path)
    if not made.kind.endswith("error"):
        run(made.sink(), BEFORE, snapshot="s0")
    return made


def expected(kind: str, times: int = 1) -> list[Any]:
    kept = [] if "overwrite" in kind or "error" in kind else BEFORE
    return sorted([*kept, *ALL * times], key=repr)


def begun(target: Target) -> tuple[Spark, list[bytes]]:
    sink = target.sink()
    sink.recover(context(), [])
    return sink, [pre_committed(sink, rows, worker=number) for number, rows in enumerate(WORKERS)]


def dead(*args: Any, **options: Any) -> None:
    raise Died


def restarted(target: Target) -> None:
    if target.kind.endswith("error"):
        with pytest.raises(SinkError, match=r"is not empty|already"):
            target.sink().recover(context("s2"), [])
    else:
        target.sink().recover(context("s2"), [])


def staged(target: Target) -> list[str]:
    """The staged files, without the note of what has been published."""
    found = [name for name in everything(target.folder) if "_staging" in name]
    noted = [name for name in found if name.endswith("~committed")]
    return [name for name in found if not any(note.startswith(name) for note in noted)]


@LONG
def test_it_is_published_once_and_publishing_it_again_changes_nothing(target: Target) -> None:
    sink, payloads = begun(target)
    for _ in range(2):
        sink.commit(context(), payloads)
        assert target.rows() == expected(target.kind)
        assert staged(target) == []
    restarted(target)
    assert target.rows() == expected(target.kind)


DEATHS: dict[str, list[tuple[Any, str]]] = {
    "before it has written down what it publishes": [(Journal, "begin")],
    "before it publishes": [(ThroughSparkCommitter, "note")],
    "after spark": [(Journal, "mark_published"), (through_spark, "record_output")],
    "when it has noted what it published": [(Journal, "end")],
}


@LONG
@pytest.mark.parametrize("death", DEATHS)
def test_what_a_program_that_dies_was_publishing_is_finished_by_the_next_start(
    target: Target, death: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, payloads = begun(target)
    before = target.rows()
    with monkeypatch.context() as patched:
        for owner, name in DEATHS[death]:
            patched.setattr(owner, name, dead)
        with pytest.raises(Died):
            sink.commit(context(), payloads)
    if death.startswith("before"):
        assert target.rows() == before
    elif target.kind != "json error":  # it is filled, and not in its place yet
        assert target.rows() == expected(target.kind)
    if "written down" in death:
        target.sink().recover(context("s2"), [])
        assert target.rows() == before, "nothing is left"
    else:
        restarted(target)
        twice = death == "after spark" and "append" in target.kind
        assert target.rows() == expected(target.kind, 2 if twice else 1), "twice only where it is said to be"
    assert staged(target) == []


@LONG
def test_snapshots_are_published_one_by_one_or_all_at_the_end_and_each_once(target: Target) -> None:
    first, second, last = context("s1", final=False), context("s2", final=False), context("s3")
    sink = target.sink()
    sink.recover(first, [])
    payloads = [pre_committed(sink, rows, snapshot=one) for one, rows in zip(("s1", "s2"), WORKERS, strict=True)]
    before = target.rows()
    kept = before if "overwrite" not in target.kind else []
    at_end = target.options.get("mode", "append") != "append"
    for _ in range(2):
        sink.commit(first, payloads[:1])
        assert target.rows() == (before if at_end else sorted([*kept, *WORKERS[0]], key=repr))
    for _ in range(2):
        sink = target.sink()
        sink.recover(last, [first.snapshot, second.snapshot])
        sink.commit(second, payloads[1:])
        assert target.rows() == (before if at_end else sorted([*kept, *ALL], key=repr))
    more = [{"n": 4, "t": "z"}]
    payload = pre_committed(sink, more, snapshot="s3")
    for _ in range(2):
        sink.commit(last, [payload])
        assert target.rows() == sorted([*kept, *ALL, *more], key=repr)
        sink = target.sink()
        sink.recover(context("s4"), [second.snapshot, last.snapshot])
    assert staged(target) == []


def test_what_spark_refuses_is_not_published_and_leaves_nothing(spark: Any, tmp_path: Path) -> None:
    sink = Spark(tmp_path / "out", format="csv", session=spark)
    with pytest.raises(SinkError, match=r"folder '.*out': \[UNSUPPORTED_DATA_TYPE_FOR_DATASOURCE\]"):
        run(sink, [{"l": [1]}])
    assert everything(tmp_path / "out") == []
    with pytest.raises(SinkError, match=r"folder '.*out': .*no-such-format"):
        run(Spark(tmp_path / "out", format="no-such-format", session=spark), [{"n": 1}])
    assert everything(tmp_path / "out") == []


def test_only_the_partitions_that_get_rows_are_replaced(spark: Any, tmp_path: Path, no_table: None) -> None:
    for options in ({"table": TABLE, "staging": tmp_path}, {"path": tmp_path / "out"}):
        sink = Spark(**options, mode="overwrite-partitions", partition_by="t", session=spark)
        run(sink, [{"n": 1, "t": "a"}, {"n": 2, "t": "b"}])
        run(sink, [{"n": 3, "t": "b"}, {"n": 4, "t": "c"}], snapshot="s2")
        run(sink, [], snapshot="s3")
        found = spark.table(TABLE) if "table" in options else spark.read.parquet(str(tmp_path / "out"))
        assert sorted((row.n, row.t) for row in found.collect()) == [(1, "a"), (3, "b"), (4, "c")]
    assert spark.conf.get("spark.sql.sources.partitionOverwriteMode") == "STATIC", "the user's session is not changed"


def test_a_table_without_partitions_has_none_to_replace(spark: Any, tmp_path: Path, no_table: None) -> None:
    spark.createDataFrame([(1, "a")], "n long, t string").write.saveAsTable(TABLE)
    with pytest.raises(SinkError, match="has no partitions, which mode 'overwrite-partitions' replaces"):
        run(Spark(table=TABLE, mode="overwrite-partitions", staging=tmp_path, session=spark), ALL)
    assert spark.table(TABLE).count() == 1


def test_what_a_function_raises_means_that_nothing_is_stored(spark: Any, tmp_path: Path) -> None:
    calls = []

    def refuse(frame: Any, snapshot: str) -> None:
        calls.append((frame.count(), snapshot))
        raise ValueError("no")

    sink = Spark(foreach_snapshot=refuse, session=spark, staging=tmp_path)
    with pytest.raises(ValueError, match="no"):
        run(sink, [{"n": 1}])
    sink.recover(context("s2"), [])
    assert calls == [(1, "s1")]
    assert everything(tmp_path) == []


@pytest.mark.usefixtures("no_table")
def test_columns_go_into_a_table_by_name_and_none_into_any_type(spark: Any, tmp_path: Path) -> None:
    spark.sql(f"create table {TABLE} (t string, n bigint, f double) using parquet")
    sink = Spark(table=TABLE, session=spark, staging=tmp_path)
    run(sink, [{"n": 1, "f": None, "t": None}], [{"n": None, "f": 0.5, "t": "a"}])
    found = sorted((row.t, row.n, row.f) for row in spark.table(TABLE).fillna("").collect())
    assert found == [("", 1, None), ("a", None, 0.5)]
    with pytest.raises(SinkError, match=f"columns 'x' are not in table '{TABLE}'"):
        run(sink, [{"n": 1, "t": "a", "f": 2, "x": 1}], snapshot="s2")
    with pytest.raises(SinkError, match="the rows lack columns 'f' of table"):
        run(sink, [{"n": 1, "t": "a"}], snapshot="s2")
    given = Spark(table=TABLE, session=spark, staging=tmp_path, schema=pa.schema([("n", pa.string())]))
    with pytest.raises(SinkError, match="do not fit table"):
        given.recover(context("s3"), [])
    with pytest.raises(SinkError, match=r"is partitioned by \[\], and partition_by is \['t'\]"):
        Spark(table=TABLE, session=spark, staging=tmp_path, partition_by="t").recover(context("s3"), [])
    assert spark.table(TABLE).count() == 2


@pytest.mark.usefixtures("no_table")
def test_rows_fit_the_types_of_a_table_or_fail_before_they_are_staged(spark: Any, tmp_path: Path) -> None:
    spark.sql(f"create table {TABLE} (i int, d decimal(10, 2), f float, s struct<x smallint>, m map<string, int>)")
    row = {"i": 1, "d": Decimal("1.5"), "f": 0.5, "s": {"x": 2}, "m": {"a": 3}}
    sink = Spark(table=TABLE, session=spark, staging=tmp_path)
    run(sink, [row, {**row, "d": 2, "i": None}])
    [first, second] = sorted(spark.table(TABLE).collect(), key=str)
    assert (first.i, first.d, first.f, first.s.x, first.m) == (1, Decimal("1.50"), 0.5, 2, {"a": 3})
    assert (second.i, second.d) == (None, Decimal("2.00"))
    for name, value in (("i", 2**31), ("d", Decimal("1.555")), ("d", 0.5), ("s", {"x": 1 << 15})):
        with pytest.raises(SinkError, match=f"column '{name}' holds values .* in table '{TABLE}'"):
            run(sink, [{**row, name: value}], snapshot="s2")
    # A copy for a worker in another process has no session, and knows the columns.
    copy = cloudpickle.loads(cloudpickle.dumps(Spark(table=TABLE, session=spark, staging=tmp_path)))
    with pytest.raises(SinkError, match="column 'i' holds values"):
        pre_committed(copy, [{**row, "i": 2**31}])
    assert spark.table(TABLE).count() == 2


@pytest.mark.usefixtures("no_table")
def test_a_text_too_long_for_varchar_fails_before_it_is_staged(spark: Any, tmp_path: Path) -> None:
    spark.sql(f"create table {TABLE} (v varchar(3), c char(2), s struct<x varchar(2)>) using parquet")
    row = {"v": "abc ", "c": "a", "s": {"x": "ab"}}
    given = pa.schema([("v", pa.string()), ("c", pa.string()), ("s", pa.struct([("x", pa.string())]))])
    for number, schema in enumerate((None, given)):
        sink = Spark(table=TABLE, session=spark, staging=tmp_path, schema=schema)
        run(sink, [row], snapshot=f"s{number}")
        for name, value in (("v", "abcd"), ("c", "abc"), ("s", {"x": "abc"})):
            with pytest.raises(SinkError, match=f"column '{name}(.x)?' holds a text of . characters, and .* takes"):
                run(sink, [{**row, name: value}], snapshot=f"s{number}x")
    assert [found.v for found in spark.table(TABLE).collect()] == ["abc", "abc"]


@pytest.mark.usefixtures("no_table")
def test_no_rows_make_an_empty_table_where_the_columns_are_known(spark: Any, tmp_path: Path) -> None:
    run(Spark(table=TABLE, session=spark, staging=tmp_path, mode="overwrite"))
    assert not spark.catalog.tableExists(TABLE)
    schema = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    run(Spark(table=TABLE, session=spark, staging=tmp_path, schema=schema), snapshot="s2")
    assert (spark.table(TABLE).count(), spark.table(TABLE).dtypes) == (0, [("n", "bigint"), ("at", "timestamp")])
    run(Spark(table=TABLE, session=spark, staging=tmp_path, schema=schema), [{"n": 1}], snapshot="s3")
    run(Spark(table=TABLE, session=spark, staging=tmp_path, mode="overwrite"), snapshot="s4")
    assert (spark.table(TABLE).count(), spark.table(TABLE).dtypes) == (0, [("n", "bigint"), ("at", "timestamp")])
    run(Spark(tmp_path / "orc", format="orc", session=spark, mode="error"), snapshot="s5")
    assert everything(tmp_path / "orc") == ["_malstrom", "_malstrom/job.json"]
    run(Spark(tmp_path / "out", session=spark, mode="overwrite"), BEFORE, snapshot="s6")
    run(Spark(tmp_path / "out", session=spark, mode="overwrite"), snapshot="s7")
    assert everything(tmp_path / "out") == ["_malstrom", "_malstrom/job.json"]
    run(Spark(tmp_path / "out", session=spark, mode="overwrite", schema=schema), snapshot="s8")
    assert spark.read.parquet(str(tmp_path / "out")).dtypes == [("n", "bigint"), ("at", "timestamp")]


def test_a_folder_of_parquet_that_spark_has_overwritten_is_read_by_all(spark: Any, tmp_path: Path) -> None:
    at = dt.datetime(2024, 2, 29, 12, 30, 0, 1, tzinfo=dt.UTC)
    new = [{"n": 1, "at": at, "t": "a"}, {"n": 2, "at": None, "t": "b"}]
    out = tmp_path / "out"
    run(Spark(out, session=spark, mode="overwrite", partition_by="t"), BEFORE, snapshot="s0")
    (out / "theirs").touch()
    options = {"compression": "gzip"}
    run(Spark(out, session=spark, mode="overwrite", partition_by="t", options=options), new, snapshot="s1")
    assert not (out / "theirs").exists()
    output = read_output(out, "job").outputs["out"]
    assert output.format == "parquet"
    assert sorted(output.files) == sorted(str(path.relative_to(out)) for path in out.rglob("*.gz.parquet"))
    for read in (sources.Files(out / "t=*" / "*.parquet"), sources.Spark(path=out, session=spark)):
        found = mp.collect(mp.Job("read").source("in", read))
        assert sorted(found, key=lambda row: row["n"]) == new
    register(spark)
    frame = spark.read.format("malstrom").load(str(out))
    assert sorted((row.n, row.t) for row in frame.collect()) == [(1, "a"), (2, "b")]


def test_an_overwrite_that_fails_in_spark_is_repeated_by_the_next_start(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Spark(tmp_path / "out", session=spark, mode="overwrite")
    run(sink, BEFORE, snapshot="s0")
    payload = pre_committed(sink, ALL)
    with monkeypatch.context() as patched:
        patched.setattr(through_spark, "record_output", dead)
        with pytest.raises(Died):
            sink.commit(context(), [payload])
    for written in (tmp_path / "out").glob("*.parquet"):
        written.unlink()  # as if Spark had died before it wrote
    Spark(tmp_path / "out", session=spark, mode="overwrite").recover(context("s2"), [])
    assert sorted(row.n for row in spark.read.parquet(str(tmp_path / "out")).collect()) == [1, 2, 3]
    assert not list(tmp_path.rglob("_staging"))


def test_a_job_writes_a_table_and_a_format_and_says_what_it_left(spark: Any, tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    job = mp.Job("through-spark")
    rows = job.source("in", sources.Memory([{"n": n, "t": f"t{n % 3}"} for n in range(100)], parts=4))
    rows.sink("json", Spark(tmp_path / "out", format="json", partition_by="t"))
    rows.sink("seen", Spark(foreach_snapshot=_noting(seen), staging=tmp_path))
    result = mp.run(job, workers=2)
    assert spark.read.json(str(tmp_path / "out")).count() == 100
    assert [count for _, count in seen] == [100]
    output = read_output(tmp_path / "out", "through-spark")
    assert output.snapshot == seen[0][0]
    assert output.outputs["json"].format == "spark:json"
    assert all((tmp_path / "out" / name).is_file() for name in output.outputs["json"].files)
    assert len({name.partition("/")[0] for name in output.outputs["json"].files}) == 3
    assert (output.result or {})["steps"]["json"]["rows_in"] == result.steps["json"].rows_in == 100
    assert isinstance(sinks.Spark(tmp_path / "out"), sinks.TransactionalSink)


def _noting(seen: list[tuple[str, int]]) -> Callable[[Any, str], None]:
    return lambda frame, snapshot: seen.append((snapshot, frame.count()))
