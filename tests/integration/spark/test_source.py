"""A source of Spark: what it reads, what it leaves, and its errors when it cannot read."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import OperatorError, PlanError, SourceError
from malstrom_py.sources.spark import Spark
from malstrom_py.testing.contracts import check_source

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def staging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where rows are staged by default, in a folder of the test's own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"malstrom-spark-{os.getuid()}"


def rows_of(source: Spark, **options: Any) -> list[dict[str, Any]]:
    return mp.collect(mp.Job("job").source("in", source), **options)


def left_in(folder: Path) -> list[str]:
    """What is staged there, by job."""
    return sorted(path.parent.name for path in folder.glob("*/pin-*"))


def test_a_dataframe_a_table_a_query_and_files_give_the_same_rows(spark: Any, tmp_path: Path) -> None:
    frame = spark.range(10).selectExpr("id", "id * id AS square")
    frame.createOrReplaceTempView("squares")
    frame.write.parquet(str(tmp_path / "files"))
    frame.write.json(str(tmp_path / "lines"))
    expected = [{"id": n, "square": n * n} for n in range(10)]
    for source in (
        Spark(frame),
        Spark(table="squares"),
        Spark(sql="SELECT * FROM squares"),
        Spark(path=tmp_path / "files"),
        Spark(path=tmp_path / "files", staging=tmp_path / "shared"),
        Spark(path=[str(tmp_path / "lines")], format="json", options={"primitivesAsString": False}),
        Spark(frame, session=None),
    ):
        assert sorted(rows_of(source), key=lambda row: row["id"]) == expected, source


def test_columns_and_filters_choose_what_is_read(spark: Any, tmp_path: Path) -> None:
    frame = spark.range(100).selectExpr("id", "id % 7 AS k", "'x' AS other")
    frame.write.parquet(str(tmp_path / "files"))
    expected = [{"k": n % 7} for n in range(100) if n > 90]
    for chosen in (F.col("id") > 90, "id > 90", pc.field("id") > 90):
        for source in (
            Spark(frame, columns=["k"], filter=chosen),
            Spark(path=tmp_path / "files", columns=["k"], filter=chosen),
        ):
            assert sorted(rows_of(source), key=str) == sorted(expected, key=str), (source, chosen)


def test_what_spark_is_not_asked_for_is_not_staged(spark: Any, staging: Path) -> None:
    source = Spark(spark.range(10).selectExpr("id", "id AS other"), columns=["id"], filter="id < 3", keep_staging=True)
    assert rows_of(source) == [{"id": 0}, {"id": 1}, {"id": 2}]
    tables = [pq.read_table(path) for path in staging.glob("job/pin-*/rows/*.parquet")]
    assert (pa.concat_tables(tables).column_names, sum(len(table) for table in tables)) == (["id"], 3)


def test_nested_partition_columns_have_the_types_that_spark_gives_them(spark: Any, tmp_path: Path) -> None:
    frame = spark.sql(
        "SELECT id, CAST(2010 + id % 2 AS INT) AS year, IF(id % 3 = 0, NULL, concat('a/b=', id % 3, ' é%')) AS who, "
        "date'2013-01-01' + CAST(id % 2 AS INT) AS day FROM range(12)"
    )
    frame.write.partitionBy("year", "who", "day").parquet(str(tmp_path / "t=1 %é"))
    source = Spark(path=tmp_path / "t=1 %é")
    expected = spark.read.parquet(str(tmp_path / "t=1 %é")).toArrow()
    rows = rows_of(source)
    assert sorted(rows, key=lambda row: row["id"]) == sorted(expected.to_pylist(), key=lambda row: row["id"])
    assert {type(value) for row in rows for value in row.values()} == {
        type(value) for row in expected.to_pylist() for value in row.values()
    }
    assert sorted(
        row["id"] for row in rows_of(Spark(path=tmp_path / "t=1 %é", filter=pc.field("year") == 2011, columns=["id"]))
    ) == [1, 3, 5, 7, 9, 11]


def test_rows_come_as_often_and_with_the_values_that_spark_reads(spark: Any, tmp_path: Path) -> None:
    nan = pa.table({"x": [3.0, float("nan")]})
    for name in ("t", "other", "odd/p=+1", "odd/p=2", "bytes/c=%C3%A9"):
        (tmp_path / name).mkdir(parents=True)
        pq.write_table(nan, tmp_path / name / "a.parquet")
    t, other = str(tmp_path / "t"), str(tmp_path / "other")
    for paths in ([t, f"{t}/"], [t, f"{t}/a.parquet"], [t, other], [f"{t}{{,/a.parquet}}"]):
        assert len(rows_of(Spark(path=paths))) == spark.read.parquet(*paths).count(), paths
    assert len(rows_of(Spark(path=t, filter=pc.field("x") != 3.0))) == 1
    for name in ("odd", "bytes"):
        read = spark.read.parquet(str(tmp_path / name)).toArrow().to_pylist()
        assert sorted(map(str, rows_of(Spark(path=tmp_path / name)))) == sorted(map(str, read)) != []


def test_columns_of_folders_have_the_types_that_spark_reads(spark: Any, tmp_path: Path) -> None:
    spark.range(3).selectExpr("id", "CAST(id AS DOUBLE) / 2 AS half").write.partitionBy("half").parquet(
        str(tmp_path / "halves")
    )
    rows = rows_of(Spark(path=tmp_path / "halves"))
    assert sorted(rows, key=lambda row: row["id"]) == [{"id": n, "half": n / 2} for n in range(3)]


def test_one_giant_partition_becomes_several_parts(spark: Any, staging: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malstrom_py.sources.spark.pinning._BLOCK_BYTES", 1 << 16)
    frame = spark.range(60_000).selectExpr("id", "sha2(CAST(id AS STRING), 256) AS text").coalesce(1)
    source = Spark(frame)
    source.pin("job")
    assert len(source.list_parts()) > 4
    assert {part.split("#")[0] for part in source.list_parts()} == {source.list_parts()[0].split("#")[0]}
    source.unpin()
    assert sorted(row["id"] for row in rows_of(source)) == list(range(60_000))


def test_two_thousand_tiny_files_are_read(spark: Any, tmp_path: Path) -> None:
    table = pa.table({"n": [0]})
    (tmp_path / "tiny").mkdir()
    for number in range(2000):
        pq.write_table(table.set_column(0, "n", pa.array([number])), tmp_path / "tiny" / f"{number:04}.parquet")
    source = Spark(path=tmp_path / "tiny")
    result: list[Any] = mp.collect(mp.Job("job").source("in", source).map("n", lambda row: row["n"]))
    assert sorted(result) == list(range(2000))


def test_names_are_those_that_spark_tells_apart(spark: Any) -> None:
    assert rows_of(Spark(spark.sql("SELECT 1 AS `straße`, 2 AS strasse"))) == [{"straße": 1, "strasse": 2}]
    assert rows_of(Spark(spark.sql("SELECT 1 AS a, 2 AS Dup, 3 AS dup"), columns=["a"])) == [{"a": 1}]
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        assert rows_of(Spark(spark.sql("SELECT 1 AS a, 2 AS A"))) == [{"a": 1, "A": 2}]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.parametrize("frame", ["range(0)", "(SELECT id FROM range(10) WHERE id > 10)", "(SELECT 1 AS id LIMIT 0)"])
def test_an_empty_dataframe_is_a_job_without_rows(spark: Any, staging: Path, frame: str) -> None:
    job, out = mp.Job("empty"), sinks.Memory()
    source = Spark(spark.sql(f"SELECT * FROM {frame}"))
    job.source("in", source).key_by("key", lambda row: row["id"]).count("n").sink("out", out)
    assert (mp.run(job, workers=2).read, out.items) == (0, [])
    assert left_in(staging) == []


def test_a_pinned_source_keeps_the_contract_of_sources(spark: Any) -> None:
    source = Spark(spark.sql("SELECT id, CAST(id AS STRING) AS text FROM range(0, 50, 1, 3)"))
    source.pin("job")
    try:
        check_source(source)
    finally:
        source.unpin()


def test_staging_is_removed_when_the_job_has_ended_and_kept_where_that_is_asked_for(spark: Any, staging: Path) -> None:
    frame = spark.range(5)
    assert len(rows_of(Spark(frame))) == 5
    assert left_in(staging) == []
    assert len(rows_of(Spark(frame), count=1)) == 1
    assert left_in(staging) == []
    rows_of(Spark(frame, keep_staging=True))
    rows_of(Spark(frame))
    assert left_in(staging) == ["job"]


def test_staging_is_removed_when_the_job_has_failed_or_was_stopped(spark: Any, staging: Path) -> None:
    for error, raised in ((ValueError, OperatorError), (KeyboardInterrupt, KeyboardInterrupt)):

        def fail(row: Any, error: type[BaseException] = error) -> Any:
            assert left_in(staging) == ["job"]
            raise error

        job = mp.Job("job")
        job.source("in", Spark(spark.range(5))).map("bad", fail).sink("out", sinks.Memory())
        with pytest.raises(raised):
            mp.run(job)
        assert left_in(staging) == []


def test_what_a_start_could_not_remove_is_removed_by_the_next_one_of_the_same_job(spark: Any, staging: Path) -> None:
    for job in ("job", "other"):
        killed = Spark(spark.range(5))
        killed.pin(job)
        del killed
    assert left_in(staging) == ["job", "other"]
    rows_of(Spark(spark.range(5)))
    assert left_in(staging) == ["other"]


def test_a_source_may_be_read_by_two_jobs_at_a_time_and_again_later(spark: Any, staging: Path) -> None:
    source = Spark(spark.range(5))
    source.pin("first")
    parts = source.list_parts()
    assert len(rows_of(source)) == 5
    assert source.list_parts() == parts
    source.unpin()
    assert left_in(staging) == []
    assert len(rows_of(source)) == 5


@pytest.fixture
def interrupting(staging: Path) -> Iterator[None]:
    """Ctrl-C as soon as something is staged."""
    done = threading.Event()

    def press() -> None:
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s and not done.is_set():
            if list(staging.glob("job/pin-*/rows")):
                os.kill(os.getpid(), signal.SIGINT)
                return
            time.sleep(0.01)

    thread = threading.Thread(target=press)
    thread.start()
    yield
    done.set()
    thread.join(PATIENCE_S)


@pytest.mark.only_classic
@pytest.mark.usefixtures("interrupting")
def test_ctrl_c_while_rows_are_staged_leaves_nothing_that_the_next_start_would_keep(spark: Any, staging: Path) -> None:
    slow = spark.sql("SELECT id, reflect('java.lang.Thread', 'sleep', 800L) AS slept FROM range(0, 4, 1, 4)")
    with pytest.raises(KeyboardInterrupt):
        rows_of(Spark(slow))
    until_s = time.monotonic() + PATIENCE_S
    while True:  # Spark continues to write for a while: the next start removes what it leaves
        with suppress(Py4JNetworkError):  # py4j may end the connection after the one that Ctrl-C has cut
            rows_of(Spark(spark.range(1)))
            if not left_in(staging):
                break
        assert time.monotonic() < until_s, left_in(staging)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"table": "nowhere"}, r"Spark does not read table='nowhere': \[TABLE_OR_VIEW_NOT_FOUND\]"),
    ({"sql": "SELEC 1"}, r"Spark does not read sql=…: \[PARSE_SYNTAX_ERROR\]"),
    ({"path": "/no/where"}, r"Spark does not read path='/no/where': \[PATH_NOT_FOUND\]"),
    ({"path": "/no/where", "format": "nonsense"}, r"DATA_SOURCE_NOT_FOUND"),
    ({"sql": "SELECT 1 AS a", "columns": ["b"]}, "the query has no column 'b', only 'a'"),
    ({"sql": "SELECT 1 AS a, 2 AS a"}, "there is more than one column named 'a'"),
    ({"sql": "SELECT 1 AS a, 2 AS a", "filter": pc.field("a") > 1}, "there is more than one column named 'a'"),
    ({"sql": "SELECT 1 AS a, 2 AS A", "columns": ["a"]}, "there is more than one column named 'a'"),
    ({"sql": "SELECT 1 AS a", "filter": "b > 1"}, "UNRESOLVED_COLUMN"),
    ({"sql": "SELECT 1 AS a", "filter": pc.field("b") > 1}, r"the filter \(b > 1\) cannot be evaluated: No match"),
    ({"sql": "SELECT 1 AS a", "filter": pc.field("a") == "x"}, "cannot be evaluated: Function 'equal' has no kernel"),
    ({"sql": "SELECT CAST(raise_error('no') AS INT) AS a"}, "Spark cannot stage the rows of sql=…"),
    ({"sql": "SELECT 1 AS a", "staging": "/proc/nothing"}, r"rows cannot be staged in /proc/nothing/job"),
]


@pytest.mark.parametrize(("given", "said"), WRONG, ids=lambda value: str(value)[:50])
def test_what_cannot_be_read_is_told_by_the_step(spark: Any, staging: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceError, match=f"source 'in': .*{said}") as caught:
        rows_of(Spark(**given))
    assert "\n" not in str(caught.value)
    assert left_in(staging) == []


def test_a_stream_has_no_end_to_be_pinned(spark: Any) -> None:
    with pytest.raises(PlanError, match="a streaming DataFrame"):
        rows_of(Spark(spark.readStream.format("rate").load()))


def test_files_may_change_after_the_start_but_not_what_is_staged_of_them(
    spark: Any, tmp_path: Path, staging: Path
) -> None:
    spark.range(10).coalesce(1).write.parquet(str(tmp_path / "files"))
    source = Spark(path=tmp_path / "files")
    source.pin("job")
    spark.range(10, 20).write.mode("overwrite").parquet(str(tmp_path / "files"))
    part: Any = source.build_part(source.list_parts()[0], None)
    assert pa.Table.from_batches([part.poll(1)]).to_pylist()[0] == {"id": 0}
    part.close()
    (file,) = staging.glob("job/pin-*/rows/*.parquet")
    file.write_bytes(file.read_bytes() + b"more")
    part = source.build_part(source.list_parts()[0], None)
    with pytest.raises(SourceError, match="is no longer the file that was pinned when the job started"):
        part.poll(1)
    source.unpin()


def test_the_session_is_left_as_it_was(spark: Any) -> None:
    names = ["spark.sql.parquet.outputTimestampType", "spark.sql.parquet.datetimeRebaseModeInWrite"]
    before = [spark.conf.get(name) for name in names]
    rows_of(Spark(spark.sql("SELECT timestamp'2013-01-01 00:00:00' AS t")))
    assert [spark.conf.get(name) for name in names] == before
    assert spark.range(3).count() == 3
    assert sources.Spark is Spark


def test_an_error_names_the_row_of_a_pinned_file_in_words(spark: Any, tmp_path: Path) -> None:
    spark.range(3).selectExpr("2 - id AS n").coalesce(1).write.parquet(str(tmp_path / "files"))
    for source in (Spark(path=tmp_path / "files"), Spark(spark.sql("SELECT explode(array(2, 1, 0)) AS n"))):
        job = mp.Job("job")
        job.source("in", source).map("ratio", lambda row: 1 / row["n"]).sink("out", sinks.Memory())
        with pytest.raises(OperatorError) as caught:
            mp.run(job)
        text = "\n".join((str(caught.value), *getattr(caught.value, "__notes__", ())))
        assert re.search(
            r"a batch of partition '.+' of source 'in', which ended at row \d of row group 0(\n|$)", text
        ), text
        assert not re.search(r"\bb['\"]|\{'|schema", text), text
