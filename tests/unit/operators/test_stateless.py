"""The steps without state: what each sends of a batch, of functions, logics, frontiers and unions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import (
    MAX_EPOCH,
    MIN_EPOCH,
    Control,
    DataMessage,
    Epoch,
    PartFinished,
    PartOpened,
)
from malstrom_py.errors import CodecError, OperatorError, PlanError
from malstrom_py.operators.base import Operator, OperatorFactory, Outlet, StepContext
from malstrom_py.operators.branching import NO, YES, Branch, Cloned, Split, Union
from malstrom_py.operators.key_by import KeyBy, KeyLocal
from malstrom_py.operators.logic import Output
from malstrom_py.operators.stateless import (
    Filter,
    FilterMap,
    FlatMap,
    Flatten,
    Inspect,
    InspectFrontier,
    Map,
    MapWithKey,
)
from malstrom_py.operators.stateless_op import StatelessOp
from malstrom_py.testing import OperatorTester
from malstrom_py.validation import field_getter
from malstrom_py.workers.engine.executor import Executor, NodeSpec
from tests.unit.operators.stepping import Recorder, Row, Stepped, cut

ROWS = Batch([1, 2, 3], keys=["a", "b", "c"], timestamps=[10, 20, 30], part="p")
BOTH_LAYOUTS = pytest.mark.parametrize("columns", [{}, {"keys": ["a", "b", "c"], "timestamps": [1, 2, 3]}])


@pytest.mark.parametrize(
    ("factory", "rows"),
    [
        (partial(Map, fn=lambda n: n * 2), [("a", 2, 10), ("b", 4, 20), ("c", 6, 30)]),
        (partial(Map, fn=lambda n: None), [("a", None, 10), ("b", None, 20), ("c", None, 30)]),
        (partial(MapWithKey, fn=lambda key, n: key * n), [("a", "a", 10), ("b", "bb", 20), ("c", "ccc", 30)]),
        (partial(Filter, predicate=lambda n: n % 2), [("a", 1, 10), ("c", 3, 30)]),
        (partial(FilterMap, fn=lambda n: n * 10 if n != 2 else None), [("a", 10, 10), ("c", 30, 30)]),
        (partial(FilterMap, fn=lambda n: [0, "", []][n - 1]), [("a", 0, 10), ("b", "", 20), ("c", [], 30)]),
        (partial(FlatMap, fn=lambda n: np.arange(n % 3)), [("a", 0, 10), ("b", 0, 20), ("b", 1, 20)]),
        (partial(Inspect, fn=lambda n: "ignored"), [("a", 1, 10), ("b", 2, 20), ("c", 3, 30)]),
        (partial(Branch, predicate=lambda n: n % 2), [("a", 1, 10), ("c", 3, 30)]),
        (partial(KeyBy, fn=lambda n: None if n == 1 else n % 2), [(None, 1, 10), (0, 2, 20), (1, 3, 30)]),
        (partial(KeyLocal, fn=lambda n: n % 2), [(1, 1, 10), (0, 2, 20), (1, 3, 30)]),
    ],
)
def test_a_batch_becomes_the_rows_that_the_function_makes_of_it(factory: OperatorFactory, rows: list[Row]) -> None:
    step = Stepped(factory, ports=2).push(ROWS)
    assert step.rows() == rows
    # Parts are not known after key_by: the source region ends there.
    assert step.batches()[0].part == (None if type(step.operator) is KeyBy else "p")
    assert rows_of(ROWS) == [("a", 1, 10), ("b", 2, 20), ("c", 3, 30)]


def test_a_record_whose_function_of_key_and_value_raises_leaves_the_others_their_keys() -> None:
    def share(key: str, n: int) -> str:
        return f"{key}{6 // (n - 2)}"

    step = Stepped(partial(MapWithKey, fn=share), on_error="skip").push(ROWS)
    assert (step.rows(), step.counters.skipped) == ([("a", "a-6", 10), ("c", "c6", 30)], 1)


def rows_of(batch: Batch) -> list[Row]:
    return list(zip(batch.keys or (), batch.values, batch.timestamps or (), strict=True))


@pytest.mark.parametrize(
    "factory",
    [
        partial(Filter, predicate=lambda _: False),
        partial(FilterMap, fn=lambda _: None),
        partial(FlatMap, fn=lambda _: []),
    ],
)
@BOTH_LAYOUTS
def test_a_batch_of_which_nothing_is_left_is_not_sent(factory: OperatorFactory, columns: dict[str, Any]) -> None:
    step = Stepped(factory).push(Batch([1, 2, 3], **columns))
    assert step.messages() == []
    assert step.counters.filtered == (0 if isinstance(step.operator, FlatMap) else 3)


@BOTH_LAYOUTS
def test_the_truth_of_a_verdict_is_that_of_python_and_one_without_follows_on_error(columns: dict[str, Any]) -> None:
    def verdict(value: Any) -> object:
        return np.array([True, False]) if value == 2 else np.bool_(value == 1)

    for step in (partial(Filter, predicate=verdict), partial(Branch, predicate=verdict)):
        skipping = Stepped(step, on_error="skip", ports=2).push(Batch([1, 2, 3], **columns))
        assert (skipping.values(), skipping.counters.skipped) == ([1], 1)
        assert skipping.counters.filtered == (1 if isinstance(skipping.operator, Filter) else 0)
        with pytest.raises(OperatorError, match=r"'under-test'.*verdict at .*test_stateless\.py:\d+"):
            Stepped(step, ports=2).push(Batch([1, 2, 3], **columns))


def test_flat_map_gives_no_items_of_a_record_whose_generator_raises_midway() -> None:
    def items(number: int) -> Iterator[int]:
        yield number
        if number == 2:
            raise ValueError("midway")
        yield number

    step = Stepped(partial(FlatMap, fn=items), on_error="skip").push(Batch([1, 2, 3], keys=["a", "b", "c"]))
    assert step.rows() == [("a", 1, None), ("a", 1, None), ("c", 3, None), ("c", 3, None)]
    with pytest.raises(OperatorError, match=r"items at .*test_stateless\.py:\d+"):
        Stepped(partial(FlatMap, fn=items)).push(Batch([2]))
    with pytest.raises(OperatorError, match="<lambda> at") as caught:
        Stepped(partial(FlatMap, fn=lambda n: n)).push(Batch([7]))
    assert isinstance(caught.value.__cause__, TypeError)


def test_flat_map_holds_only_a_slice_of_much_that_is_made_of_little() -> None:
    """The queue after the step never grows past about one slice of outputs, however many one record gives."""
    held: list[int] = []

    class Holding(Operator):
        def on_batch(self, batch: Batch, out: Outlet) -> None:
            held.append(len(batch))

    flat = FlatMap(StepContext("test", "flat"), fn=lambda n: range(1000))
    executor = Executor([NodeSpec("flat", flat), NodeSpec("held", Holding(StepContext("test", "held")), ((0, 0),))])
    executor.push(0, Batch(list(range(1024))))
    executor.run()
    assert sum(held) == 1024 * 1000
    assert max(held) <= 16_000
    assert max(held[1:]) <= 4096


def test_flatten_takes_one_level_and_a_value_without_items_follows_on_error() -> None:
    values = [[1, 2], (), {3}, iter("ab"), [[4], [5]], 6]
    step = Stepped(Flatten, on_error="dead-letter").push(Batch(values, keys=list("abcdef")))
    assert [row[:2] for row in step.rows()] == [
        *[("a", 1), ("a", 2), ("c", 3), ("d", "a"), ("d", "b"), ("e", [4]), ("e", [5])]
    ]
    assert [(letter.key, letter.value) for letter in step.dead_letters] == [("f", 6)]
    said = r"'under-test' failed: TypeError: the value is of type int, which has no items. Filter"
    with pytest.raises(OperatorError, match=said):
        Stepped(Flatten).push(Batch([2]))


def test_inspect_sees_each_value_once_and_passes_the_batch_untouched() -> None:
    seen: list[Any] = []
    assert Stepped(partial(Inspect, fn=seen.append)).push(ROWS).messages() == [ROWS]
    assert seen == [1, 2, 3]


def test_branch_sends_the_others_the_other_way_and_epochs_both_ways() -> None:
    step = Stepped(partial(Branch, predicate=lambda n: 1 // (n - 1) > 0), ports=2, on_error="dead-letter")
    step.push(ROWS, Epoch(50), Epoch(MAX_EPOCH))
    assert (step.rows(YES), step.rows(NO)) == ([("b", 2, 20)], [("c", 3, 30)])
    assert step.epochs(YES) == step.epochs(NO) == [50, MAX_EPOCH]
    assert [(letter.key, letter.value) for letter in step.dead_letters] == [("a", 1)]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_cloned_sends_the_same_batch_and_all_control_messages_to_every_stream(n: int) -> None:
    step = Stepped(partial(Cloned, n=n), ports=n, timed=True)
    sent: list[Batch | Control] = [PartOpened("p"), ROWS, Epoch(30), PartFinished("p"), Epoch(MAX_EPOCH)]
    step.push(*sent)
    for port in range(n):
        assert step.messages(port) == sent
        assert step.batches(port)[0] is ROWS
    assert step.counters.rows_out == [3] * n


def splitting(fn: Any, on_error: Any = "fail") -> Stepped:
    return Stepped(partial(Split, n=3, fn=fn), ports=3, on_error=on_error)


@given(
    choices=st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=20),
    sizes=st.lists(st.integers(1, 5), max_size=10),
)
def test_split_gives_each_stream_its_records_once_and_in_order(choices: list[list[int]], sizes: list[int]) -> None:
    numbers = list(range(len(choices)))
    step = splitting(lambda n: iter(choices[n]))
    step.push(*cut(Batch(numbers, keys=list(map(str, numbers)), timestamps=numbers), sizes), Epoch(MAX_EPOCH))
    for port in range(3):
        assert step.rows(port) == [(str(row), row, row) for row, chosen in enumerate(choices) if port in chosen]
        assert step.epochs(port) == [MAX_EPOCH]
    assert step.counters.filtered == sum(not chosen for chosen in choices)


@pytest.mark.parametrize("wrong", [[3], [-1], [0, 7], "01", 0, None, ["0"], [[]], [0.5]], ids=repr)
def test_split_by_what_names_no_stream_is_the_fault_of_the_function(wrong: Any) -> None:
    def choose(value: int) -> Any:
        return wrong

    with pytest.raises(OperatorError, match=r"'under-test' failed.*choose at .*test_stateless\.py"):
        splitting(choose).push(Batch([1]))
    step = splitting(choose, on_error="dead-letter").push(Batch([1]))
    assert [letter.value for letter in step.dead_letters] == [1]
    assert (step.counters.filtered, step.counters.rows_out) == (0, [0, 0, 0, 1])


def test_key_by_looks_a_column_up_and_names_one_that_is_missing() -> None:
    by_shop = partial(KeyBy, fn=field_getter("shop", "by-shop"))
    assert [key for key, _, _ in Stepped(by_shop).push(Batch([{"shop": "a"}, {"shop": "b"}])).rows()] == ["a", "b"]
    with pytest.raises(OperatorError, match="column 'shop'") as caught:
        Stepped(by_shop).push(Batch([{"store": "a"}]))
    assert isinstance(caught.value.__cause__, KeyError)


def test_after_key_local_every_worker_keeps_its_own_records_and_key_by_may_follow() -> None:
    job, out, counted = mp.Job("local"), sinks.Memory(), sinks.Memory()
    local = job.source("in", sources.Memory(range(20), parts=4)).key_local("local", lambda n: n % 2)
    local.sink("out", out)
    local.key_by("key", lambda n: n % 2).count("count").sink("counted", counted)
    mp.run(job, 3)
    assert {key: sorted(values) for key, values in out.by_key.items()} == {
        0: list(range(0, 20, 2)),
        1: list(range(1, 20, 2)),
    }
    assert {key: values[-1] for key, values in counted.by_key.items()} == {0: 10, 1: 10}


@pytest.mark.parametrize("key", [[1], float("nan"), {}], ids=repr)
def test_f4_a_key_that_is_not_legal_is_refused(key: object) -> None:
    stream = mp.Job("test").source("in", sources.Memory([1, 2]))
    with pytest.raises(CodecError, match="'local'"):
        mp.collect(stream.key_local("local", lambda _: key))
    assert mp.collect(stream.key_local("skipping", lambda n: key if n == 1 else n, on_error="skip")) == [2]


# stateless_op


def twice(message: DataMessage[Any, int], output: Output[Any, int]) -> None:
    for _ in range(message.value):
        output.send(message)


class AtEpochs:
    """Sends nothing of records, and at each epoch a record under ``key`` at the epoch's time plus ``ahead``."""

    def __init__(self, key: Any = None, ahead: int | None = 0) -> None:
        self.key, self.ahead = key, ahead

    def on_data(self, message: DataMessage[Any, int], output: Output[Any, str]) -> None:
        """Says nothing."""

    def on_epoch(self, epoch: Epoch, output: Output[Any, str]) -> None:
        if epoch.time < MAX_EPOCH:
            output.emit(self.key, "epoch", None if self.ahead is None else epoch.time + self.ahead)


