"""SQL over the state of steps: what it finds, what it refuses, and that it reads nothing else."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, sources, windows
from malstrom_py.errors import PlanError
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.workers.control import step_state
from tests.unit.workers.harness import PATIENCE_S, start

ROWS = [{"room": "abc"[n % 3], "n": n} for n in range(30)]


@pytest.fixture(scope="module")
def handle() -> mp.JobHandle:
    """A job that has ended, with state in four steps, one of them not to be shown."""
    job = mp.Job("rooms")
    by_room = job.source("in", sources.Memory(ROWS)).key_by("key", "room")
    by_room.aggregate("means", mean=agg.mean("n"), most=agg.max("n")).sink("out", sinks.Memory())
    by_room.count("step-count").sink("out-2", sinks.Memory())
    by_room.sum("Total", by="n").sink("out-3", sinks.Memory())
    by_room.window("sliding", windows.sliding(10, 5, clock="processing")).count().sink("out-4", sinks.Memory())
    started = start(job, snapshots=mp.Snapshots(MemoryStore(), interval_s=None))
    started.wait(timeout_s=PATIENCE_S)
    return started


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("select room, mean from means order by mean desc limit 1", [{"room": "c", "mean": 15.5}]),
        ('select max(value) as most from "step-count"', [{"most": 10}]),
        ("select sum(value) as s from total where room = 'a'", [{"s": 135}]),
        ("SELECT sum(most) FROM Means", [{"sum(most)": 84}]),
        ('with x as (from means) select count(*) as n from x join "step-count" using (room)', [{"n": 3}]),
        ("select room from means where room in (select room from total where value > 150)", [{"room": "c"}]),
        ("select sum(value) * 100000000000000000000 as s from total where room = 'a'", [{"s": 135 * 10**20}]),
        ("select 1 as one", [{"one": 1}]),
        ("select 1 as a, 2 as a, 3 as a_1", [{"a": 1, "a_2": 2, "a_1": 3}]),
    ],
)
def test_a_query_sees_each_step_as_a_table(sql: str, rows: list[dict[str, Any]], handle: mp.JobHandle) -> None:
    found = handle.query(sql)
    assert found.to_pylist() == rows
    assert found.schema.metadata == {b"snapshot": str(handle.wait().last_snapshot).encode()}


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("selec room", "the query is wrong: syntax error"),
        ("", "a query is one SELECT"),
        ("select 1" + " + 1" * 600, "the query is wrong: it nests too deeply"),
        ("select 1; select 2", "a query is one SELECT"),
        ("create table a as select 1", "a query is one SELECT"),
        ("copy means to '/tmp/means.csv'", "a query is one SELECT"),
        ("install httpfs", "a query is one SELECT"),
        ("select x from means", 'column "x" not found(.|\n)*steps with state, by name: means, step-count, Total$'),
        ("select * from missing", "missing does not exist(.|\n)*by name: means, step-count, Total$"),
        ("select * from sliding", "step 'sliding' whose state is internal"),
        ("select * from '/etc/hostname'", "the query fails"),
        ("select * from read_csv('/etc/hostname')", "the query fails: Permission"),
        ("select * from read_text('/etc/hostname')", "the query fails: Permission"),
        ("select * from ROWS", "the query "),
        ("select * from found", "the query fails"),
        ("select cast(room as integer) from means", "the query fails: Conversion"),
    ],
)
def test_a_wrong_query_is_refused(sql: str, said: str, handle: mp.JobHandle) -> None:
    with pytest.raises(PlanError, match=said):
        handle.query(sql)


def test_only_the_steps_that_are_named_are_read(handle: mp.JobHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    right = step_state.StepReader.table

    def noted(reader: Any, *given: Any) -> Any:
        read.append(reader.step)
        return right(reader, *given)

    monkeypatch.setattr(step_state.StepReader, "table", noted)
    handle.query("select sum(value) as means from total")
    assert read == ["Total"]


def test_duckdb_is_named_where_it_is_missing(handle: mp.JobHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(PlanError, match="queries are made by DuckDB: pip install 'duckdb>="):
        handle.query("select 1")
