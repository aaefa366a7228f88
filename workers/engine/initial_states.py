"""Loads the initial state of steps, each key on the worker that owns its slot.

Rule: a step gets its initial state once: when the job starts without a snapshot, or from a snapshot without the step.
Afterwards the snapshot has its state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from malstrom_py.builder.plan import Plan
from malstrom_py.errors import CodecError, InternalError, PlanError
from malstrom_py.operators.keyed import StatefulOperator
from malstrom_py.rescale.keys.key_types import check_keys
from malstrom_py.workers.engine.graph_builder import WorkerGraph

States = Mapping[str, Mapping[Any, Any]]
"""Step -> key -> state."""


def initial_states(plan: Plan, steps: Collection[str]) -> States:
    """Load and return the initial states of ``steps``.

    Raises:
        PlanError: a row is wrong, or a key is not legal (F4).
        OperatorError: a function that returns the rows has raised.
    """
    loaded: dict[str, Mapping[Any, Any]] = {}
    for step in plan.steps:
        if step.name in steps and step.initial is not None:
            states = step.initial.states()
            try:
                check_keys(list(states), step.name)
            except CodecError as error:
                raise PlanError(f"initial_state: {error}") from error
            loaded[step.name] = states
    return loaded


def start_with(graph: WorkerGraph, states: States, slots: Collection[int]) -> None:
    """Install in the steps of a worker the ``states`` of the keys in its ``slots``."""
    for step, by_key in states.items():
        operator = graph.operators[step]
        if not isinstance(operator, StatefulOperator):
            raise InternalError(f"step {step!r} has no keyed state, but has an initial state")
        keys = list(by_key)
        own = (key for key, slot in zip(keys, graph.slots_of[step](keys), strict=True) if slot in slots)
        operator.start_with({key: by_key[key] for key in own})
