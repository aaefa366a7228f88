"""The steps that keep running figures per key: `aggregate`, `count`, `sum`, `min`, `max`, `mean`, `fold`, `reduce`,
`distinct` and `top_n`.

What a figure is, is defined by an `Aggregation` of `malstrom_py.agg`: these steps add each record to the state of its
key and send the result. A step with a single figure stores the aggregation's state; `aggregate` stores a tuple of
states, sorted by the names of the figures.

Rule: a key's state is assigned after everything that can raise, so that a record that fails changes no state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from malstrom_py import agg
from malstrom_py.agg import Aggregation
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.equality import AS_THEY_ARE, seen_form
from malstrom_py.data.figures import unchanged
from malstrom_py.data.row_form import DICTS, SCALAR, RowForm, looked_up
from malstrom_py.data.unshared import unshared
from malstrom_py.errors.text import column_of
from malstrom_py.operators.base import ColumnsRead, Outlet, StepContext, read_by
from malstrom_py.operators.column_figures import (
    ColumnFigures,
    FieldColumns,
    functions_of,
    in_arrays,
    keys_column_of,
    record_batch,
)
from malstrom_py.operators.failures import ErrorPolicy, call_rows
from malstrom_py.operators.keyed import FoldingOperator, KeyedOperator, Rows
from malstrom_py.operators.names_taken import names_taken
from malstrom_py.state.figure_states import shape_of_many, shape_of_one
from malstrom_py.state.group_index import NotColumnar
from malstrom_py.state.seen_values import SeenValues
from malstrom_py.state.top_lane import CELLS_MAX, insert, top

Loop = Callable[[Iterable[Any], list[Any], MutableMapping[Any, Any]], None]
"""Takes rows (key, one value per aggregation); per row sets the key's states, then appends the figures."""


class FieldValues:
    """Looks up the fields of ``aggregations`` in batches. ``names``: the columns read; None if whole values are."""

    def __init__(self, aggregations: Sequence[Aggregation[Any, Any]]) -> None:
        looking = [one.field for one in aggregations if not one.blind]
        columns = [field for field in looking if isinstance(field, str)]
        self.names = list(dict.fromkeys(columns)) if len(columns) == len(looking) else None
        self._aggregations = aggregations

    @property
    def read(self) -> ColumnsRead | None:
        """The columns read; None if whole values are."""
        looking = [one.field for one in self._aggregations if not one.blind]
        names = [frozenset((field,)) if isinstance(field, str) else names_taken(field) for field in looking]
        known = [one for one in names if one is not None]
        return ColumnsRead(frozenset().union(*known)) if len(known) == len(names) else None

    def of(self, batch: Batch, failures: ErrorPolicy, out: Outlet) -> tuple[Batch, list[Any]]:
        """Look up each field once: the rows where this succeeds, and one list of values per aggregation."""
        columns: dict[Any, list[Any]] = {}
        if self.names is not None and isinstance(batch, ColumnBatch):
            found = {name: batch.field(name) for name in self.names}
            columns = {name: column for name, column in found.items() if column is not None}
        for one in self._aggregations:
            field, same = one.field, _identity(one.field)
            if field is not None and same not in columns:
                look_up = itemgetter(field) if isinstance(field, str) else field
                failed, column = call_rows(look_up, batch, failures, out)
                if failed:
                    batch = batch.drop(failed)
                    gone = set(failed)
                    for name, kept in columns.items():
                        columns[name] = [value for index, value in enumerate(kept) if index not in gone]
                columns[same] = column
        each_one = [1] * len(batch) if any(one.blind for one in self._aggregations) else []
        values = [
            each_one if one.blind else batch.values if one.field is None else columns[_identity(one.field)]
            for one in self._aggregations
        ]
        return batch, [
            list(zip(batch.timestamps or (), column, strict=True)) if one.timed else column
            for one, column in zip(self._aggregations, values, strict=True)
        ]


