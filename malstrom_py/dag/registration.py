"""What can be registered for a node, and the operator that comes of it.

Rule: what a thing is, is told by its hooks or by how many arguments it must be given; ``kind`` says it where that is
not enough. What cannot be an operator is refused when it is registered.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, get_args

from malstrom_py.arguments import refuse_policy
from malstrom_py.dag.steps import check_step
from malstrom_py.dag.topology import DEAD_LETTERS, DagNode
from malstrom_py.errors import PlanError
from malstrom_py.logic import KeyedLogic, hooks_of, stateless_hooks_of
from malstrom_py.operators.base import OnError, Operator, OperatorFactory, StepContext
from malstrom_py.operators.generate_epochs import GenerateEpochs
from malstrom_py.operators.map import Map
from malstrom_py.operators.stateful_op import StatefulOp
from malstrom_py.operators.stateless_op import StatelessOp

Kind = Literal["function", "stateless", "stateful", "factory"]
"""A function value -> value; a `StatelessLogic`; a `StatefulLogic`; a factory `StepContext` -> `Operator`."""

_KINDS_BY_ARGUMENTS: Final[dict[int, Kind]] = {1: "function", 2: "stateless", 3: "stateful"}
_STATEFUL_HOOKS: Final = frozenset(("on_batch", "on_timer", "on_schedule"))


@dataclass(frozen=True, slots=True)
class Registered:
    """What runs at a node. ``label`` says what it is: the state of one thing is not given to another."""

    factory: OperatorFactory
    label: str
    on_error: OnError = "fail"
    sends_late: bool = False
    """Whether its second stream is the output ``late``."""

    def build(self, context: StepContext) -> Operator:
        """The operator, new. `PlanError` naming the node if the factory gives none."""
        operator: object = self.factory(context)
        if not isinstance(operator, Operator):
            raise PlanError(
                f"node {context.step!r}: the factory gave {type(operator).__name__}, which is no Operator: "
                f"return what derives from malstrom_py.operators.base.Operator"
            )
        return operator


def registration_of(
    operator: object, node: DagNode, *, default: Callable[[], Any] | None, on_error: OnError, kind: Kind | None
) -> Registered:
    """What ``operator`` is at ``node``, or `PlanError`."""
    name = node.name
    if on_error not in get_args(OnError):
        raise PlanError(f"node {name!r}: on_error is 'fail', 'skip' or 'dead-letter', got {on_error!r}")
    if kind is not None and kind not in get_args(Kind):
        raise PlanError(f"node {name!r}: kind is one of {', '.join(map(repr, get_args(Kind)))}, got {kind!r}")
    kind = kind or _kind_of(operator, name)
    if default is not None and kind != "stateful":
        raise PlanError(f"node {name!r}: default= is for logics that keep state, but this is a {kind}")
    if default is not None and not callable(default):
        raise PlanError(f"node {name!r}: default is a function that makes a state, got {type(default).__name__}")
    if not callable(operator) and kind in ("function", "factory"):
        raise PlanError(f"node {name!r}: a {kind} can be called, but {type(operator).__name__} cannot")
    step = check_step(operator, node, on_error) if kind == "factory" else None
    factory, label = _factory(operator, node, kind, default)
    if kind == "stateful" and "on_batch" in hooks_of(operator, name):
        refuse_policy(on_error, name, "on_batch")
    return Registered(factory, label, on_error, step is not None and issubclass(step, GenerateEpochs))


def context_of(node: DagNode, on_error: OnError, **given: Any) -> StepContext:
    """What an operator is told. Records have a key and a timestamp, or none, as they come."""
    port = node.port(DEAD_LETTERS) if on_error == "dead-letter" else None
    return StepContext("dag", node.name, on_error=on_error, dead_letter_port=port, timed=None, keyed=None, **given)


def _factory(
    operator: Any, node: DagNode, kind: Kind, default: Callable[[], Any] | None
) -> tuple[OperatorFactory, str]:
    factory: OperatorFactory = operator
    if kind == "function":
        factory = partial(Map, fn=operator)
    elif kind == "stateless":
        stateless_hooks_of(operator, node.name)
        factory = partial(StatelessOp, logic=operator, sides=node.outputs)
    elif kind == "stateful":
        hooks_of(operator, node.name)
        factory = partial(StatefulOp, logic=operator, default=default, sides=node.outputs)
    else:
        made = operator.func if isinstance(operator, partial) else operator
        return factory, getattr(made, "__qualname__", type(made).__qualname__)
    return factory, kind


def _kind_of(operator: Any, node: str) -> Kind:
    made = operator.func if isinstance(operator, partial) else operator
    if isinstance(made, type) and issubclass(made, Operator):
        return "factory"
    if isinstance(operator, Operator):
        raise PlanError(f"node {node!r}: pass the class {type(operator).__name__} or a partial of it, not an instance")
    hooks = {name for name in dir(operator) if name.startswith("on_") and callable(getattr(operator, name, None))}
    if isinstance(operator, KeyedLogic) or _STATEFUL_HOOKS & hooks:
        return "stateful"
    if hooks:
        return "stateless" if _arguments(getattr(operator, "on_data", None)) == 2 else "stateful"
    if not callable(operator):
        raise PlanError(
            f"node {node!r}: expected a function, a logic with on_data, or a step with its arguments as a partial, "
            f"got {type(operator).__name__}"
        )
    arguments = 1 if isinstance(operator, type) else _arguments(operator)
    if arguments not in _KINDS_BY_ARGUMENTS:
        raise PlanError(
            f"node {node!r}: a function takes a value; or (message, output); or (message, key_state, output). "
            f"This one takes {arguments}. If it does take one of these, say which by kind="
        )
    return _KINDS_BY_ARGUMENTS[arguments]


def _arguments(function: Any) -> int:
    """How many arguments ``function`` must be given by position; 1 where it does not tell, as some builtins do not."""
    if function is None:
        return 0
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    needed = [one for one in positional if one.default is one.empty]
    if not needed and (positional or any(one.kind is one.VAR_POSITIONAL for one in parameters)):
        return 1
    return len(needed)
