"""``python -m bench.micro.spikes``: what was tried for the hot loop, and what each costs, in ns per record.

Each section compares ways to do the same thing (`spike_loops` holds them); the others are compared with the first,
and every one must give the same result. Times are processor times, which other programs on
the machine disturb less than the clock's. docs/design/0001-hot-loop.md says what followed from it.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import thread_time
from typing import Any

import malstrom_py as mp
from bench.micro import inputs, machine, workloads
from bench.micro.inputs import Bid, Pair
from bench.micro.spike_loops import (
    ROWS,
    Batches,
    PlainSubclass,
    TrackingSubclass,
    any_timed,
    as_dict,
    by_append,
    by_comprehension,
    by_extend,
    by_generator,
    by_indices,
    by_kept,
    by_mask,
    by_zip,
    chain_fused,
    chain_steps,
    count_each,
    dict_loop,
    dict_total,
    fused_keyed,
    keyed_steps,
    over,
    plain_keyed,
    states_loop,
    stop_at_3,
    sums,
    update_states,
    update_without_default,
)
from bench.micro.timing import Variant, WrongResult, interleave, ratios, spread
from bench.micro.workloads import in_euros, of_interest
from malstrom_py.data.messages import DataMessage
from malstrom_py.operators.logic import Output


def batches_of(rows: list[Any]) -> Batches:
    return [rows[start : start + ROWS] for start in range(0, len(rows), ROWS)]


def section(title: str, variants: Mapping[str, Variant], data: Any, records: int, reps: int) -> None:
    """Measure and print one comparison."""
    print(f"\n{title}")
    seconds = interleave(variants, data, reps=reps, clock=thread_time)
    first = next(iter(variants))
    for name, figures in seconds.items():
        cost = spread([figure * 1e9 / records for figure in figures])
        against = "" if name == first else f"   {ratios(figures, seconds[first]).show()} of the time"
        print(f"  {name:<58} {cost.show(0):>16} ns{against}")


# (a) Separate steps, or one fused loop. W1 is a key function and a state function.


def spike_fused(pairs: Batches, bids: Batches, records: tuple[int, int], reps: int) -> None:
    variants: dict[str, Variant] = {
        "two steps, as now": partial(keyed_steps, update_states),
        "one fused loop": fused_keyed,
        "two steps, a separate loop for steps without default": partial(keyed_steps, update_without_default),
        "by hand, keeping no keys and no results": plain_keyed,
    }
    section("(a) key_by + stateful_map", variants, pairs, records[0], reps)
    chain: dict[str, Variant] = {"three steps, as now": chain_steps, "one generated comprehension": chain_fused()}
    section("(a) map + filter + map, half of the records kept", chain, bids, records[1], reps)


# (b) How a function is called on each value.


def spike_calls(bids: Batches, records: int, reps: int) -> None:
    variants: dict[str, Variant] = {
        "for ... append in a try, as now": partial(over, by_append),
        "comprehension (results before a raise are lost)": partial(over, lambda values: [in_euros(v) for v in values]),
        "extend(map(fn)) (StopIteration ends it unseen)": partial(over, by_extend),
        "extend(generator)": partial(over, by_generator),
    }
    section("(b) calling a function on each value (q1)", variants, bids, records, reps)
    results: list[int] = []
    results.extend(map(stop_at_3, range(1000)))
    print(f"  extend(map(fn)) kept {len(results)} of 1000 rows, and raised nothing, where fn raised StopIteration")


# (c), (f) Which keys have changed, for snapshots of what changed only.


def spike_dirty(pairs: Batches, records: int, reps: int) -> None:
    variants: dict[str, Variant] = {
        "plain dict, nothing tracked, as now": partial(states_loop, dict, ""),
        "(f) subclass of dict without methods": partial(states_loop, PlainSubclass, ""),
        "dirty.update(keys) per batch": partial(states_loop, dict, "batch"),
        "dirty.add(key) per record": partial(states_loop, dict, "record"),
        "subclass of dict with __setitem__ in Python": partial(states_loop, TrackingSubclass, ""),
    }
    section("(c), (f) dirty keys (W1)", variants, pairs, records, reps)


# (d) What a step's function is given: the record, a message, or the whole batch.


def spike_messages(pairs: list[Pair], reps: int) -> None:
    variants: dict[str, Variant] = {
        "stateful_map: fn(key, value, state)": workloads.w1_job,
        "stateful_op, on_data: a DataMessage and an Output each": workloads.w1_on_data,
        "stateful_op, on_batch: lists, no call per record": workloads.w1_on_batch,
        "by hand": workloads.w1_loop,
    }
    section("(d) what the function is given (W1, whole jobs)", variants, pairs, len(pairs), reps)
    output: Output[str, Pair] = Output()
    parts: dict[str, Variant] = {
        "a call that makes nothing": partial(count_each, lambda row: None),
        "DataMessage(key, value, None)": partial(count_each, lambda row: DataMessage(row[0], row, None)),
        "a tuple of the three": partial(count_each, lambda row: (row[0], row, None)),
        "output.keys[mark:], to see what one call has sent": partial(
            count_each, lambda row: output.keys[len(output) :]
        ),
    }
    section("(d) of which, with a call each", parts, pairs, len(pairs), reps)
    asked: dict[str, Variant] = {
        "Output.batch: any(t is not None for t in timestamps)": partial(
            any_timed, lambda ts: any(t is not None for t in ts)
        ),
        "timestamps.count(None) != len(timestamps)": partial(any_timed, lambda ts: ts.count(None) != len(ts)),
    }
    section("(d) and at the end of a batch", asked, batches_of(pairs), len(pairs), reps)


# (e) Rows per batch, and what the collector has to do with it.


SIZES = (64, 256, 512, 1024, 2048, 4096, 16384)
Total = Callable[[list[Any]], int]


def job_of(build: workloads.Build, total: Total, rows_max: int, *, collect: bool) -> Variant:
    job = workloads.through(build, total, batch=mp.Batching(rows_max=rows_max))

    def run(rows: list[Any]) -> object:
        if not collect:
            gc.disable()
        try:
            return job(rows)
        finally:
            gc.enable()

    return run


def collections_in(job: Variant, rows: list[Any]) -> int:
    """How often the collector runs while ``job`` does."""
    phases: list[str] = []

    def note(phase: str, info: object) -> None:
        phases.append(phase)

    gc.callbacks.append(note)
    try:
        job(rows)
    finally:
        gc.callbacks.remove(note)
    return phases.count("start")


def spike_rows(pairs: list[Pair], bids: list[Bid], reps: int) -> None:
    jobs: list[tuple[str, list[Any], Variant, workloads.Build, Total]] = [
        ("W1", pairs, workloads.w1_loop, workloads.w1_build, sum),
        ("q1", bids, workloads.q1_loop, workloads.q1_build, workloads.q1_total),
        ("q1 to dicts", bids, dict_loop, lambda stream: stream.map("as-dict", as_dict), dict_total),
        ("q2", bids, workloads.q2_loop, workloads.q2_build, workloads.q2_total),
    ]
    for name, rows, loop, build, total in jobs:
        by_size = {size: job_of(build, total, size, collect=True) for size in SIZES}
        variants: dict[str, Variant] = {"by hand": loop}
        variants |= {f"{size:,} rows per batch": job for size, job in by_size.items()}
        for size in (1024, 4096):
            variants[f"{size:,} rows per batch, collector off"] = job_of(build, total, size, collect=False)
        section(f"(e) rows per batch ({name}, whole jobs)", variants, rows, len(rows), reps)
        runs = [f"{collections_in(job, rows) * size / len(rows):.1f} at {size:,}" for size, job in by_size.items()]
        print(f"  runs of the collector per batch: {', '.join(runs)} rows")


# (g) Filter.


def spike_filter(bids: Batches, records: int, reps: int) -> None:
    predicates: dict[str, Callable[[Any], Any]] = {
        "1 of 123 kept": of_interest,
        "1 of 2 kept": lambda bid: bid[2] % 2,
        "9 of 10 kept": lambda bid: bid[2] % 10,
    }
    alone = {
        "for ... if ... append in a try, as now": by_kept,
        "mask and compress": by_mask,
        "comprehension (what was kept before a raise is lost)": by_comprehension,
    }
    beside = {"mask and compress, as now": by_mask, "indices and take": by_indices, "zip and three appends": by_zip}
    for what, predicate in predicates.items():
        for columns, ways in ((1, alone), (3, beside)):
            variants = {name: partial(sums, select, predicate, columns) for name, select in ways.items()}
            section(f"(g) filter, {what}, {columns} column(s)", variants, bids, records, reps)


SPIKES = "abcdeg"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.micro.spikes", description=__doc__)
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--only", default=SPIKES, help=f"sections, of {SPIKES}; f is part of c")
    asked = parser.parse_args(arguments)
    print(machine.describe())
    print(f"{asked.n:,} records, {asked.reps} interleaved rounds, medians (smallest-largest), input frozen for the gc")
    pairs, bids = inputs.w1(asked.n, zipf=False), inputs.bids(asked.n)
    pair_batches, bid_batches = batches_of(pairs), batches_of(bids)
    spikes: dict[str, Callable[[], None]] = {
        "a": lambda: spike_fused(pair_batches, bid_batches, (len(pairs), len(bids)), asked.reps),
        "b": lambda: spike_calls(bid_batches, len(bids), asked.reps),
        "c": lambda: spike_dirty(pair_batches, len(pairs), asked.reps),
        "d": lambda: spike_messages(pairs, asked.reps),
        "e": lambda: spike_rows(pairs, bids, asked.reps),
        "g": lambda: spike_filter(bid_batches, len(bids), asked.reps),
    }
    try:
        for name in SPIKES:
            if name in asked.only:
                spikes[name]()
    except WrongResult as error:
        print(f"WRONG RESULT: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
