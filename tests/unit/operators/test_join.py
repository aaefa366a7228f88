"""Joins by window against a definition: in one process, and in the simulator with moves, losses and snapshots."""

from __future__ import annotations

import math
from collections import Counter
from datetime import timedelta
from operator import itemgetter
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import partitioners, sinks, sources, windows
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.errors import OperatorError, PlanError
from malstrom_py.operators.join import How
from malstrom_py.testing import OperatorTester

BOUND: Final = 6
SIZE: Final = 10
HOWS: Final[tuple[How, ...]] = ("inner", "left", "outer")

Row = tuple[str, int]
"""A key and a time."""

ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40)), max_size=15)


def keyed(job: mp.Job, name: str, rows: list[Row]) -> Any:
    timed = job.source(name, sources.Memory(rows)).assign_timestamps(f"time-{name}", lambda row: row[1])
    on_time, _ = timed.generate_epochs(f"epochs-{name}", mp.limit_out_of_orderness(BOUND))
    return on_time.key_by(f"key-{name}", lambda row: row[0]).map(f"number-{name}", lambda row: row[1])


def join_of(left: list[Row], right: list[Row], how: How, window: windows.Windows) -> tuple[mp.Job, sinks.Memory]:
    job, out = mp.Job("join"), sinks.Memory()
    keyed(job, "left", left).join("join", keyed(job, "right", right), how=how, window=window).sink("out", out)
    return job, out


def on_time(rows: list[Row]) -> list[Row]:
    kept, epoch = [], -1
    for key, time in rows:
        if time > epoch:
            kept.append((key, time))
            epoch = max(epoch, time - BOUND - 1)
    return kept


