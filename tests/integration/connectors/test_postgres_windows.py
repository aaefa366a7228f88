"""Results of windows in tables of PostgreSQL: flat, but where the table has the fields of the results."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, sources, windows
from tests.integration.connectors.postgres_tools import new_schema, run
from tests.servers import Server

pytestmark = pytest.mark.needs_postgres

SALES = [{"article": "tea", "at": 5}, {"article": "tea", "at": 9}, {"article": "jam", "at": 61}]
AT = [dt.datetime(1970, 1, 1, 0, minute, tzinfo=dt.UTC) for minute in range(3)]


@pytest.fixture
def dsn(postgres: Server) -> Iterator[str]:
    with new_schema(postgres) as dsn:
        yield dsn


@pytest.mark.parametrize("columns", [False, True])
def test_a_table_gets_flat_rows_or_the_fields_that_it_has(dsn: str, columns: bool) -> None:
    run(
        dsn,
        "CREATE TABLE flat (article text, window_start timestamptz, window_end timestamptz, n int,"
        " PRIMARY KEY (article, window_start))",
        'CREATE TABLE nested (key text, start bigint, "end" bigint, value jsonb, update boolean)',
    )
    job = mp.Job("sales")
    rows: Any = job.source("sales", sources.Memory(SALES))
    rows = rows.select("columns", "article", "at") if columns else rows
    timed = rows.assign_timestamps("time", "at", unit="s")
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(100))
    minutes = on_time.key_by("by", "article").window("minutes", windows.tumbling(60)).aggregate(n=agg.count())
    minutes.sink("flat", sinks.Postgres(dsn, "flat", mode="upsert", keys=["article", "window_start"]))
    minutes.sink("nested", sinks.Postgres(dsn, "nested"))
    mp.run(job, workers=2, progress=False)
    found = run(dsn, "SET timezone = 'UTC'", "SELECT * FROM flat ORDER BY window_start")
    assert found == [("tea", AT[0], AT[1], 2), ("jam", AT[1], AT[2], 1)]
    found = run(dsn, "SELECT * FROM nested ORDER BY start")
    assert found == [("tea", 0, 60, {"n": 2}, False), ("jam", 60, 120, {"n": 1}, False)]
