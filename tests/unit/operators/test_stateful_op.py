"""`stateful_op`, `stateful_map`, `stateful_flat_map`: what reaches a logic, and the state it returns and assigns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.errors import OperatorError, PlanError
from malstrom_py.operators.logic import KeyedLogic, Output, hooks_of, stateless_hooks_of
from malstrom_py.operators.stateful_map import StatefulFlatMap, StatefulMap
from malstrom_py.operators.stateful_op import StatefulOp
from tests.ids import shown
from tests.unit.operators.stepping import Stepped, cut

State = MutableMapping[str, Any]


class Pairs(KeyedLogic[str, Any, tuple[Any, Any], Any]):
    """Emits (value, former value) and keeps the value; keeps the batches and epochs it saw."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_data(self, message: DataMessage[str, Any], key_state: Any, output: Output[str, tuple[Any, Any]]) -> Any:
        self.seen.append(message)
        output.emit(message.key, (message.value, key_state), message.timestamp)
        return message.value


class Totals(KeyedLogic[str, int, int, int]):
    """Adds up whole batches and sends the totals at each epoch, dated at the epoch itself."""

    def __init__(self, timed: bool = True) -> None:
        self.timed = timed

    def on_batch(
        self, keys: list[str], values: list[int], timestamps: list[int] | None, state: State, output: Output[str, int]
    ) -> None:
        for key, value in zip(keys, values, strict=True):
            state[key] = state.get(key, 0) + value

    def on_epoch(self, epoch: Epoch, state: State, output: Output[str, int]) -> None:
        for key, total in state.items():
            output.emit(key, total, epoch.time if self.timed else None)


def stepped(logic: Any, default: Any = None, **options: Any) -> Stepped:
    return Stepped(partial(StatefulOp, logic=logic, default=default), keyed=True, **options)


def test_on_data_meets_message_and_state_of_the_key_in_order() -> None:
    logic = Pairs()
    step = stepped(logic, timed=True)
    step.push(Batch([1, 2, 3], keys=["a", "b", "a"], timestamps=[7, 8, 9]))
    assert logic.seen == [DataMessage("a", 1, 7), DataMessage("b", 2, 8), DataMessage("a", 3, 9)]
    assert step.rows() == [("a", (1, None), 7), ("b", (2, None), 8), ("a", (3, 1), 9)]


def test_a_record_it_raises_on_leaves_state_and_outputs_as_they_were() -> None:
    def add(message: DataMessage[str, Any], state: int, output: Output[str, int]) -> int:
        output.emit(message.key, -1)
        total: int = state + message.value
        output.emit(message.key, total)
        return total

    step = stepped(add, default=int, on_error="skip").push(Batch([1, "x", 2], keys=["a"] * 3))
    assert step.values() == [-1, 1, -1, 3]
    assert step.counters.skipped == 1


def test_on_batch_wins_over_on_data() -> None:
    class Both(Totals):
        def on_data(self, message: DataMessage[str, int], key_state: int | None, output: Output[str, int]) -> None:
            raise AssertionError

    assert stepped(Both(), timed=True).push(Batch([1], keys=["a"], timestamps=[1])).operator.keys == 1


def test_on_epoch_sees_the_end_of_an_untimed_stream_too() -> None:
    step = stepped(Totals(timed=False)).push(Batch([1], keys=["a"]), Epoch(MAX_EPOCH))
    assert step.rows() == [("a", 1, None)]
    assert step.epochs() == [MAX_EPOCH]


def emit_at(timestamp: Any, key: str = "a") -> Any:
    class Late(Pairs):
        def on_epoch(self, epoch: Epoch, state: State, output: Output[str, tuple[Any, Any]]) -> None:
            if epoch.time > 5:
                output.emit(key, (0, 0), timestamp)

    return Late()


def test_a_timestamp_on_an_untimed_stream_is_refused() -> None:
    with pytest.raises(OperatorError, match=r"'under-test' sent a timestamp on an untimed stream: send None"):
        stepped(lambda message, _, output: output.emit(message.key, 1, 5)).push(Batch([1], keys=["a"]))


@pytest.mark.parametrize("on_error", ["fail", "skip", "dead-letter"])
def test_a_foreign_key_from_on_data_is_refused_whatever_the_policy(on_error: Any) -> None:
    step = stepped(lambda message, _, output: output.emit("other", 1), on_error=on_error)
    with pytest.raises(OperatorError, match=r"'under-test'.*'other'.*<lambda> at .*key_by after this step"):
        step.push(Batch([1], keys=["a"]))


def test_a_foreign_key_from_on_epoch_is_refused() -> None:
    step = stepped(emit_at(9, key="other"), timed=True).push(Batch([1], keys=["a"], timestamps=[8]))
    with pytest.raises(OperatorError, match=r"'other'.*on_epoch at "):
        step.push(Epoch(9))


