"""The workloads: each is a job, and beside it the loop that one would write by hand with the same user functions.

Both return (records that reached the end, check sum over them). The jobs end in a sink that counts and sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import malstrom_py as mp
from bench.micro import inputs
from bench.micro.inputs import Bid, Pair, Reading
from malstrom_py import agg, sources, windows
from malstrom_py.data.batch import Batch
from malstrom_py.worker_context import WorkerInfo

Check = tuple[int, int]
BOUND_MS = 1_500


@dataclass(frozen=True, slots=True)
class Workload:
    """``budget``: what part of the loop's speed the job must reach; None where it is measured for information.

    ``peer``: what peer_bare.py calls it.
    """

    name: str
    make: Callable[[int], list[Any]]
    loop: Callable[[list[Any]], Check]
    job: Callable[[list[Any]], Check]
    budget: float | None = None
    peer: str | None = None
    fresh: Callable[[list[Any]], list[Any]] | None = None


class Tally:
    """A sink that counts records and sums what ``total`` makes of a batch's values."""

    def __init__(self, total: Callable[[list[Any]], int]) -> None:
        self._total = total
        self.check: Check = (0, 0)

    def build(self, worker: WorkerInfo) -> Tally:
        return self

    def write(self, batch: Batch) -> None:
        rows, total = self.check
        self.check = rows + len(batch), total + self._total(batch.values)

    def close(self) -> None:
        """Nothing is open."""


Build = Callable[[mp.StreamBuilder[None, Any]], mp.StreamBuilder[Any, Any]]


def through(
    build: Build, total: Callable[[list[Any]], int], *, batch: mp.Batching | None = None
) -> Callable[[list[Any]], Check]:
    """A job from memory through what ``build`` adds to a `Tally`. The time it takes is that of all of ``run``."""

    def run(rows: list[Any]) -> Check:
        job, tally = mp.Job("bench"), Tally(total)
        build(job.source("in", sources.Memory(rows))).sink("out", tally)
        mp.run(job, batch=batch, progress=False)
        return tally.check

    return run


# W1: a running sum per key.


def key_of(pair: Pair) -> str:
    return pair[0]


def add(key: str, pair: Pair, total: int | None) -> tuple[int, int]:
    total = (total or 0) + pair[1]
    return total, total


def w1_loop(rows: list[Pair]) -> Check:
    states: dict[str, int] = {}
    get = states.get
    count = total = 0
    for row in rows:
        key = key_of(row)
        result, states[key] = add(key, row, get(key))
        count += 1
        total += result
    return count, total


def add_message(message: mp.DataMessage[str, Pair], total: int | None, output: mp.Output[str, int]) -> int:
    total = (total or 0) + message.value[1]
    output.emit(message.key, total, None)
    return total


class AddBatch(mp.KeyedLogic[str, Pair, int, int]):
    """The same for a whole batch."""

    def on_batch(
        self, keys: list[str], values: list[Pair], timestamps: list[int] | None, state: Any, output: Any
    ) -> None:
        get, results = state.get, output.values
        for key, pair in zip(keys, values, strict=True):
            state[key] = total = get(key, 0) + pair[1]
            results.append(total)
        output.keys.extend(keys)
        output.timestamps.extend([None] * len(keys))


def w1_build(stream: mp.StreamBuilder[None, Any]) -> mp.StreamBuilder[Any, Any]:
    return stream.key_by("key", key_of).stateful_map("add", add)


w1_job = through(w1_build, sum)
w1_on_data = through(lambda s: s.key_by("key", key_of).stateful_op("add", add_message), sum)
w1_on_batch = through(lambda s: s.key_by("key", key_of).stateful_op("add", AddBatch()), sum)

# Several running figures per key.


def number_of(pair: Pair) -> int:
    return pair[1]


def aggregate_loop(rows: list[Pair]) -> Check:
    states: dict[str, tuple[int, int, int]] = {}
    get = states.get
    count = check = 0
    for row in rows:
        key, number = key_of(row), number_of(row)
        seen, total, most = get(key, (0, 0, number))
        seen += 1
        total += number
        most = number if number > most else most  # noqa: FURB136  by hand one would not call max() per record
        states[key] = seen, total, most
        result = {"n": seen, "total": total, "most": most, "mean": total / seen}
        count += 1
        check += result["total"] + result["most"]  # type: ignore[assignment]  # whole numbers, both of them
    return count, check


def aggregate_build(stream: mp.StreamBuilder[None, Any]) -> mp.StreamBuilder[Any, Any]:
    figures: dict[str, Any] = {
        "n": agg.count(),
        "total": agg.sum(number_of),
        "most": agg.max(number_of),
        "mean": agg.mean(number_of),
    }
    return stream.key_by("key", key_of).aggregate("figures", **figures)


aggregate_job = through(aggregate_build, lambda values: sum([value["total"] + value["most"] for value in values]))

# q1 and q2 of Nexmark: a map and a filter.


def in_euros(bid: Bid) -> tuple[int, int, int, int, str]:
    return bid[0], bid[1], bid[2] * 908 // 1000, bid[5], bid[6]


def of_interest(bid: Bid) -> bool:
    return bid[0] % 123 == 0


def q1_loop(rows: list[Bid]) -> Check:
    count = total = 0
    for row in rows:
        result = in_euros(row)
        count += 1
        total += result[2]
    return count, total


def q2_loop(rows: list[Bid]) -> Check:
    count = total = 0
    for row in rows:
        if of_interest(row):
            count += 1
            total += row[0] + row[2]
    return count, total


