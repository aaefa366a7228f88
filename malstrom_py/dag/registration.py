"""Registration of an operator for a node: recognizes its kind, checks it and builds the operator.

Rule: the hooks or the number of required arguments decide the kind; ``kind`` overrides them. An object that is not an
operator is rejected when it is registered.

Rule: each stream of a step needs an output of the node. The number of streams is known for the steps of
``malstrom_py.operators``, whose arguments and error policy are checked too. Another step fails when it sends to a
missing output.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, get_args

from malstrom_py.dag.graph import DagNode
from malstrom_py.errors import PlanError
from malstrom_py.operators.base import OnError, Operator, OperatorFactory, StepContext
from malstrom_py.operators.branching import Branch, Cloned, Split
from malstrom_py.operators.columns import ColumnStep
from malstrom_py.operators.event_time import GenerateEpochs
from malstrom_py.operators.logic import KeyedLogic, hooks_of, stateless_hooks_of
from malstrom_py.operators.stateful_op import StatefulOp
from malstrom_py.operators.stateless import Map
from malstrom_py.operators.stateless_op import StatelessOp
from malstrom_py.validation import refuse_policy


def check_step(factory: Any, node: DagNode, on_error: OnError) -> type[Operator] | None:
    """Return the class of the step that ``factory`` makes, None for a function. `PlanError` if it cannot work."""
    arguments = _step_arguments(factory, node.name)
    made = factory.func if isinstance(factory, partial) else factory
    if not (isinstance(made, type) and issubclass(made, Operator)):
        return None
    if issubclass(made, ColumnStep):
        refuse_policy(on_error, node.name, made.__name__)
    if issubclass(made, GenerateEpochs) and node.own_outputs:
        raise PlanError(
            f"node {node.name!r}: {made.__name__} sends to its main output and to 'late', so output "
            f"{node.own_outputs[0]!r} would stay empty: read 'late'"
        )
    streams, sides = _streams(made, arguments), node.own_outputs
    if streams > len(sides) + 1:
        named = f"only {', '.join(map(repr, sides))}" if sides else "no side output"
        raise PlanError(
            f"node {node.name!r}: {made.__name__} sends to {streams} streams, the first of them the main output, but "
            f"the node has {named} for the others: name one for each, in order, by outputs= of the node"
        )
    return made


def _step_arguments(factory: Any, node: str) -> Mapping[str, Any]:
    """Return the arguments of ``factory``, if it has a signature. `PlanError` if they do not match the signature."""
    made: Any = factory
    given: tuple[Any, ...] = ()
    named: Mapping[str, Any] = {}
    if isinstance(factory, partial):
        made, given, named = factory.func, factory.args, factory.keywords
    try:
        signature = inspect.signature(made)
    except (TypeError, ValueError):
        return {}
    try:
        bound = signature.bind(*given, None, **named)
    except TypeError as error:
        name = getattr(made, "__name__", type(made).__name__)
        raise PlanError(
            f"node {node!r}: {name} cannot be made from a StepContext alone: {error}. Give it its arguments with "
            f"functools.partial({name}, …)"
        ) from error
    bound.apply_defaults()
    return bound.arguments


def _streams(step: type[Operator], arguments: Mapping[str, Any]) -> int:
    """Return the minimum number of streams of ``step``, without ``late`` and ``dead_letters``."""
    if issubclass(step, Branch):
        return 2
    if issubclass(step, Split | Cloned):
        n = arguments.get("n")
        return n if isinstance(n, int) else 1
    return 1


Kind = Literal["function", "stateless", "stateful", "factory"]
"""A function value -> value; a `StatelessLogic`; a `StatefulLogic`; a factory `StepContext` -> `Operator`."""

_KINDS_BY_ARGUMENTS: Final[dict[int, Kind]] = {1: "function", 2: "stateless", 3: "stateful"}
_STATEFUL_HOOKS: Final = frozenset(("on_batch", "on_timer", "on_schedule"))


@dataclass(frozen=True, slots=True)
class NodeRegistration:
    """The registered operator of a node. ``label`` names it, so that its state is not restored into another one."""

    factory: OperatorFactory
    label: str = ""
    on_error: OnError = "fail"
    sends_late: bool = False
    """Whether the second stream is the output ``late``."""


def registration_of(
    operator: object, node: DagNode, *, default: Callable[[], Any] | None, on_error: OnError, kind: Kind | None
) -> NodeRegistration:
    """Check ``operator`` and return its registration for ``node``. `PlanError` if it is not an operator."""
    name = node.name
    if on_error not in get_args(OnError):
        raise PlanError(f"node {name!r}: on_error must be 'fail', 'skip' or 'dead-letter', got {on_error!r}")
    if kind is not None and kind not in get_args(Kind):
        raise PlanError(f"node {name!r}: kind must be one of {', '.join(map(repr, get_args(Kind)))}, got {kind!r}")
    kind = kind or _kind_of(operator, name)
    if default is not None and kind != "stateful":
        raise PlanError(f"node {name!r}: default= is for logics with state, but this is a {kind}")
    if default is not None and not callable(default):
        raise PlanError(f"node {name!r}: default must be a function that makes a state, got {type(default).__name__}")
    if not callable(operator) and kind in ("function", "factory"):
        raise PlanError(f"node {name!r}: a {kind} must be callable, but {type(operator).__name__} is not")
    step = check_step(operator, node, on_error) if kind == "factory" else None
    factory, label = _factory(operator, node, kind, default)
    if kind == "stateful" and "on_batch" in hooks_of(operator, name):
        refuse_policy(on_error, name, "on_batch")
    return NodeRegistration(factory, label, on_error, step is not None and issubclass(step, GenerateEpochs))


def _made(context: StepContext, *, factory: Callable[[StepContext], object]) -> Operator:
    """Return what a user's ``factory`` makes. `PlanError` naming the node if it is not an operator."""
    operator = factory(context)
    if not isinstance(operator, Operator):
        raise PlanError(
            f"node {context.step!r}: the factory returned {type(operator).__name__}, which is not an Operator: "
            f"return a subclass of malstrom_py.operators.base.Operator"
        )
    return operator


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
        return partial(_made, factory=operator), getattr(made, "__qualname__", type(made).__qualname__)
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
            f"This one takes {arguments}. If it does take one of these, pass kind="
        )
    return _KINDS_BY_ARGUMENTS[arguments]


def _arguments(function: Any) -> int:
    """Return the number of required positional arguments; 1 for a function without a signature, such as a builtin."""
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
