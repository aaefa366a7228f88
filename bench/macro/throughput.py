"""``python -m bench.macro.throughput``: W1 on one worker in this process, and on one and two workers on Ray, in turn.

W1 is a running sum per key, over 10,000 string keys, with the trivial user function and with one that works for 5 µs
on each record (a loop of so many turns as take that long here, at best); then records in columns through an exchange,
and windows over columns.
The source has four parts, which give their rows repeatedly, and the sink counts. A rate is what the sinks got
between two moments of a job that runs. Then the latency from source to sink at a fifth of the measured rate, and what
it costs to route a row. Ratios are taken round by round.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import malstrom_py as mp
from bench.macro import peer_queries as queries
from bench.macro.arrivals import Arrivals
from bench.macro.drawing import Panel, write_svg
from bench.macro.feeding import PARTS, Endless, Paced, Stamped
from bench.macro.on_ray import WHERE, Ran, ray_here, reads, run_for, runtime, verdict
from bench.macro.peer_queries import BIDS
from bench.micro import inputs, machine
from bench.micro.exchange import STEP, batches_of
from bench.micro.inputs import Pair
from bench.micro.timing import ratios, spread
from bench.micro.workloads import add, key_of
from malstrom_py import partitioners
from malstrom_py.codec import Codec
from malstrom_py.operators.base import StepContext
from malstrom_py.rescale.channels.channel import Credit
from malstrom_py.rescale.moves.placement import first_table
from malstrom_py.rescale.partitioners import slots_of_legal_keys
from malstrom_py.workers.engine.exchange import Exchange
from malstrom_py.workers.engine.flow_limits import Batching

WORK_US: Final = 5.0
ROWS: Final = 1 << 16
"""The number of rows of each part."""

TRIVIAL_BUDGET: Final = 0.8
WORK_BUDGET: Final = 1.75
COLUMNS_RATE: Final = 15e6
WINDOWS_BUDGET: Final = 1.4
RAY_P99_MS: Final = 20.0
HERE_P99_MS: Final = 5.0
ROUTING_NS: Final = 80.0
LOAD: Final = 0.2
SLOTS: Final = 1024
LAYOUTS: Final = ("in process, 1 worker", f"{WHERE}, 1 worker", f"{WHERE}, 2 workers")


def rows_of(part: int) -> list[Pair]:
    """The rows of one part: the same keys in all, each part from another place on."""
    rows = inputs.w1(ROWS, zipf=False)
    start = part * ROWS // PARTS
    return rows[start:] + rows[:start]


def columns_of(part: int) -> Any:
    """The same as columns."""
    import pyarrow as pa

    keys, values = zip(*rows_of(part), strict=True)
    return pa.record_batch({"user": pa.array(keys), "value": pa.array(values)})


@dataclass(frozen=True, slots=True)
class Add:
    """W1's function after a loop of ``turns`` turns."""

    turns: int

    def __call__(self, key: str, pair: Pair, total: int | None) -> tuple[int, int]:
        for _ in range(self.turns):
            pass
        return add(key, pair, total)


def turns_for(duration_us: float) -> int:
    """How many turns take that long, on an idle processor."""
    turns = 200
    for _ in range(4):  # more turns are dearer, for they count in larger numbers
        turns = max(1, round(turns * duration_us / (_best_us(Add(turns)) - _best_us(Add(0)))))
    return turns


def _best_us(work: Add) -> float:
    calls, best_s = 100, float("inf")
    for _ in range(100):
        started = perf_counter()
        for _ in range(calls):
            work("", ("", 1), 1)
        best_s = min(best_s, perf_counter() - started)
    return best_s / calls * 1e6


def w1(folder: str, function: Callable[[str, Pair, int | None], tuple[int, int]]) -> mp.Job:
    """A running sum per key."""
    job = mp.Job("w1")
    stream: Any = job.source("in", Endless(rows_of))
    stream.key_by("key", key_of).stateful_map("add", function).sink("out", Arrivals(folder, stamped=False))
    return job


def columns(folder: str) -> mp.Job:
    """Columns from the source over an exchange into the sink."""
    job = mp.Job("columns")
    stream: Any = job.source("in", Endless(columns_of))
    stream.key_by("key", "user").sink("out", Arrivals(folder, stamped=False))
    return job


def w2_of(part: int) -> Any:
    """W2's rows as columns: each part has the same times, and other keys."""
    return queries.table(inputs.w2(ROWS + part)[-ROWS:], "key", "time", "value")


