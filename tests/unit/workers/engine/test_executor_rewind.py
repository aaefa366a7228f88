"""Rewind: the frontiers of a node and of all nodes downstream are lowered, those of other nodes unchanged (R2)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, Epoch
from malstrom_py.data.time import Frontier
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.stateless_op import StatelessOp
from malstrom_py.workers.engine.executor import Executor, NodeSpec


class Promising(Operator):
    """A fake source or generator: sends the epochs of the test, and returns ``now`` from `rewind`."""

    def __init__(self, name: str = "promising") -> None:
        super().__init__(StepContext("test", name))
        self.now = Epoch(MIN_EPOCH)
        self.asked: list[Epoch] = []

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        out.send(batch)

    def rewind(self, epoch: Epoch) -> Epoch:
        self.asked.append(epoch)
        return self.now


class Seen(Operator):
    """Forwards everything and records its epochs."""

    def __init__(self, name: str = "seen") -> None:
        super().__init__(StepContext("test", name))
        self.epochs: list[int] = []

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        out.send(batch)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        self.epochs.append(epoch.time)
        out.forward(epoch)


def say(executor: Executor, node: int, time: int, *, idle: bool = False) -> None:
    executor.call(node, lambda out: out.forward(Epoch(time, idle)))
    executor.run()


def taken_back(executor: Executor, node: int, time: int, *, idle: bool = False) -> None:
    operator = executor.operator(node)
    assert isinstance(operator, Promising)
    operator.now = Epoch(time, idle)
    executor.rewind(node)


def test_r2_all_behind_goes_back_and_goes_on_from_there() -> None:
    seen = Seen()
    executor = Executor(
        [
            NodeSpec("in", Promising()),
            NodeSpec("seen", seen, ((0, 0),)),
            NodeSpec("none", None, ((1, 0),)),
            NodeSpec("end", Seen(), ((2, 0),), ()),
        ]
    )
    say(executor, 0, 50)
    taken_back(executor, 0, 30)
    assert [executor.frontier(node) for node in (1, 2, 3)] == [30] * 3
    assert [executor.epoch(node) for node in range(4)] == [30] * 4
    assert seen.epochs == [50], "no epoch is sent: steps downstream do not see the rewind"
    say(executor, 0, 20)
    say(executor, 0, 40)
    assert seen.epochs == [50, 40]
    assert executor.frontier(3) == 40


@pytest.mark.parametrize(("left", "right", "merged"), [(30, 90, 30), (90, 30, 30), (90, MAX_EPOCH, 90)])
def test_r2_behind_several_sources_the_smallest_counts(left: int, right: int, merged: int) -> None:
    executor = Executor(
        [
            NodeSpec("left", Promising()),
            NodeSpec("right", Promising()),
            NodeSpec("both", None, ((0, 0), (1, 0))),
            NodeSpec("of-right", None, ((1, 0),)),
        ]
    )
    say(executor, 0, 100)
    say(executor, 1, right)
    taken_back(executor, 0, left)
    assert executor.frontier(2) == merged
    assert executor.frontier(3) == right
    say(executor, 0, 95)
    assert executor.frontier(2) == min(95, right)


def test_r2_the_other_source_has_said_nothing_yet() -> None:
    executor = Executor(
        [NodeSpec("left", Promising()), NodeSpec("right", Promising()), NodeSpec("both", None, ((0, 0), (1, 0)))]
    )
    say(executor, 0, 100)
    taken_back(executor, 0, 30)
    assert executor.frontier(2) == MIN_EPOCH
    say(executor, 1, 70)
    assert executor.frontier(2) == 30


def test_r2_a_diamond_is_taken_back_on_both_ways() -> None:
    seen = Seen()
    executor = Executor(
        [
            NodeSpec("in", Promising()),
            NodeSpec("one", None, ((0, 0),)),
            NodeSpec("other", None, ((0, 0),)),
            NodeSpec("again", None, ((2, 0),)),
            NodeSpec("joined", seen, ((1, 0), (3, 0))),
        ]
    )
    say(executor, 0, 50)
    taken_back(executor, 0, 30)
    assert [executor.frontier(node) for node in range(1, 5)] == [30] * 4
    say(executor, 0, 31)
    assert (seen.epochs, executor.frontier(4)) == ([50, 31], 31)


def test_r2_a_generator_promises_by_its_parts_and_not_by_its_source() -> None:
    generator = Promising()
    executor = Executor(
        [
            NodeSpec("in", Promising()),
            NodeSpec("generator", generator, ((0, 0),), (True, False)),
            NodeSpec("on-time", None, ((1, 0),)),
            NodeSpec("late", None, ((1, 1),)),
        ]
    )
    say(executor, 1, 50)
    generator.now = Epoch(30)
    taken_back(executor, 0, MIN_EPOCH)
    assert generator.asked == [Epoch(MIN_EPOCH)]
    assert (executor.frontier(2), executor.frontier(3)) == (30, MIN_EPOCH)


@pytest.mark.parametrize("after", [30, MAX_EPOCH])
def test_t5_an_end_is_taken_back_on_ports_without_epochs_too(after: int) -> None:
    generator = Promising()
    executor = Executor(
        [
            NodeSpec("in", Promising()),
            NodeSpec("generator", generator, ((0, 0),), (True, False)),
            NodeSpec("on-time", None, ((1, 0),)),
            NodeSpec("late", None, ((1, 1),)),
        ]
    )
    say(executor, 0, MAX_EPOCH)
    say(executor, 1, MAX_EPOCH)
    generator.now = Epoch(after)
    taken_back(executor, 0, after if after == MAX_EPOCH else MIN_EPOCH)
    assert (executor.frontier(2), executor.frontier(3)) == (after, MAX_EPOCH if after == MAX_EPOCH else MIN_EPOCH)
    say(executor, 1, MAX_EPOCH)
    assert (executor.frontier(2), executor.frontier(3)) == (MAX_EPOCH, MAX_EPOCH)


def test_t2_whether_who_promises_is_idle_is_taken_along() -> None:
    executor = Executor(
        [NodeSpec("left", Promising()), NodeSpec("right", Promising()), NodeSpec("both", None, ((0, 0), (1, 0)))]
    )
    say(executor, 0, 60, idle=True)
    say(executor, 1, 80)
    assert (executor.frontier(2), executor.merged(2).idle) == (80, False)
    taken_back(executor, 0, 30)
    assert (executor.frontier(2), executor.merged(2).idle) == (30, False)
    taken_back(executor, 0, 40, idle=True)
    assert (executor.frontier(2), executor.merged(2).idle) == (80, False)
    say(executor, 1, 80, idle=True)
    assert executor.merged(2).idle


def test_r2_a_step_that_keeps_to_what_it_has_passed_may_send_from_there_again() -> None:
    def early(message: Any, output: Any) -> None:
        output.emit(None, message.value, message.timestamp)

    step = StatelessOp(StepContext("test", "op", timed=True, keyed=False), logic=early)
    seen = Seen()
    executor = Executor(
        [NodeSpec("in", Promising()), NodeSpec("op", step, ((0, 0),)), NodeSpec("seen", seen, ((1, 0),))]
    )
    say(executor, 0, 50)
    taken_back(executor, 0, 30)
    executor.push(0, Batch(["row"], timestamps=[31], part="p"))
    executor.run()
    assert executor.counters(2).rows_in == 1


def test_r2_an_epoch_hook_is_told_of_epochs_again_that_are_ahead_of_where_it_was_taken_back_to() -> None:
    class Logic:
        def __init__(self) -> None:
            self.told: list[int] = []

        def on_data(self, message: Any, output: Any) -> None:
            """Nothing is sent."""

        def on_epoch(self, epoch: Epoch, output: Any) -> None:
            self.told.append(epoch.time)

    logic = Logic()
    step = StatelessOp(StepContext("test", "op", timed=True, keyed=False), logic=logic)
    executor = Executor([NodeSpec("in", Promising()), NodeSpec("op", step, ((0, 0),))])
    say(executor, 0, 50)
    taken_back(executor, 0, 30)
    say(executor, 0, 40)
    assert logic.told == [50, 40]


@st.composite
def graphs(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """The inputs of each node: two sources, then nodes that read some of those before them."""
    ranks = range(2, draw(st.integers(3, 9)))
    read = [tuple(draw(st.lists(st.integers(0, rank - 1), min_size=1, max_size=3))) for rank in ranks]
    return [(), (), *read]


@given(
    graph=graphs(),
    said=st.lists(st.tuples(st.integers(0, 1), st.integers(-9, 9), st.booleans()), max_size=10),
    back=st.tuples(st.integers(0, 1), st.integers(-9, 9), st.booleans()),
)
def test_r2_any_graph_is_where_it_would_be_had_no_more_been_promised(
    graph: list[tuple[int, ...]], said: list[tuple[int, int, bool]], back: tuple[int, int, bool]
) -> None:
    """Return the expected frontiers: of nodes downstream the minimum of their inputs, of other nodes unchanged."""
    specs = [
        NodeSpec(f"n{rank}", Promising() if rank < 2 else None, tuple((node, 0) for node in inputs))
        for rank, inputs in enumerate(graph)
    ]
    executor = Executor(specs)
    for source, time, idle in said:
        say(executor, source, time, idle=idle)
    before = [(executor.frontier(node), executor.merged(node).idle) for node in range(len(graph))]
    promises = {node: (executor._nodes[node].epoch, executor._nodes[node].idle) for node in range(len(graph))}
    source, time, idle = back
    taken_back(executor, source, time, idle=idle)
    promises[source] = (time, idle)
    behind = executor.behind(source)
    for rank, inputs in enumerate(graph):
        if rank < 2 or rank not in behind:
            assert (executor.frontier(rank), executor.merged(rank).idle) == before[rank]
            continue
        frontier = Frontier(len(inputs))
        for index, node in enumerate(inputs):
            frontier.advance(index, promises[node][0], idle=promises[node][1])
        promises[rank] = (frontier.time, frontier.idle)
        assert (executor.frontier(rank), executor.merged(rank).idle) == promises[rank]
        assert executor._nodes[rank].epoch == frontier.time
