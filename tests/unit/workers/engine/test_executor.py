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
    PartFinished,
    PartMessage,
    PartOpened,
    StateMessage,
)
from malstrom_py.errors import InternalError
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.workers.engine.executor import Executor, NodeSpec

ALL_PORTS = (True,)


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


def test_a_line_applies_its_steps_one_after_the_other() -> None:
    last = Apply()
    run(line(None, Apply(lambda n: n * 2), Apply(lambda n: n + 1), last), Batch([1, 2]))
    assert values_of(last) == [3, 5]


def test_a_diamond_sends_5_as_10_and_105() -> None:
    double, add, last = Apply(lambda n: n * 2), Apply(lambda n: n + 100), Apply()
    executor = Executor(
        [
            NodeSpec("in", None),
            NodeSpec("double", double, ((0, 0),)),
            NodeSpec("add", add, ((0, 0),)),
            NodeSpec("last", last, ((1, 0), (2, 0))),
        ]
    )
    run(executor, Batch([5]))
    assert sorted(values_of(last)) == [10, 105]
    run(executor, Epoch(7))
    assert epochs_of(last) == [7]


def test_fan_out_shares_the_batch() -> None:
    class Keep(Apply):
        def on_batch(self, batch: Batch, out: Outlet) -> None:
            self.seen.append(batch)

    left, right, batch = Keep(), Keep(), Batch([1])
    executor = Executor([NodeSpec("in", None), NodeSpec("l", left, ((0, 0),)), NodeSpec("r", right, ((0, 0),))])
    run(executor, batch)
    assert left.seen == right.seen == [batch]


def test_fan_in_takes_from_every_input() -> None:
    executor, join = joined(2)
    run(executor, Batch([1]), node=0)
    run(executor, Batch([2]), node=1)
    assert values_of(join) == [1, 2]


def test_a_node_may_read_one_stream_twice() -> None:
    twice = Apply()
    executor = Executor([NodeSpec("in", None), NodeSpec("twice", twice, ((0, 0), (0, 0)))])
    run(executor, Batch([1]), Epoch(4))
    assert twice.seen == [[1], [1], 4]


def test_the_order_of_messages_is_kept_on_every_edge() -> None:
    last = Apply()
    run(
        line(None, Apply(), last),
        PartOpened("p"),
        Batch([1]),
        Epoch(1),
        Batch([2]),
        PartFinished("p"),
        Epoch(2),
        Batch([3]),
    )
    assert last.seen == ["p", [1], 1, [2], "p", 2, [3]]


def test_an_empty_batch_goes_nowhere_and_is_not_counted() -> None:
    first, last = Apply(), Apply()
    executor = line(first, last)
    executor.call(0, lambda out: out.send(Batch([])))
    executor.run()
    assert last.seen == []
    assert executor.counters(0).rows_out == [0]


def test_ports_lead_to_their_own_successors() -> None:
    class Split(Apply):
        def on_batch(self, batch: Batch, out: Outlet) -> None:
            out.send(batch, 0)
            out.send(batch.take([0]), 1)

    left, right = Apply(), Apply()
    executor = Executor(
        [NodeSpec("in", Split(), (), (True, True)), NodeSpec("l", left, ((0, 0),)), NodeSpec("r", right, ((0, 1),))]
    )
    run(executor, Batch([1, 2]))
    assert (values_of(left), values_of(right)) == ([1, 2], [1])
    assert executor.counters(0).rows_out == [2, 1]


def test_what_nothing_reads_is_counted() -> None:
    executor = line(Apply())
    run(executor, Batch([1, 2]), Epoch(3))
    assert (executor.counters(0).rows_in, executor.counters(0).rows_out) == (2, [2])


def test_a_port_without_epochs_carries_only_the_maximum() -> None:
    last = Apply()
    executor = Executor([NodeSpec("in", None, (), (False,)), NodeSpec("last", last, ((0, 0),))])
    run(executor, PartOpened("p"), Epoch(5), Batch([1]), Epoch(MAX_EPOCH))
    assert last.seen == ["p", [1], MAX_EPOCH]


