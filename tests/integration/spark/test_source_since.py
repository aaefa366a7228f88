"""A source of Spark that is read again: a later run of a finished job reads the rows that are new by a column."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import PlanError, SourceError


@pytest.fixture(autouse=True)
def staging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where rows are staged by default, in a folder of the test's own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"malstrom-spark-{os.getuid()}"


def nightly(source: Any, out: Path) -> mp.Job:
    job = mp.Job("nightly")
    totals = job.source("in", source).key_by("parity", lambda row: row["n"] % 2).sum("total", by="n")
    totals.sink("out", sinks.Files(out, format="json"))
    return job


def run(source: Any, folder: Path, workers: int = 1, **options: Any) -> mp.RunResult:
    kept = mp.Snapshots(str(folder / "snapshots"))
    return mp.InProcess(workers, snapshots=kept, restart="never", **options).run(nightly(source, folder / "out"))


def last_totals(folder: Path) -> dict[int, int]:
    """The largest running total of each key, which is the last as long as all numbers are positive."""
    rows = mp.collect(mp.Job("read").source("in", sources.Files(folder / "out" / "*.json")))
    return {key: max(row["value"] for row in rows if row["key"] == key) for key in {row["key"] for row in rows}}


@pytest.mark.long("CAST(*", "date_add(DATE'1969-12-20', CAST(n AS INT))")
@pytest.mark.parametrize(
    "column",
    [
        "n",
        "CAST(n AS DECIMAL(12, 3)) / 7",
        "format_string('%05d', n)",
        "date_add(DATE'1969-12-20', CAST(n AS INT))",
        "timestamp_micros(n * 1000003 - 15000000)",
        "CAST(timestamp_micros(n * 1000003) AS TIMESTAMP_NTZ)",
    ],
)
def test_a_later_run_reads_what_is_above_the_largest_value_of_the_one_before(
    spark: Any, tmp_path: Path, staging: Path, column: str
) -> None:
    def written(first: int, last: int) -> None:
        rows = spark.range(first, last).selectExpr("id AS n").selectExpr("n", f"{column} AS at")
        rows.write.mode("append").parquet(str(tmp_path / "rows"))

    def source() -> sources.Spark:
        return sources.Spark(path=tmp_path / "rows", columns=["n"], since="at")

    written(0, 10)
    assert run(source(), tmp_path).read == 10
    assert last_totals(tmp_path) == {0: 20, 1: 25}
    written(10, 14)
    assert run(source(), tmp_path, 3).read == 4
    assert last_totals(tmp_path) == {0: 42, 1: 49}
    if column != "n":
        return  # The other types differ only in how the bound is written.
    nothing = run(source(), tmp_path, 2)
    assert (nothing.read, nothing.written) == (0, 0)
    written(14, 15)
    assert run(source(), tmp_path).read == 1
    assert last_totals(tmp_path) == {0: 56, 1: 49}
    assert not list(staging.glob("*/pin-*"))


def test_a_stopped_run_reads_to_its_bound_before_a_later_one_reads_on(spark: Any, tmp_path: Path) -> None:
    def written(first: int, last: int) -> None:
        spark.range(first, last).selectExpr("id AS n").write.mode("append").parquet(str(tmp_path / "rows"))

    def source() -> sources.Spark:
        return sources.Spark(path=tmp_path / "rows", since="n")

    for drain in (False, True):
        written(drain * 60_000, drain * 60_000 + 50_000)
        kept = mp.Snapshots(str(tmp_path / "snapshots"))
        runtime = mp.InProcess(snapshots=kept, batch=mp.Batching(rows_max=50))
        handle = runtime.start(nightly(source(), tmp_path / "out"), control=False)
        handle.stop(drain=drain)
        written(drain * 60_000 + 50_000, drain * 60_000 + 60_000)
        # The rest of the stopped run is read first, in a separate run; rows that arrived in that time are for the next.
        run(source(), tmp_path, 2)
        run(source(), tmp_path)
    assert last_totals(tmp_path) == {parity: sum(range(parity, 120_000, 2)) for parity in (0, 1)}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("CAST(NULL AS INT) AS at", "2 rows have no value in column 'at'"),
        ("CAST(id AS DOUBLE) AS at", "column 'at' is of type double"),
        ("id AS other", "the query has no column 'at'"),
    ],
)
def test_what_since_cannot_go_by_is_told(spark: Any, tmp_path: Path, columns: str, said: str) -> None:
    frame = spark.range(2).selectExpr("id AS n", columns)
    with pytest.raises(SourceError, match=said):
        run(sources.Spark(frame, since="at"), tmp_path)


def test_since_is_the_name_of_a_column() -> None:
    with pytest.raises(PlanError, match="since must be a str"):
        sources.Spark(table="flights", since=3)  # type: ignore[arg-type]