class FigureStep(KeyedOperator):
    """The base of the steps whose running figures are kept in arrays while batches are columns."""

    over_columns: ColumnFigures | None = None
    has_names = True
    """Whether what is aggregated has columns by name, so that batches need never be rows."""

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        figures = None if self.over_columns is None else self.over_columns.scan(batch)
        self.takes_columns = self.has_names or figures is not None
        if figures is None:
            super().on_batch(batch, out)
        elif isinstance(batch, ColumnBatch) and len(batch):
            columns, form = self.columns_sent(figures)
            out.send(batch.with_columns(record_batch(columns), form=form))

    def columns_sent(self, figures: Sequence[Any]) -> tuple[Mapping[str, Any], RowForm]:
        """Return what is sent, per row, of a column of results per aggregation."""
        return {"value": figures[0]}, SCALAR


class Aggregate(FigureStep):
    """Per record a dict: the name of each aggregate -> its result over the key's records so far.

    >>> import malstrom_py as mp
    >>> from malstrom_py import agg, sources
    >>> numbers = mp.Job("docs").source("numbers", sources.Memory([3, 4, 9])).key_by("parity", lambda n: n % 2)
    >>> mp.collect(numbers.aggregate("figures", n=agg.count(), least=agg.min(), mean=agg.mean()))
    [{'n': 1, 'least': 3, 'mean': 3.0}, {'n': 1, 'least': 4, 'mean': 4.0}, {'n': 2, 'least': 3, 'mean': 6.0}]
    """

    figures = True

    @classmethod
    def columns_read(cls, **options: Any) -> ColumnsRead | None:
        return FieldValues([*options["aggregations"].values()]).read

    @classmethod
    def compiled_functions(cls, **options: Any) -> Sequence[Callable[[Any], Any]]:
        return functions_of(options["aggregations"].values())

    def __init__(
        self, context: StepContext, *, aggregations: Mapping[str, Aggregation[Any, Any]], compiles: bool = True
    ) -> None:
        super().__init__(context)
        self._aggregations = [one for _, one in sorted(aggregations.items())]
        self._loop = loop_of(aggregations)
        self._fields = FieldValues(self._aggregations)
        self._names = list(aggregations)
        columns = FieldColumns(context, functions_of(self._aggregations), compiles=compiles)
        self.has_names = self._fields.names is not None
        self.takes_columns = self.has_names or columns.are_compiled
        shape = shape_of_many(len(self._aggregations))
        self.over_columns = ColumnFigures(self.state, self._aggregations, shape, columns)

    def columns_sent(self, figures: Sequence[Any]) -> tuple[Mapping[str, Any], RowForm]:
        columns = dict(zip(sorted(self._names), figures, strict=True))
        return {name: columns[name] for name in self._names}, DICTS

    def _taken(self, batch: Batch, out: Outlet) -> tuple[Batch, list[Any]]:
        return self._fields.of(batch, self.failures, out)

    def rows(self, keys: list[Any], values: list[Any]) -> Rows:
        return zip(keys, *values, strict=True)

    def update(self, rows: Rows, results: list[Any]) -> None:
        self._loop(rows, results, self.states)

    def failed_function(self, index: int, keys: list[Any], values: list[Any]) -> object:
        """Add row ``index`` again, one aggregation at a time, to find the one that raises."""
        if self.context.on_error != "fail":
            return None
        states = self.states.get(keys[index]) or [one.init() for one in self._aggregations]
        for one, state, column in zip(self._aggregations, states, values, strict=True):
            own: Callable[..., Any] = one.add
            try:
                if one.check is not None:
                    one.check(state, column[index])
                    continue
                changed = one.add(state, column[index])
                own = one.finish
                one.finish(changed)
            except Exception:
                if one.field is not None:
                    return itemgetter(one.field) if isinstance(one.field, str) else one.field
                return own if one.name == "custom" else None
        return None


def _identity(field: object) -> object:
    """Return the identity of ``field``: a function may be unhashable, or equal to another."""
    return field if isinstance(field, str) else id(field)


