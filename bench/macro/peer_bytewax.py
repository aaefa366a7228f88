"""The workloads of `bench.macro.peers` as dataflows of bytewax, in an environment that has bytewax, not us.

``python -m bench.macro.peer_bytewax QUERY ROWS`` makes the input and then, for each line that it reads, runs the
dataflow and prints results, check sum and seconds as JSON. The source gives batches of 1,000 rows that are in memory;
moments are made into datetimes beforehand. The clock counts processor time, from the first batch to the end of the
sink.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from importlib import import_module
from time import process_time
from typing import Any, Final

from bench.micro import inputs
from bench.micro.inputs import PERSON, START_MS

BATCH: Final = 1_000
NEAR: Final = ("OR", "ID", "CA")
EPOCH: Final = datetime.fromtimestamp(START_MS / 1000, UTC)

op: Any = import_module("bytewax.operators")
windowing: Any = import_module("bytewax.operators.windowing")
bytewax_inputs: Any = import_module("bytewax.inputs")
bytewax_outputs: Any = import_module("bytewax.outputs")


class Run:
    """What the current run has found so far."""

    rows = total = 0
    first_s = last_s = 0.0


class Rows(bytewax_inputs.StatelessSourcePartition):  # type: ignore[misc]  # bytewax is not installed beside mypy
    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows
        self._starts = iter(range(0, len(rows), BATCH))

    def next_batch(self) -> list[Any]:
        Run.first_s = Run.first_s or process_time()
        start = next(self._starts)  # StopIteration ends the source
        return self._rows[start : start + BATCH]


class Source(bytewax_inputs.DynamicSource):  # type: ignore[misc]
    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Rows:
        return Rows(self._rows)


class Total(bytewax_outputs.StatelessSinkPartition):  # type: ignore[misc]
    def __init__(self, total: Callable[[list[Any]], int]) -> None:
        self._total = total

    def write_batch(self, items: list[Any]) -> None:
        Run.rows += len(items)
        Run.total += self._total(items)

    def close(self) -> None:
        Run.last_s = process_time()


class Sink(bytewax_outputs.DynamicSink):  # type: ignore[misc]
    def __init__(self, total: Callable[[list[Any]], int]) -> None:
        self._total = total

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Total:
        return Total(self._total)


def clock(at: Callable[[Any], datetime], bound_ms: int = 0) -> Any:
    """A clock of event time alone: the time of the system does not advance."""
    wait = timedelta(milliseconds=bound_ms)
    return windowing.EventClock(at, wait_for_system_duration=wait, now_getter=lambda: EPOCH)


def every(size_ms: int) -> Any:
    return windowing.TumblingWindower(length=timedelta(milliseconds=size_ms), align_to=EPOCH)


def moment(time_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=time_ms - START_MS)


TENS: Final = START_MS // 10_000
"""The number of the first window of 10 s, since 1970."""

# The rows: those of `bench.micro.inputs`, with datetimes where windows need them.


def w2_rows(n: int) -> list[Any]:
    return [(key, moment(time), number) for key, time, number in inputs.w2(n)]


def bids(n: int) -> list[Any]:
    return inputs.bids(-(-n * 50 // 46))[:n]


def timed_bids(n: int) -> list[Any]:
    return [(*bid[:5], moment(bid[5]), bid[6]) for bid in bids(n)]


def timed_listings(n: int) -> list[Any]:
    return [(*row[:4], moment(row[4])) for row in inputs.listings(n)]


# The dataflows: of a stream of rows to (stream, what adds up a list of its items).

Flow = tuple[Any, Callable[[list[Any]], int]]


def w1(rows: Any) -> Flow:
    def add(total: int | None, pair: inputs.Pair) -> tuple[int, int]:
        total = (total or 0) + pair[1]
        return total, total

    keyed = op.key_on("key", rows, lambda pair: pair[0])
    return op.stateful_map("add", keyed, add), lambda items: sum([item[1] for item in items])


def w2(rows: Any) -> Flow:
    keyed = op.key_on("key", rows, lambda row: row[0])
    output = windowing.fold_window(
        *("windows", keyed, clock(lambda row: row[1], 2_000), every(10_000), lambda: (0, 0)),
        lambda figures, row: (figures[0] + 1, figures[1] + row[2]),
        lambda one, other: (one[0] + other[0], one[1] + other[1]),
        ordered=False,
    ).down
    return output, lambda items: sum([(3 * n + total) * (TENS + w + 1) for _, (w, (n, total)) in items])


def q1(rows: Any) -> Flow:
    output = op.map("in-euros", rows, lambda bid: (bid[0], bid[1], bid[2] * 908 // 1000, bid[5], bid[6]))
    return output, lambda items: sum([item[2] for item in items])


def q2(rows: Any) -> Flow:
    output = op.filter("of-interest", rows, lambda bid: bid[0] % 123 == 0)
    return output, lambda items: sum([item[0] + item[2] for item in items])


def q3(rows: Any) -> Flow:
    def match(state: Any, row: Any) -> tuple[Any, list[int]]:
        person, waiting = state or (None, [])
        if row[0] == PERSON:
            return (row, []), [auction[1] * 31 + row[1] for auction in waiting]
        if person:
            return (person, waiting), [row[1] * 31 + person[1]]
        waiting.append(row)
        return (person, waiting), []

    wanted = op.filter("wanted", rows, lambda row: row[3] in NEAR if row[0] == PERSON else row[3] == "10")
    keyed = op.key_on("seller", wanted, lambda row: str(row[2]))
    return op.stateful_flat_map("match", keyed, match), lambda items: sum([item[1] for item in items])


class Hottest(op.StatefulBatchLogic):  # type: ignore[misc]
    """The auctions with the most bids of a window, at the end of the stream."""

    def __init__(self, state: Any) -> None:
        self._most, self._auctions = 0, list[tuple[int, int]]()

    def on_batch(self, values: list[tuple[int, int, int]]) -> tuple[list[Any], bool]:
        for hop, auction, n in values:
            if n > self._most:
                self._most, self._auctions = n, []
            if n == self._most:
                self._auctions.append((hop, auction))
        return [], False

    def on_eof(self) -> tuple[list[int], bool]:
        return [(auction + self._most) * (hop + 6) for hop, auction in self._auctions], True

    def snapshot(self) -> None:
        return None


def q5(rows: Any) -> Flow:
    hops = windowing.SlidingWindower(length=timedelta(seconds=10), offset=timedelta(seconds=2), align_to=EPOCH)
    counts = windowing.count_window("hops", rows, clock(lambda bid: bid[5]), hops, key=lambda bid: str(bid[0])).down
    named = op.map("name", counts, lambda one: (str(one[1][0]), (one[1][0], int(one[0]), one[1][1])))
    output = op.stateful_batch("hottest", named, Hottest)
    return output, lambda items: sum([item[1] for item in items])


def q7(rows: Any) -> Flow:
    keyed = op.key_on("all", rows, lambda bid: "all")
    output = windowing.fold_window(
        *("tens", keyed, clock(lambda bid: bid[5]), every(10_000), int),
        *(lambda most, bid: max(most, bid[2]), max),
        ordered=False,
    ).down
    return output, lambda items: sum([price * (w + 1) for _, (w, price) in items])


def q8(rows: Any) -> Flow:
    def add(seen: tuple[int, bool], row: Any) -> tuple[int, bool]:
        return (row[1], seen[1]) if row[0] == PERSON else (seen[0], True)

    keyed = op.key_on("seller", rows, lambda row: str(row[2]))
    seen = windowing.fold_window(
        *("tens", keyed, clock(lambda row: row[4]), every(10_000), lambda: (0, False), add),
        lambda one, other: (one[0] or other[0], one[1] or other[1]),
        ordered=False,
    ).down
    output = op.filter("selling", seen, lambda item: all(item[1][1]))
    return output, lambda items: sum([person * (w + 1) for _, (w, (person, _)) in items])


QUERIES: Final[dict[str, tuple[Callable[[int], list[Any]], Callable[[Any], Flow]]]] = {
    "W1": (lambda n: inputs.w1(n, zipf=False), w1),
    "W2": (w2_rows, w2),
    "q1": (bids, q1),
    "q2": (bids, q2),
    "q3": (inputs.listings, q3),
    "q5": (timed_bids, q5),
    "q7": (timed_bids, q7),
    "q8": (timed_listings, q8),
}


def run_once(rows: list[Any], query: Callable[[Any], Flow]) -> dict[str, float]:
    """Run ``query`` over ``rows``."""
    Run.rows = Run.total = 0
    Run.first_s = 0.0
    flow = import_module("bytewax.dataflow").Dataflow("peer")
    output, total = query(op.input("in", flow, Source(rows)))
    op.output("out", output, Sink(total))
    gc.collect()
    gc.freeze()
    import_module("bytewax.testing").run_main(flow)
    return {"rows": Run.rows, "total": Run.total, "seconds": Run.last_s - Run.first_s}


def answer(name: str, n: int, asked: Iterator[str]) -> None:
    """Run the query once per item of ``asked``."""
    make, query = QUERIES[name]
    rows = make(n)
    for _ in asked:
        if name == "W1":
            rows = inputs.fresh(rows)
        print(json.dumps(run_once(rows, query)), flush=True)


if __name__ == "__main__":
    answer(sys.argv[1], int(sys.argv[2]), iter(sys.stdin))