@pytest.mark.parametrize("key", ["other", ["no", "key"]])
def test_a_foreign_or_impossible_key_from_on_batch_is_refused(key: Any) -> None:
    class Foreign(Totals):
        def on_batch(self, keys: Any, values: Any, timestamps: Any, state: Any, output: Any) -> None:
            output.emit(key, 1)

    with pytest.raises(OperatorError, match=r"'under-test'"):
        stepped(Foreign()).push(Batch([1], keys=["a"]))


def test_an_impossible_key_is_refused_by_on_batch_too() -> None:
    class Deaf(Totals):
        def on_batch(self, keys: Any, values: Any, timestamps: Any, state: Any, output: Any) -> None:
            """Looks at nothing."""

    with pytest.raises(OperatorError, match="list cannot be hashed"):
        stepped(Deaf()).push(Batch([1], keys=[[1]]))


def test_keys_that_differ_from_themselves_may_be_sent() -> None:
    nan = float("nan")
    step = stepped(lambda message, _, output: output.send(message)).push(Batch([1], keys=[nan]))
    assert step.values() == [1]


@pytest.mark.parametrize("hook", ["on_batch", "on_epoch"])
def test_a_hook_that_raises_is_named(hook: str) -> None:
    class Failing(Totals):
        def on_batch(self, keys: Any, values: Any, timestamps: Any, state: Any, output: Any) -> None:
            if hook == "on_batch":
                raise ValueError("secret")

        def on_epoch(self, epoch: Epoch, state: State, output: Any) -> None:
            raise ValueError("secret")

    with pytest.raises(OperatorError, match=rf"'under-test'.*Failing\.{hook} at .*test_stateful_op\.py") as caught:
        stepped(Failing()).push(Batch([1], keys=["a"]), Epoch(1))
    assert "secret" in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)


class Aside(Pairs):
    """Sends odd values aside; sends a row at epochs and when a timer is due; raises on 7, after it has sent it."""

    def on_data(self, message: DataMessage[str, Any], key_state: Any, output: Output[str, Any]) -> Any:
        output.set_timer(message.key, 15)
        (output.side("odd") if message.value % 2 else output).send(message)
        if message.value == 7:
            raise ValueError
        return message.value

    def on_timer(self, key: str, time: int, key_state: Any, output: Output[str, Any]) -> Any:
        output.side("timers").emit(key, key_state, time)
        return key_state

    def on_epoch(self, epoch: Epoch, state: State, output: Output[str, Any]) -> None:
        output.side("odd").emit("a", "epoch", epoch.time)


def test_side_outputs_take_from_every_hook_and_carry_epochs() -> None:
    factory = partial(StatefulOp, logic=Aside(), sides=["odd", "timers"])
    step = Stepped(factory, keyed=True, timed=True, ports=3, on_error="skip")
    step.push(Batch([1, 2, 7, 3], keys=["a", "a", "b", "a"], timestamps=[11, 12, 13, 14]), Epoch(20))
    assert step.rows() == [("a", 2, 12)]
    assert step.rows(1) == [("a", 1, 11), ("a", 3, 14), ("a", "epoch", 20)]
    assert step.rows(2) == [("a", 3, 15)]
    assert [step.epochs(port) for port in range(3)] == [[20]] * 3
    assert step.counters.skipped == 1


class Meddler(KeyedLogic[str, int, int, int]):
    """Gives state to a key that has sent nothing here, in the hook that is named."""

    def __init__(self, hook: str) -> None:
        self.hook = hook

    def on_batch(
        self, keys: list[str], values: list[int], timestamps: list[int] | None, state: State, output: Output[str, int]
    ) -> None:
        for key in [*keys, *(["stranger"] if self.hook == "on_batch" else [])]:
            state[key] = 1

    def on_epoch(self, epoch: Epoch, state: State, output: Output[str, int]) -> None:
        if self.hook == "on_epoch":
            state["stranger"] = 1


@pytest.mark.parametrize("hook", ["on_batch", "on_epoch"])
def test_r4_state_for_a_key_without_records_is_refused_for_nobody_would_move_it(hook: str) -> None:
    step = stepped(Meddler(hook), timed=True)
    batch = Batch([1, 2], keys=["a", "b"], timestamps=[1, 2])
    if hook == "on_epoch":
        step.push(batch)
    with pytest.raises(OperatorError, match="under key 'stranger'") as caught:
        step.push(Epoch(5) if hook == "on_epoch" else batch)
    assert caught.value.rule == "key kept"


