"""The ``on_error`` policy of steps, applied when a user's function raises on a record.

``fail`` raises `OperatorError`; ``skip`` counts the record; ``dead-letter`` counts it and sends a `DeadLetter`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeGuard

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import DeadLetter
from malstrom_py.data.row_form import getter_of, looked_up, names_of
from malstrom_py.errors import OperatorError, StateError, has_safe_text, shown
from malstrom_py.errors.text import (
    PER_WORKER,
    after,
    column_of,
    count_others,
    describe_error,
    describe_function,
    failed_in,
    instead_of,
    list_fields,
    nearest,
    raised_by_malstrom,
    redacts,
    sentence,
    text_of,
)
from malstrom_py.operators.base import Outlet, StepContext

_FILTER: Final = "Filter such values out before it"


def _of_column(name: str, batch: Batch, index: int, words: str, advice: str) -> str:
    """Describe the failure of row ``index`` by its column ``name``, which is missing or has an unusable value."""
    if isinstance(batch, ColumnBatch) and batch.form.by_name and not batch.computed:
        names: list[str] = batch.columns.schema.names
        fields: str | None = instead_of(name, names) if batch.named else f", only {count_others(len(names))}."
        found = name in names
        of, instead = "the batch of columns", ""
    else:
        value = batch.values[index]
        known = names_of(value)
        if not known and isinstance(value, dict) and not redacts():  # the keys of a dict may be values
            known = tuple(key for key in value if isinstance(key, str))
        fields = instead_of(name, known) if known else None
        if fields is None and isinstance(value, dict):
            fields = f", only {count_others(len(value))}."
        of = f"a value of type {type(value).__name__}"
        builtin = type(value).__module__ == "builtins"
        instead = "or map the values to dicts" if builtin else f"such as lambda value: value.{name}"
        try:
            looked_up(operator.itemgetter(name))(value)
            found = True
        except Exception:
            found = False
    if found:
        return f" in column {name!r}{words}. {advice or _FILTER}"
    if fields is None:
        return f": {of} has no columns to look up by name. Pass a function, {instead}"
    return f": {of} has no column {name!r}{fields} Name one that it has"


def _words_on(error: Exception, batch: Batch, index: int) -> str:
    """Return the text of ``error``, raised for row ``index``; of a KeyError also the fields the row has: the key
    may have been looked up in another dict, unless one of them is like it."""
    words = sentence(text_of(error))
    if type(error) is not KeyError or not words or has_safe_text(error):
        return words
    value = batch.values[index]
    names = [name for name in value if isinstance(name, str)] if isinstance(value, dict) else []
    if not names or error.args[0] in names or redacts():
        return words
    near = nearest(error.args[0], names)
    if near:
        return f"{words} (the row has {list_fields(near)})"
    return f"{words} (if it was looked up in the row: that has {list_fields(names)})"


def _figure_advice(error: Exception, value: object) -> str:
    """Return what to do about ``value``, of which a sum or the like cannot be made: it is None, or a dict."""
    if type(error) is not TypeError or not raised_by_malstrom(error):
        return ""
    if "'NoneType'" in str(error):
        return "Leave None out with skip_nulls=True, or filter such values out before it"
    if not isinstance(value, dict) or "'dict'" not in str(error):
        return ""
    numbers = [name for name, one in value.items() if isinstance(name, str) and isinstance(one, int | float)]
    name = repr(numbers[0]) if numbers and not redacts() else "'price'"
    return f"The values are dicts: name the column, by={name}, or in aggregate agg.sum({name})"


class ErrorPolicy:
    """The ``on_error`` policy of one step. ``figures``: the step makes sums or the like, with ``skip_nulls=``."""

    def __init__(self, context: StepContext, *, advice: str = _FILTER, figures: bool = False) -> None:
        self._context = context
        self._advice = advice
        self._figures = figures
        self.failed: set[Any] | None = None
        """The keys of rows that failed, where a step asks for them; it empties the set."""

    def record(self, error: Exception, function: object, batch: Batch, index: int, out: Outlet) -> None:
        """Apply the policy to row ``index`` of ``batch``, for which ``function`` raised ``error``."""
        key = batch.keys[index] if batch.keys is not None else None
        timestamp = batch.timestamps[index] if batch.timestamps is not None else None
        context = self._context
        # An error without a traceback was made by the step itself.
        ours = error.__traceback__ is None or raised_by_malstrom(error)
        is_complete = ours and isinstance(error, OperatorError) and error.step == context.step
        if is_complete and context.on_error == "fail":
            raise error  # it is complete already
        if context.on_error == "fail" or _lacks_resource(error):
            named = None if _lacks_resource(error) else column_of(function)
            words = _words_on(error, batch, index)
            advice = _figure_advice(error, batch.values[index]) if self._figures else ""
            remedy = "" if named is None else _of_column(named, batch, index, after(words), advice)
            raise self.error(error, function, key=key, remedy=remedy, words=words, advice=advice) from error
        if self.failed is not None:
            self.failed.add(key)
        if context.on_error == "skip":
            context.counters.skipped += 1
        else:
            letter = DeadLetter(context.step, key, batch.values[index], timestamp, describe_error(error))
            self.bury([letter], batch.part, out)

    def bury(self, letters: list[DeadLetter], part: str | None, out: Outlet) -> None:
        """Count ``letters`` and send them to the stream of ``job.dead_letters(step)``."""
        self._context.counters.dead_letters += len(letters)
        if self._context.dead_letter_port is not None:
            # Dead letters of a job have no keys; in a DAG a letter has the key of its record.
            keys = [letter.key for letter in letters] if self._context.keyed is None else None
            out.send(Batch(letters, keys=keys, part=part), self._context.dead_letter_port)

    @contextmanager
    def of_hook(self, function: object) -> Iterator[None]:
        """Make an error of ``function``, which is not called with a single record, the one that names this step.

        For calls that are rare: it costs a microsecond.
        """
        try:
            yield
        except StateError:  # of the disk that the function's states are on
            raise
        except Exception as error:
            raise self.error(error, function, policy=False) from error

    def error(
        self,
        error: Exception,
        function: object,
        *,
        key: Any = None,
        policy: bool = True,
        remedy: str = "",
        words: str | None = None,
        advice: str = "",
    ) -> OperatorError:
        """Return ``error`` as the `OperatorError` that names this step.

        ``policy``: whether ``on_error`` applies, which needs a single record. ``remedy``: where it failed and what to
        do, instead of the advice to correct ``function``. ``words``: the text of ``error``, if known.
        ``advice``: what to do instead of the usual.
        """
        if _lacks_resource(error):
            step = self._context.step
            return OperatorError(
                f"step {step!r}: {error}", step=step, key=key, function=error.function, rule=PER_WORKER
            )
        where = "" if function is None else describe_function(function)
        at_key = "" if key is None else f" for key {shown(key)}"
        words = after(sentence(text_of(error)) if words is None else words)
        if not remedy:
            place = f" in {failed_in(function, error)}" if where else ""
            remedy = f"{place}{words}. {advice or ('Correct the function' if where else self._advice)}"
        other = (
            ", or give the step on_error='skip' or on_error='dead-letter', whose stream has the record"
            if policy
            else ""
        )
        return OperatorError(
            f"step {self._context.step!r} failed{at_key}: {type(error).__name__}{remedy}{other}.",
            step=self._context.step,
            key=key,
            function=where,
        )


def _lacks_resource(error: Exception) -> TypeGuard[OperatorError]:
    return isinstance(error, OperatorError) and error.rule == PER_WORKER


OWN: Final = object()
"""As ``blame``: the function that is called."""

Loop = Callable[[Callable[[Any], Any], Iterator[Any], list[Any]], None]
"""Calls a function on values until they end, and appends to a list. It raises what the function raises."""


def results_of(function: Callable[[Any], Any], values: Iterator[Any], results: list[Any]) -> None:
    """Append the result for each value."""
    for value in values:
        results.append(function(value))  # noqa: PERF401  `results` must hold what came before a raise


def verdicts_of(predicate: Callable[[Any], Any], values: Iterator[Any], verdicts: list[Any]) -> None:
    """Append True or False for each value. A result may raise when it is converted to a boolean."""
    for value in values:
        verdicts.append(not not predicate(value))  # noqa: PERF401, SIM208  cheaper than bool()


def kept_of(predicate: Callable[[Any], Any], values: Iterator[Any], kept: list[Any]) -> None:
    """Append each value for which ``predicate`` is true."""
    for value in values:
        if predicate(value):
            kept.append(value)  # noqa: PERF401  `kept` must hold what came before a raise


def call_each(
    function: Callable[[Any], Any],
    batch: Batch,
    failures: ErrorPolicy,
    out: Outlet,
    *,
    loop: Loop = results_of,
    blame: object = OWN,
) -> tuple[Batch, list[Any]]:
    """Call ``function`` once on each value of ``batch``: the rows it did not raise on, and what ``loop`` appended.

    ``blame`` is the user's function where ``function`` only wraps it, None where there is none.
    """
    failed, results = call_rows(function, batch, failures, out, loop=loop, blame=blame)
    return batch.drop(failed) if failed else batch, results


def call_rows(
    function: Callable[[Any], Any],
    batch: Batch,
    failures: ErrorPolicy,
    out: Outlet,
    *,
    loop: Loop = results_of,
    blame: object = OWN,
) -> tuple[list[int], list[Any]]:
    """Do as `call_each`; return the indices of the rows that ``function`` raised on, and what ``loop`` appended."""
    values = batch.values
    if loop is results_of and type(function) is operator.itemgetter and values:
        try:
            return [], list(map(getter_of(function, values[0]), values))  # at the speed of C if all are of one class
        except Exception:
            """The values differ, or one lacks the field: row by row."""
        function, blame = looked_up(function), function
    failed, results = list[int](), list[Any]()
    rows = iter(values)
    while True:  # after a row that raised the next is called, so that no row is called twice
        try:
            loop(function, rows, results)
        except Exception as error:
            index = len(values) - operator.length_hint(rows) - 1  # the iterator of a list knows how many rows are left
            failures.record(error, function if blame is OWN else blame, batch, index, out)
            failed.append(index)
        else:
            return failed, results