def stepped(logic: Any, **options: Any) -> Stepped:
    return Stepped(partial(StatelessOp, logic=logic), **options)


def test_outputs_keep_order_key_time_and_part() -> None:
    step = stepped(twice, timed=True, keyed=True)
    step.push(
        PartOpened("p"), Batch([2, 0, 1], keys=["a", "b", "c"], timestamps=[5, 6, 7], part="p"), PartFinished("p")
    )
    assert step.rows() == [("a", 2, 5), ("a", 2, 5), ("c", 1, 7)]
    assert [batch.part for batch in step.batches()] == ["p"]
    assert (step.messages()[0], step.messages()[-1]) == (PartOpened("p"), PartFinished("p"))


def test_on_epoch_comes_before_the_epoch_and_may_send_at_it() -> None:
    step = stepped(AtEpochs(), timed=True).push(Epoch(5), Epoch(9))
    assert step.rows() == [(None, "epoch", 5), (None, "epoch", 9)]
    assert [type(message) for message in step.messages()] == [Batch, Epoch, Batch, Epoch]


@pytest.mark.parametrize(("timed", "ahead"), [(True, None), (False, 0)])
def test_a_time_where_there_is_none_or_none_where_there_is_one_is_refused(timed: bool, ahead: int | None) -> None:
    with pytest.raises(OperatorError, match=r"'under-test' sent a .*(untimed|timed) stream"):
        stepped(AtEpochs(ahead=ahead), timed=timed).push(Epoch(5))


