"""Joins by window against a definition: in one process, and in the simulator with moves, losses and snapshots."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sinks, sources, windows
from malstrom_py.errors import PlanError
from malstrom_py.operators.window import How
from malstrom_py.snapshot.store import MemoryStore

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
@settings(max_examples=30, deadline=None)
@given(left=ROWS, right=ROWS, batch=st.sampled_from((1, 3, 1024)), workers=st.integers(1, 2))
def test_records_of_a_window_are_paired(how: How, left: list[Row], right: list[Row], batch: int, workers: int) -> None:
    job, out = join_of(left, right, how, windows.tumbling(SIZE))
    mp.run(job, workers=workers, batch=mp.Batching(rows_max=batch), progress=False, checks=True)
    assert found(out) == expected(left, right, how)


def test_r4_p2_pairs_come_once_through_moves_losses_and_snapshots() -> None:
    left = [(f"k{number % 7}", number) for number in range(80)]
    right = [(f"k{number % 7}", number // 2 * 2) for number in range(80)]
    want = expected(left, right, "outer")
    for seed in range(20):
        job, out = join_of(left, right, "outer", windows.tumbling(SIZE))
        kept = mp.Snapshots(MemoryStore(), interval_s=0.001)
        mp.Simulation(workers=2, seed=seed, crashes=seed % 3, snapshots=kept).run(job)
        assert found(out) == want, seed


def test_sessions_pair_what_they_join() -> None:
    job, out = join_of([("a", 1), ("a", 9), ("a", 30)], [("a", 5)], "left", windows.session(5))
    mp.run(job, progress=False)
    assert found(out) == Counter({("a", (1, 5)): 1, ("a", (9, 5)): 1, ("a", (30, None)): 1})


def test_a_join_that_is_not_possible_is_refused() -> None:
    job = mp.Job("join")
    left, right = keyed(job, "left", []), keyed(job, "right", [])
    with pytest.raises(PlanError, match="how must be"):
        left.join("join", right, how="full", window=windows.tumbling(SIZE))
    with pytest.raises(PlanError, match="windows of time"):
        left.join("join", right, window=windows.count(2))
    with pytest.raises(PlanError, match="keyed stream"):
        left.join("join", job.source("plain", sources.Memory([1])), window=windows.tumbling(SIZE))
    other = job.source("other", sources.Memory([1])).key_by("key-other", lambda n: n)
    with pytest.raises(PlanError, match="timed differently"):
        left.join("join", other, window=windows.tumbling(SIZE))
