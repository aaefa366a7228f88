"""A step is the same in another process: what its plan decides does not depend on which objects are identical."""

from __future__ import annotations

from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.builder.plan import Plan
from malstrom_py.codec import Codec
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.engine.graph_builder import Membership, build_graph
from malstrom_py.workers.processes.fork_server import HERE
from malstrom_py.workers.remote.packed_plan import pack_plan, unpack_plan
from tests.laws.test_all_operators import FURTHER, TABLE, Row

KINDS = (bool, int, float, str, type(None))


def plan_of(row: Row) -> Plan:
    """Return the plan of a job with the step."""
    job = mp.Job("travels")
    inputs: list[Any] = []
    for number in range(row.options.get("inputs", 1)):
        stream: Any = job.source(f"in-{number}", sources.Memory([1]))
        if row.options.get("timed"):
            stream, _ = stream.assign_timestamps(f"at-{number}", abs).generate_epochs(
                f"epochs-{number}", mp.limit_out_of_orderness(1)
            )
        inputs.append(stream.key_by(f"key-{number}", hash) if row.options.get("keyed", True) else stream)
    made = row.factory(*inputs)
    for number, stream in enumerate(made if isinstance(made, tuple | list) else (made,)):
        stream.sink(f"out-{number}", sinks.Memory())
    return job.plan()


def decided(plan: Plan) -> dict[str, Any]:
    """Return what the steps and exchanges of worker 0 of two have decided: their plain attributes."""

    def pass_barrier(message: object, frontiers: object, let_in: object) -> None:
        raise AssertionError

    member = Membership(0, (0, 1), [0, 1] * (plan.slots // 2))
    graph = build_graph(
        plan, member, batching=Batching(), codec=Codec(), clock=VirtualClock(), pass_barrier=pass_barrier
    )
    found: dict[str, Any] = {
        f"{name}.{attribute}": value
        for name, operator in graph.operators.items()
        for attribute, value in {"takes_columns": operator.takes_columns, **vars(operator)}.items()
        if isinstance(value, KINDS)
    }
    return found | {name: exchange.combine is None for name, exchange in graph.exchanges.items()}


@pytest.mark.parametrize("row", TABLE + FURTHER, ids=[f"{row.step}-{n}" for n, row in enumerate(TABLE + FURTHER)])
def test_a_step_decides_the_same_where_its_plan_has_travelled(row: Row) -> None:
    plan = plan_of(row)
    assert decided(unpack_plan(pack_plan(plan), "travels", HERE)) == decided(plan)
