"""The hooks or the number of required arguments decide the kind of an operator; other objects are rejected by name."""

from __future__ import annotations

import functools
import operator as operators
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from malstrom_py.dag.graph import DagNode, NodeType
from malstrom_py.dag.registration import registration_of
from malstrom_py.errors import PlanError
from malstrom_py.operators.aggregate import Count
from malstrom_py.operators.base import Operator, StepContext
from malstrom_py.operators.branching import Union
from malstrom_py.operators.logic import KeyedLogic
from malstrom_py.operators.stateful_op import StatefulOp
from malstrom_py.operators.stateless import Filter, Map
from malstrom_py.operators.stateless_op import StatelessOp

NODE = DagNode("a", NodeType.OPERATOR, (), ("odd", "dead_letters"))
CONTEXT = StepContext("dag", "a", timed=None, keyed=None)


class Stateless:
    def on_data(self, message: Any, output: Any) -> None:
        """Do nothing."""


class WithEpochs(Stateless):
    def on_epoch(self, epoch: Any, output: Any) -> None:
        """Do nothing."""


class Stateful:
    def on_data(self, message: Any, key_state: Any, output: Any) -> Any:
        return None


class Keyed(KeyedLogic[Any, Any, Any, Any]):
    def on_batch(self, keys: Any, values: Any, timestamps: Any, state: Any, output: Any) -> None:
        """Do nothing."""


class Callable1:
    def __call__(self, value: Any) -> Any:
        return value


class Callable3:
    def __call__(self, message: Any, key_state: Any, output: Any) -> Any:
        return None


def one(value: Any, *, scale: int = 2) -> Any:
    return value


def with_default(value: Any, scale: int = 2) -> Any:
    return value


def two(message: Any, output: Any) -> None:
    """Do nothing."""


def three(message: Any, key_state: Any, output: Any) -> Any:
    return None


def any_number(*arguments: Any) -> Any:
    return arguments[0]


@functools.wraps(two)
def wrapped(*arguments: Any, **named: Any) -> None:
    two(*arguments, **named)


def built(thing: Any, **options: Any) -> Operator:
    given: dict[str, Any] = {"default": None, "on_error": "fail", "kind": None, **options}
    return registration_of(thing, NODE, **given).factory(CONTEXT)


@pytest.mark.parametrize(
    ("thing", "kind"),
    [
        (one, Map),
        (with_default, Map),
        (lambda n=1: n, Map),
        (any_number, Map),
        (Callable1(), Map),
        (int, Map),
        (str.upper, Map),
        (len, Map),
        (dict.fromkeys, Map),
        (operators.itemgetter("x"), Map),
        (partial(operators.mul, 2), Map),
        (partial(three, None, None), Map),
        (two, StatelessOp),
        (wrapped, StatelessOp),
        (Stateless(), StatelessOp),
        (WithEpochs(), StatelessOp),
        (Stateless().on_data, StatelessOp),
        (three, StatefulOp),
        (Stateful(), StatefulOp),
        (Callable3(), StatefulOp),
        (Keyed(), StatefulOp),
        (Stateful().on_data, StatefulOp),
        (Count, Count),
        (Union, Union),
        (partial(Filter, predicate=bool), Filter),
    ],
)
def test_what_a_thing_is_is_told_without_saying(thing: Any, kind: type[Operator]) -> None:
    assert type(built(thing)) is kind


def test_a_kind_is_said_where_it_cannot_be_told() -> None:
    assert type(built(any_number, kind="stateful")) is StatefulOp
    assert type(built(any_number, kind="stateless")) is StatelessOp
    assert type(built(lambda context: [Union(context)].pop(), kind="factory")) is Union
    assert type(built(Union, kind="factory")) is Union


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (None, "node 'a': expected a function, a logic with on_data, or a step.*, got NoneType"),
        (7, "node 'a': expected a function.*, got int"),
        ("upper", "node 'a': expected a function.*, got str"),
        (lambda: 1, "node 'a': a function takes a value; or .* This one takes 0"),
        (lambda a, b, c, d: 1, "This one takes 4. If it does take one of these, pass kind="),
        (Stateless, "step 'a': pass an instance, Stateless"),
        (Keyed, "step 'a': pass an instance, Keyed"),
        (KeyedLogic(), "'a': KeyedLogic has neither on_data nor on_batch"),
        (
            type("Near", (), {"on_dta": three})(),
            r"'a': Near.on_dta is not a hook .*; did you mean 'on_data'\?",
        ),
        (type("Near", (Keyed,), {"on_epoc": three})(), "'a': Near.on_epoc is not a hook"),
        (Count(CONTEXT), "node 'a': pass the class Count or a partial of it, not an instance"),
    ],
)
def test_what_cannot_be_an_operator_is_refused(thing: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        built(thing)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_error": "ignore"}, "node 'a': on_error must be 'fail', 'skip' or 'dead-letter', got 'ignore'"),
        (
            {"kind": "logic"},
            "node 'a': kind must be one of 'function', 'stateless', 'stateful', 'factory', got 'logic'",
        ),
        ({"default": list}, "node 'a': default= is for logics with state, but this is a function"),
        (
            {"on_error": "skip", "thing": Keyed()},
            "step 'a': on_batch takes whole batches, so on_error='skip' cannot identify",
        ),
        ({"default": 0, "kind": "stateful"}, "node 'a': default must be a function that makes a state, got int"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        built(**{"thing": one, **options})


@pytest.mark.parametrize("kind", ["function", "factory"])
def test_what_cannot_be_called_is_neither_function_nor_factory(kind: str) -> None:
    with pytest.raises(PlanError, match=f"node 'a': a {kind} must be callable, but int is not"):
        built(7, kind=kind)


@pytest.mark.parametrize("made", [lambda context: None, lambda context: Count, str])
def test_a_factory_that_gives_no_operator_is_told(made: Callable[[Any], Any]) -> None:
    with pytest.raises(PlanError, match=r"node 'a': the factory returned .*, which is not an Operator"):
        built(made, kind="factory")


@pytest.mark.parametrize(
    ("thing", "label"),
    [
        (one, "function"),
        (two, "stateless"),
        (three, "stateful"),
        (Count, "Count"),
        (partial(Filter, predicate=bool), "Filter"),
    ],
)
def test_a_label_says_whose_state_it_would_be(thing: Any, label: str) -> None:
    assert registration_of(thing, NODE, default=None, on_error="fail", kind=None).label == label
