"""Checks of a step of ``malstrom_py.operators`` that is registered for a node: its arguments, its streams, its policy.

Rule: a stream of a step that has no output of its own would come out elsewhere, so each must have one. How many streams
a step has that is not ours is not known: it is told when it sends to one that is not there.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from malstrom_py.arguments import refuse_policy
from malstrom_py.dag.topology import DagNode
from malstrom_py.errors import PlanError
from malstrom_py.operators.base import OnError, Operator
from malstrom_py.operators.branch import Branch
from malstrom_py.operators.cloned import Cloned
from malstrom_py.operators.column_step import ColumnStep
from malstrom_py.operators.generate_epochs import GenerateEpochs
from malstrom_py.operators.split import Split


def check_step(factory: Any, node: DagNode, on_error: OnError) -> type[Operator] | None:
    """The class that ``factory`` is, or is a partial of; None for another function. `PlanError` if it cannot work."""
    arguments = _arguments(factory, node.name)
    made = factory.func if isinstance(factory, partial) else factory
    if not (isinstance(made, type) and issubclass(made, Operator)):
        return None
    if issubclass(made, ColumnStep):
        refuse_policy(on_error, node.name, made.__name__)
    if issubclass(made, GenerateEpochs) and node.own_outputs:
        raise PlanError(
            f"node {node.name!r}: {made.__name__} sends to its main output and to 'late', so nothing would come out "
            f"of {node.own_outputs[0]!r}: read 'late'"
        )
    streams, sides = _streams(made, arguments), node.own_outputs
    if streams > len(sides) + 1:
        named = f"only {', '.join(map(repr, sides))}" if sides else "no side output"
        raise PlanError(
            f"node {node.name!r}: {made.__name__} sends to {streams} streams, the first of them the main output, but "
            f"the node has {named} for the others: name one for each, in order, by outputs= of the node"
        )
    return made


def _arguments(factory: Any, node: str) -> Mapping[str, Any]:
    """What ``factory`` will be called with, where it tells. `PlanError` if that is too little, or too much."""
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
            f"node {node!r}: {name} cannot be made of a StepContext alone: {error}. Give it its arguments as "
            f"functools.partial({name}, …)"
        ) from error
    bound.apply_defaults()
    return bound.arguments


def _streams(step: type[Operator], arguments: Mapping[str, Any]) -> int:
    """How many streams ``step`` sends to at least, without ``late`` and ``dead_letters``."""
    if issubclass(step, Branch):
        return 2
    if issubclass(step, Split | Cloned):
        n = arguments.get("n")
        return n if isinstance(n, int) else 1
    return 1
