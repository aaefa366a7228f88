"""Which steps of a plan are compiled: whose functions of a row are computed on columns.

Rule: what is said here is known without rows. Types, values and the forms of rows decide too, batch by batch, so a step
that is compiled may still call its function for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from malstrom_py.builder.plan import Step
from malstrom_py.errors.text import describe_function
from malstrom_py.operators.base import Operator


class Compiled(NamedTuple):
    """What is known of a step that has functions of a row. ``why_not``: why it calls ``function`` for each of them."""

    function: str
    why_not: str | None

    def __str__(self) -> str:
        return "compiled" if self.why_not is None else f"not compiled: {self.why_not}"


def compiled_of(step: Step) -> Compiled | None:
    """Return whether ``step`` is compiled; None for a step without functions that could be."""
    kind, options, has_ttl = _kind_of(step)
    functions = functions_of(step)
    if kind is None or not functions:
        return None
    if not options.get("compiles", True):
        return Compiled(describe_function(functions[0]), "compile=False")
    if has_ttl:
        return Compiled(describe_function(functions[0]), "ttl=")
    found = [Compiled(describe_function(function), kind.why_never(function)) for function in functions]
    return next((one for one in found if one.why_not is not None), found[0])


def functions_of(step: Step) -> Sequence[Callable[..., Any]]:
    """Return the functions of a row that could be computed on columns, whether or not they are."""
    kind, options, _ = _kind_of(step)
    return () if kind is None else kind.compiled_functions(**options)


def _kind_of(step: Step) -> tuple[type[Operator] | None, dict[str, Any], bool]:
    """Return the operator of a step with its options, and whether it forgets keys after a time (``ttl=``)."""
    factory: Any = step.factory
    kind, options = (factory.func, factory.keywords) if isinstance(factory, partial) else (factory, {})
    has_ttl = "ttl" in options
    if has_ttl and isinstance(inner := options.get("factory"), partial):
        kind, options = inner.func, inner.keywords
    return (kind if isinstance(kind, type) and issubclass(kind, Operator) else None), options, has_ttl


def why_text(step: Step) -> str:
    """Return in a sentence whether ``step`` is compiled, and why not."""
    found, name = compiled_of(step), f"step {step.name!r} ({step.kind})"
    if found is None:
        return f"{name} has no function that could be computed on columns"
    if found.why_not == "compile=False":
        return f"{name} is not compiled: compile=False of the step, or of its job"
    if found.why_not == "ttl=":
        return f"{name} is not compiled: with ttl= it is known by key how long a state is kept"
    if found.why_not is not None:
        return f"{name} is not compiled: {found.function} {found.why_not}"
    return (
        f"{name} is compiled: {found.function} is computed on columns where rows come as columns of numbers, text, "
        f"truths, dates and times, and where the results are proven to be the same"
    )
