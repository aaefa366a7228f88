"""The executor: every message reaches what it should, once, in order, and only what it touches costs anything."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import (
    MAX_EPOCH,
    MIN_EPOCH,
    Control,
    Epoch,
    Interrogate,
    PartMessage,
    PartOpened,
    StateMessage,
)
from malstrom_py.data.time import Frontier
from malstrom_py.errors import InternalError
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.stateless_op import StatelessOp
from malstrom_py.workers.engine.executor import Executor, NodeSpec


class Apply(Operator):
    """Applies a function to each value, and keeps every message it was sent."""

    def __init__(self, function: Any = lambda value: value) -> None:
        super().__init__(StepContext("test", "apply"))
        self.function = function
        self.seen: list[Any] = []

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        self.seen.append(batch.values)
        out.send(batch.with_values([self.function(value) for value in batch.values]))

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        self.seen.append(epoch.time)
        out.forward(epoch)

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        self.seen.append(message.part)
        out.forward(message)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        self.seen.append(message)
        out.forward(message)


def values_of(operator: Apply) -> list[Any]:
    return [value for entry in operator.seen if isinstance(entry, list) for value in entry]


def epochs_of(operator: Apply) -> list[int]:
    return [entry for entry in operator.seen if isinstance(entry, int)]


def line(*operators: Operator | None) -> Executor:
    return Executor([NodeSpec(f"n{n}", op, ((n - 1, 0),) if n else ()) for n, op in enumerate(operators)])


def run(executor: Executor, *messages: Batch | Control, node: int = 0, index: int = 0) -> None:
    for message in messages:
        executor.push(node, message, index=index)
    executor.run()


def joined(inputs: int) -> tuple[Executor, Apply]:
    """Sources without operators, all read by one node."""
    join = Apply()
    sources = [NodeSpec(f"in{n}", None) for n in range(inputs)]
    return Executor([*sources, NodeSpec("join", join, tuple((n, 0) for n in range(inputs)))]), join


def test_a_node_may_read_one_stream_twice() -> None:
    twice = Apply()
    executor = Executor([NodeSpec("in", None), NodeSpec("twice", twice, ((0, 0), (0, 0)))])
    run(executor, Batch([1]), Epoch(4))
    assert twice.seen == [[1], [1], 4]


def test_an_empty_batch_goes_nowhere_and_is_not_counted() -> None:
    first, last = Apply(), Apply()
    executor = line(first, last)
    executor.call(0, lambda out: out.send(Batch([])))
    executor.run()
    assert last.seen == []
    assert executor.counters(0).rows_out == [0]


def test_what_nothing_reads_is_counted() -> None:
    executor = line(Apply())
    run(executor, Batch([1, 2]), Epoch(3))
    assert (executor.counters(0).rows_in, executor.counters(0).rows_out) == (2, [2])


def test_a_port_without_epochs_carries_only_the_maximum() -> None:
    last = Apply()
    executor = Executor([NodeSpec("in", None, (), (False,)), NodeSpec("last", last, ((0, 0),))])
    run(executor, PartOpened("p"), Epoch(5), Batch([1]), Epoch(MAX_EPOCH))
    assert last.seen == ["p", [1], MAX_EPOCH]


@given(data=st.data())
def test_any_graph_gives_what_a_walk_along_its_edges_gives(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 8))
    inputs = [tuple(sorted(data.draw(st.sets(st.integers(0, n - 1), max_size=3)))) if n else () for n in range(size)]
    operators: list[Apply | None] = [
        Apply(lambda value, n=n: f"{value}{n}") if data.draw(st.booleans()) else None for n in range(size)
    ]
    executor = Executor(
        [NodeSpec(f"n{n}", operators[n], tuple((source, 0) for source in inputs[n])) for n in range(size)]
    )
    run(executor, Batch([""]))

    def out_of(n: int) -> list[str]:
        taken = into(n)
        return taken if operators[n] is None else [f"{value}{n}" for value in taken]

    def into(n: int) -> list[str]:
        return [""] if n == 0 else [value for source in inputs[n] for value in out_of(source)]

    for n, operator in enumerate(operators):
        assert executor.counters(n).rows_in == len(into(n))
        if operator is not None:
            assert sorted(values_of(operator)) == sorted(into(n))


def test_only_nodes_that_are_touched_are_visited() -> None:
    class Visited(list[Any]):
        """The queue-swapping node table: counts which nodes the loop looks up."""

        looked_up: list[int] = []  # noqa: RUF012  one table in one test

        def __getitem__(self, index: Any) -> Any:
            self.looked_up.append(index)
            return super().__getitem__(index)

    untouched = [NodeSpec(f"u{n}", Apply()) for n in range(1_000)]
    executor = Executor([NodeSpec("in", None), *untouched, NodeSpec("out", Apply(), ((0, 0),))])
    executor._nodes = Visited(executor._nodes)
    for _ in range(3):
        run(executor, Batch([1]), Batch([2]))
    assert Visited.looked_up == [0, 0, 0, 1_001] * 3  # pushed twice, then each touched node visited once


def test_a_control_message_passes_each_node_once_when_it_has_come_on_all_inputs() -> None:
    """Also a node without operator, such as the receiving end of an exchange."""
    end = Apply()
    executor = Executor(
        [
            NodeSpec("left", None),
            NodeSpec("right", None),
            NodeSpec("third", None),
            NodeSpec("join", None, ((0, 0), (1, 0), (2, 0))),
            NodeSpec("end", end, ((3, 0),), ()),
        ]
    )
    message = Interrogate(lambda key: True)
    for node in (0, 2):
        run(executor, message, node=node)
    assert end.seen == []
    run(executor, message, node=1)
    assert end.seen == [message]


@pytest.mark.parametrize("source", [1, 2, -1])
def test_an_input_that_does_not_stand_before_its_node_is_our_bug(source: int) -> None:
    with pytest.raises(InternalError, match="'n1'"):
        Executor([NodeSpec("n0", None), NodeSpec("n1", None, ((source, 0),))])


class Fails(Apply):
    """Raises on the batch ["bad"]."""

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        if batch.values == ["bad"]:
            raise ValueError("bad")
        super().on_batch(batch, out)


def test_what_is_queued_behind_a_message_that_raised_stays_queued_in_order() -> None:
    last = Fails()
    executor = line(None, last)
    for value in ("before", "bad", "one", "two"):
        executor.push(1, Batch([value]))
    with pytest.raises(ValueError, match="bad"):
        executor.run()
    assert [batch.values for _, batch in executor.queued(1) if isinstance(batch, Batch)] == [["one"], ["two"]]
    executor.push(0, Batch(["new"]))
    executor.run()
    assert values_of(last) == ["before", "one", "two", "new"]
    assert executor.queued(1) == []


def test_messages_that_a_node_sends_itself_while_it_raises_come_behind_those_put_back() -> None:
    class Loud(Apply):
        def on_batch(self, batch: Batch, out: Outlet) -> None:
            out.send(batch)
            raise ValueError("loud")

    last = Apply()
    executor = line(Loud(), last)
    executor.push(0, Batch([1]))
    executor.push(0, Batch([2]))
    for _ in range(2):
        with pytest.raises(ValueError, match="loud"):
            executor.run()
    executor.run()
    assert values_of(last) == [1, 2]


def test_a_node_goes_on_where_another_one_was() -> None:
    executor, join = joined(2)
    executor.resume(2, [10, 5], 5)
    assert (executor.frontier(2), executor.epoch(2), executor.merged(2).inputs()) == (5, 5, [10, 5])
    run(executor, Epoch(7), node=1)
    run(executor, Epoch(4), node=0)
    assert epochs_of(join) == [7]


# Rewind: the frontiers of a node and of all nodes downstream are lowered (R2).


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


def generating() -> tuple[Promising, Executor]:
    """Return a generator that a source feeds, and an executor of both and of what follows its ports."""
    generator = Promising()
    nodes = [NodeSpec("in", Promising()), NodeSpec("generator", generator, ((0, 0),), (True, False))]
    return generator, Executor([*nodes, NodeSpec("on-time", None, ((1, 0),)), NodeSpec("late", None, ((1, 1),))])


def test_r2_a_generator_promises_by_its_parts_and_not_by_its_source() -> None:
    generator, executor = generating()
    say(executor, 1, 50)
    generator.now = Epoch(30)
    taken_back(executor, 0, MIN_EPOCH)
    assert generator.asked == [Epoch(MIN_EPOCH)]
    assert (executor.frontier(2), executor.frontier(3)) == (30, MIN_EPOCH)


@pytest.mark.parametrize("after", [30, MAX_EPOCH])
def test_t5_an_end_is_taken_back_on_ports_without_epochs_too(after: int) -> None:
    generator, executor = generating()
    say(executor, 0, MAX_EPOCH)
    say(executor, 1, MAX_EPOCH)
    generator.now = Epoch(after)
    taken_back(executor, 0, after if after == MAX_EPOCH else MIN_EPOCH)
    assert (executor.frontier(2), executor.frontier(3)) == (after, MAX_EPOCH if after == MAX_EPOCH else MIN_EPOCH)
    say(executor, 1, MAX_EPOCH)
    assert (executor.frontier(2), executor.frontier(3)) == (MAX_EPOCH, MAX_EPOCH)


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
