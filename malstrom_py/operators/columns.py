"""The steps that work on whole columns: `map_batches`, `select`, `with_columns`, and `filter` by a Polars expression.

Rule: a result must not depend on where batches are cut. So an expression must work row by row, and columns made of rows
are `exact`: a type that could only be inferred by widening later (an int that is a float in another batch) is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.row_form import fields_of
from malstrom_py.data.rows_to_columns import RowColumns
from malstrom_py.data.schema import pickable
from malstrom_py.errors import OperatorError, PlanError
from malstrom_py.errors.text import (
    describe_error,
    describe_function,
    instead_of,
    list_fields,
    raised_at,
    redacts,
    sentence,
)
from malstrom_py.operators.base import ColumnsRead, Operator, Outlet, StepContext, weakly
from malstrom_py.operators.failures import ErrorPolicy
from malstrom_py.operators.keyed import keys_of

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

_TRIALS: Final = 8
_WHOLE: Final = (
    "an expression looks at more than its own row (an aggregate, a sort, a shift, …), so its result would depend on "
    "where batches are cut: use a keyed step, such as count, sum or aggregate, for that"
)


class Expressions:
    """The Polars expressions of one step, evaluated on its batches.

    ``apply`` transforms a frame: ``DataFrame.select`` or ``with_columns``, say. If Polars cannot report whether an
    expression works row by row, the first few batches are evaluated whole and in halves, and the results compared.
    """

    def __init__(
        self,
        expressions: Sequence[pl.Expr],
        apply: Callable[[pl.DataFrame, Sequence[pl.Expr]], pl.DataFrame],
        error: Callable[[str], OperatorError],
    ) -> None:
        self._expressions = expressions
        self._names = sorted({name for expression in expressions for name in expression.meta.root_names()})
        self._apply = apply
        self._error = error
        verdicts = [works_row_by_row(expression) for expression in expressions]
        if False in verdicts:
            raise error(_WHOLE)
        # How many batches are still to be evaluated in halves too; several, because equal rows prove nothing.
        self._unsure = _TRIALS if None in verdicts else 0

    def __call__(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Evaluate the expressions on ``frame``, row for row."""
        result = self._evaluated(frame)
        if self._unsure and frame.height > 1:
            self._unsure -= 1
            middle = frame.height // 2
            halves = [self._evaluated(frame.slice(0, middle)), self._evaluated(frame.slice(middle))]
            if not all(
                half.equals(result.slice(at, half.height)) for at, half in zip((0, middle), halves, strict=True)
            ):
                raise self._error(_WHOLE)
        return result

    def filtered(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of ``frame`` for which the expressions, known to give booleans, are true."""
        return self._guarded(frame, lambda: frame.filter(self._expressions))

    def _evaluated(self, frame: pl.DataFrame) -> pl.DataFrame:
        result = self._guarded(frame, lambda: self._apply(frame, self._expressions))
        if result.height == 1 != frame.height:  # constants alone are one row to Polars
            names = result.columns
            result = self._guarded(frame, lambda: frame.with_columns(self._expressions).select(names))
        if result.height != frame.height:
            raise self._error(f"the expressions made {result.height} rows of {frame.height}: {_WHOLE}")
        return result

    def _guarded(self, frame: pl.DataFrame, evaluate: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        """Run ``evaluate``; an error of Polars becomes one that names the step and the columns."""
        from polars.exceptions import ColumnNotFoundError, PanicException

        try:
            return evaluate()
        except ColumnNotFoundError as error:
            missing = [name for name in self._names if name not in frame.columns]
            named = f"the column {', '.join(map(repr, missing))}, which" if missing else "a column that"
            known = f"; there are {frame.width}." if redacts() else instead_of((missing or [""])[0], frame.columns)
            raise self._error(f"an expression names {named} is not there{known}") from error
        except (Exception, PanicException) as error:  # also what a function of the user's inside it raises
            where = raised_at(error)
            failed = f"an expression failed{where and f' {where}'} on columns {self._typed(frame)}{self._hint(frame)}"
            raise self._error(
                f"{failed}: {sentence(describe_error(error))}. Correct the expression, or cast a column"
            ) from error

    def _hint(self, frame: pl.DataFrame) -> str:
        """Advise to cast a column made of rows that has had no value so far, so that its type is unknown."""
        import polars as pl

        untyped = [name for name in self._names if frame.schema.get(name) == pl.Null]
        if not untyped:
            return ""
        names = ", ".join(map(repr, untyped))
        return f". Of {names} all rows so far have None: say the type, pl.col({untyped[0]!r}).cast(…)"

    def _typed(self, frame: pl.DataFrame) -> str:
        """Describe the columns that the expressions name; count the others, because their names may be values."""
        named = [f"{name!r}: {frame.schema[name]}" for name in self._names if name in frame.columns]
        others = frame.width - len(named)
        return ", ".join([*named, *([f"{others} others" if named else str(others)] if others else [])])


class BesideText:
    """Evaluates ``expressions`` on columns in Arrow form some of which are text that only passes.

    Polars takes as long to take text over as to evaluate an expression, so only what these read becomes a frame. What
    passes keeps its type, which Polars would give back, but for text. It does so in all batches of a stream.
    """

    def __init__(self, expressions: Sequence[pl.Expr], error: Callable[[str], OperatorError]) -> None:
        import pyarrow as pa

        computed = [expression for expression in expressions if not expression.meta.is_column()]
        self._names = [expression.meta.output_name(raise_if_undetermined=False) for expression in expressions]
        self._made = {expression.meta.output_name(raise_if_undetermined=False) for expression in computed}
        self._reads = roots_of(computed) or []
        self._computed = Expressions(computed, lambda frame, exprs: frame.select(exprs), error)
        is_known = None not in self._names and len(set(self._names)) == len(self._names)
        self._is_used = is_known and bool(self._reads or not computed)
        whole = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
        self._texts = {pa.string(), pa.large_string()}
        self._types = {*whole, pa.float32(), pa.float64(), pa.bool_(), pa.date32(), *self._texts}

    def __call__(self, batch: ColumnBatch, others: bool) -> pa.RecordBatch | None:
        """Return the computed columns with those that pass, all ``others`` among them; None if a frame has to be made
        of all, which also finds what is wrong with them.
        """
        import pyarrow as pa

        if not self._is_used or not batch.has_arrow:
            return None
        columns = batch.columns
        known = columns.schema.names
        names: list[Any] = list(dict.fromkeys([*known, *self._names] if others else self._names))
        passing = [name for name in names if name not in self._made]
        if len(set(known)) < len(known) or not {*passing, *self._reads} <= set(known):
            return None
        types = {columns.schema.field(name).type for name in passing}
        if not types <= self._types or (self._made and not types & self._texts):
            return None
        made = self._evaluated(batch) if self._made else {}
        if made is None:
            return None
        arrays = [made[name] if name in made else columns.column(name) for name in names]
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def _evaluated(self, batch: ColumnBatch) -> dict[str, pa.Array] | None:
        """Return the computed columns; None if they fail, or if one is not of numbers: a frame holds text better."""
        import polars as pl

        try:
            made = self._computed(batch.frame_of(self._reads))
        except OperatorError:
            return None
        self._is_used = all(kind.is_numeric() or kind == pl.Boolean for kind in made.dtypes)
        return {series.name: series.to_arrow() for series in made} if self._is_used else None


def is_expression(thing: object) -> TypeGuard[pl.Expr]:
    """Whether ``thing`` is a Polars expression; does not import Polars."""
    polars = sys.modules.get("polars")
    return polars is not None and isinstance(thing, polars.Expr)


def expressions_of(given: Sequence[object], named: Mapping[str, object], step: str) -> list[pl.Expr]:
    """Return the expressions that a user passed: a str is a column, a named expression gets that name.

    Raises:
        PlanError: something else, no expression, or one that looks at more than its own row.
    """
    expressions: list[pl.Expr] = []
    for name, thing in [*((None, thing) for thing in given), *named.items()]:
        expression = _column(thing) if isinstance(thing, str) else thing
        if not is_expression(expression):
            raise PlanError(
                f"step {step!r}: expected Polars expressions or names of columns, got {type(thing).__name__}: "
                f"write pl.lit(…) for a constant"
            )
        if works_row_by_row(expression) is False:
            raise PlanError(f"step {step!r}: {_WHOLE}: {str(expression)[:200]}")
        expressions.append(expression if name is None else expression.alias(name))
    if not expressions:
        raise PlanError(f"step {step!r}: pass at least one Polars expression or name of a column")
    return expressions


def roots_of(expressions: Sequence[pl.Expr]) -> list[str] | None:
    """Return the columns that ``expressions`` read; None if they depend on the frame, or if there are none.

    >>> import polars as pl
    >>> roots_of([pl.col("b") * 2, pl.col("a")]), roots_of([pl.all()])
    (['a', 'b'], None)
    """
    names = _roots_or_selection(expressions)
    return sorted(names) if names else None


def _roots_or_selection(expressions: Sequence[pl.Expr]) -> set[str] | None:
    """Return the columns that ``expressions`` read, none for constants; None if they depend on the frame."""
    names: set[str] = set()
    left = list(expressions)
    for expression in left:
        if expression.meta.is_column():
            names.update(expression.meta.root_names())
        elif expression.meta.is_column_selection():
            return None
        else:
            left.extend(expression.meta.pop())
    return names


def _column(name: str) -> pl.Expr:
    """Return the column of exactly that name, which is not read as a pattern."""
    import polars as pl

    is_pattern = name == "*" or (name.startswith("^") and name.endswith("$"))
    return pl.selectors.by_name(name).as_expr() if is_pattern else pl.col(name)


def works_row_by_row(expression: pl.Expr) -> bool | None:
    """Whether each row's result depends on that row alone; None if Polars needs the columns to decide."""
    meta = expression.meta
    if meta.is_column_selection():
        return True
    verdicts = [_separable(meta), *map(works_row_by_row, meta.pop())]
    if False in verdicts:
        return False
    return None if None in verdicts else True


def _separable(meta: Any) -> bool | None:
    """Return Polars' verdict on the outermost operation alone."""
    from polars.exceptions import PanicException, PolarsError

    try:
        return bool(meta.is_row_separable())
    except (PolarsError, PanicException, AttributeError):  # Polars needs the columns, or its version has no verdict
        return None


class ColumnStep(Operator):
    """Base of the steps that take rows or columns and send columns. Of rows they read the fields ``names``, or all."""

    takes_columns = True

    def __init__(self, context: StepContext, *, names: Sequence[str] | None = None) -> None:
        super().__init__(context)
        self._names = None if names is None else list(names)
        self._row_columns = RowColumns(weakly(self.error), exact=True, names=names)

    def columns_of(self, batch: Batch) -> ColumnBatch:
        """Return ``batch`` as columns. A value that is not a dict, dataclass or namedtuple is the column ``value``."""
        if isinstance(batch, ColumnBatch):
            columns = self._of_results(batch) if batch.computed else batch.as_dicts()
            if columns is not None:
                return columns
        self.counters.columns_made += len(batch)
        return ColumnBatch(
            self._row_columns.convert(batch.values), keys=batch.keys, timestamps=batch.timestamps, part=batch.part
        )

    def _of_results(self, batch: ColumnBatch) -> ColumnBatch | None:
        """Return the columns that would be made of the rows; None if these must be made, for an error."""
        there = batch.columns.schema.names
        names = there if self._names is None else self._names
        if not set(names) <= set(there):
            return None
        return batch.with_columns(batch.columns.select(names)).of_part(batch.part, named=False)

    def frame_of(self, columns: ColumnBatch) -> pl.DataFrame:
        """Return the columns as a Polars frame; `OperatorError` names a column that Polars cannot represent."""
        import polars as pl
        from polars.exceptions import PanicException

        try:
            return columns.frame
        except (Exception, PanicException) as error:
            for field, column in zip(columns.columns.schema, columns.columns.columns, strict=True):
                try:
                    pl.Series(column)
                except (Exception, PanicException):
                    raise self.error(
                        f"column {field.name!r} of Arrow type {field.type} cannot be taken by a Polars expression: "
                        f"cast it in a map_batches step, or leave it out"
                    ) from error
            raise self.error(
                f"these columns cannot be taken by a Polars expression: {list_fields(columns.columns.schema.names)}"
            ) from error

    def error(self, why: str) -> OperatorError:
        """Return the error that names this step."""
        end = "" if why.endswith(("?", ".")) else "."
        return OperatorError(f"step {self.context.step!r}: {why}{end}", step=self.context.step)


class FilterColumns(ColumnStep):
    """Keeps the records for which ``predicate`` is true; false and null are counted as filtered.

    The predicate works row by row and gives booleans.
    """

    takes_frames = True

    @classmethod
    def columns_read(cls, **options: Any) -> ColumnsRead | None:
        names = roots_of([options["predicate"]])
        return None if names is None else ColumnsRead(frozenset(names), passes=True)

    def __init__(self, context: StepContext, *, predicate: pl.Expr) -> None:
        super().__init__(context, names=roots_of([predicate]))
        self._mask = Expressions([predicate], lambda frame, exprs: frame.select(exprs), weakly(self.error))
        self._is_seen = False

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        kept = self._kept(batch)
        self.counters.filtered += len(batch) - len(kept)
        out.send(kept)

    def _kept(self, batch: Batch) -> Batch:
        columns = self.columns_of(batch)
        if self._is_seen and batch is columns and not columns.is_keyed and not columns.is_timed:
            # No keys or timestamps to filter along, so no mask.
            return columns.with_frame(self._mask.filtered(self.frame_of(columns)))
        mask = self._verdicts(self.frame_of(columns))
        # Rows remain the same Python objects.
        return batch.where(mask) if isinstance(batch, ColumnBatch) else batch.compress(mask.to_list())

    def _verdicts(self, frame: pl.DataFrame) -> pl.Series:
        import polars as pl

        verdicts = self._mask(frame)
        if verdicts.width != 1 or verdicts.dtypes[0] not in (pl.Boolean, pl.Null):
            kinds = ", ".join(map(str, verdicts.dtypes))
            raise self.error(f"filter takes one expression that gives booleans, this one gave {kinds}")
        self._is_seen = self._is_seen or frame.height > 1
        return verdicts.to_series().cast(pl.Boolean)


class MapBatches(ColumnStep):
    """Replaces the values of a batch by the rows of the ``RecordBatch`` that ``fn(record_batch)`` returns.

    On a stream with keys or timestamps it returns as many rows as it got, in the same order; on others any number.
    The size of batches is not guaranteed, so the result for a row must not depend on other rows. Values that are not
    dicts, dataclasses or namedtuples are the column ``value``.

    OperatorError: ``fn`` raised (``on_error`` does not apply, because the record is unknown), or returned something
    else.
    """

    def __init__(self, context: StepContext, *, fn: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        super().__init__(context)
        self._fn = fn
        self._failures = ErrorPolicy(context)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        columns = self.columns_of(batch)
        try:
            made = self._fn(columns.columns)
        except Exception as error:
            raise self._failures.error(error, self._fn, policy=False) from error
        out.send(columns.with_columns(self._checked(made, columns)))

    def _checked(self, made: Any, given: ColumnBatch) -> pa.RecordBatch:
        import pyarrow as pa

        if not isinstance(made, pa.RecordBatch):
            raise self._broken(f"returned a {type(made).__name__}: return a pyarrow.RecordBatch")
        names = made.schema.names
        if len(set(names)) < len(names):
            raise self._broken("returned two columns of the same name: rename one")
        aligned = given.is_keyed or given.is_timed
        if aligned and made.num_rows != len(given):
            raise self._broken(
                f"returned {made.num_rows} rows for {len(given)}: on a stream with keys or timestamps each row has its "
                f"own, so return one row per row, or use it before key_by and assign_timestamps"
            )
        return pickable(made)

    def _broken(self, what: str) -> OperatorError:
        where = describe_function(self._fn)
        step = self.context.step
        return OperatorError(f"step {step!r}: {where} {what}.", step=step, function=where)


class Select(ColumnStep):
    """Each record becomes what ``expressions`` make of it; keys and timestamps stay.

    An expression works row by row (``pl.col("a") * 2``; not ``pl.col("a").sum()``). Downstream, columns stay columns
    as long as steps take them; a function of a value gets a dict.
    """

    takes_frames = True
    keeps_others = False
    """Whether columns that no expression makes stay."""

    @classmethod
    def columns_read(cls, **options: Any) -> ColumnsRead | None:
        names = roots_of(options["expressions"])
        return None if names is None else ColumnsRead(frozenset(names))

    def __init__(self, context: StepContext, *, expressions: Sequence[pl.Expr]) -> None:
        reads = None if self.keeps_others else roots_of(expressions)
        super().__init__(context, names=reads)
        self._reads = reads
        plain = [expression for expression in expressions if expression.meta.is_column()]
        chosen = dict.fromkeys(expression.meta.output_name() for expression in plain)
        self._chosen = [] if self.keeps_others or len(chosen) < len(expressions) else [*chosen]
        self._expressions = Expressions(expressions, self.evaluated, weakly(self.error))
        self._beside_text = BesideText(expressions, weakly(self.error))

    @staticmethod
    def evaluated(frame: pl.DataFrame, expressions: Sequence[pl.Expr]) -> pl.DataFrame:
        """Return what ``expressions`` make of ``frame``."""
        return frame.select(expressions)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        columns = self.columns_of(batch)
        made = self._beside_text(columns, self.keeps_others)
        if made is None:
            out.send(columns.with_frame(self._of_frame(columns)))
        else:
            out.send(columns.with_columns(made))

    def _of_frame(self, columns: ColumnBatch) -> pl.DataFrame:
        """Evaluate the expressions on the columns that they read, if it is known which; a frame of more is costly."""
        from polars.exceptions import PanicException

        if self._chosen and not columns.has_arrow and {*columns.frame.columns}.issuperset(self._chosen):
            return columns.frame[self._chosen]  # without the engine of expressions
        arrow = columns.arrow
        names = [] if arrow is None else arrow.schema.names
        if self._reads and len(self._reads) < len(names) == len(set(names)) and {*names}.issuperset(self._reads):
            try:
                return self._expressions(columns.frame_of(self._reads))
            except (Exception, PanicException):
                self._expressions(self.frame_of(columns))  # says what is wrong, and what all columns are
                raise
        return self._expressions(self.frame_of(columns))


class WithColumns(Select):
    """Each record keeps its columns and gets those that ``expressions`` make of it; one of the same name is replaced.

    An expression works row by row (``pl.col("a") * 2``; not ``pl.col("a").sum()``).
    """

    keeps_others = True

    @classmethod
    def columns_read(cls, **options: Any) -> ColumnsRead | None:
        names, expressions = _roots_or_selection(options["expressions"]), options["expressions"]
        made = [expression.meta.output_name(raise_if_undetermined=False) for expression in expressions]
        if names is None or None in made:
            return None
        return ColumnsRead(frozenset(names), passes=True, made=frozenset(map(str, made)))

    @staticmethod
    def evaluated(frame: pl.DataFrame, expressions: Sequence[pl.Expr]) -> pl.DataFrame:
        return frame.with_columns(expressions)


class KeyAsField(Operator):
    """Each record keeps its fields and gets its key as the field ``name``; one of the same name is replaced.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> words = mp.Job("docs").source("words", sources.Memory(["bee", "ant", "bee"])).key_by("word", str)
    >>> mp.collect(words.count("n").final().map_with_key("named", "word"))
    [{'value': 2, 'word': 'bee'}, {'value': 1, 'word': 'ant'}]
    """

    takes_columns = True

    def __init__(self, context: StepContext, *, name: str) -> None:
        super().__init__(context)
        self._name = name

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        columns = batch.as_dicts() if isinstance(batch, ColumnBatch) else None
        keys = None if columns is None else columns.key_column
        if columns is None or keys is None:
            rows = zip(fields_of(batch.values), keys_of(batch, self.context.step), strict=True)
            out.send(batch.with_values([{**row, self._name: key} for row, key in rows]))
            return
        there = columns.columns
        place = there.schema.get_field_index(self._name)
        named = there.append_column(self._name, keys) if place < 0 else there.set_column(place, self._name, keys)
        out.send(columns.with_columns(named))
