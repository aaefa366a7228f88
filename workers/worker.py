"""One worker: the executor of the whole graph, its source parts and its sink writers.

Rule: single-threaded and driven from outside, one step at a time; between two steps the graph holds no record.
"""

from __future__ import annotations

from functools import partial

from malstrom_py.clock import Clock
from malstrom_py.dag.executor import Executor, NodeSpec
from malstrom_py.messages import MIN_EPOCH
from malstrom_py.operators.base import Operator, StepContext
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.plan import Plan, Step
from malstrom_py.workers.batching import Batching
from malstrom_py.workers.result import StepCounts


class Worker:
    """Runs ``plan`` as worker number ``worker``."""

    def __init__(self, plan: Plan, *, worker: int, batching: Batching, clock: Clock) -> None:
        self._plan = plan
        self._batching = batching
        self._clock = clock
        self._operators = [_build(plan, step, worker) for step in plan.steps]
        ranks = {step.name: rank for rank, step in enumerate(plan.steps)}
        self._executor = Executor(
            [
                NodeSpec(
                    step.name,
                    operator,
                    tuple((ranks[ref.step], ref.port) for ref in step.inputs),
                    tuple(port.epochs for port in step.ports),
                )
                for step, operator in zip(plan.steps, self._operators, strict=True)
            ]
        )
        self._sources = [(rank, op) for rank, op in enumerate(self._operators) if isinstance(op, ReadSource)]
        self.sinks = [op for op in self._operators if isinstance(op, WriteSink)]

    def open(self) -> None:
        """Open the sinks, then the sources."""
        for sink in self.sinks:
            sink.open()
        for rank, source in self._sources:
            self._executor.call(rank, source.open)
        self._executor.run()

    def step(self) -> int:
        """Poll the next due part of each source and run what came to the end; how many records came."""
        batching, clock, executor = self._batching, self._clock, self._executor
        read = 0
        for rank, source in self._sources:
            if not source.finished:
                poll = partial(source.poll, rows_max=batching.rows_max, linger_s=batching.linger_s, clock=clock)
                read += executor.call(rank, poll)
                executor.run()
        return read

    @property
    def finished(self) -> bool:
        """Whether all sources have ended, and with them everything."""
        return all(source.finished for _, source in self._sources)

    def idle_s(self) -> float:
        """How long there is nothing to do."""
        due_s = min((source.next_poll_s() for _, source in self._sources if not source.finished), default=0.0)
        return max(0.0, due_s - self._clock.monotonic_s())

    def counts(self) -> dict[str, StepCounts]:
        """What each step has done so far."""
        return {step.name: self._counts(rank, step) for rank, step in enumerate(self._plan.steps)}

    def rows_in(self, step: str) -> int:
        """How many records a step has taken so far."""
        return self._executor.counters(self._plan.rank(step)).rows_in

    def close(self) -> None:
        """Close sources and writers; the first error is raised when all have been closed."""
        errors: list[Exception] = []
        for _, source in self._sources:
            _try_close(source, errors)
        for sink in self.sinks:
            _try_close(sink, errors)
        if errors:
            raise errors[0]

    def _counts(self, rank: int, step: Step) -> StepCounts:
        counters = self._executor.counters(rank)
        epoch = self._executor.epoch(rank)
        return StepCounts(
            kind=step.kind,
            rows_in=counters.rows_in,
            ports={port.name: rows for port, rows in zip(step.ports, counters.rows_out, strict=True)},
            filtered=counters.filtered,
            late=counters.late,
            skipped=counters.skipped,
            dead_letters=counters.dead_letters,
            keys=self._operators[rank].keys,
            epoch=None if epoch == MIN_EPOCH else epoch,
        )


def _build(plan: Plan, step: Step, worker: int) -> Operator:
    return step.factory(
        StepContext(
            job=plan.job,
            step=step.name,
            worker=worker,
            on_error=step.on_error,
            dead_letter_port=step.dead_letter_port,
            timed=step.traits.unit is not None,
        )
    )


def _try_close(thing: ReadSource | WriteSink, errors: list[Exception]) -> None:
    try:
        thing.close()
    except Exception as error:
        errors.append(error)
