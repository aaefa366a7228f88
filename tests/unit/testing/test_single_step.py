"""A single step: its inputs, outputs and dead letters, and operators without a builder method."""

from __future__ import annotations

from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import windows
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import DataMessage
from malstrom_py.errors import PlanError
from malstrom_py.operators.base import Operator, Outlet
from malstrom_py.testing import OperatorTester, as_step
from malstrom_py.testing.single_step import SingleStep, plan_single_step


def single(factory: Any, *, keyed: bool = True) -> SingleStep:
    return plan_single_step(factory, keyed=keyed, timed=False, inputs=1, slots=8, types=())


def test_only_what_the_factory_makes_is_the_step() -> None:
    step = single(lambda stream: stream.map("one", str).count("two"))
    assert [made.name for made in step.steps] == ["one", "two"]
    assert [recorded for _, recorded in step.outputs] == ["two"]
    assert step.plan.slots == 8


def test_dead_letters_are_recorded_if_the_step_has_some() -> None:
    assert single(lambda stream: stream.map("one", str)).dead_letters == ()
    (letters,) = single(lambda stream: stream.map("one", str, on_error="dead-letter")).dead_letters
    assert letters[1] == "one"


def test_a_step_without_outputs_is_a_sink() -> None:
    out = mp.sinks.Memory()
    assert single(lambda stream: stream.sink("out", out)).outputs == ()


def test_an_output_crosses_if_an_exchange_stands_before_it() -> None:
    step = single(lambda s: (s.map("here", str), s.key_by("key", str).count("there")), keyed=False)
    assert [step.crosses(name) for name, _ in step.outputs] == [False, True]


class Twice(Operator):
    """Sends each batch twice."""

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        out.send(batch)
        out.send(batch)


def test_an_operator_of_ones_own_can_be_a_step() -> None:
    tester = OperatorTester(as_step(Twice, name="twice"), keyed=True)
    assert tester.send_local([("a", 1)]).step().receive_local() == [DataMessage("a", 1)] * 2
    assert [step.name for step in tester.single.steps] == ["twice"]


class Ringing(mp.KeyedLogic[str, int, int, int]):
    """Needs event time."""

    def on_data(self, message: DataMessage[str, int], key_state: int | None, output: Any) -> int:
        output.set_timer(message.key, 5)
        return message.value

    def on_timer(self, key: str, time: int, key_state: int | None, output: Any) -> None:
        return None


def test_the_option_that_was_forgotten_is_named() -> None:
    with pytest.raises(PlanError, match="give timed=True"):
        single(lambda stream: stream.window("tens", windows.tumbling(10)).count())
    with pytest.raises(PlanError, match="give keyed=True"):
        single(lambda stream: stream.count("count"), keyed=False)
    with pytest.raises(PlanError, match=r"step 'ring'.*not the class itself$"):
        single(lambda stream: stream.stateful_op("ring", Ringing))


def summed(message: Any, state: Any, output: Any) -> Any:
    return state


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        (Ringing(), "an object of type Ringing, not a function of the stream: .*such as lambda stream: "),
        (Ringing, "the class Ringing, not a function of the stream"),
        (None, "an object of type NoneType, not a function of the stream"),
        (summed, r"summed at .*test_single_step.py:\d+ cannot be called with a stream"),
        (lambda: None, "cannot be called with a stream"),
        (lambda stream: stream, "returned its input"),
        (lambda stream: 7, "got int"),
    ],
)
def test_what_is_no_function_of_the_stream_is_refused(factory: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        single(factory)
