"""The columns that a plan reads of its sources, derived from what each step declares (`Operator.columns_read`).

Rule: a projection changes no result. It is derived only where every step, over all branches and up to where values end,
names its columns, or has a function that takes items of its row by constant names only (`names_taken`). Any other
function, a sink, or a step whose records may become dead letters needs them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from malstrom_py.builder.compiled_steps import compiled_of, functions_of
from malstrom_py.builder.plan import Step
from malstrom_py.operators.base import ColumnsRead, Operator
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.sinks.base import as_sink
from malstrom_py.sources.base import as_source


def narrow_sources(steps: Sequence[Step]) -> list[Step]:
    """Return ``steps`` with sources that read only the columns that the others read, where these are known."""
    if not any(map(_is_read, steps)):  # the plan of a step under test: what its functions read is not looked up
        return list(steps)
    needed = columns_needed(steps)
    is_known = any(needed[step.name] for step in steps if _is_read(step))
    gathering, saving = (_gathered(steps), _saved(steps)) if is_known else (set[str](), dict[str, int]())
    return [
        _narrowed(
            step,
            needed[step.name],
            gathers=step.name in gathering,
            saves_much=saving.get(step.name, 0) >= _SAVED_BY_COLUMNS,
        )
        if _is_read(step)
        else step
        for step in steps
    ]


def columns_needed(steps: Sequence[Step]) -> dict[str, frozenset[str] | None]:
    """Return for each step the columns of its output that others read: None for all. ``steps``: inputs come first."""
    needed: dict[str, frozenset[str] | None] = {step.name: frozenset() for step in steps}
    for step in reversed(steps):
        own = _columns_of_input(step, needed[step.name])
        for ref in step.inputs:
            others = needed[ref.step]
            needed[ref.step] = None if own is None or others is None else own | others
    return needed


def _columns_of_input(step: Step, of_output: frozenset[str] | None) -> frozenset[str] | None:
    read = _read_by(step)
    if read is None or not read.passes:
        return None if read is None else read.names
    return None if of_output is None else read.names | (of_output - read.made)


def _read_by(step: Step) -> ColumnsRead | None:
    if step.on_error == "dead-letter":
        return None
    factory: Any = step.factory
    kind, options = (factory.func, factory.keywords) if isinstance(factory, partial) else (factory, {})
    return kind.columns_read(**options) if isinstance(kind, type) and issubclass(kind, Operator) else None


def columns_of(step: Step) -> list[str] | None:
    """Return the columns that a source step of a plan reads; None if it reads all."""
    columns = step.factory.keywords.get("columns") if isinstance(step.factory, partial) else None
    return None if columns is None else sorted(columns)


_GATHERING: Final = frozenset({"aggregate", "count", "max", "mean", "min", "sum", "window"})
"""Steps with state that take columns, if they name them."""


def _gathered(steps: Sequence[Step]) -> set[str]:
    """Return the steps all of whose rows go, as columns, to steps that gather many of them in one state, or to sinks
    that write columns.

    To decode records into columns pays there: a ``map`` and a ``filter`` alone save less than that costs.
    """
    sent = {ref.step for step in steps for ref in step.inputs}
    gathered = set(sent)
    for step in reversed(steps):
        ends = _writes_columns(step) or (step.kind in _GATHERING and _read_by(step) is not None)
        if not ends and not (step.name in gathered and _takes_columns(step)):
            gathered -= {ref.step for ref in step.inputs}
    return gathered


def _writes_columns(step: Step) -> bool:
    factory: Any = step.factory
    is_sink = isinstance(factory, partial) and factory.func is WriteSink
    return is_sink and as_sink(factory.keywords["sink"]).takes_columns


_SAVED_BY_COLUMNS: Final = 3
"""To make columns of dicts pays before so many functions, and before a step that does not make a row of each row."""


def _saved(steps: Sequence[Step]) -> dict[str, int]:
    """Return for each step what columns of its rows save: the number of functions that are called otherwise."""
    saved = {step.name: 0 for step in steps}
    for step in reversed(steps):
        is_end = step.kind in ("final", "window") or _writes_columns(step)
        own = _SAVED_BY_COLUMNS if is_end else int(bool(functions_of(step)))
        for ref in step.inputs:
            saved[ref.step] = max(saved[ref.step], saved[step.name] + own)
    return saved


def _takes_columns(step: Step) -> bool:
    """Whether a step may take columns and make no rows of them, as far as that is known without rows."""
    compiled = compiled_of(step)
    if compiled is not None:
        return compiled.why_not is None
    factory: Any = step.factory
    kind, options = (factory.func, factory.keywords) if isinstance(factory, partial) else (factory, {})
    return options.get("column") is not None or getattr(kind, "takes_columns", False) is True


def _is_read(step: Step) -> bool:
    return isinstance(step.factory, partial) and step.factory.func is ReadSource


def _narrowed(step: Step, columns: frozenset[str] | None, *, gathers: bool, saves_much: bool) -> Step:
    factory: Any = step.factory
    former = ("columns", "dict_columns")  # of former functions
    keywords = {name: value for name, value in factory.keywords.items() if name not in former}
    source = as_source(keywords["source"])
    if columns and step.on_error == "fail":
        # Values of columns that are not read cannot be malformed, and the job may count or keep rows that are.
        if source.is_narrowing and (gathers or not source.is_decoding):
            keywords["columns"] = columns
        elif not source.is_narrowing and gathers and saves_much:
            keywords["dict_columns"] = columns
    return replace(step, factory=partial(ReadSource, *factory.args, **keywords))