def loop_of(aggregations: Mapping[str, Aggregation[Any, Any]]) -> Loop:
    """Return the loop over rows for ``aggregations``."""
    ones = [one for _, one in sorted(aggregations.items())]
    if all(one.check is None for one in ones):
        return _unrolled(list(aggregations), ones)
    # An `add` that changes the state it is given comes last, when nothing can fail any more.
    names, figures = sorted(aggregations), dict.fromkeys(aggregations).copy
    order = sorted(range(len(ones)), key=lambda place: ones[place].check is not None)
    lanes = [(place, names[place], ones[place].add, ones[place].finish) for place in order]
    checks = [(place, one.check) for place, one in enumerate(ones) if one.check is not None]

    def loop(rows: Iterable[Any], results: list[Any], states: MutableMapping[Any, Any]) -> None:
        get, append = states.get, results.append
        for key, *values in rows:
            known = get(key) or tuple([one.init() for one in ones])
            for place, check in checks:
                check(known[place], values[place])
            changed, result = [*known], figures()  # in the order of the arguments
            for place, name, add, finish in lanes:
                changed[place] = state = add(known[place], values[place])
                result[name] = finish(state)
            states[key] = tuple(changed)
            append(result)

    return loop


def _unrolled(names: Sequence[str], ones: Sequence[Aggregation[Any, Any]]) -> Loop:
    """Return the loop for ``ones``, in the order of their names, whose results are in that of ``names``.

    It is written out, without a loop within, which would double its time. Names and functions are globals, never code.
    """
    made: dict[str, Any] = {"begin": lambda: tuple([one.init() for one in ones])}
    steps = list[str]()
    for n, (name, one) in enumerate(zip(sorted(names), ones, strict=True)):
        made |= {f"name{n}": name, f"add{n}": one.add, f"finish{n}": one.finish}
        result = f"state{n}" if one.finish is unchanged else f"finish{n}(state{n})"
        steps += [f"state{n} = add{n}(state{n}, value{n})", f"result{n} = {result}"]
    states, values = ("".join(f"{word}{n}, " for n in range(len(ones))) for word in ("state", "value"))
    in_order = sorted(range(len(ones)), key=lambda n: names.index(made[f"name{n}"]))
    lines = [
        "def loop(rows, results, states):",
        " get, append = states.get, results.append",
        f" for key, {values} in rows:",
        f"  {states} = get(key) or begin()",
        *(f"  {step}" for step in steps),
        f"  states[key] = ({states})",
        f"  append({{{', '.join(f'name{n}: result{n}' for n in in_order)}}})",
    ]
    exec(compile("\n".join(lines), f"{__file__} (a loop)", "exec"), made)
    loop: Loop = made["loop"]
    return loop


def function_of(by: Callable[[Any], Any] | None) -> Sequence[Callable[[Any], Any]]:
    """Return ``by`` alone if it is a function that may be compiled: neither None nor the look-up of a column."""
    return () if by is None or column_of(by) is not None else (by,)


class Figure(FigureStep):
    """A step with one running figure, which ``aggregation`` defines. ``by`` says what of a value is aggregated."""

    figures = True

    aggregation: Aggregation[Any, Any]

    @classmethod
    def columns_read(cls, **options: Any) -> ColumnsRead | None:
        return read_by(options.get("by"))

    @classmethod
    def compiled_functions(cls, **options: Any) -> Sequence[Callable[[Any], Any]]:
        return function_of(options.get("by"))

    def __init__(
        self,
        context: StepContext,
        *,
        by: Callable[[Any], Any] | None = None,
        function: object = None,
        skip_nulls: bool = False,
        compiles: bool = True,
    ) -> None:
        super().__init__(context, by=by, function=function)
        if skip_nulls:
            self.aggregation = agg.skipping_nulls(self.aggregation)
        self.takes_columns = self.takes_columns or (by is None and self.aggregation.arrays is not None)
        over = self.aggregation
        if self.needs_values and by is not None:
            over = replace(over, field=self._column or by)
        columns = FieldColumns(context, functions_of([over]), compiles=compiles)
        self.has_names = self.takes_columns
        self.takes_columns = self.has_names or columns.are_compiled
        self.over_columns = ColumnFigures(self.state, [over], shape_of_one(), columns)

    def update(self, rows: Rows, results: list[Any]) -> None:
        self.aggregation.run(rows, results, self.states)