def bids_of(part: int) -> Any:
    """Bids as columns."""
    return queries.table(queries.bids_of(ROWS), *BIDS["bids"][0])


def windowed(folder: str, build: Callable[[Any], Any], make: Callable[[int], Any]) -> mp.Job:
    """The steps of a query over columns, into a sink."""
    job = mp.Job("windows")
    build(job.source("in", Endless(make, "time"))).sink("out", Arrivals(folder, stamped=False))
    return job


def measure_windows(reps: int, seconds: float) -> None:
    """W2 and q5 over columns, on one and two workers: the rows read per second, and processor time per row."""
    for name, build, make in (("W2", queries.w2_columns, w2_of), ("q5", queries.q5_columns, bids_of)):
        rates: dict[str, list[float]] = {layout: [] for layout in LAYOUTS[1:]}
        costs: dict[str, list[float]] = {layout: [] for layout in LAYOUTS[1:]}
        for _ in range(reps):
            for layout in LAYOUTS[1:]:
                job = partial(windowed, build=build, make=make)
                ran = run_for(partial(started, layout, job), warm_s=min(2.0, seconds), seconds=seconds, ready=reads)
                rates[layout].append(ran.read_rate)
                costs[layout].append(ran.cpu_s / max(1, ran.read) * 1e6)
        for layout in LAYOUTS[1:]:
            rate, cost = spread([one / 1e3 for one in rates[layout]]), spread(costs[layout])
            print(f"{name + ' over columns':24} {layout:22} {rate.show(0):>28} k records/s, {cost.show(3)} µs each")
        compare(f"{name} over columns", rates, LAYOUTS[1], WINDOWS_BUDGET)
        # What two workers with a processor each would reach: independent of other programs.
        possible = 2 * spread(costs[LAYOUTS[1]]).median / spread(costs[LAYOUTS[2]]).median
        print(f"{name + ' over columns':24} by processor time {possible:.2f}")


def count(key: str, row: Stamped, seen: int | None) -> tuple[int, int]:
    """The time of the row, for the sink to see how old it is."""
    return row[1], (seen or 0) + 1


def paced(folder: str, rate: int) -> mp.Job:
    """W1 on rows that come at their time, and carry it."""
    job = mp.Job("paced")
    source: Any = Paced(inputs.KEYS, rate, "polled")
    stream: Any = job.source("in", source)
    stream.key_by("key", key_of).stateful_map("count", count).sink("out", Arrivals(folder, stamped=True))
    return job


def started(layout: str, make: Callable[[str], mp.Job], folder: str) -> mp.JobHandle:
    """A job that ``make`` has made, running."""
    if layout == LAYOUTS[0]:
        return mp.InProcess().start(make(folder), control=False)
    return runtime(2 if layout == LAYOUTS[2] else 1).start(make(folder), control=False)


def measure(
    name: str, make: Callable[[str], mp.Job], *, reps: int, seconds: float, layouts: Sequence[str] = LAYOUTS
) -> dict[str, list[float]]:
    """Rates per layout, round by round. The processor time is that of all workers, independent of other programs."""
    runs: dict[str, list[Ran]] = {layout: [] for layout in layouts}
    for _ in range(reps):
        for layout in layouts:
            run = run_for(partial(started, layout, make), warm_s=min(1.0, seconds), seconds=seconds, ready=reads)
            runs[layout].append(run)
    for layout, ran in runs.items():
        rate, cpu = spread([one.rate / 1e3 for one in ran]), spread([one.cpu_us for one in ran])
        print(f"{name:24} {layout:22} {rate.show(0):>28} k records/s, {cpu.show()} µs of processor time each")
    return {layout: [one.rate for one in ran] for layout, ran in runs.items()}


def compare(name: str, rates: dict[str, list[float]], over: str, budget: float | None) -> None:
    """One line: two workers on Ray relative to something else."""
    # Rates, and not times: who is faster has more.
    ratio = ratios(rates[LAYOUTS[2]], rates[over])
    judged = "" if budget is None else verdict(ratio.median, budget, at_least=True)
    print(f"{name:24} {WHERE}, 2 workers, of {over}: {ratio.show()} {judged}")


def latency(layout: str, rate: float, budget_ms: float, seconds: float) -> Ran:
    """From poll to sink at ``rate`` rows a second."""
    make = partial(paced, rate=int(rate))
    ran = run_for(partial(started, layout, make), warm_s=min(2.0, 2 * seconds), seconds=seconds, ready=reads)
    p50, p99, p999, most = (ran.age_ms(quantile) for quantile in (0.5, 0.99, 0.999, 1.0))
    print(
        f"latency, {layout}, at {ran.rate:,.0f} records/s: p50 {p50:.1f} ms, p99 {p99:.1f}, p99.9 {p999:.1f}, "
        f"largest {most:.1f}; p99 {verdict(p99, budget_ms, at_least=False)}"
    )
    return ran


