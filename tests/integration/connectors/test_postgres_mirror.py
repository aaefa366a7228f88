"""The example that mirrors a table of PostgreSQL into a Delta table, while it is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.integration.connectors.postgres_tools import new_database, run
from tests.servers import Server
from tests.tree import ROOT

pytestmark = pytest.mark.needs_postgres

KILLS = 3


@pytest.fixture
def dsn(postgres: Server) -> Iterator[str]:
    with new_database(postgres) as dsn:
        run(
            dsn,
            "CREATE TABLE sales (id int PRIMARY KEY, item text NOT NULL, price numeric(9,2), note text)",
            "ALTER TABLE sales REPLICA IDENTITY FULL",
            "CREATE PUBLICATION sales_pub FOR TABLE sales",
        )
        run(dsn, "SELECT pg_create_logical_replication_slot('sales_slot', 'pgoutput')")
        yield dsn


def started(dsn: str, folder: Path, workers: int, **environment: str) -> subprocess.Popen[bytes]:
    options = ["--snapshots", str(folder / "snapshots"), "--interval", "0.3", "--workers", str(workers), "--quiet"]
    names = {"MIRROR_FROM": dsn, "MIRROR_TO": str(folder / "table"), **environment}
    command = [sys.executable, "-m", "malstrom_py", "run", "examples.mirror:job", *options]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **names}, start_new_session=True)


def change(dsn: str, drawn: random.Random, number: int) -> None:
    """Insert, update, delete and renumber some rows; an update leaves a large value alone."""
    known, some = number * 1_000, drawn.randrange(1, 900)
    run(
        dsn,
        f"INSERT INTO sales SELECT {known} + i, 'item ' || i, i, repeat(md5(i::text), 200)"
        " FROM generate_series(1, 200) i",
        f"UPDATE sales SET price = price + 1 WHERE id % 7 = {some % 7}",
        f"DELETE FROM sales WHERE id % 11 = {some % 11}",
        f"UPDATE sales SET id = id + 500 WHERE id BETWEEN {known + 1} AND {known + 40}",
        f"DELETE FROM sales WHERE id = {known + 541}",
    )


def test_the_table_is_equal_to_its_origin_after_kills(dsn: str, tmp_path: Path) -> None:
    drawn = random.Random(7)
    for number in range(KILLS):
        job = started(dsn, tmp_path, workers=1 + number % 3)
        try:
            ends = time.monotonic() + drawn.uniform(2.0, 4.0)
            while time.monotonic() < ends:
                change(dsn, drawn, number)
                break
            time.sleep(max(0.0, ends - time.monotonic()))
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    change(dsn, drawn, KILLS)
    last = started(dsn, tmp_path, workers=2, MIRROR_UNTIL="now")
    assert last.wait(timeout=100) == 0
    columns = ["id", "item", "price", "note"]
    origin: list[Any] = run(dsn, "SELECT id, item, price, note FROM sales ORDER BY id")
    assert len(origin) > 300
    assert pl.read_delta(str(tmp_path / "table")).sort("id").select(columns).rows() == origin
