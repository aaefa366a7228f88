"""The queries of Nexmark find what DuckDB finds over the same events: in rows and in columns, and through rescales."""

from __future__ import annotations

from itertools import chain

import pytest

import malstrom_py as mp
from examples.nexmark.check import SQL, by_duckdb, in_order
from examples.nexmark.events import Events, Kind, Row
from examples.nexmark.queries import QUERIES, job_of
from malstrom_py import sinks
from tests.integration.commands import python

KINDS: tuple[Kind, ...] = ("person", "auction", "bid")

PER_DAY = {"q14", "q15", "q16", "q17"}
"""The queries whose results differ by day or by hour: few events a second, so that there are several."""

OF_PERSONS = {"q3", "q8"}
"""The queries about persons, who are two of a hundred events."""

IN_COLUMNS = pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])


def site(query: str, count: int, *, columns: bool = False, parts: int = 3) -> Events:
    """Return events of some minutes, or of some days, out of order."""
    per_second = count / 250_000 if query in PER_DAY else count / 200
    return Events(count, parts=parts, per_second=per_second, disorder_ms=1000, columns=columns)


@IN_COLUMNS
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_finds_what_duckdb_finds(query: str, columns: bool) -> None:
    events, out = site(query, 10_000, columns=columns), sinks.Memory()
    result = mp.run(job_of(query, events, out), 2, progress=False)
    expected = in_order(query, by_duckdb(query, events))
    assert in_order(query, out.items) == expected
    assert len(expected) > 2
    assert result.late == 0


@pytest.mark.long("13 more-*")
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("seeds", [range(13, 15), range(13)], ids=["2 seeds", "13 more"])
def test_a_query_finds_the_same_through_rescales_and_losses(query: str, seeds: range) -> None:
    out = sinks.Memory()
    sites = [site(query, 1500 if query in OF_PERSONS else 400, columns=columns) for columns in (False, True)]
    jobs = [job_of(query, events, out) for events in sites]
    expected = in_order(query, by_duckdb(query, sites[0]))
    moved = lost = 0
    for seed in seeds:
        result = mp.Simulation(workers=2, seed=seed, rescales=2, crashes=1).run(jobs[seed % 2])
        assert in_order(query, out.items) == expected, seed
        moved += result.hits.get("keys moved", 0) + result.hits.get("part moved", 0)
        lost += result.incarnations - 1
    assert moved
    assert lost * 2 >= len(seeds)  # a short job may end before its loss is due


def test_every_query_has_a_reference_and_says_what_it_asks() -> None:
    assert set(SQL) == set(QUERIES)
    assert [name for name, query in QUERIES.items() if ":" not in (query.__doc__ or "").partition(".")[0]] == []


def test_events_do_not_depend_on_parts_and_go_on_at_any_position() -> None:
    events = Events(997, seed=5, parts=3, disorder_ms=50)
    sources = (events.persons(), events.auctions(), events.bids())
    for kind, source in zip(KINDS, sources, strict=True):
        read: list[Row] = []
        for name in source.list_parts():
            part = source.build_part(name, None)
            while not part.is_finished():
                read += part.poll(7)
                part = source.build_part(name, part.snapshot())
        whole = Events(997, seed=5, disorder_ms=50).rows(kind)
        assert sorted(map(str, read)) == sorted(map(str, whole))
        assert whole == Events(5000, seed=5, disorder_ms=50).rows(kind)[: len(whole)]
        assert whole != Events(997, seed=6, disorder_ms=50).rows(kind)


def test_columns_are_the_rows() -> None:
    events = Events(3000, columns=True)
    part = events.bids().build_part("0", None)
    batches = []
    while not part.is_finished():
        batches.append(part.poll(1000).to_pylist())
    assert list(chain.from_iterable(batches)) == events.rows("bid")


def test_events_are_in_proportion_and_refer_to_each_other() -> None:
    persons, auctions, bids = (Events(50_000).rows(kind) for kind in KINDS)
    assert (len(persons), len(auctions), len(bids)) == (1000, 3000, 46_000)
    assert {row["id"] for row in persons} == set(range(1000, 2000))
    assert {row["id"] for row in auctions} == set(range(1000, 4000))
    assert {row["category"] for row in auctions} == set(range(10, 15))
    assert all(row["date_time"] < row["expires"] and row["initial_bid"] < row["reserve"] for row in auctions)
    assert all(100 <= row["price"] <= 100_000_000 for row in bids)
    # Three of four bids are of a hot bidder, one of two is for a hot auction.
    assert 0.7 < sum(row["bidder"] % 100 == 1 for row in bids) / len(bids) < 0.8
    assert 0.45 < sum(row["auction"] % 100 == 0 for row in bids) / len(bids) < 0.55
    assert [row["date_time"] for row in bids] == sorted(row["date_time"] for row in bids)


def test_the_program_runs_a_query_and_checks_it() -> None:
    arguments = ["--events", 5000, "--per-second", 100, "--workers", 2, "--columns", "--check"]
    ended = python("-m", "examples.nexmark", "q7", *arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "yes" in ended.stdout
