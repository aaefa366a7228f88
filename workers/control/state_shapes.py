"""What the state of each step of a plan says: the forms of `StateShape`, by the kinds of steps and their options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

from malstrom_py.agg import Aggregation
from malstrom_py.builder.plan import Plan, Step
from malstrom_py.builder.stream import KEYED_METHODS
from malstrom_py.operators.time_windows import TimeWindows
from malstrom_py.operators.window import CountWindows, SessionWindows
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.workers.reports.job_state import Figure, JobState, StateShape

_STATELESS: Final = frozenset(("map_with_key", "flat"))
_FIGURES: Final = frozenset(("count", "sum", "min", "max", "mean"))
_PLAIN: Final = frozenset(("stateful_map", "stateful_flat_map", "ttl_map", "stateful_op", "reduce", "fold", "distinct"))


def job_state(plan: Plan, snapshots: Snapshots | None) -> JobState:
    """Return where the state of a job of ``plan`` is, and what it says."""
    steps = [step for step in plan.steps if step.shadow_of is None]
    shapes = {step.name: shape for step in steps if (shape := _shape_of(step)) is not None}
    uri, keeper = (None, "") if snapshots is None else snapshots.place
    return JobState(plan.job, shapes, uri, keeper, snapshots)


def _shape_of(step: Step) -> StateShape | None:
    """Return what the state of ``step`` says; None if it has none."""
    kind, keys = step.kind, step.traits.key_names
    if kind not in KEYED_METHODS or kind in _STATELESS:
        return None
    given: Mapping[str, Any] = step.factory.keywords if isinstance(step.factory, partial) else {}
    if kind in _FIGURES:
        return StateShape("value", keys, (Figure("", kind, skips=bool(given.get("skip_nulls"))),))
    if kind == "aggregate":
        over: Mapping[str, Aggregation[Any, Any]] = given["aggregations"]
        return StateShape("value", keys, _figures(over, sorted(over)))
    if kind == "window":
        return _window_shape(step, given)
    forms: Mapping[str, Literal["first", "top"]] = {"collect": "first", "final": "first", "top_n": "top"}
    return StateShape("value" if kind in _PLAIN else forms.get(kind, "own"), keys)


def _window_shape(step: Step, given: Mapping[str, Any]) -> StateShape:
    """Return what the windows of ``step`` say. A sliding window, or one whose parts are merged later, is not whole."""
    flat, gathering = step.traits.results, given["gather"]()
    keys = step.traits.key_names
    unit = None if flat is None else flat.unit
    ones = gathering.aggregations
    names = [""] if gathering.names is None else gathering.names
    figures = _figures(dict(zip(names, ones, strict=True)), names)
    match step.factory.func if isinstance(step.factory, partial) else None:
        case func if func is TimeWindows and given["size"] == given["step"]:
            return StateShape("tumbling", keys, figures, given["size"], unit)
        case func if func is SessionWindows and not gathering.in_order:
            return StateShape("session", keys, figures, given["gap"], unit)
        case func if func is CountWindows:
            return StateShape("count", keys, figures, unit=unit)
    return StateShape("own", keys)


def _figures(over: Mapping[str, Aggregation[Any, Any]], order: Sequence[str]) -> tuple[Figure, ...]:
    """Return the figures ``over`` a state, which has them in this ``order``."""
    places = {name: place for place, name in enumerate(order)}
    return tuple(Figure(name, one.name, places[name], one.skips_nulls) for name, one in over.items())