@pytest.mark.parametrize("on_error", ["fail", "skip", "dead-letter"])
def test_a_foreign_key_is_refused_whatever_the_policy(on_error: Any) -> None:
    step = stepped(lambda message, output: output.emit("other", 1), keyed=True, on_error=on_error)
    with pytest.raises(OperatorError, match=r"'other'.*<lambda> at .*key_by after this step") as caught:
        step.push(Batch([1], keys=["a"]))
    assert caught.value.rule == "key kept"


@pytest.mark.parametrize(("keyed", "key"), [(True, "a"), (True, None), (False, "a")])
def test_an_epoch_has_no_key_so_none_can_be_sent_at_one(keyed: bool, key: Any) -> None:
    """A keyed record sent by each worker would meet state on workers that do not own its key."""
    with pytest.raises(OperatorError, match=r"which its input does not have \(in AtEpochs\.on_epoch at ") as caught:
        stepped(AtEpochs(key), timed=True, keyed=keyed).push(Batch([1], keys=["a"], timestamps=[1]), Epoch(5))
    assert caught.value.rule == "key kept"


@pytest.mark.parametrize("values", [[1], [1, -1]], ids=["alone", "before one that raises"])
def test_a_timer_is_refused(values: list[int]) -> None:
    def wake(message: DataMessage[Any, int], output: Output[Any, int]) -> None:
        if message.value < 0:
            raise ValueError
        output.set_timer(message.key, 5)

    with pytest.raises(OperatorError, match="'under-test' set a timer, but keeps no state: use stateful_op"):
        stepped(wake, timed=True, on_error="skip").push(Batch(values, timestamps=values))


