"""Polars expressions in steps: which are taken, and how they are evaluated on a batch.

Rule: nothing of a step's result may depend on where batches are cut, so an expression must work row by row.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from malstrom_py.errors import OperatorError, PlanError

if TYPE_CHECKING:
    import polars as pl

_TRIALS: Final = 8
_WHOLE: Final = (
    "an expression looks at more than its own row (an aggregate, a sort, a shift, …), so its result would depend on "
    "where batches are cut: use a keyed step, such as count, sum or aggregate, for that"
)


class Expressions:
    """Polars expressions at work on one step's batches.

    ``apply`` makes a frame of a frame: ``DataFrame.select`` or ``with_columns``, say. Those of ``unsure`` are compared
    on the first few batches of several rows: all rows at once must give what each half gives.
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
        # How many batches are yet to be evaluated in halves as well: those of rows that are all alike tell nothing.
        self._unsure = _TRIALS if None in verdicts else 0

    def __call__(self, frame: pl.DataFrame) -> pl.DataFrame:
        """What the expressions make of ``frame``, row for row."""
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
        """The rows of ``frame`` for which the expressions, seen to give booleans before, are true."""
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
        """What ``evaluate`` makes of ``frame``; an error of Polars as one that names the step and the columns."""
        from polars.exceptions import ColumnNotFoundError, PanicException

        try:
            return evaluate()
        except ColumnNotFoundError as error:
            missing = ", ".join(repr(name) for name in self._names if name not in frame.columns)
            named = f"the column {missing}, which" if missing else "a column that"
            raise self._error(f"an expression names {named} is not there; there are {frame.width}") from error
        except (Exception, PanicException) as error:  # also what a function of the user's inside it raises
            # Its text stays with it, the __cause__: it may tell a record's value.
            failed = (
                f"an expression failed with {type(error).__name__} on columns {self._typed(frame)}{self._hint(frame)}"
            )
            raise self._error(failed) from error

    def _hint(self, frame: pl.DataFrame) -> str:
        """What to do where a column made of rows has had no value so far, so that its type is not known."""
        import polars as pl

        untyped = [name for name in self._names if frame.schema.get(name) == pl.Null]
        if not untyped:
            return ""
        names = ", ".join(map(repr, untyped))
        return f". Of {names} all rows so far have None: say the type, pl.col({untyped[0]!r}).cast(…)"

    def _typed(self, frame: pl.DataFrame) -> str:
        """The columns that the expressions name, with their types; others, whose names may be values, are counted."""
        named = [f"{name!r}: {frame.schema[name]}" for name in self._names if name in frame.columns]
        others = frame.width - len(named)
        return ", ".join([*named, *([f"{others} others" if named else str(others)] if others else [])])


def is_expression(thing: object) -> TypeGuard[pl.Expr]:
    """Whether ``thing`` is a Polars expression, told without importing Polars."""
    polars = sys.modules.get("polars")
    return polars is not None and isinstance(thing, polars.Expr)


def expressions_of(given: Sequence[object], named: Mapping[str, object], step: str) -> list[pl.Expr]:
    """What a user passed as expressions: a str is a column, a named one gets that name.

    PlanError: something else, none at all, or one that looks at more than its own row.
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
    """The columns that ``expressions`` look at; None where that cannot be told before, or they look at none.

    >>> import polars as pl
    >>> roots_of([pl.col("b") * 2, pl.col("a")]), roots_of([pl.all()])
    (['a', 'b'], None)
    """
    names: set[str] = set()
    left = list(expressions)
    for expression in left:
        if expression.meta.is_column():
            names.update(expression.meta.root_names())
        elif expression.meta.is_column_selection():
            return None
        else:
            left.extend(expression.meta.pop())
    return sorted(names) or None


def _column(name: str) -> pl.Expr:
    """The column of exactly that name, which is no pattern."""
    import polars as pl

    is_pattern = name == "*" or (name.startswith("^") and name.endswith("$"))
    return pl.selectors.by_name(name).as_expr() if is_pattern else pl.col(name)


def works_row_by_row(expression: pl.Expr) -> bool | None:
    """Whether each row's result depends on that row alone; None where Polars cannot tell before it sees columns.

    >>> import polars as pl
    >>> works_row_by_row(pl.col("a") * 2), works_row_by_row(pl.col("a") - pl.col("a").mean())
    (True, False)
    """
    meta = expression.meta
    if meta.is_column_selection():
        return True
    verdicts = [_told(meta), *map(works_row_by_row, meta.pop())]
    if False in verdicts:
        return False
    return None if None in verdicts else True


def _told(meta: Any) -> bool | None:
    """What Polars says of the outermost operation alone."""
    from polars.exceptions import PolarsError

    try:
        return bool(meta.is_row_separable())
    except (PolarsError, AttributeError):  # not before it sees columns; versions that do not tell at all
        return None