class AtEpochs(KeyedLogic[str, int, int, int]):
    """Sends a record at ``timestamp`` at each epoch."""

    def __init__(self, timestamp: int | None) -> None:
        self.timestamp = timestamp

    def on_data(self, message: DataMessage[str, int], key_state: int | None, output: Output[str, int]) -> int:
        return message.value

    def on_epoch(self, epoch: Epoch, state: State, output: Output[str, int]) -> None:
        if epoch.time > 7:
            output.emit("a", 1, self.timestamp)


@pytest.mark.parametrize("timestamp", [None, 7, MAX_EPOCH])
def test_what_on_epoch_sends_at_a_wrong_time_is_refused_with_the_times_that_are_allowed(timestamp: int | None) -> None:
    passed = (Batch([1], keys=["a"], timestamps=[7]), Epoch(7))
    step = stepped(AtEpochs(timestamp), timed=True)
    step.push(*passed)
    with pytest.raises(OperatorError, match=r"(?i)give it a time above the watermark 7, for instance epoch\.time, 9$"):
        step.push(Epoch(9))
    allowed = (
        r"(?i)give it a time above the watermark 7, and below mp\.MAX_EPOCH\. At the end that is mp\.MAX_EPOCH - 1"
    )
    step = stepped(AtEpochs(timestamp), timed=True)
    step.push(*passed)
    with pytest.raises(OperatorError, match=allowed) as caught:
        step.push(Epoch(MAX_EPOCH))
    assert "its input" not in str(caught.value)


def test_at_the_end_one_below_the_maximum_epoch_is_a_time_to_send_at() -> None:
    step = stepped(AtEpochs(MAX_EPOCH - 1), timed=True)
    step.push(Batch([1], keys=["a"], timestamps=[7]), Epoch(7), Epoch(MAX_EPOCH))
    assert step.rows() == [("a", 1, MAX_EPOCH - 1)]


# Logics


class OnlyData(KeyedLogic[str, int, int, int]):
    def on_data(self, message: DataMessage[str, int], key_state: int | None, output: Output[str, int]) -> int | None:
        return None


class DataAndEpoch(OnlyData):
    def on_epoch(self, epoch: Epoch, state: Any, output: Output[str, int]) -> None:
        """Overridden, to do nothing."""


class Batches(KeyedLogic[str, int, int, int]):
    def on_batch(self, keys: Any, values: Any, timestamps: Any, state: Any, output: Any) -> None:
        """Overridden, to do nothing."""


class NoBase:
    def on_data(self, message: Any, key_state: Any, output: Any) -> Any:
        return None


class CallableLogic:
    def __call__(self, message: Any, key_state: Any, output: Any) -> Any:
        return None


def function(message: Any, key_state: Any, output: Any) -> Any:
    return None


@pytest.mark.parametrize(
    ("logic", "hooks"),
    [
        (OnlyData(), {"on_data"}),
        (DataAndEpoch(), {"on_data", "on_epoch"}),
        (Batches(), {"on_batch"}),
        (NoBase(), {"on_data"}),
        (CallableLogic(), {"on_data"}),
        (function, {"on_data"}),
        (NoBase().on_data, {"on_data"}),
        (lambda *_: None, {"on_data"}),
    ],
)
def test_only_hooks_that_are_really_there_are_found(logic: object, hooks: set[str]) -> None:
    assert hooks_of(logic, "step").keys() == hooks


def with_hook(name: str, base: type = OnlyData) -> object:
    return type("Misspelt", (base,), {name: lambda *_: None})()


@pytest.mark.parametrize(
    ("name", "meant"),
    [("on_epoc", "on_epoch"), ("on_epochs", "on_epoch"), ("on_dta", "on_data"), ("on_batches", "on_batch")],
)
def test_a_near_miss_is_told_with_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(PlanError, match=rf"step 'totals': Misspelt\.{name} is not a hook.*did you mean '{meant}'\?"):
        hooks_of(with_hook(name), "totals")


@pytest.mark.parametrize("name", ["on_shutdown", "on_close"])
def test_a_hook_that_is_not_there_yet_is_told_with_those_that_are(name: str) -> None:
    with pytest.raises(PlanError, match=rf"'totals'.*{name} is not a hook of this step; there are on_data, on_batch"):
        hooks_of(with_hook(name), "totals")


def test_attributes_that_are_no_methods_are_no_hooks() -> None:
    logic = type("Switched", (OnlyData,), {"on_off": True})()
    assert hooks_of(logic, "step").keys() == {"on_data"}


def test_a_class_is_told_to_be_made() -> None:
    with pytest.raises(PlanError, match=r"step 'totals': pass an instance, OnlyData\(…\), not the class itself"):
        hooks_of(OnlyData, "totals")


