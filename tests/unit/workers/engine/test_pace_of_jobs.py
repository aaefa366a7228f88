"""For fast and slow rows: commands wait for a tenth of a second at most, and few rows are queued before a barrier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import PlanError
from malstrom_py.rescale.channels.channel import OPEN
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.coordinator.coordinator import Coordinator
from malstrom_py.workers.coordinator.recovery import SnapshotUse
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.runtime.local_workers import LocalWorkers
from malstrom_py.workers.simulator.direct_background import DirectBackground


class Slowly:
    """A job of ``build(stream, slowly)``, where ``slowly`` passes a value on after ``row_s``, which may be changed.

    ``longest_s``: how long a step of all workers has taken at most since `watch`.
    """

    def __init__(
        self,
        build: Callable[[Any, Slowly], Any],
        row_s: float,
        *,
        workers: int = 1,
        interval_s: float | None = None,
        rows_max: int = 1024,
        source: Any = None,
    ) -> None:
        self.row_s = row_s
        self.clock = VirtualClock(start_s=1e6)
        self.rows = 0
        self.longest_s = 0.0
        self.largest = 0
        job = mp.Job("slowly")
        build(job.source("in", source or endless()), self)
        snapshot_use = SnapshotUse(mp.Snapshots(MemoryStore(), interval_s=interval_s))
        plan = job.plan()
        self.coordinator = Coordinator(
            plan,
            LocalWorkers(plan, self.clock, mp.Batching(rows_max=rows_max)),
            workers=workers,
            clock=self.clock,
            snapshot_use=snapshot_use,
            background=DirectBackground,
        )
        self.coordinator.begin()
        self.coordinator.open()

    def __call__(self, value: Any) -> Any:
        self.rows += 1
        self.clock.advance(self.row_s)
        return value

    def by_batch(self, batch: Any) -> None:
        """The same as the function of a sink that takes batches."""
        self.rows += len(batch)
        self.largest = max(self.largest, len(batch))
        self.clock.advance(self.row_s * len(batch))

    def step(self) -> None:
        began_s = self.clock.monotonic_s()
        self.coordinator.step()
        self.longest_s = max(self.longest_s, self.clock.monotonic_s() - began_s)

    def go(self, duration_s: float) -> Slowly:
        """So long, of the clock."""
        until_s = self.clock.monotonic_s() + duration_s
        while self.clock.monotonic_s() < until_s:
            self.step()
        return self

    def until_done(self, ask: Callable[[Callable[[Any], None]], None]) -> float:
        """How long it takes until what is asked for is done."""
        done: list[Any] = []
        began_s = self.clock.monotonic_s()
        ask(done.append)
        while not done:
            self.step()
            assert self.clock.monotonic_s() < began_s + 300
        assert not isinstance(done[0], BaseException), done[0]
        return self.clock.monotonic_s() - began_s

    def snapshot_s(self) -> float:
        """How long a snapshot takes from the request to its end."""
        return self.until_done(self.coordinator.snapshot)

    def rescale_s(self, size: int) -> float:
        """How long it takes to go to ``size`` workers."""
        return self.until_done(lambda done: self.coordinator.rescale(size, done))

    def gaps_s(self, duration_s: float) -> list[float]:
        """The times between the snapshots of so long."""
        until_s = self.clock.monotonic_s() + duration_s
        made, at_s, gaps = 0, self.clock.monotonic_s(), list[float]()
        while self.clock.monotonic_s() < until_s:
            self.step()
            status = self.coordinator.snapshots
            if status is not None and status.made > made:
                made = status.made
                gaps.append(self.clock.monotonic_s() - at_s)
                at_s = self.clock.monotonic_s()
        return gaps


def endless(parts: int = 4) -> Any:
    return sources.Generator(lambda part, start: iter(range(start or 0, 1 << 60)), parts=parts)


def into_slow_sink(stream: Any, slowly: Slowly) -> None:
    stream.key_by("key", lambda n: n % 1000).count("n").sink("out", sinks.Callable(slowly))


ROW_S = [0.0004, 0.005]
ENTERS_S = 0.1
PASSES_S = 1.2


def test_snapshots_keep_their_interval_though_a_function_is_slow() -> None:
    def build(stream: Any, slowly: Slowly) -> None:
        stream.map("slow", slowly).key_by("key", lambda n: n % 9).count("n").sink("out", sinks.Memory())

    slowly = Slowly(build, 0.002, interval_s=1.0)
    gaps = slowly.gaps_s(30.0)
    assert len(gaps) >= 25
    assert max(gaps) < 1.3
    assert slowly.longest_s <= ENTERS_S


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("row_s", [0.0005, 0.002, 0.02])
def test_a_barrier_enters_within_a_tenth_of_a_second_where_a_function_is_slow(row_s: float, workers: int) -> None:
    def build(stream: Any, slowly: Slowly) -> None:
        stream.key_by("key", lambda n: n % 9).map("slow", slowly).count("n").sink("out", sinks.Memory())

    slowly = Slowly(build, row_s, workers=workers).go(5.0)
    slowly.longest_s = 0.0
    slowly.go(5.0)
    assert slowly.longest_s <= ENTERS_S + workers * row_s


@pytest.mark.parametrize("row_s", ROW_S)
def test_barriers_and_rescales_pass_a_slow_sink(row_s: float) -> None:
    slowly = Slowly(into_slow_sink, row_s, workers=3, rows_max=200).go(3.0)
    assert max(slowly.snapshot_s() for _ in range(3)) <= PASSES_S
    for size in (2, 3, 4, 1, 3):
        assert slowly.rescale_s(size) <= 10.0
        assert slowly.snapshot_s() <= PASSES_S


def test_they_pass_though_a_sink_that_was_fast_has_become_slow() -> None:
    slowly = Slowly(into_slow_sink, 1e-6, workers=3).go(1.0)
    fast = slowly.rows
    assert fast > 100_000
    slowly.row_s = 0.0004
    slowly.go(10.0)  # the rows that were taken at high speed are processed
    slowly.longest_s = 0.0
    assert slowly.snapshot_s() <= PASSES_S
    assert slowly.rescale_s(2) <= 10.0
    assert slowly.longest_s <= ENTERS_S
    slowly.row_s = 1e-6
    slowly.go(1.0)
    before = slowly.rows
    slowly.go(1.0)
    assert slowly.rows - before > 0.7 * fast, "it does not become fast again"


def into_one_of_three(stream: Any, slowly: Slowly) -> None:
    """Almost all rows are of one key."""
    stream.key_by("key", lambda n: 7 if n % 20 else n).count("n").sink("out", sinks.Callable(slowly))


def into_many(stream: Any, slowly: Slowly) -> None:
    """Each row becomes many."""
    many = stream.flat_map("many", lambda n: [n] * 100)
    many.key_by("key", lambda n: n % 1000).sink("out", sinks.Callable(slowly))


def through_two_exchanges(stream: Any, slowly: Slowly) -> None:
    first = stream.key_by("key", lambda n: n % 1000).map("same", lambda n: n)
    first.key_by("again", lambda n: n % 100).sink("out", sinks.Callable(slowly))


def of_columns(stream: Any, slowly: Slowly) -> None:
    chosen = stream.filter("some", pl.col("n") >= 0).key_by("key", "n")
    chosen.sink("out", sinks.Callable(slowly.by_batch, batch=True))


@pytest.mark.parametrize(
    ("build", "row_s", "began_s", "passes_s"),
    [
        (into_one_of_three, 0.0004, 3.0, PASSES_S),
        (into_many, 0.0004, 4.0, PASSES_S),
        (through_two_exchanges, 0.0004, 6.0, 2 * PASSES_S),
        (of_columns, 0.0001, 3.0, PASSES_S),
    ],
)
def test_they_pass_slow_sinks_of_every_shape(build: Any, row_s: float, began_s: float, passes_s: float) -> None:
    source = sources.Memory([{"n": n} for n in range(1_000_000)], parts=3) if build is of_columns else None
    slowly = Slowly(build, row_s, workers=3, source=source).go(began_s)
    assert max(slowly.snapshot_s() for _ in range(3)) <= passes_s
    assert slowly.rescale_s(2) <= 10.0


def test_a_sink_that_takes_as_long_for_one_row_as_for_many_gets_many() -> None:
    def build(stream: Any, slowly: Slowly) -> None:
        def write(batch: Any) -> None:
            slowly.rows += len(batch)
            slowly.clock.advance(0.1)

        stream.key_by("key", lambda n: n % 1000).sink("out", sinks.Callable(write, batch=True))

    slowly = Slowly(build, 0.0, workers=2).go(20.0)
    before = slowly.rows
    slowly.go(10.0)
    assert slowly.rows - before > 10 / 0.1 * 200


def test_what_is_fast_is_not_limited() -> None:
    def build(stream: Any, slowly: Slowly) -> None:
        stream.key_by("key", lambda n: n % 1000).count("n").sink("out", sinks.Callable(slowly.by_batch, batch=True))

    slowly = Slowly(build, 1e-7, workers=3).go(0.1)
    slowly.largest = 0
    slowly.go(0.1)
    workers = slowly.coordinator.group.hosted
    windows = [channel.window for w in workers for e in w._graph.exchanges.values() for channel in e.remote.values()]
    assert windows == [OPEN] * 6
    assert slowly.largest >= 1024


def test_where_the_clock_stands_still_nothing_is_limited() -> None:
    slowly = Slowly(into_slow_sink, 0.0, workers=3, source=endless(3))
    for _ in range(50):
        slowly.coordinator.step()
    sources_read = [w._graph.operators["in"] for w in slowly.coordinator.group.hosted]
    rows = min(reader.batch_size.rows for read in sources_read for reader in read._readers)  # type: ignore[attr-defined]
    assert rows >= 1024


def test_a_part_that_is_slow_to_poll_does_not_have_the_others_read_in_small_pieces() -> None:
    clock, at_s = VirtualClock(start_s=1e6), dict[int, float]()

    def rows(part: int, start: int) -> Iterator[int]:
        for row in range(start, 20_000 if part else 400):
            if not part:
                clock.advance(0.03)
            yield row
        at_s[part] = clock.monotonic_s()

    job, began_s = mp.Job("parts"), clock.monotonic_s()
    job.source("in", sources.Generator(rows, parts=2)).sink("out", sinks.Callable(lambda _: None))
    mp.InProcess(1, clock=clock, progress=False).run(job)
    assert at_s[1] - began_s < 3.0


# Batching: what it is by default, and which settings make no sense.


@pytest.mark.parametrize("rows_max", [0, -1, 1.5, "10", None, True])
def test_rows_max_is_a_whole_number_above_0(rows_max: Any) -> None:
    with pytest.raises(PlanError, match="Batching: rows_max"):
        Batching(rows_max=rows_max)


@pytest.mark.parametrize("linger_s", [-0.1, 61, float("nan"), float("inf"), "1", None])
def test_linger_is_a_time_of_at_most_a_minute(linger_s: Any) -> None:
    with pytest.raises(PlanError, match="Batching: linger_s"):
        Batching(linger_s=linger_s)


@pytest.mark.parametrize("rows_max", [1, 2, 3, 1000])
def test_rows_max_cuts_what_a_source_gives_and_changes_no_result(rows_max: int) -> None:
    sizes: list[int] = []

    class Watched(sources.Memory[int]):
        def build_part(self, part: Any, state: Any) -> Any:
            built = super().build_part(part, state)
            poll = built.poll

            def watched(rows_max: int) -> list[int]:
                polled = poll(rows_max)
                sizes.append(len(polled))
                return polled

            built.poll = watched  # type: ignore[method-assign]
            return built

    stream = mp.Job("a").source("numbers", Watched([1] * 40)).key_by("all", lambda n: "all").sum("sum")
    assert mp.collect(stream, batch=Batching(rows_max=rows_max)) == list(range(1, 41))
    # A part is asked for few rows at first and for twice as many each time.
    expected = [min(size, rows_max) for size in (4, 8, 16)]
    assert sizes[:3] == expected
    assert max(sizes) <= rows_max


@pytest.mark.parametrize("amount", [0, -1, 1.5, "a", True])
def test_a_credit_is_a_whole_number(amount: Any) -> None:
    with pytest.raises(PlanError, match="Credit: rows must be a whole number"):
        mp.Credit(rows=amount)
    with pytest.raises(PlanError, match="Credit: size must be a whole number"):
        mp.Credit(size=amount)
    with pytest.raises(PlanError, match=r"credit must be a Credit\(rows=, size=\)"):
        Batching(credit=amount)
