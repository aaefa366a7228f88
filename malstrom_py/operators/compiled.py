"""A step's function of a row on batches of columns: computed for all rows together where results are proven equal.

Rule: the function itself is the measure. What is not proven is done row by row, and so is a batch for which computing
fails in any way. Of the others some rows are done both ways, in test mode all: a difference is a fault of this package,
which fails the job in test mode, and ends the use of columns in the step, with a warning, elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.row_form import DICTS, SCALAR, TUPLES, RowForm
from malstrom_py.errors import InternalError
from malstrom_py.operators.base import StepContext
from malstrom_py.operators.batch_sizing import SmallBatches
from malstrom_py.operators.first_rows import warn
from malstrom_py.state.group_index import listed_keys
from malstrom_py.traced.evaluation import results, some_results, streams, truths
from malstrom_py.traced.in_python import check_held, column_like, in_python_types, kind_in_python, kinds_of
from malstrom_py.traced.nodes import Tree
from malstrom_py.traced.proxies import RowKind
from malstrom_py.traced.returned import by_place, fields_returned, why_no_columns, why_no_numbers
from malstrom_py.traced.tracing import KEY, Traced, trace, why_impure

if TYPE_CHECKING:
    import pyarrow as pa

_VARIANTS_MAX: Final = 16
_PATIENCE: Final = 8
"""So many batches for which nothing is proven, more than others, are tried before the function does all."""

ROWS_FEW: Final = 512
"""A batch costs 0.2 ms, about as much as so many calls of a function."""

COMPARED_FIRST: Final = 16
_ROWS_PER_COMPARED: Final = 10_000


def report_difference(context: StepContext) -> None:
    """Warn that a function gave something else on columns: a fault of this package, an error in test mode."""
    text = "its function gave other results on columns than on rows"
    if context.checked:
        raise InternalError(f"step {context.step!r}: {text}: give the step compile=False, and report it.")
    warn(context, f"{text}, and is called for each row from now on")


def has_null(column: pa.Array) -> bool:
    """Return whether ``column``, or the texts that it refers to, has a None."""
    return bool(column.null_count or (hasattr(column, "dictionary") and column.dictionary.null_count))


def _shaped(tree: Tree) -> tuple[Tree, RowForm]:
    """Return a tree of dicts or plain values for that of a function, and the form of what the function returns."""
    if fields_returned(tree) is not None:
        return tree, DICTS
    places = by_place(tree)
    return places, SCALAR if fields_returned(places) is None else TUPLES


def row_kind(form: RowForm) -> RowKind | None:
    """Return what the rows of ``form`` are to a function; None if it does not take these."""
    if form in (SCALAR, TUPLES):
        return "value" if form is SCALAR else "tuple"
    if not form.by_name:
        return None
    return "dict" if form.kind is None else "class"


class Sampling:
    """How many rows of each batch are done both ways: in test mode all, else about ``rows`` of so many."""

    def __init__(self, context: StepContext, rows: int, *, among: int) -> None:
        self._context = context
        self._rows, self._among = rows, among
        self._left = 0

    def of(self, count: int, *, is_first: bool = False) -> int:
        """Return how many of the next ``count`` rows are. ``is_first``: these are the first of their kind."""
        if self._context.checked:
            return count
        self._left -= count
        wanted = COMPARED_FIRST if is_first else 0
        if self._left <= 0:
            wanted = max(wanted, self._rows * (1 + -self._left // self._among))
            self._left = self._among
        return min(wanted, count)


@dataclass(slots=True)
class _Variant:
    """The function on rows of one schema. ``traced``: None, and ``why_not``, if it is called for each of them."""

    traced: Traced | None
    why_not: str = ""
    patience: int = _PATIENCE
    is_compared: bool = False

    def failed(self) -> None:
        """Note a batch for which nothing is proven."""
        self.patience -= 1
        if self.patience < 0:
            self.traced = None
            self.why_not = "has values for which columns are not proven to give the same"


def _where(batch: ColumnBatch, flags: Any) -> ColumnBatch:
    import pyarrow as pa

    return batch if flags.all() else batch.take(pa.array(flags.nonzero()[0]))


def _flags(found: tuple[ColumnBatch, Any], rows: pa.Array) -> list[Any]:
    """Return at ``rows`` a flag each, or a list of one per stream."""
    flags: list[Any] = found[1].T[rows.to_numpy()].tolist()
    return flags


def _chosen(count: int, numbers: Any) -> list[bool]:
    chosen = frozenset(numbers)
    return [number in chosen for number in range(count)]


def _picked(found: tuple[ColumnBatch, Any], rows: pa.Array) -> list[Any]:
    """Return the results at ``rows`` of some results and their places; None where there is none."""
    made, places = found
    of = {place: number for number, place in enumerate(places.tolist())}
    numbers = [of.get(row) for row in rows.to_pylist()]
    values = iter(made.take([number for number in numbers if number is not None]).values)
    return [None if number is None else next(values) for number in numbers]


class CompiledFunction:
    """``function`` of the values of a step, on columns. ``why_not``: why it is never computed on them.

    ``with_key``: the function takes the key, too, as its first argument. A method returns None for a batch that the
    step must do by calling the function for each row.
    """

    def __init__(
        self,
        context: StepContext,
        function: Callable[..., Any],
        *,
        compiles: bool = True,
        with_key: bool = False,
    ) -> None:
        self._context = context
        self._function = function
        self._with_key = with_key
        self._variants: dict[Any, _Variant] = {}
        self._nullable: frozenset[str] = frozenset()
        self._random = random.Random(0)
        self._sampling = Sampling(context, 1, among=_ROWS_PER_COMPARED)
        self._small = SmallBatches(ROWS_FEW)
        self._made: pa.Schema | None = None
        self._made_form = DICTS
        """Of the results that were computed last."""
        self.why_not = why_impure(function) if compiles else "compile=False"

    @property
    def takes_columns(self) -> bool:
        """Whether columns may be of use."""
        return self.why_not is None

    def column(self, batch: Batch, *, is_sent: bool = True) -> pa.Array | None:
        """Return the results as a column. ``is_sent``: all of ``batch`` is sent with them, and so checked."""

        def compute(traced: Traced, given: ColumnBatch, columns: pa.RecordBatch) -> pa.Array:
            check_held(columns if is_sent else columns.select(sorted(traced.fields)))
            return self._noted(results(traced.tree, columns), SCALAR).column(0)

        def why_not(tree: Tree) -> str | None:
            return why_no_columns(tree) if fields_returned(tree) is None else "returns dicts"

        found: pa.Array | None = self._computed(
            batch, compute, lambda made, rows: made.take(rows).to_pylist(), why_not=why_not
        )
        return found

    def keys(self, batch: Batch) -> pa.Array | pa.RecordBatch | None:
        """Return the results as a column; as a column for each place if they are tuples."""

        def compute(traced: Traced, given: ColumnBatch, columns: pa.RecordBatch) -> pa.Array | pa.RecordBatch:
            check_held(columns)
            tree, form = _shaped(traced.tree)
            made = self._noted(results(tree, columns), form)
            return made if form is TUPLES else made.column(0)

        def why_not(tree: Tree) -> str | None:
            return why_no_columns(_shaped(tree)[0]) if fields_returned(tree) is None else "returns dicts"

        return self._computed(batch, compute, lambda made, rows: listed_keys(made.take(rows)), why_not=why_not)

    def values(self, batch: Batch) -> ColumnBatch | None:
        """Return ``batch`` with the results, which are dicts, tuples or plain values, as values."""

        def compute(traced: Traced, given: ColumnBatch, columns: pa.RecordBatch) -> ColumnBatch:
            check_held(columns.select(sorted(traced.fields)))
            tree, form = _shaped(traced.tree)
            return given.with_columns(self._noted(results(tree, columns), form), form=form, computed=True)

        made: ColumnBatch | None = self._computed(
            batch,
            compute,
            lambda made, rows: made.take(rows).values,
            why_not=lambda tree: why_no_columns(_shaped(tree)[0]),
        )
        return made

    def some(self, batch: Batch) -> ColumnBatch | None:
        """Return the rows whose result is not None, with the results as values: dicts, tuples or plain values."""

        def compute(traced: Traced, given: ColumnBatch, columns: pa.RecordBatch) -> tuple[ColumnBatch, Any]:
            import pyarrow as pa

            check_held(columns.select(sorted(traced.fields)))
            tree, form = _shaped(traced.tree)
            made, places = some_results(tree, columns)
            rows = given if len(places) == len(given) else given.take(pa.array(places))
            if made is not None:
                rows = rows.with_columns(self._noted(made, form), form=form, computed=True)
            return rows, places

        def why_not(tree: Tree) -> str | None:
            return why_no_columns(_shaped(tree)[0], without_none=True)

        found = self._computed(batch, compute, _picked, why_not=why_not)
        return None if found is None else found[0]

    def kept(self, batch: Batch, *, is_watched: bool = False) -> ColumnBatch | None:
        """Return the rows for which the result is true. ``is_watched``: it matters whether it is None."""
        keeps_columns = is_watched or (isinstance(batch, ColumnBatch) and (batch.is_keyed or batch.is_timed))

        def compute(traced: Traced, given: ColumnBatch, columns: pa.RecordBatch) -> tuple[ColumnBatch, Any]:
            # Rows with keys or times keep the types of their columns when the function is called for each.
            if keeps_columns:
                check_held(columns)
            else:
                given = given.with_columns(in_python_types(columns), form=given.form, computed=True)
                self._made, self._made_form = given.columns.schema, given.form
            return given, truths(traced.tree, columns)

        found = self._computed(batch, compute, _flags, of=bool, takes_none=not is_watched)
        return None if found is None else _where(*found)

    def parted(self, batch: Batch) -> list[ColumnBatch] | None:
        """Return the rows for which the result is true, and the others."""

        def compute(traced: Traced, given: ColumnBatch, columns: pa.RecordBatch) -> tuple[ColumnBatch, Any]:
            check_held(columns)
            return given, truths(traced.tree, columns)

        found = self._computed(batch, compute, _flags, of=bool)
        return None if found is None else [_where(*found), _where(found[0], ~found[1])]

    def split(self, batch: Batch, count: int) -> tuple[list[ColumnBatch], int] | None:
        """Return the rows of each of ``count`` streams whose number is in the result, and how many go to none."""

        def compute(traced: Traced, given: ColumnBatch, columns: pa.RecordBatch) -> tuple[ColumnBatch, Any]:
            check_held(columns)
            return given, streams(traced.tree, columns, count)

        found = self._computed(batch, compute, _flags, of=partial(_chosen, count), why_not=why_no_numbers)
        if found is None:
            return None
        given, flags = found
        return [_where(given, some) for some in flags], len(given) - int(flags.any(axis=0).sum())

    # Where rows come, later steps make rows of their states, for a while: so the results of a batch done row by
    # row are columns again where earlier ones were.

    @property
    def has_made_columns(self) -> bool:
        """Whether `again` may return columns."""
        return self.why_not is None and self._made is not None and not self._small.are_small

    def again(self, batch: Batch, returned: list[Any]) -> Batch:
        """Return ``batch`` with what the function ``returned``, called for each of its rows, or of a test its rows
        themselves: as columns where earlier results were, if columns hold it.
        """
        made = self._as_made(returned) if isinstance(batch, ColumnBatch) and returned else None
        if made is None or not isinstance(batch, ColumnBatch):
            return batch.with_values(returned)
        return batch.with_columns(made, form=self._made_form, computed=True)

    def _noted(self, made: pa.RecordBatch, form: RowForm) -> pa.RecordBatch:
        """Return results of ``form``, and note what they are for `again`."""
        self._made, self._made_form = made.schema, form
        return made

    def _as_made(self, returned: list[Any]) -> pa.RecordBatch | None:
        if self._made is None or not self.has_made_columns:
            return None
        import pyarrow as pa  # which a job of rows does not load

        names, columns = self._made.names, [returned]
        try:
            if self._made_form is DICTS:
                if any(type(value) is not dict or list(value) != names for value in returned):
                    return None
                columns = [[value[name] for value in returned] for name in names]
            elif self._made_form is TUPLES:
                if any(type(value) is not tuple for value in returned):
                    return None
                columns = list(map(list, zip(*returned, strict=True)))
            made = [column_like(values, field.type) for values, field in zip(columns, self._made, strict=True)]
        except Exception:  # Unproven, a value that no column holds, or an error of Arrow
            return None
        return pa.RecordBatch.from_arrays(made, names=names)

    def _computed(
        self,
        batch: Batch,
        compute: Callable[[Traced, ColumnBatch, pa.RecordBatch], Any],
        pick: Callable[[Any, pa.Array], list[Any]],
        *,
        of: Callable[[Any], Any] = lambda value: value,
        takes_none: bool = True,
        why_not: Callable[[Tree], str | None] = lambda tree: None,
    ) -> Any:
        """Return what ``compute`` makes of ``batch``; ``pick`` takes from it what `of` the function's results is.

        ``why_not`` says of a function's tree why this is never possible.
        """
        if self.why_not is not None or not self._context.trusts_columns(batch):
            return None
        if not len(batch):
            return None
        if self._small.came(len(batch)) and not self._context.checked:
            return None
        columns, row = self._arguments(batch), row_kind(batch.form)
        variant = None if columns is None or row is None else self._variant(columns, row, why_not)
        traced = None if variant is None else variant.traced
        if columns is None or variant is None or traced is None or (traced.may_be_none and not takes_none):
            return None
        try:
            found = compute(traced, batch, columns)
            is_same = self._agrees(variant, batch, found, pick, of)
        except Exception:  # Unproven, or an error of Arrow
            variant.failed()
            return None
        if not is_same:
            self._differs()
            return None
        variant.patience = min(variant.patience + 1, _PATIENCE)
        return found

    def _arguments(self, batch: ColumnBatch) -> pa.RecordBatch | None:
        """Return what the function takes as columns; None if the keys are none."""
        import pyarrow as pa

        columns = batch.columns
        if not self._with_key:
            return columns
        key = batch.key_column
        if key is None or kind_in_python(key.type) == "other":
            return None
        return pa.RecordBatch.from_arrays([*columns.columns, key], names=[*columns.schema.names, KEY])

    def _variant(self, columns: pa.RecordBatch, row: RowKind, why_not: Callable[[Tree], str | None]) -> _Variant | None:
        names = columns.schema.names
        self._nullable |= {name for name, column in zip(names, columns.columns, strict=True) if has_null(column)}
        of = (columns.schema, self._nullable, row)
        variant = self._variants.get(of)
        if variant is None:
            if len(self._variants) == _VARIANTS_MAX:
                self._variants.clear()
            made: Traced | str = "two columns have the same name"
            if len(set(names)) == len(names):
                kinds = kinds_of(columns.schema)
                key = kinds.pop(KEY) if self._with_key else None
                made = trace(self._function, kinds, self._nullable, row=row, key=key)
            if isinstance(made, Traced):
                made = why_not(made.tree) or made
            self._variants[of] = variant = _Variant(None, made) if isinstance(made, str) else _Variant(made)
        if variant.traced is not None and not variant.traced.outside.is_same:
            self._variants.clear()
            self.why_not = "reads something that has changed"
            return None
        return variant

    def _agrees(
        self,
        variant: _Variant,
        batch: ColumnBatch,
        found: Any,
        pick: Callable[[Any, pa.Array], list[Any]],
        of: Callable[[Any], Any],
    ) -> bool:
        """Return whether some rows give the same by the function."""
        import pyarrow as pa

        count = self._sampling.of(len(batch), is_first=not variant.is_compared)
        variant.is_compared = True
        if not count:
            return True
        every = range(len(batch))
        rows = pa.array(every if count == len(batch) else self._random.choices(every, k=count), pa.int64())
        some = batch.take(rows)
        try:
            arguments = [some.keys or (), some.values] if self._with_key else [some.values]
            expected = repr(list(map(of, map(self._function, *arguments))))
        except Exception:
            return False
        return repr(pick(found, rows)) == expected  # it shows the types of plain values, NaN and the sign of 0.0

    def _differs(self) -> None:
        self.why_not = "gave something else on columns"
        report_difference(self._context)