@pytest.mark.parametrize("logic", [None, 7, "on_data", KeyedLogic(), type("E", (KeyedLogic,), {"on_epoch": id})()])
def test_what_takes_no_data_is_refused(logic: object) -> None:
    with pytest.raises(PlanError, match=r"step 'totals': .* has neither on_data nor on_batch"):
        hooks_of(logic, "totals")


def test_a_side_output_keeps_its_records_apart_and_in_order() -> None:
    output: Output[str, int] = Output()
    output.emit("a", 1, 10)
    output.side("late").emit("a", 2, 20)
    output.side("odd").send(DataMessage("b", 3, 30))
    output.side("late").send(DataMessage("c", 4))
    assert (output.side("late").values, output.side("odd").values, output.side("none").values) == ([2, 4], [3], [])
    assert (output.keys, output.timestamps) == (["a", "a", "b", "c"], [10, 20, 30, None])
    assert output.values[0] == 1
    assert [str(value) for value in output.values[1:]] == ["Sided('late')", "Sided('odd')", "Sided('late')"]


def test_a_hook_that_nobody_would_await_is_refused() -> None:
    async def look_up(message: Any, state: Any, output: Any) -> None:
        """Never runs."""

    class Waits(KeyedLogic[Any, Any, Any, Any]):
        async def on_data(self, message: Any, key_state: Any, output: Any) -> Any:
            """Never runs."""

    for logic in (look_up, Waits()):
        with pytest.raises(PlanError, match="step 'wait': on_data is a coroutine function"):
            hooks_of(logic, "wait")
    with pytest.raises(PlanError, match="use enrich"):
        stateless_hooks_of(look_up, "wait")


# stateful_map and stateful_flat_map


def mapping(fn: Any, default: Any = None) -> Stepped:
    return Stepped(partial(StatefulMap, fn=fn, default=default), keyed=True)


def flat_mapping(fn: Any, **options: Any) -> Stepped:
    return Stepped(partial(StatefulFlatMap, fn=fn, default=int), keyed=True, **options)


def test_a_key_without_state_starts_from_the_default_also_after_none_has_dropped_it() -> None:
    step = mapping(lambda _, value, seen: (seen, value), default=list)
    step.push(Batch([5, None], keys=["a", "a"]))
    assert step.operator.keys == 0
    assert step.push(Batch([1, 2], keys=["a", "b"])).values() == [[], 5, [], []]


@pytest.mark.parametrize("state", [0, "", False, [], np.zeros(2)], ids=repr)
def test_other_false_states_are_kept(state: Any) -> None:
    assert mapping(lambda _, value, __: (value, state)).push(Batch([1], keys=["a"])).operator.keys == 1


@given(
    records=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3)), max_size=20),
    sizes=st.lists(st.integers(1, 5), max_size=20),
)
def test_outputs_keep_key_and_time_of_their_record_in_order(records: list[tuple[str, int]], sizes: list[int]) -> None:
    def repeat(key: str, value: int, seen: int) -> tuple[Iterable[tuple[int, int]], int]:
        return ((value, seen) for _ in range(value)), seen + value

    batch = Batch([v for _, v in records], keys=[k for k, _ in records], timestamps=list(range(len(records))))
    step = flat_mapping(repeat, timed=True).push(*cut(batch, sizes))
    seen: dict[str, int] = {}
    expected = []
    for at, (key, value) in enumerate(records):
        expected += [(key, (value, seen.get(key, 0)), at)] * value
        seen[key] = seen.get(key, 0) + value
    assert step.rows() == expected
    assert step.operator.keys == len(seen)


def test_outputs_may_change_what_the_state_is_made_of_before_it_is_kept() -> None:
    """A generator that fills the very list that is returned as the new state: it is read first."""

    def fill(key: str, value: int, _: int) -> tuple[Iterator[int], list[int]]:
        kept: list[int] = []

        def outputs() -> Iterator[int]:
            kept.append(value)
            yield value

        return outputs(), kept

    step = flat_mapping(fill).push(Batch([7], keys=["a"]))
    assert isinstance(step.operator, StatefulFlatMap)
    assert step.operator.states == {"a": [7]}


NO_PAIRS: list[Any] = [None, 7, (1,), ([], 1, 2)]


@pytest.mark.parametrize(
    ("make", "result"),
    [
        *zip(repeat(mapping), NO_PAIRS),
        *zip(repeat(flat_mapping), [*NO_PAIRS, (1, 2), (None, 1)]),
    ],
    ids=shown,
)
def test_what_is_no_pair_of_output_and_state_is_the_fault_of_the_function(make: Any, result: Any) -> None:
    step = make(lambda *_: result)
    with pytest.raises(OperatorError, match=r"<lambda> at .*test_stateful_op\.py:\d+"):
        step.push(Batch([1], keys=["a"]))
    assert step.operator.keys == 0
