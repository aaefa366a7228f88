"""The graph builder: the steps whose state moves, and the order in which they get messages on state."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.clock import SystemClock
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Interrogate, StateMessage
from malstrom_py.errors import MalformedRecord
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.rescale.moves import receiving_machine as events
from malstrom_py.testing import VirtualClock, as_step
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.engine.graph_builder import Membership, WorkerGraph, build_graph, deal_parts
from malstrom_py.workers.processes.fork_server import HERE
from malstrom_py.workers.remote.packed_plan import pack_plan, unpack_plan


@dataclass(frozen=True)
class Modulo:
    """A partitioner of a user's: two that are made alike are equal, and not the same."""

    divisor: int

    def __call__(self, key: int) -> int:
        return key % self.divisor


class Told(Operator):
    """Passes everything on, says that it has key 1, and writes down what acts on state."""

    def __init__(self, context: StepContext, *, noted: list[tuple[str, str]]) -> None:
        super().__init__(context)
        self._told = noted

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        out.send(batch)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        self._told.append((type(message).__name__, self.context.step))
        if isinstance(message, Interrogate):
            message.keys.add(1)
        out.forward(message)


def graph_of(job: mp.Job) -> WorkerGraph:
    """Worker 0 of two."""

    def pass_barrier(message: object, frontiers: object, let_in: object) -> None:
        raise AssertionError

    plan = job.plan()
    member = Membership(0, (0, 1), [0] * plan.slots)
    return build_graph(
        plan, member, batching=Batching(), codec=Codec(), clock=VirtualClock(), pass_barrier=pass_barrier
    )


def told_on_shipping(job: mp.Job, noted: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return what the steps record in ``noted`` when all slots of each region leave."""
    for region_input in graph_of(job).inputs:
        region_input._shipping.start(events.Ship(1, tuple((slot, 1) for slot in range(job.slots))))
        while region_input._shipping.under_way:
            region_input._shipping.next()
    return noted


@pytest.mark.parametrize(
    ("one", "other"),
    [(None, None), (mp.partitioners.stable_hash, mp.partitioners.stable_hash), (Modulo(8), Modulo(8))],
    ids=["default", "same", "equal"],
)
def test_r4_the_steps_of_a_union_are_told_in_the_order_of_the_graph_each_once(one: Any, other: Any) -> None:
    """Records that the second branch releases reach the step after both branches: that step gets the message last."""
    job, noted = mp.Job("noted", slots=8), list[tuple[str, str]]()
    numbers = job.source("in", sources.Memory([1]))
    first = numbers.key_by("first-key", lambda n: n, partitioner=one)
    second = numbers.map("again", lambda n: n).key_by("second-key", lambda n: n, partitioner=other)
    branches = [as_step(partial(Told, noted=noted), name=f"of-{key.ref.step}")(key) for key in (first, second)]
    as_step(partial(Told, noted=noted), name="after")(branches[0].union("both", branches[1])).sink(
        "out", sinks.Memory()
    )
    order = ["of-first-key", "of-second-key", "after"]
    assert told_on_shipping(job, noted) == [(kind, step) for kind in ("Interrogate", "Collect") for step in order]


def test_r4_steps_without_state_by_key_are_not_told() -> None:
    job, noted = mp.Job("noted", slots=8), list[tuple[str, str]]()
    keyed = job.source("in", sources.Memory([1])).key_by("key", lambda n: n)
    told_of = [
        as_step(partial(Told, noted=noted), name="keyed")(keyed),
        as_step(partial(Told, noted=noted), name="local")(keyed.key_local("near", lambda n: n)),
    ]
    told_of[0].key_by("again", lambda n: n).sink("out", sinks.Memory())
    told_of[1].sink("near-out", sinks.Memory())
    assert {step for _, step in told_on_shipping(job, noted)} == {"keyed"}


def test_f3_a_partitioner_is_bound_once_per_exchange() -> None:
    class Bound:
        def __init__(self) -> None:
            self.steps: list[str] = []

        def bind(self, slots: int, *, step: str = "") -> Any:
            self.steps.append(step)
            return mp.partitioners.stable_hash.bind(slots, step=step)

    job, partitioner = mp.Job("bound"), Bound()
    keyed = job.source("in", sources.Memory([1])).key_by("key", lambda n: n, partitioner=partitioner)
    keyed.count("count").sum("sum").sink("out", sinks.Memory())
    graph_of(job)
    assert partitioner.steps == ["key"]


def test_copies_of_a_plan_know_what_its_sources_learnt_when_their_parts_were_dealt(tmp_path: Path) -> None:
    """The types of csv files come from the first file, and hold for all files on all workers."""
    (tmp_path / "a.csv").write_text("n\n1\n")
    (tmp_path / "b.csv").write_text("n\n1.5\n")
    job = mp.Job("copied")
    job.source("in", sources.Files(tmp_path / "*.csv")).sink("out", sinks.Memory())
    plan = job.plan()
    dealt = deal_parts(plan, [0, 1], SystemClock())
    assert dealt.movable == {"in"}
    copy = unpack_plan(pack_plan(plan), "copied", HERE)
    second = next(step for step in copy.steps if step.kind == "source").factory(StepContext("copied", "in", 1))
    assert isinstance(second, ReadSource)
    part = second._build(dealt.parts[1]["in"][0], None)
    with closing(part), pytest.raises(MalformedRecord):
        part.poll(10)
