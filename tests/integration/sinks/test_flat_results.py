"""Sessions of two workers in tables, as each reader sees them: flat columns, and times with a zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, sources, windows

BEGIN = datetime(1969, 12, 31, 23, 30, tzinfo=UTC)
CLICKS = [
    {"user": f"user-{n % 7}", "at": BEGIN + timedelta(minutes=n * 3 + (n // 20) * 40), "ms": n if n % 5 else None}
    for n in range(60)
]


def sessions() -> list[tuple[Any, ...]]:
    """Return what the job below finds, found in another way."""
    found = []
    for user in {click["user"] for click in CLICKS}:
        run: list[Any] = []
        for click in [*(one for one in CLICKS if one["user"] == user), None]:
            if run and (click is None or click["at"] - run[-1]["at"] >= timedelta(minutes=30)):
                known = [one["ms"] for one in run if one["ms"] is not None]
                end = run[-1]["at"] + timedelta(minutes=30)
                found.append((user, run[0]["at"], end, len(run), sum(known) if known else None))
                run = []
            run.append(click)
    return sorted(found)


def run(sink: Any, *, columns: bool) -> None:
    job = mp.Job("sessions")
    clicks: Any = job.source("clicks", sources.Memory(CLICKS))
    clicks = clicks.select("columns", "user", "at", "ms") if columns else clicks
    timed = clicks.assign_timestamps("time", "at", unit="us")
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(timedelta(hours=1)))
    visits = on_time.key_by("by-user", "user").window("visits", windows.session(timedelta(minutes=30)))
    visits.aggregate(clicks=agg.count(), ms=agg.sum("ms", skip_nulls=True)).sink("out", sink)
    mp.run(job, workers=2, progress=False)


def by_pyarrow(folder: Path) -> list[tuple[Any, ...]]:
    table = ds.dataset(folder, format="parquet").to_table()
    assert table.schema.field("window_start").type == pa.timestamp("us", "UTC")
    return [tuple(row.values()) for row in table.to_pylist()]


def by_polars(folder: Path) -> list[tuple[Any, ...]]:
    return pl.read_parquet(folder / "*.parquet").rows()


def by_duckdb(folder: Path) -> list[tuple[Any, ...]]:
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    found = connection.execute(f"select * from read_parquet('{folder}/*.parquet')")
    assert [column[1] for column in found.description][1:3] == ["TIMESTAMP WITH TIME ZONE"] * 2
    return [(user, start.astimezone(UTC), end.astimezone(UTC), *rest) for user, start, end, *rest in found.fetchall()]


@pytest.mark.parametrize("columns", [False, True])
def test_every_reader_of_parquet_sees_the_sessions(columns: bool, tmp_path: Path) -> None:
    run(sinks.Files(tmp_path), columns=columns)
    for read in (by_pyarrow, by_polars, by_duckdb):
        assert sorted(read(tmp_path)) == sessions(), read.__name__


@pytest.mark.parametrize("columns", [False, True])
def test_tables_of_delta_and_iceberg_have_them(columns: bool, tmp_path: Path) -> None:
    run(sinks.Delta(tmp_path / "delta"), columns=columns)
    assert sorted(pl.read_delta(str(tmp_path / "delta")).rows()) == sessions()
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    run(sinks.Iceberg("web.sessions", catalog=catalog), columns=columns)
    rows = mp.collect(mp.Job("read").source("rows", sources.Iceberg("web.sessions", catalog=catalog)))
    assert sorted(tuple(row.values()) for row in rows) == sessions()


def test_csv_and_json_hold_them(tmp_path: Path) -> None:
    run(sinks.Files(tmp_path / "csv", format="csv"), columns=False)
    run(sinks.Files(tmp_path / "json", format="json"), columns=True)
    found = pl.read_csv(tmp_path / "csv" / "*.csv", try_parse_dates=True)
    assert sorted(found.rows()) == sessions()
    lines = pl.read_ndjson(tmp_path / "json" / "*.json").with_columns(
        pl.col("window_start", "window_end").str.to_datetime(time_zone="UTC")
    )
    assert sorted(lines.rows()) == sessions()
