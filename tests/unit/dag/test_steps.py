"""A step at a node: its streams have outputs, its arguments are complete, its error policy is possible."""

from __future__ import annotations

from functools import partial
from typing import Any

import polars as pl
import pytest

from malstrom_py.dag import DagBuilder, DagExecutor
from malstrom_py.data.batch import Batch
from malstrom_py.data.epochs import limit_out_of_orderness
from malstrom_py.errors import OperatorError, PlanError
from malstrom_py.operators.base import Operator, Outlet
from malstrom_py.operators.branching import Branch, Cloned, Split
from malstrom_py.operators.columns import FilterColumns, MapBatches, Select
from malstrom_py.operators.event_time import GenerateEpochs
from tests.unit.dag.graphs import at, line

MISSPELT: dict[str, Any] = {"predicat": len}
EVEN = partial(Branch, predicate=lambda n: 10 % n == 0)


def graph(*reads: str, outputs: list[str] | None = None) -> DagExecutor:
    """Return the graph s -> p, with a sink for each read output of p, named as the output."""
    builder = DagBuilder().source("s").operator("p", outputs=outputs).connect("s", "p").sink_for("p", "out")
    for output in reads:
        builder.sink_for(f"p:{output}", output)
    return DagExecutor.from_dag(builder.build())


@pytest.mark.parametrize("reads", [("odd", "dead_letters", "late"), ("dead_letters", "late", "odd")])
@pytest.mark.parametrize("declared", [False, True])
def test_late_and_dead_letters_stand_behind_a_steps_own_outputs(reads: tuple[str, ...], declared: bool) -> None:
    executor = graph(*reads, outputs=list(reads) if declared else None)
    executor.register_operator("p", EVEN, on_error="dead-letter")
    executor.process_watermark("s", 5)
    executor.process_events("s", [at(5, 6), at(3, 6), at(0, 6)])
    executor.inject_events("p", [at(2, 5)])
    executor.run()
    taken = executor.take_all_sink_outputs()
    assert [letter.value for letter in taken.pop("dead_letters")] == [0]
    assert taken == {"out": [5], "odd": [3], "late": [2]}
    assert executor.dag.nodes[1].outputs == ("odd", "late", "dead_letters")


@pytest.mark.parametrize(
    ("step", "reads", "message"),
    [
        (EVEN, (), "node 'p': Branch sends to 2 streams, .* but the node has no side output for the others"),
        (EVEN, ("dead_letters",), "node 'p': Branch sends to 2 streams, .* the node has no side output"),
        (
            partial(Split, n=3, fn=lambda n: [n]),
            ("one",),
            "node 'p': Split sends to 3 streams, .* the node has only 'one' for",
        ),
        (partial(Cloned, n=2), ("late",), "node 'p': Cloned sends to 2 streams"),
    ],
)
def test_a_stream_without_an_output_of_its_own_is_refused(step: Any, reads: tuple[str, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        graph(*reads).register_operator("p", step, on_error="dead-letter")


def test_the_late_of_generate_epochs_is_its_own_and_need_not_be_read() -> None:
    step = partial(GenerateEpochs, generator=limit_out_of_orderness(0), unit="ms")
    for reads in ((), ("dead_letters",), ("dead_letters", "late")):
        executor = graph(*reads)
        executor.register_operator("p", step)
        executor.process_events("s", [at(5, 5), at(4, 4), at(6, 6)])
        late = {"late": [4]} if "late" in reads else {}
        assert executor.take_all_sink_outputs() == {"out": [5, 6], **late}
        fresh = graph(*reads)
        fresh.register_operator("p", step)
        fresh.restore(executor.checkpoint())
        fresh.process_event("s", at(3, 3))
        assert fresh.take_all_sink_outputs() == ({"late": [3]} if late else {})
    with pytest.raises(PlanError, match="node 'p': GenerateEpochs sends to its main output and to 'late'"):
        graph("tardy").register_operator("p", step)


def test_a_record_without_a_timestamp_at_generate_epochs_is_told() -> None:
    executor = line(partial(GenerateEpochs, generator=limit_out_of_orderness(0), unit="ms"))
    with pytest.raises(OperatorError, match="step 'a' received records without timestamps"):
        executor.process_event("in", 1)


def test_a_step_of_ones_own_that_sends_to_an_output_that_is_not_there_is_told() -> None:
    class Third(Operator):
        def on_batch(self, batch: Batch, out: Outlet) -> None:
            out.send(batch, 2)

    with pytest.raises(OperatorError, match="step 'a' sent to its output 2, but it has 1, numbered from 0"):
        line(Third).process_event("in", 1)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Branch, "node 'p': Branch cannot be made from a StepContext alone: missing a required .*'predicate'"),
        (partial(Split, n=2), "node 'p': Split cannot be made from .* 'fn'"),
        (partial(Branch, **MISSPELT), "node 'p': Branch cannot be made from a StepContext alone"),
        (partial(Select), "node 'p': Select cannot be made"),
    ],
)
def test_a_step_without_its_arguments_is_refused(step: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        graph("odd").register_operator("p", step)


@pytest.mark.parametrize(
    "step",
    [
        partial(Select, expressions=[pl.col("a")]),
        partial(FilterColumns, predicate=pl.col("a") > 1),
        partial(MapBatches, fn=lambda batch: batch),
    ],
)
def test_a_step_of_whole_columns_takes_no_policy(step: Any) -> None:
    for on_error in ("skip", "dead-letter"):
        with pytest.raises(PlanError, match=r"step 'p': .* takes whole batches, so on_error="):
            graph().register_operator("p", step, on_error=on_error)
    graph().register_operator("p", step)