class NoCodec(Codec):
    """Encodes nothing."""

    encode_batch = staticmethod(lambda batch, *, step: b"")


def routing_ns(workers: int, n: int) -> float:
    """What one row costs in the exchange: its key's slot from the cache, the slot's worker, and into the columns for
    this worker. The keys are new strings. Encoding is not in it, nor what channels do.
    """
    credit = Credit(rows=1 << 60, size=1 << 60)
    exchange = Exchange(
        StepContext("bench", STEP, codec=NoCodec()),
        tuple(range(workers)),
        first_table(SLOTS, range(workers)),
        slots=slots_of_legal_keys(partitioners.stable_hash, SLOTS, step=STEP),
        batching=Batching(bytes_max=1 << 40, credit=credit),
    )
    pairs = inputs.w1(n, zipf=False)
    seconds = 0.0
    for is_timed in (False, True):
        for batch in batches_of(pairs, 1024):
            begun = perf_counter()
            exchange.on_batch(batch)
            seconds += (perf_counter() - begun) * is_timed
            for channel in exchange.remote.values():
                channel.take()
            while exchange.loopback.take() is not None:
                exchange.loopback.freed()
    return seconds / n * 1e9


def draw(path: Path, layout: str, ran: Ran) -> None:
    """The oldest row and the rate over time."""
    line = list(ran.seen.line(ran.since_ns, ran.until_ns, 50_000_000))
    panels = [
        Panel("oldest record per 50 ms, ms", {layout: [(at, oldest_ms) for at, _, oldest_ms in line]}),
        Panel("records/s", {layout: [(at, rate) for at, rate, _ in line]}),
    ]
    write_svg(path, f"{layout}, a fifth of what two workers take", panels)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.macro.throughput", description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="how long each job is looked at")
    parser.add_argument("--reps", type=int, default=3, help="rounds, in turn; medians are printed")
    parser.add_argument("--out", type=Path, default=Path("bench-out"), help="where time lines go, as SVG")
    parser.add_argument("--windows", action="store_true", help="W2 and q5 over columns only")
    parser.add_argument("--quick", action="store_true", help="one short round: whether it works, not how fast")
    given = parser.parse_args(arguments)
    seconds, reps = (0.5, 1) if given.quick else (given.seconds, given.reps)
    print(machine.describe())
    with ray_here() as version:
        print(f"Ray {version}, workers of 0.5 CPU; {seconds:g} s each, medians of {reps} (lowest-highest)")
        if given.windows:
            measure_windows(reps, seconds)
            return 0
        trivial = measure("W1", partial(w1, function=add), reps=reps, seconds=seconds)
        compare("W1", trivial, LAYOUTS[0], TRIVIAL_BUDGET)
        compare("W1", trivial, LAYOUTS[1], None)
        turns = turns_for(WORK_US)
        work = measure("W1 with 5 µs of work", partial(w1, function=Add(turns)), reps=reps, seconds=seconds)
        compare("W1 with 5 µs of work", work, LAYOUTS[1], WORK_BUDGET)
        exchanged = measure("columns, exchange", columns, reps=reps, seconds=seconds, layouts=LAYOUTS[2:])
        judged = verdict(spread(exchanged[LAYOUTS[2]]).median / 1e6, COLUMNS_RATE / 1e6, at_least=True)
        print(f"columns, exchange        in millions of records/s: {judged}")
        measure_windows(reps, seconds)
        rate = LOAD * spread(trivial[LAYOUTS[2]]).median
        for layout, budget_ms in ((LAYOUTS[0], HERE_P99_MS), (LAYOUTS[2], RAY_P99_MS)):
            ran = latency(layout, rate, budget_ms, seconds)
            draw(given.out / f"latency-{layout.replace(', ', '-').replace(' ', '-')}.svg", layout, ran)
    for workers in (2, 3):
        cost = spread([routing_ns(workers, 20_000 if given.quick else 400_000) for _ in range(max(reps, 3))])
        judged = verdict(cost.median, ROUTING_NS, at_least=False)
        print(f"routing of a row between {workers} workers: {cost.show(0)} ns, {judged}")
    print(f"load at the end {os.getloadavg()[0]:.1f}; time lines in {given.out}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
