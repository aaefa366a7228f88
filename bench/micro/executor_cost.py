"""What the executor costs per node and batch, beside what it runs: a chain of nodes that pass 1-row batches on."""

from __future__ import annotations

from time import perf_counter
from typing import Final

from bench.micro.timing import Spread, WrongResult, spread
from malstrom_py.data.batch import Batch
from malstrom_py.operators.base import StepContext
from malstrom_py.operators.stateless import Map
from malstrom_py.workers.engine.executor import Executor, NodeSpec

BUDGET_US: Final = 15.0
CHAIN: Final = 20


def identity(value: object) -> object:
    return value


def chain_of_maps(untouched: int) -> tuple[Executor, int]:
    """``CHAIN`` map steps in a row, and the last one's number; between them are ``untouched`` nodes that hang on
    the first node's second port, on which nothing is sent."""
    specs = [NodeSpec("in", None, (), (True, True))]
    last, aside = 0, untouched // CHAIN
    for number in range(CHAIN):
        specs.extend(NodeSpec(f"untouched-{len(specs) + index}", None, ((0, 1),)) for index in range(aside))
        step = f"map-{number}"
        specs.append(NodeSpec(step, Map(StepContext("bench", step), fn=identity), ((last, 0),)))
        last = len(specs) - 1
    return Executor(specs), last


def node_cost_us(untouched: int, *, batches: int, reps: int) -> Spread:
    """Microseconds per node and batch."""
    executor, last = chain_of_maps(untouched)
    push, run = executor.push, executor.run
    batch = Batch([1])
    costs = []
    for _ in range(reps):
        started = perf_counter()
        for _ in range(batches):
            push(0, batch)
            run()
        costs.append((perf_counter() - started) * 1e6 / (batches * (CHAIN + 1)))
    if executor.counters(last).rows_in != batches * reps:
        raise WrongResult(f"{executor.counters(last).rows_in} of {batches * reps} batches reached the end of the chain")
    return spread(costs)
