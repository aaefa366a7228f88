"""What an event costs in a DAG: a chain of 10 nodes in a graph of 10 nodes, and in one of 10,000, in turn.

The other nodes hang on a separate source, so that no event of the chain touches them.
"""

from __future__ import annotations

from time import perf_counter
from typing import Final

from bench.micro.timing import WrongResult, ratios, spread
from malstrom_py.dag import DagBuilder, DagExecutor

NODES: Final = (10, 10_000)
TOUCHED: Final = 10
BUDGET: Final = 1.3


def increment(value: int) -> int:
    return value + 1


def executor_of(nodes: int) -> DagExecutor:
    """A chain of `TOUCHED` nodes, from source to sink, and ``nodes - TOUCHED`` others."""
    builder, previous = DagBuilder().source("in"), "in"
    for number in range(TOUCHED - 2):
        builder.operator(f"step-{number}").connect(previous, f"step-{number}")
        previous = f"step-{number}"
    builder.sink_for(previous, "out")
    if nodes > TOUCHED:
        builder.source("idle")
    for number in range(nodes - TOUCHED - 1):
        builder.sink_for("idle", f"idle-{number}")
    executor = DagExecutor.from_dag(builder.build(), measured=False)
    for number in range(TOUCHED - 2):
        executor.register_operator(f"step-{number}", increment)
    return executor


def event_costs_us(executor: DagExecutor, events: int) -> tuple[float, float]:
    """Microseconds per event: to process it, and to process a watermark after it as well and take the output."""
    started = perf_counter()
    for number in range(events):
        executor.process_event("in", number)
    alone = perf_counter() - started
    taken = len(executor.take_sink_outputs("out"))
    first = (executor.watermark("out") or 0) + 1
    started = perf_counter()
    for time in range(first, first + events):
        executor.process_event("in", time)
        executor.process_watermark("in", time)
        taken += len(executor.take_all_sink_outputs()["out"])
    both = perf_counter() - started
    if taken != 2 * events:
        raise WrongResult(f"{taken} of {2 * events} events reached the end of the chain")
    return alone * 1e6 / events, both * 1e6 / events


def measure_dag(n: int, reps: int) -> list[str]:
    """The cost of touched nodes, in lines of text."""
    events = max(1, n // 200)
    executors = {nodes: executor_of(nodes) for nodes in NODES}
    costs: dict[int, list[tuple[float, float]]] = {nodes: [] for nodes in NODES}
    for _ in range(reps):
        for nodes, executor in executors.items():
            costs[nodes].append(event_costs_us(executor, events))
    return [
        _line(what, *([cost[kind] for cost in costs[nodes]] for nodes in NODES))
        for kind, what in enumerate(("event", "event and watermark, taken immediately"))
    ]


def _line(what: str, few: list[float], many: list[float]) -> str:
    more = ratios(many, few)
    verdict = "hit" if more.median <= BUDGET else "MISS"
    return (
        f"dag, µs per {what}, {TOUCHED} nodes touched of {NODES[0]}: {spread(few).show()}, of {NODES[1]:,}: "
        f"{spread(many).show()}; times {more.show()}, budget <= {BUDGET:.2f}, {verdict}"
    )
