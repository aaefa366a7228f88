"""`union`: several streams as one; epochs are the minimum, what acts on state comes once, parts end on every way."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, AbsBarrier, Acquire, Collect, Epoch, Interrogate, Rescale
from malstrom_py.data.messages import SuspendMarker as Suspended
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.branching import Union
from malstrom_py.testing import CapturingPersistenceBackend
from malstrom_py.workers.engine.executor import Executor, NodeSpec
from tests.unit.operators.stepping import Recorder


class Watching(Recorder):
    """Records control messages as well."""

    def on_control(self, message: Any, out: Outlet) -> None:
        self.messages.append(message)


def joined(inputs: int) -> tuple[Executor, Watching]:
    """A union of ``inputs`` nodes that are pushed to, followed by a recorder."""
    recorder = Watching()
    union: Operator = Union(StepContext("test", "union"))
    nodes = [NodeSpec(f"in-{number}", None) for number in range(inputs)]
    nodes.append(NodeSpec("union", union, tuple((number, 0) for number in range(inputs))))
    nodes.append(NodeSpec("out", recorder, ((inputs, 0),), ()))
    return Executor(nodes), recorder


@given(
    pushes=st.lists(st.tuples(st.integers(0, 2), st.one_of(st.integers(1, 5), st.just("row"))), max_size=40),
)
def test_t6_the_epoch_is_the_minimum_over_the_inputs_and_rows_keep_their_order(pushes: list[tuple[int, Any]]) -> None:
    executor, recorder = joined(3)
    frontiers, rows = [MIN_EPOCH] * 3, list[Any]()
    for number, (index, what) in enumerate(pushes):
        if what == "row":
            rows.append((index, number))
            executor.push(index, Batch([(index, number)]))
        else:
            frontiers[index] = max(frontiers[index], 0) + what
            executor.push(index, Epoch(frontiers[index]))
        executor.run()
        epochs = [message.time for message in recorder.messages if isinstance(message, Epoch)]
        assert (epochs or [MIN_EPOCH])[-1] == min(frontiers)
        assert epochs == sorted(set(epochs))
    assert [row for batch in recorder.messages if isinstance(batch, Batch) for row in batch.values] == rows


@pytest.mark.parametrize(
    "message",
    [
        Interrogate(lambda key: True),
        Collect(frozenset()),
        Acquire({}),
        AbsBarrier("s", CapturingPersistenceBackend()),
        Rescale(1, ()),
        Suspended(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_acts_on_state_passes_once_behind_all_that_came_before_it(message: Any) -> None:
    executor, recorder = joined(3)
    for index in range(3):
        executor.push(index, Batch([index]))
        executor.push(index, message)
        executor.run()
    assert [getattr(seen, "values", seen) for seen in recorder.messages] == [[0], [1], [2], message]
    executor.push(0, message)
    executor.run()
    assert recorder.messages.count(message) == 1


def timed(job: mp.Job, name: str, times: list[int], parts: int = 1) -> mp.StreamBuilder[None, int]:
    return job.source(name, sources.Memory(times, parts=parts)).assign_timestamps(f"{name}-at", lambda n: n)


@pytest.mark.parametrize("workers", [1, 3])
def test_t5_the_end_comes_when_all_inputs_have_ended(workers: int) -> None:
    job, out = mp.Job("a"), sinks.Memory()
    short, long = timed(job, "short", [1]), timed(job, "long", list(range(3000)))
    joined = short.union("both", long).key_by("all", lambda n: "all")
    joined.collect("list", size=10_000).sink("out", out)
    result = mp.run(job, workers)
    assert [sorted(values) for values in out.items] == [sorted([1, *range(3000)])]
    assert result.steps["both"].epoch == MAX_EPOCH


def test_a_stream_joined_with_itself_comes_twice() -> None:
    job = mp.Job("a")
    stream = job.source("in", sources.Memory([1, 2]))
    assert Counter(mp.collect(stream.union("twice", stream))) == {1: 2, 2: 2}
    alone = mp.Job("b").source("in", sources.Memory([1, 2]))
    assert mp.collect(alone.union("alone")) == [1, 2]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("rows_max", [1, 7, 100])
def test_t1_generate_epochs_may_be_durable_behind_branches_that_were_joined_again(workers: int, rows_max: int) -> None:
    """A part comes on both ways: it has ended only when it has ended on both."""
    job, out, late_out = mp.Job("a"), sinks.Memory(), sinks.Memory()
    even, odd = timed(job, "in", list(range(60)), parts=4).branch("even", lambda n: n % 2 == 0)
    joined = even.map("m", lambda n: n).map("m2", lambda n: n).union("again", odd)
    on_time, late = joined.generate_epochs("epochs", mp.limit_out_of_orderness(100))
    on_time.sink("out", out)
    late.sink("late", late_out)
    result = mp.run(job, workers, batch=mp.Batching(rows_max=rows_max))
    assert (sorted(out.items), late_out.items) == (list(range(60)), [])
    assert result.steps["epochs"].epoch == MAX_EPOCH


def test_t2_parts_of_two_sources_hold_the_epoch_back_together() -> None:
    job, seen = mp.Job("a"), list[int]()

    class Epochs:
        def on_data(self, message: Any, output: Any) -> None:
            """Says nothing."""

        def on_epoch(self, epoch: Epoch, output: Any) -> None:
            seen.append(epoch.time)

    both = timed(job, "fast", [10, 20, 30]).union("both", timed(job, "slow", [5, 6, 7, 8, 9]))
    on_time, _ = both.generate_epochs("epochs", mp.limit_out_of_orderness(0))
    mp.collect(on_time.stateless_op("watch", Epochs()), batch=mp.Batching(rows_max=1))
    assert seen[0] == 4
    assert seen == sorted(set(seen))
    assert seen[-1] == MAX_EPOCH
    job2 = mp.Job("b")
    both = timed(job2, "fast", [10, 20, 30]).union("both", timed(job2, "slow", [5, 6, 7, 8, 9]))
    assert mp.collect(both.generate_epochs("epochs", mp.limit_out_of_orderness(0))[1]) == []