def q1_build(stream: mp.StreamBuilder[None, Any]) -> mp.StreamBuilder[Any, Any]:
    return stream.map("in-euros", in_euros)


def q1_total(values: list[Any]) -> int:
    return sum([value[2] for value in values])


def q2_build(stream: mp.StreamBuilder[None, Any]) -> mp.StreamBuilder[Any, Any]:
    return stream.filter("of-interest", of_interest)


def q2_total(values: list[Any]) -> int:
    return sum([value[0] + value[2] for value in values])


q1_job = through(q1_build, q1_total)
q2_job = through(q2_build, q2_total)

# Fan-out: both of them on one stream.


def fan_out_loop(rows: list[Bid]) -> Check:
    count = total = 0
    for row in rows:
        result = in_euros(row)
        count += 1
        total += result[2]
        if of_interest(row):
            count += 1
            total += row[0] + row[2]
    return count, total


def fan_out_job(rows: list[Bid]) -> Check:
    job = mp.Job("bench")
    stream: mp.StreamBuilder[None, Any] = job.source("in", sources.Memory(rows))
    prices, hits = Tally(q1_total), Tally(q2_total)
    q1_build(stream).sink("prices", prices)
    q2_build(stream).sink("hits", hits)
    mp.run(job, progress=False)
    return prices.check[0] + hits.check[0], prices.check[1] + hits.check[1]


# Event time: timestamps, epochs, late records apart.


def time_of(reading: Reading) -> int:
    return reading[0]


def event_time_loop(rows: list[Reading]) -> Check:
    count = total = 0
    largest = -(2**63)
    for row in rows:
        time = time_of(row)
        if time > largest:  # noqa: PLR1730  by hand one would not call max() per record
            largest = time
        if time >= largest - BOUND_MS:
            count += 1
            total += row[1]
    return count, total


def _on_time(stream: mp.StreamBuilder[None, Any]) -> mp.StreamBuilder[None, Any]:
    timed = stream.assign_timestamps("time", time_of)
    return timed.generate_epochs("epochs", mp.limit_out_of_orderness(BOUND_MS))[0]


event_time_job = through(_on_time, lambda values: sum([value[1] for value in values]))

# W2: count and sum per key and tumbling window, as (key, time, number).

BOUND_W2_MS = 2_000
WINDOW_MS = 10_000

Row = tuple[str, int, int]


def w2_key_of(row: Row) -> str:
    return row[0]


def w2_time_of(row: Row) -> int:
    return row[1]


def w2_number_of(row: Row) -> int:
    return row[2]


def w2_loop(rows: list[Row]) -> Check:
    windows: dict[int, dict[str, tuple[int, int]]] = {}
    largest = -(2**63)
    for row in rows:
        time = w2_time_of(row)
        if time > largest:  # noqa: PLR1730  by hand one would not call max() per record
            largest = time
        if time >= largest - BOUND_W2_MS:
            key, number = w2_key_of(row), w2_number_of(row)
            start = time - time % WINDOW_MS
            of_keys = windows.get(start)
            if of_keys is None:
                of_keys = windows[start] = {}
            count, total = of_keys.get(key, (0, 0))
            of_keys[key] = count + 1, total + number
    results = [(start, *figures) for start, of_keys in windows.items() for figures in of_keys.values()]
    return len(results), sum([(3 * count + total) * (start // WINDOW_MS + 1) for start, count, total in results])


def w2_build(stream: mp.StreamBuilder[None, Any]) -> mp.StreamBuilder[Any, Any]:
    timed = stream.assign_timestamps("time", w2_time_of)
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(BOUND_W2_MS))
    minutes = on_time.key_by("key", w2_key_of).window("windows", windows.tumbling(WINDOW_MS))
    return minutes.aggregate(n=agg.count(), total=agg.sum(w2_number_of))


def w2_total(results: list[Any]) -> int:
    return sum([(3 * value["n"] + value["total"]) * (start // WINDOW_MS + 1) for start, _, value, _ in results])


w2_job = through(w2_build, w2_total)

WORKLOADS = [
    Workload("W1 uniform", lambda n: inputs.w1(n, zipf=False), w1_loop, w1_job, 0.65, "w1_uniform", fresh=inputs.fresh),
    Workload("W1 zipf", lambda n: inputs.w1(n, zipf=True), w1_loop, w1_job, 0.65, "w1_zipf", fresh=inputs.fresh),
    Workload("q1 map", lambda n: inputs.bids(n // 2), q1_loop, q1_job, 0.60, "q1"),
    Workload("q2 filter", lambda n: inputs.bids(n // 2), q2_loop, q2_job, 0.60, "q2"),
    Workload("fan-out q1+q2", lambda n: inputs.bids(n // 2), fan_out_loop, fan_out_job),
    Workload("W2 windows", lambda n: inputs.w2(n // 2), w2_loop, w2_job, 0.45),
    Workload("event time", inputs.readings, event_time_loop, event_time_job),
    Workload("aggregate", lambda n: inputs.w1(n // 2, zipf=False), aggregate_loop, aggregate_job, fresh=inputs.fresh),
    Workload("W1 on_data", lambda n: inputs.w1(n, zipf=False), w1_loop, w1_on_data, fresh=inputs.fresh),
    Workload("W1 on_batch", lambda n: inputs.w1(n, zipf=False), w1_loop, w1_on_batch, fresh=inputs.fresh),
]