def test_an_error_in_on_epoch_names_it_whatever_the_policy() -> None:
    class Failing(AtEpochs):
        def on_epoch(self, epoch: Epoch, output: Output[Any, str]) -> None:
            raise ValueError("secret")

    with pytest.raises(OperatorError, match=r"Failing\.on_epoch at ") as caught:
        stepped(Failing(), on_error="skip").push(Epoch(1))
    assert "secret" in str(caught.value)


def odd_aside(message: DataMessage[Any, int], output: Output[Any, int]) -> None:
    (output.side("odd") if message.value % 2 else output).send(message)
    if message.value == 3:
        raise ValueError


def test_side_outputs_have_ports_of_their_own_and_a_record_it_raises_on_leaves_nothing_in_them() -> None:
    step = Stepped(partial(StatelessOp, logic=odd_aside, sides=["odd"]), keyed=True, ports=2, on_error="dead-letter")
    step.push(Batch([1, 2, 3, 5], keys=["a", "b", "c", "d"]))
    assert step.rows() == [("b", 2, None)]
    assert step.rows(1) == [("a", 1, None), ("d", 5, None)]
    assert [letter.value for letter in step.dead_letters] == [3]


def test_where_records_have_a_key_as_it_comes_an_epoch_may_send_without_one() -> None:
    step = Stepped(partial(StatelessOp, logic=AtEpochs()), keyed=None, timed=None)
    assert step.push(Epoch(5)).rows() == [(None, "epoch", 5)]
    with pytest.raises(OperatorError, match="under key 'a'"):
        Stepped(partial(StatelessOp, logic=AtEpochs("a")), keyed=None, timed=None).push(Epoch(5))