class Count(Figure):
    """Per record the number of records of its key so far, this one included."""

    aggregation = agg.count()
    needs_values = False

    @classmethod
    def columns_read(cls, **options: Any) -> ColumnsRead:
        return ColumnsRead()


class Sum(Figure):
    """Per record the sum of its key's values so far, or of what ``by`` (function or column name) takes of them."""

    aggregation = agg.sum()


class Min(Figure):
    """Per record the smallest of its key's values so far, or of what ``by`` (function or column name) takes of
    them. Of equal values the first stays.
    """

    aggregation = agg.min()


class Max(Figure):
    """Per record the largest of its key's values so far, or of what ``by`` (function or column name) takes of
    them. Of equal values the first stays.
    """

    aggregation = agg.max()


class Mean(Figure):
    """Per record the mean of its key's values so far, or of what ``by`` (function or column name) takes of them."""

    aggregation = agg.mean()


class Fold(FoldingOperator):
    """Per record ``fn(accumulated, value)``, from ``default()`` on. What ``fn`` may change later is sent as a copy.

    A result of None drops the state of its key, which then begins from ``default()`` again.
    Columns remain columns where ``fn`` only adds, or keeps the largest, the smallest or the last.
    """

    advice = "Name a column or a function with by=, or filter such values out before it"

    @classmethod
    def columns_read(cls, **options: Any) -> ColumnsRead | None:
        return read_by(options["fn"], 1)

    @classmethod
    def compiled_functions(cls, **options: Any) -> Sequence[Callable[[Any], Any]]:
        from malstrom_py.operators.compiled_folds import is_decided

        return (options["fn"],) if is_decided(options["fn"], options["default"]) else ()

    def __init__(
        self,
        context: StepContext,
        *,
        fn: Callable[[Any, Any], Any],
        default: Callable[[], Any],
        compiles: bool = True,
    ) -> None:
        super().__init__(context, function=fn, folds=fn, default=default, compiles=compiles)
        self._fn = fn
        self._default = default

    def update(self, rows: Rows, results: list[Any]) -> None:
        states, fn, default, dropped = self.states, self._fn, self._default, self.dropped_at
        get = states.get
        for key, value in rows:
            accumulated = get(key)
            if accumulated is None:
                accumulated = default()
            made = fn(accumulated, value)
            sent = unshared(made) if made is accumulated else made
            if made is None:
                states.pop(key, None)
                dropped[key] = len(results)
            else:
                states[key] = unshared(value) if made is value else made
            results.append(sent)


class Reduce(FoldingOperator):
    """Per record the key's values so far, combined: first the value itself, then ``fn(accumulated, value)``. What
    ``fn`` may change later is sent as a copy. A result of None drops the state of its key.
    """

    def __init__(self, context: StepContext, *, fn: Callable[[Any, Any], Any], compiles: bool = True) -> None:
        from malstrom_py.operators.compiled_folds import plain_function

        plain = plain_function(fn)

        def first_or_combined(accumulated: Any, value: Any) -> Any:
            return value if accumulated is None else plain(accumulated, value)

        super().__init__(context, function=fn, folds=first_or_combined, compiles=compiles)
        self._fn = fn

    def update(self, rows: Rows, results: list[Any]) -> None:
        states, fn, dropped = self.states, self._fn, self.dropped_at
        get = states.get
        for key, value in rows:
            accumulated = get(key)
            made = value if accumulated is None else fn(accumulated, value)
            sent = unshared(made) if made is accumulated else made
            if made is None:
                states.pop(key, None)
                dropped[key] = len(results)
            else:
                states[key] = unshared(value) if made is value else made
            results.append(sent)