def expected(left: list[Row], right: list[Row], how: How) -> Counter[Any]:
    """Return the pairs of tumbling windows, by key."""
    left, right = on_time(left), on_time(right)
    found: Counter[Any] = Counter()
    for key, window in {(key, time // SIZE) for key, time in (*left, *right)}:
        lefts: list[Any] = [time for at, time in left if (at, time // SIZE) == (key, window)]
        rights: list[Any] = [time for at, time in right if (at, time // SIZE) == (key, window)]
        if how != "inner":
            rights = rights or [None]
        if how == "outer":
            lefts = lefts or [None]
        found.update((key, (one, other)) for one in lefts for other in rights)
    return found


def found(out: sinks.Memory) -> Counter[Any]:
    return Counter((key, pair) for key, pairs in out.by_key.items() for pair in pairs)


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=12, deadline=None)
@given(left=ROWS, right=ROWS, batch=st.sampled_from((1, 3, 1024)), workers=st.integers(1, 2))
def test_records_of_a_window_are_paired(how: How, left: list[Row], right: list[Row], batch: int, workers: int) -> None:
    job, out = join_of(left, right, how, windows.tumbling(SIZE))
    mp.run(job, workers=workers, batch=mp.Batching(rows_max=batch), progress=False, checks=True)
    assert found(out) == expected(left, right, how)


def test_sessions_pair_what_they_join() -> None:
    job, out = join_of([("a", 1), ("a", 9), ("a", 30)], [("a", 5)], "left", windows.session(5))
    mp.run(job, progress=False)
    assert found(out) == Counter({("a", (1, 5)): 1, ("a", (9, 5)): 1, ("a", (30, None)): 1})


def test_a_join_that_is_not_possible_is_refused() -> None:
    job = mp.Job("join")
    left, right = keyed(job, "left", []), keyed(job, "right", [])
    tens = windows.tumbling(SIZE)
    plain = job.source("plain", sources.Memory([1]))
    other = plain.key_by("key-other", lambda n: n)
    apart = left.key_by("key-apart", lambda n: n, partitioner=partitioners.index)
    foreign = keyed(mp.Job("foreign"), "right", [])
    cases: list[tuple[Any, str]] = [
        (lambda: left.join("join", right, how="full", window=tens), "how must be"),
        (lambda: left.join("join", right, window=windows.count(2)), "windows of event time"),
        (lambda: left.join("join", right, window=windows.tumbling(SIZE, clock="processing")), "windows of event time"),
        (lambda: left.join("join", plain, window=tens), "keyed stream"),
        (lambda: left.join("join", other, window=tens), "timed differently"),
        (lambda: left.join("join", apart, window=tens), "a join of differently keyed streams"),
        (lambda: left.join("join", foreign, window=tens), "one job only"),
        (lambda: other.join("join", other, window=tens), "no watermarks"),
        (lambda: left.join_interval("join", right, lower=2, upper=1), "lower is above upper"),
        (lambda: left.join_interval("join", right, lower=True, upper=2), "lower must be a timedelta"),
        (lambda: left.join_interval("join", right, lower=timedelta(microseconds=1), upper=2), "not a whole number"),
        (lambda: left.join_interval("join", right, lower=0, upper=1, how="right"), "how must be"),
        (lambda: other.join_interval("join", other, lower=0, upper=1), "no watermarks"),
        (lambda: left.join_asof("join", right, direction="before"), "direction must be"),
        (lambda: left.join_asof("join", right, tolerance=-1), "must not be negative"),
        (lambda: left.join_asof("join", right, how="outer"), "how must be"),
        (lambda: left.join_asof("join", plain), "keyed stream"),
        (lambda: left.join_table("join", plain), "keyed stream"),
        (lambda: left.join_table("join", other), "timed differently"),
        (lambda: left.join_table("join", right, how="outer"), "how must be"),
        (lambda: left.join_table("join", right, wait=0), "wait must be above 0"),
        (lambda: left.join_table("join", right, wait="long"), "wait must be a timedelta"),
        (lambda: other.join_table("join", other, wait=5), "no watermarks"),
    ]
    for wrong, says in cases:
        with pytest.raises(PlanError, match=f"step 'join': .*{says}"):
            wrong()


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("apart", [True, False])
def test_a_table_that_is_a_branch_of_the_source_that_asks_it_is_refused(timed: bool, apart: bool) -> None:
    """By how batches are cut, (a, 2) would be paired with the value before it, or after it, or with none."""
    job = mp.Job("join")
    rows: Any = job.source("rows", sources.Memory([("a", 1), ("a", 2), ("a", 3)]))
    if timed:
        rows, _ = rows.assign_timestamps("at", itemgetter(1)).generate_epochs("epochs", mp.limit_out_of_orderness(1))
    if apart:
        asks = rows.filter("asks", lambda row: row[1] == 2).key_by("left", itemgetter(0))
        table = rows.filter("changes", lambda row: row[1] != 2).key_by("right", itemgetter(0)).map("n", itemgetter(1))
    else:
        asks = rows.key_by("key", itemgetter(0))
        table = asks.count("count")
    for wait in [False, 5] if timed else [False]:
        with pytest.raises(PlanError, match=r"come from the source 'rows', so which .* batches are cut") as refused:
            asks.join_table("join", table, wait=wait, how="left")
        assert ".join_asof('join', …, how='left')" in str(refused.value)
        assert ("after assign_timestamps" in str(refused.value)) is not timed
    if timed and apart:
        asks.join_asof("as-of", table).sink("out", out := sinks.Memory())
        for size in (1, 2, 1024):
            mp.run(job, progress=False, batch=mp.Batching(rows_max=size))
            assert set(out.items) == {(("a", 2), 1)}


@pytest.mark.parametrize("form", ["rows", "columns"])
@pytest.mark.parametrize("size", [1, 2, 1024])
def test_a_table_of_the_source_that_asks_it_must_not_change(form: str, size: int) -> None:
    """By how batches are cut, ask 2 would be paired with the value before it, or after it."""

    def joined(*rows: tuple[str, Any, int]) -> list[Any]:
        job = mp.Job("join")
        source: Any = job.source("rows", sources.Memory([dict(zip("kvn", row, strict=True)) for row in rows]))
        made = source.select("columns", "k", "v", "n") if form == "columns" else source
        table = made.filter("values", pl.col("n") == 0).key_by("right", "k")
        asks = made.filter("asks", pl.col("n") > 0).key_by("left", "k")
        asks.join_table("join", table, wait=True).sink("out", out := sinks.Memory())
        mp.run(job, progress=False, batch=mp.Batching(rows_max=size))
        return [(pair.left["n"], pair.right["v"]) for pair in out.items]

    nan = math.nan
    assert set(joined(("a", 7, 0), ("a", 0, 1), ("a", 7, 0), ("b", 0, 2), ("b", 8, 0))) == {(1, 7), (2, 8)}
    if form == "rows":
        array = np.array([1, 2])
        assert len(joined(("a", array, 0), ("a", array.copy(), 0), ("a", 0, 1))) == 1
    assert len(joined(("a", nan, 0), ("a", nan, 0), ("a", 0.0, 1))) == 1
    with pytest.raises(
        OperatorError, match=r"step 'join': the value of key 'a' .* changes from .*7.* to .*9.*join_asof"
    ):
        joined(("a", 7, 0), ("a", 0, 1), ("a", 9, 0))


def of_table(*messages: tuple[int, Any], **options: Any) -> list[Any]:
    """Return what `join_table` sends for rows of (side, rows) and epochs, as (value, time)."""
    tester = OperatorTester(lambda a, b: a.join_table("join", b, **options), keyed=True, timed=True, inputs=2)
    for side, rows in messages:
        tester.send_local(rows, input=None if isinstance(rows, Epoch) else side).step()
    found: list[Any] = [message for message in tester.receive_local() if not isinstance(message, Epoch)]
    return [(message.value, message.timestamp) for message in found]


def test_a_record_is_paired_with_the_value_that_the_table_has_when_it_is_processed() -> None:
    rows = [
        (0, [("a", 1, 5)]),
        (1, [("a", "x", 9), ("a", "y", 7)]),
        (0, [("a", 2, 6), ("b", 3, 6)]),
        (1, [("a", None, 10)]),
        (0, [("a", 4, 11)]),
    ]
    assert of_table(*rows) == [((2, "y"), 6)]
    assert of_table(*rows, how="left") == [((1, None), 5), ((2, "y"), 6), ((3, None), 6), ((4, None), 11)]


def test_a_record_waits_for_the_first_value_of_its_key() -> None:
    rows = [
        (0, [("a", 1, 5), ("b", 2, 6), ("a", 3, 12)]),
        (0, Epoch(8)),
        (1, [("a", None, 9), ("a", "x", 9), ("a", "y", 10)]),
        (0, [("a", 4, 11)]),
        (0, Epoch(MAX_EPOCH)),
    ]
    paired = [((1, "x"), 9), ((3, "x"), 12), ((4, "y"), 11)]
    assert of_table(*rows, wait=True) == paired
    assert of_table(*rows, wait=True, how="left") == [*paired, ((2, None), MAX_EPOCH - 1)]
    for moment, sent in ((Epoch(15), []), (Epoch(16), [((2, None), 16)])):
        assert of_table(*rows[:-1], (0, moment), wait=10, how="left") == [*paired, *sent]
    assert of_table(*rows[:2], (0, Epoch(15)), (1, [("a", "x", 16)]), wait=10, how="left") == [
        ((1, None), 15),
        ((3, "x"), 16),
    ]


@settings(max_examples=8, deadline=None)
@given(left=ROWS, known=st.sets(st.sampled_from("abc")), batch=st.sampled_from((1, 3, 1024)), timed=st.booleans())
def test_waiting_records_find_the_value_whenever_it_comes(
    left: list[Row], known: set[str], batch: int, timed: bool
) -> None:
    job, out = mp.Job("join"), sinks.Memory()
    if timed:
        rows, table = keyed(job, "left", left), keyed(job, "right", [(key, 0) for key in sorted(known)])
    else:
        rows = job.source("left", sources.Memory(left)).key_by("key-left", itemgetter(0)).map("time", itemgetter(1))
        table = job.source("right", sources.Memory(sorted(known))).key_by("key-right", str).map("none", lambda key: 0)
    rows.join_table("join", table, how="left", wait=True).sink("out", out)
    mp.run(job, workers=2, batch=mp.Batching(rows_max=batch), progress=False, checks=True)
    want = Counter((key, (time, 0 if key in known else None)) for key, time in (on_time(left) if timed else left))
    assert found(out) == want


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("wait", [4, True])
def test_s2_a_wait_that_has_ended_is_in_the_delta(wait: int | bool, columns: bool, how: Any) -> None:
    def new() -> OperatorTester:
        tester = OperatorTester(
            lambda a, b: a.join_table("join", b, how=how, wait=wait), keyed=True, timed=True, inputs=2, checks=False
        )
        return tester.track(lambda keys: [0] * len(keys))

    tester, other = new(), new()
    waits = Batch([{"n": 1}, {"n": 2}], keys=["a", "b"], timestamps=[5, 6])
    if columns:
        waits = ColumnBatch(pa.RecordBatch.from_pylist(waits.values), key_column=pa.array("ab"), timestamps=[5, 6])
    full = tester.send_local(waits).step().barrier("full")
    tester.send_local(Epoch(MAX_EPOCH if wait is True else 20)).step()
    sent = [message for message in tester.receive_local() if isinstance(message, DataMessage)]
    assert len(sent) == (2 if how == "left" else 0)
    other.install([full, tester.barrier("delta", parent="full")], slots=[0])
    (state,) = other.states.values()
    assert not len(state.values), "it would be sent again after a resume"
    other.send_local(Epoch(MAX_EPOCH)).step()
    assert not [message for message in other.receive_local() if isinstance(message, DataMessage)]


def test_a_key_that_cannot_be_hashed_is_named() -> None:
    for side in (0, 1):
        with pytest.raises(OperatorError, match="step 'join': a key of type list cannot be hashed"):
            of_table((side, [(["a"], 1, 5)]))


@pytest.mark.parametrize("window", [windows.tumbling(10), windows.sliding(10, 5), windows.session(10)])
def test_a_window_that_would_end_after_the_last_moment_closes(window: windows.Windows) -> None:
    job, out = join_of([("a", MAX_EPOCH - 1)], [("a", MAX_EPOCH - 2)], "inner", window)
    mp.run(job)
    assert set(out.items) == {(MAX_EPOCH - 1, MAX_EPOCH - 2)}