# inspect_frontier


def inspecting(seen: list[int]) -> Stepped:
    return Stepped(partial(InspectFrontier, fn=seen.append))


@given(times=st.lists(st.integers(-20, 20), max_size=20))
def test_it_is_called_once_per_move_in_order(times: list[int]) -> None:
    seen: list[int] = []
    step = inspecting(seen).push(*(Epoch(time) for time in times), Epoch(MAX_EPOCH))
    assert seen == step.epochs()
    assert seen == sorted(set(seen))
    assert seen[-1] == MAX_EPOCH


def test_t2_it_is_not_called_when_a_part_becomes_idle_or_wakes() -> None:
    seen: list[int] = []
    step = inspecting(seen)
    messages = [Epoch(MIN_EPOCH, idle=True), Epoch(5), Epoch(5, idle=True), Epoch(5), Epoch(6, idle=True)]
    for epoch in messages:
        step.call(partial(step.operator.on_epoch, epoch))
    assert seen == [5, 6]
    assert step.messages() == messages  # which are passed on all the same


def test_on_an_untimed_stream_only_the_end_is_told() -> None:
    seen: list[int] = []
    stream = mp.Job("a").source("in", sources.Memory([1, 2])).inspect_frontier("frontier", seen.append)
    assert mp.collect(stream) == [1, 2]
    assert seen == [mp.MAX_EPOCH]


def test_a_keyed_stream_stays_keyed_and_tells_its_own_frontier_on_each_worker() -> None:
    seen: list[int] = []
    timed = mp.Job("a").source("in", sources.Memory([1, 2, 3, 4])).assign_timestamps("at", int)
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(0))
    counts = on_time.key_by("key", lambda n: n % 2).inspect_frontier("frontier", seen.append).count("count")
    job = counts.job
    counts.sink("out", mp.sinks.Memory())
    mp.run(job, 2, batch=mp.Batching(rows_max=1))
    assert seen.count(mp.MAX_EPOCH) == 2
    assert set(seen) - {mp.MAX_EPOCH} <= {0, 1, 2, 3}


def test_what_the_function_raises_names_the_step_and_the_function() -> None:
    def alarm(frontier: int) -> None:
        raise ValueError("secret")

    tester = OperatorTester(lambda stream: stream.inspect_frontier("watch", alarm), timed=True)
    with pytest.raises(OperatorError, match=r"step 'watch' failed: ValueError in .*alarm at .*\.py") as caught:
        tester.send_local(Epoch(3)).step()
    assert "secret" in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)


def test_what_is_no_function_is_refused_at_the_call() -> None:
    with pytest.raises(PlanError, match="step 'watch': expected a function, got str"):
        mp.Job("a").source("in", sources.Memory([1])).inspect_frontier("watch", "print")  # type: ignore[arg-type]


# union


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
