"""One workload of `bench.chart` as a dataflow of bytewax. Runs in an environment that has bytewax and not this
package: ``python -m bench.chart_bytewax WORKLOAD ROWS`` prints rows, check sum and seconds as JSON.

The source gives batches of 1,000 rows that are in memory; the clock counts processor time, from the first batch to the
end of the sink.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from importlib import import_module
from time import process_time
from typing import Any, Final

from bench.micro import inputs

BATCH: Final = 1_000

op: Any = import_module("bytewax.operators")
bytewax_inputs: Any = import_module("bytewax.inputs")
bytewax_outputs: Any = import_module("bytewax.outputs")


class Clock:
    first_s = 0.0
    last_s = 0.0


class Rows(bytewax_inputs.StatelessSourcePartition):  # type: ignore[misc]  # bytewax is not installed beside mypy
    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows
        self._starts = iter(range(0, len(rows), BATCH))

    def next_batch(self) -> list[Any]:
        Clock.first_s = Clock.first_s or process_time()
        start = next(self._starts)  # StopIteration ends the source
        return self._rows[start : start + BATCH]


class Source(bytewax_inputs.DynamicSource):  # type: ignore[misc]
    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Rows:
        return Rows(self._rows)


class Total(bytewax_outputs.StatelessSinkPartition):  # type: ignore[misc]
    rows = total = 0

    def __init__(self, total: Callable[[list[Any]], int]) -> None:
        self._total = total

    def write_batch(self, items: list[Any]) -> None:
        Total.rows += len(items)
        Total.total += self._total(items)

    def close(self) -> None:
        Clock.last_s = process_time()


class Sink(bytewax_outputs.DynamicSink):  # type: ignore[misc]
    def __init__(self, total: Callable[[list[Any]], int]) -> None:
        self._total = total

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Total:
        return Total(self._total)


def key_of(pair: inputs.Pair) -> str:
    return pair[0]


def add(total: int | None, pair: inputs.Pair) -> tuple[int, int]:
    total = (total or 0) + pair[1]
    return total, total


def in_euros(bid: inputs.Bid) -> tuple[int, int, int, int, str]:
    return bid[0], bid[1], bid[2] * 908 // 1000, bid[5], bid[6]


def of_interest(bid: inputs.Bid) -> bool:
    return bid[0] % 123 == 0


def sums(flow: Any, rows: list[Any]) -> None:
    """The running sum of each key."""
    keyed = op.key_on("key", op.input("in", flow, Source(rows)), key_of)
    output = op.stateful_map("add", keyed, add)
    op.output("out", output, Sink(lambda items: sum([item[1] for item in items])))


def prices(flow: Any, rows: list[Any]) -> None:
    """The prices in another currency."""
    output = op.map("in-euros", op.input("in", flow, Source(rows)), in_euros)
    op.output("out", output, Sink(lambda items: sum([item[2] for item in items])))


def auctions(flow: Any, rows: list[Any]) -> None:
    """The bids on some auctions."""
    output = op.filter("of-interest", op.input("in", flow, Source(rows)), of_interest)
    op.output("out", output, Sink(lambda items: sum([item[0] + item[2] for item in items])))


def main(workload: str, count: int) -> None:
    """Run ``workload`` over ``count`` rows and print its result."""
    flow = import_module("bytewax.dataflow").Dataflow("chart")
    if workload == "W1 uniform":
        sums(flow, inputs.w1(count, zipf=False))
    else:
        {"q1 map": prices, "q2 filter": auctions}[workload](flow, inputs.bids(count // 2))
    gc.collect()
    gc.freeze()
    import_module("bytewax.testing").run_main(flow)
    print(json.dumps({"rows": Total.rows, "total": Total.total, "seconds": Clock.last_s - Clock.first_s}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
