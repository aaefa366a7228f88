"""What the steps of one worker have done so far, as their nodes have counted it."""

from __future__ import annotations

from malstrom_py.messages import MIN_EPOCH
from malstrom_py.plan import Plan, Step
from malstrom_py.workers.graph import Graph
from malstrom_py.workers.result import StepCounts


def counts_of(plan: Plan, graph: Graph) -> dict[str, StepCounts]:
    """The counts of each step of ``plan``."""
    return {step.name: _counts(step, graph) for step in plan.steps}


def _counts(step: Step, graph: Graph) -> StepCounts:
    node = graph.nodes[step.name]
    counters = graph.executor.counters(node)
    epoch = graph.executor.epoch(node)
    return StepCounts(
        kind=step.kind,
        rows_in=counters.rows_in,
        ports={port.name: rows for port, rows in zip(step.ports, counters.rows_out, strict=True)},
        filtered=counters.filtered,
        late=counters.late,
        skipped=counters.skipped,
        dead_letters=counters.dead_letters,
        rows_made=counters.rows_made,
        columns_made=counters.columns_made,
        ahead=counters.ahead,
        keys=graph.operators[step.name].keys,
        epoch=None if epoch == MIN_EPOCH else epoch,
    )