def test_an_input_without_epoch_holds_the_frontier_back() -> None:
    executor, join = joined(2)
    run(executor, Epoch(5), node=0)
    assert (epochs_of(join), executor.frontier(2)) == ([], MIN_EPOCH)
    run(executor, Epoch(3), node=1)
    assert (epochs_of(join), executor.frontier(2)) == ([3], 3)


def test_epochs_that_move_nothing_are_not_passed_on() -> None:
    last = Apply()
    executor = line(None, last)
    run(executor, Epoch(5), Epoch(5), Epoch(3), Epoch(6), Epoch(MAX_EPOCH), Epoch(MAX_EPOCH))
    assert epochs_of(last) == [5, 6, MAX_EPOCH]


@given(epochs=st.lists(st.tuples(st.integers(0, 2), st.integers(-5, 20) | st.just(MAX_EPOCH)), max_size=40))
def test_the_frontier_is_the_minimum_over_the_inputs_and_never_goes_back(epochs: list[tuple[int, int]]) -> None:
    executor, join = joined(3)
    reached = [MIN_EPOCH] * 3
    expected: list[int] = []
    for source, time in epochs:
        run(executor, Epoch(time), node=source)
        reached[source] = max(reached[source], time)
        if min(reached) > (expected or [MIN_EPOCH])[-1]:
            expected.append(min(reached))
        assert executor.frontier(3) == min(reached)
    assert epochs_of(join) == expected


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


def test_a_node_is_visited_once_however_many_messages_it_gets() -> None:
    visits: list[str] = []

    class Named(Apply):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def on_batch(self, batch: Batch, out: Outlet) -> None:
            visits.append(self.name)
            super().on_batch(batch, out)

    executor = Executor(
        [
            NodeSpec("a", Named("a")),
            NodeSpec("b", Named("b"), ((0, 0),)),
            NodeSpec("c", Named("c"), ((0, 0), (1, 0))),
        ]
    )
    run(executor, Batch([1]), Batch([2]))
    assert visits == ["a", "a", "b", "b", "c", "c", "c", "c"]


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


def test_an_exception_leaves_an_executor_that_works_on() -> None:
    class Sometimes(Apply):
        def on_batch(self, batch: Batch, out: Outlet) -> None:
            if batch.values == ["bad"]:
                raise ValueError("bad")
            super().on_batch(batch, out)

    last, bystander = Apply(), Apply()
    executor = Executor(
        [
            NodeSpec("in", None),
            NodeSpec("some", Sometimes(), ((0, 0),)),
            NodeSpec("last", last, ((1, 0),)),
            NodeSpec("by", bystander, ((0, 0),)),
        ]
    )
    executor.push(0, Batch(["bad"]))
    with pytest.raises(ValueError, match="bad"):
        executor.run()
    run(executor, Batch(["good"]))
    assert values_of(last) == ["good"]
    assert values_of(bystander) == ["bad", "good"]


@pytest.mark.parametrize("source", [1, 2, -1])
def test_an_input_that_does_not_stand_before_its_node_is_our_bug(source: int) -> None:
    with pytest.raises(InternalError, match="'n1'"):
        Executor([NodeSpec("n0", None), NodeSpec("n1", None, ((source, 0),))])


def test_call_gives_what_the_function_gives() -> None:
    last = Apply()
    executor = line(None, last)

    def send(out: Outlet) -> str:
        out.send(Batch([1]))
        return "sent"

    assert executor.call(0, send) == "sent"
    assert last.seen == []
    executor.run()
    assert values_of(last) == [1]


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


def test_visits_are_counted_once_per_node_with_something_queued() -> None:
    executor = line(None, Apply(lambda n: n), Apply())
    run(executor, Batch([1]))
    run(executor, Batch([1]), Batch([2]))
    assert executor.visits == 6
    executor.run()
    assert executor.visits == 6