class Distinct(KeyedOperator):
    """Passes the first record of each value per key, or of each ``by`` (function or column name); the others are
    counted as filtered. The values seen are kept as long as the job runs. Columns of integers, text or bytes
    remain columns.
    """

    advice = "Name a column or a function with by=, or filter such values out before it"

    @classmethod
    def columns_read(cls, **options: Any) -> ColumnsRead | None:
        return read_by(options.get("by"), passes=True)

    @classmethod
    def compiled_functions(cls, **options: Any) -> Sequence[Callable[[Any], Any]]:
        return function_of(options.get("by"))

    def __init__(self, context: StepContext, *, by: Callable[[Any], Any] | None, compiles: bool = True) -> None:
        super().__init__(context, function=by, by=by)
        self._fields = FieldColumns(context, function_of(by), compiles=compiles, is_sent=True)
        self._has_names = self.takes_columns or by is None
        self.takes_columns = self._has_names or self._fields.are_compiled
        self.state.arrays = SeenValues

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        first = in_arrays(self.state, batch, self._first_of)
        self.takes_columns = self._has_names or first is not None
        if first is None:
            super().on_batch(batch, out)
        elif len(first) == len(batch):
            out.send(batch)
        else:
            self.counters.filtered += len(batch) - len(first)
            out.send(batch.take(first))

    def _first_of(self, batch: ColumnBatch) -> Any:
        """Add the rows of columns. Return the indices of those with a new value. `NotColumnar` if rows must do it."""
        column = self._fields.of(self._column or self._by, batch)
        if column is None:
            raise NotColumnar("a field that is not a column")
        return self.state.to_arrays().add(keys_column_of(batch), column)

    def update(self, rows: Rows, results: list[Any]) -> None:
        states = self.states
        for key, given in rows:
            value = given if type(given) in AS_THEY_ARE else seen_form(given)
            seen = states.get(key)
            if seen is None:
                states[key] = {value}
                results.append(True)
            else:
                new = value not in seen
                if new:
                    seen.add(value)
                    states[key] = seen  # state changes by assignment only
                results.append(new)

    def emit(self, batch: Batch, results: list[Any], out: Outlet) -> None:
        kept = batch.compress(results)
        self.counters.filtered += len(batch) - len(kept)
        out.send(kept)


class TopN(FigureStep):
    """Per record the list of its key's ``n`` largest values so far, by ``by`` (function, column name, or the value
    itself), largest first. Equal values keep their order of arrival. Columns of numbers and times remain columns.
    """

    advice = "Name a column or a function with by=, or filter such values out before it"

    @classmethod
    def compiled_functions(cls, **options: Any) -> Sequence[Callable[[Any], Any]]:
        return function_of(options.get("by"))

    @classmethod
    def why_never(cls, function: Callable[..., Any]) -> str | None:
        from malstrom_py.traced.tracing import field_returned, why_impure

        if field_returned(function) is not None:
            return None
        return why_impure(function) or "does more than to look up a field"

    def __init__(self, context: StepContext, *, n: int, by: Callable[[Any], Any] | None, compiles: bool = True) -> None:
        super().__init__(context, function=by)
        self._n = n
        self._rank = by
        column, self._is_function = column_of(by), bool(function_of(by))
        if self._is_function and by is not None and compiles:
            from malstrom_py.traced.tracing import field_returned  # a job is defined without it

            column = field_returned(by)
        self.has_names = by is None or (column is not None and not self._is_function)
        self.takes_columns = self.has_names or column is not None
        if self.takes_columns and n <= CELLS_MAX:
            self.over_columns = ColumnFigures(self.state, [top(n, column)], shape_of_one())

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        if self._is_function and isinstance(batch, ColumnBatch) and not self.context.trusts_columns(batch):
            batch = batch.with_values(batch.values)  # a function of an earlier step may have changed them
        super().on_batch(batch, out)

    def rows(self, keys: list[Any], values: list[Any]) -> Rows:
        ranks = values if self._rank is None else map(looked_up(self._rank), values)
        return zip(keys, values, ranks, strict=True)

    def update(self, rows: Rows, results: list[Any]) -> None:
        states, n = self.states, self._n
        for key, value, rank in rows:
            states[key] = state = insert(states.get(key, ((), ())), rank, value, n)
            results.append(state[1][::-1])
