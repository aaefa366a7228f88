"""A step's function of a state and a row on batches of columns, where all that it does to the state is known.

Rule: as of `malstrom_py.operators.compiled`: the function itself is the measure. A batch for which it is not proven to
give the same is done row by row; of the others some rows are done both ways, in test mode all.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.agg import Aggregation
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.figures import unchanged
from malstrom_py.data.row_form import DICTS, SCALAR
from malstrom_py.errors import InternalError
from malstrom_py.operators.base import StepContext
from malstrom_py.operators.batch_sizing import SmallBatches
from malstrom_py.operators.column_figures import in_arrays, keys_columns_of, record_batch
from malstrom_py.operators.compiled import COMPARED_FIRST, ROWS_FEW, Sampling, has_null, report_difference, row_kind
from malstrom_py.operators.names_taken import names_taken
from malstrom_py.state.figure_states import FigureStates, Shape, shape_of_fields, shape_of_one
from malstrom_py.state.group_index import NotColumnar, type_of_keys
from malstrom_py.state.groups import Groups
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.traced.evaluation import results
from malstrom_py.traced.folds import STATE, Change, Fold, Form, fold_of
from malstrom_py.traced.in_python import Unproven, check_held, kind_in_python, kinds_of
from malstrom_py.traced.nodes import Kind
from malstrom_py.traced.proxies import RowKind
from malstrom_py.traced.purity import Checking, Impure, Outside, is_plain
from malstrom_py.traced.returned import fields_returned, why_no_columns
from malstrom_py.traced.tracing import KEY, why_impure

if TYPE_CHECKING:
    import pyarrow as pa

    from malstrom_py.state.group_index import Keys

_ROWS_PER_COMPARED: Final = 160_000
"""Of about so many rows the first few of a batch are done both ways, which costs as much as a hundredth of them."""

_UNKNOWN: Final[Any] = object()
"""In place of the state with which a key begins, of a type that a lane does not hold."""

_PLAIN_FUNCTIONS: Final[Mapping[Any, Callable[[Any, Any], Any]]] = {
    builtins.max: lambda one, other: max(one, other),  # noqa: PLW0108  it has instructions
    builtins.min: lambda one, other: min(one, other),  # noqa: PLW0108
    operator.add: lambda one, other: one + other,
}
"""What functions that have no instructions do."""


def plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with instructions that does what ``function`` does, if one is known; else ``function``."""
    return next((plain for known, plain in _PLAIN_FUNCTIONS.items() if known is function), function)


Call = Callable[[Any, Any, Any], tuple[Any, Any]]
"""Takes the key, the value and the state of a row; returns what is sent, and the new state."""


def is_decided(function: Callable[..., Any], default: Callable[[], Any] | None, *, takes_key: bool = False) -> bool:
    """Whether it is known without rows that ``function`` is done on columns of numbers, or that it never is."""
    fold = CompiledFold(StepContext("", ""), KeyedState("", Codec()), function, default, takes_key=takes_key)
    return fold.is_known or why_impure(function) is not None


@dataclass(slots=True)
class _Plan:
    """How batches of one schema are computed. ``begins``: per change the state of a new key, None: nothing."""

    fold: Fold
    aggregations: list[Aggregation[Any, Any]]
    shape: Shape
    begins: list[Any]
    fields: list[str]
    form: Form


class CompiledFold:
    """``function`` of a state and a row, on columns, with its states in ``state``.

    ``default``: returns the state of a new key; None: that is None. ``takes_key``: the function is called with key,
    value and state, and returns an output and the new state; otherwise it is called with state and value.
    """

    def __init__(
        self,
        context: StepContext,
        state: KeyedState,
        function: Callable[..., Any],
        default: Callable[[], Any] | None,
        *,
        takes_key: bool = False,
        compiles: bool = True,
    ) -> None:
        self._context = context
        self._state = state
        self._function = plain_function(function)
        self._default = default or (lambda: None)
        self._takes_key = takes_key
        self._plans: dict[Any, _Plan | str] = {}
        self._known: tuple[list[str], Shape, list[Aggregation[Any, Any]]] | None = None
        self._nullable: frozenset[str] = frozenset()
        self._outside: list[Outside] = []
        self._sampling = Sampling(context, COMPARED_FIRST, among=_ROWS_PER_COMPARED)
        self._small = SmallBatches(ROWS_FEW)
        self.why_not = self._why_not() if compiles else "compile=False"
        if self.why_not is None:
            self._expect()

    @property
    def is_known(self) -> bool:
        """Whether it is known what the function does to its state, at first of numbers."""
        return self._known is not None

    @property
    def takes_columns(self) -> bool:
        """Whether columns may be of use."""
        return self.why_not is None and self._state.expiry is None

    def _why_not(self) -> str | None:
        """Return why the function is called for each row, as far as that is known without rows."""
        checking = Checking()
        try:
            checking.checked(self._function)
            self._begin = self._begun()
        except Impure as refused:
            return refused.why
        self._outside.append(checking.outside)
        return None

    def _begun(self) -> Any:
        """Return the state of a new key, if it is always the same."""
        default = self._default
        if default is int or default is float:
            return default()
        checking = Checking()
        checked = checking.checked(default)
        try:
            begin = checked()
        except Exception as error:
            raise Impure("has a default that raises") from error
        self._outside.append(checking.outside)
        fields = begin.values() if type(begin) is dict else (begin,)
        if not all(map(is_plain, fields)) or (type(begin) is dict and not all(type(name) is str for name in begin)):
            raise Impure("begins with a state that is not compiled")
        return begin

    def _expect(self) -> None:
        """Let states of columns be restored into arrays: before there are rows, it is guessed what they are like."""
        names = names_taken(self._function, 1)
        kinds: dict[str, Kind] = dict.fromkeys(sorted(names or ("value",)), "int")
        if self._takes_key:
            kinds[KEY] = "int"
        row: RowKind = "value" if names is None else "dict"
        form = Form(kinds, frozenset(), self._begin, row=row, takes_key=self._takes_key)
        fold = fold_of(self._function, form)
        if isinstance(fold, Fold):
            self._know(fold)

    def _know(self, fold: Fold) -> bool:
        """Keep states in arrays that fit ``fold``; False if they are already in others."""
        same = [f"{name} {change.how}" for name, change in fold.changes.items()]
        if self._known is None:
            self._known = (same, _shape_of(fold), [_aggregation(change) for change in fold.changes.values()])
            self._state.arrays = partial(FigureStates, self._known[2], self._known[1])
        return self._known[0] == same

    def scan(self, batch: Batch) -> ColumnBatch | None:
        """Add the rows of ``batch``, and return what is sent for them; None if the function must do them."""
        if self.why_not is not None or not self._context.trusts_columns(batch):
            self._state.to_rows()
            return None
        return in_arrays(self._state, batch, self._scan, small=None if self._context.checked else self._small)

    def _scan(self, batch: ColumnBatch) -> ColumnBatch:
        if not all(outside.is_same for outside in self._outside):
            raise NotColumnar("the function reads something that has changed")
        plan, states = self._plan(batch), self._state.to_arrays()
        self._compare(plan, batch, states)
        return _computed(plan, batch, states)

    def _plan(self, batch: ColumnBatch) -> _Plan:
        """Return how ``batch`` is computed. `NotColumnar` if it must be done by rows."""
        columns = batch.columns
        self._nullable |= {
            name for name, column in zip(columns.schema.names, columns.columns, strict=True) if has_null(column)
        }
        keys = keys_columns_of(batch)
        of = (columns.schema, type_of_keys(keys), batch.form, self._nullable)
        if of not in self._plans:
            self._plans[of] = self._planned(batch, keys)
        plan = self._plans[of]
        if isinstance(plan, str):
            raise NotColumnar(plan)
        return plan

    def _planned(self, batch: ColumnBatch, keys: Keys) -> _Plan | str:
        names = batch.columns.schema.names
        row = row_kind(batch.form)
        if row is None or len(set(names)) < len(names):
            return "has values of a form that is not compiled"
        if any(name.startswith("\0") for name in names):
            return "has a column with a name that is not compiled"
        has_tuples = hasattr(keys, "schema")
        kinds: dict[str, Kind] = {**kinds_of(batch.columns.schema)}
        if self._takes_key:
            kinds[KEY] = "other" if has_tuples else kind_in_python(keys.type)
        nullable = self._nullable | ({KEY} if not has_tuples and has_null(keys) else set())
        form = Form(kinds, nullable, self._begin, row=row, takes_key=self._takes_key)
        fold = fold_of(self._function, form)
        if isinstance(fold, str):
            return fold
        if has_tuples and KEY in fold.traced.fields:
            return "uses a key that is a tuple"
        trees = [change.part for change in fold.changes.values()]
        refused = map(why_no_columns, trees if fold.output is None else [*trees, fold.output])
        if (why := next((one for one in refused if one is not None), None)) is not None:
            return why
        begins = [_begin_of(fold, change, form, name) for name, change in fold.changes.items()]
        if _UNKNOWN in begins:
            return "has a state that begins as another type"
        if not self._know(fold) or self._known is None:
            return "does something else with rows of another form"
        fields = sorted(name for name in fold.traced.fields if not name.startswith(STATE))
        return _Plan(fold, self._known[2], self._known[1], begins, fields, form)

    # The net below the proof

    def _compare(self, plan: _Plan, batch: ColumnBatch, states: FigureStates) -> None:
        """Do the first rows both ways, occasionally. `NotColumnar` if they differ, `InternalError` in test mode."""
        count = self._sampling.of(len(batch))
        if not count:
            return
        some = batch.cut(0, count)
        keys = some.keys or []
        before = {key: state for key, state in zip(keys, states.many(keys), strict=True) if state is not None}
        tried = FigureStates(plan.aggregations, plan.shape)
        tried.set_many(list(before), list(before.values()))
        sent = _computed(plan, some, tried).values
        try:
            expected = self._by_rows(some, before)
        except Exception:
            raise NotColumnar("the function raises") from None
        if repr(sent) == repr(expected) and repr(dict(tried.items())) == repr(before):
            return
        self.why_not = "gave something else on columns"
        report_difference(self._context)
        raise NotColumnar(self.why_not)

    def _by_rows(self, batch: ColumnBatch, states: dict[Any, Any]) -> list[Any]:
        """Return what is sent for the rows, and set their ``states``, as the function does."""
        sent = []
        for key, value in zip(batch.keys or [], batch.values, strict=True):
            state = states[key] if key in states else self._default()
            if self._takes_key:
                made, states[key] = self._function(key, value, state)
            else:
                made = states[key] = self._function(state, value)
            sent.append(made)
        return sent


def _shape_of(fold: Fold) -> Shape:
    return shape_of_one() if list(fold.changes) == [""] else shape_of_fields(list(fold.changes))


def _aggregation(change: Change) -> Aggregation[Any, Any]:
    """Return what names the lane of ``change``: it is in arrays alone."""
    return Aggregation("fold", _refuse, _refuse, _refuse, unchanged, arrays=f"fold-{change.how}")


def _refuse(*_: Any) -> Any:
    raise InternalError("a fold in arrays has no states of rows")


def _begin_of(fold: Fold, change: Change, form: Form, name: str) -> Any:
    """Return the state with which a new key begins, None if its first part is its state. Where the output depends on
    the state, that is the default.
    """
    begin, is_seen = form.default[name] if type(form.default) is dict else form.default, fold.output is not None
    if begin is None or (change.how == "last" and not is_seen):
        return None
    fits = _kind_of(begin) == change.kind
    is_zero = change.how == "sum" and type(begin) in (int, float) and repr(begin) in ("0", "0.0")
    loses = type(begin) is float and begin == {"largest": -math.inf, "smallest": math.inf}.get(change.how)
    if (is_zero and (fits or not is_seen)) or (loses and not is_seen):
        return None
    return begin if fits else _UNKNOWN


def _kind_of(value: Any) -> str | None:
    """Return the kind of a number that a lane holds."""
    return {int: "int", float: "float", bool: "bool"}.get(type(value))


def _computed(plan: _Plan, batch: ColumnBatch, states: FigureStates) -> ColumnBatch:
    """Add the rows of ``batch`` to ``states``, and return what is sent. `NotColumnar` if rows must do it."""
    fold, keys = plan.fold, keys_columns_of(batch)
    parts = _parts_of(plan, batch, keys)
    groups = states.groups
    groups.begin(keys, plan.begins)
    if fold.output is not None:
        return _with_output(plan, batch, groups, parts)
    made = groups.scan(keys, parts)
    if list(fold.changes) == [""]:
        return batch.with_columns(record_batch({"value": made[0]}), form=SCALAR, computed=True)
    return batch.with_columns(record_batch(dict(zip(fold.changes, made, strict=True))), computed=True)


def _with_output(plan: _Plan, batch: ColumnBatch, groups: Groups, parts: list[pa.Array]) -> ColumnBatch:
    """Do as `_computed` for a function whose output is not its new state: computed of the state before each row."""
    import pyarrow as pa

    fold, keys = plan.fold, keys_columns_of(batch)
    assert fold.output is not None
    ids = groups.ids(keys)
    undo, known, old = groups.undo(ids), groups.is_live(ids), groups.results(ids)
    made = groups.scan(keys, parts)
    after = rows_before(ids)
    columns = batch.columns if hasattr(keys, "schema") else batch.columns.append_column(KEY, keys)
    try:
        for name, first, then in zip(fold.changes, old, made, strict=True):
            given = first if plan.form.has_default(name) else _masked(first, known, then.type)
            before = pa.concat_arrays([given.cast(then.type), then]).take(after)
            columns = columns.append_column(f"{STATE}.{name}" if name else STATE, before)
        found = results(fold.output, columns)
    except Exception as error:  # Unproven, or an error of Arrow
        undo()
        raise NotColumnar("an output for which columns are not proven to give the same") from error
    form = SCALAR if fields_returned(fold.output) is None else DICTS
    return batch.with_columns(found, form=form, computed=True)


def _masked(column: pa.Array, known: Any, type_: pa.DataType) -> pa.Array:
    """Return ``column`` with None where nothing is ``known``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not known.any():
        return pa.nulls(len(column), type_)
    return pc.call_function("if_else", [pa.array(known), column, pa.scalar(None, column.type)])


def rows_before(ids: Any) -> pa.Array:
    """Return for each row where the state before it is: the state after the row before it with the same id, counted
    from the number of rows on; of the first row of an id the row itself.

    >>> rows_before(__import__("numpy").array([0, 1, 0, 0])).to_pylist()
    [0, 1, 4, 6]
    """
    import numpy as np
    import pyarrow as pa

    order = np.argsort(ids, kind="stable")
    is_next = ids[order[1:]] == ids[order[:-1]]
    places = np.arange(len(ids))
    places[order[1:][is_next]] = len(ids) + order[:-1][is_next]
    return pa.array(places)


def _parts_of(plan: _Plan, batch: ColumnBatch, keys: Keys) -> list[pa.Array]:
    """Return per change the parts of the rows. `NotColumnar` if that is not proven."""
    columns = batch.columns
    try:
        check_held(columns.select([name for name in plan.fields if name != KEY]))
        if KEY in plan.fields:
            columns = columns.append_column(KEY, keys)
            check_held(columns.select([KEY]))
        return [_part_of(change, columns) for change in plan.fold.changes.values()]
    except Unproven:
        raise NotColumnar("a value for which columns are not proven to give the same") from None
    except Exception as error:
        raise NotColumnar(f"an error of columns: {type(error).__name__}") from error


def _part_of(change: Change, columns: pa.RecordBatch) -> pa.Array:
    import numpy as np

    part = results(change.part, columns).column(0)
    if change.is_begun and change.kind == "float" and change.how == "sum":
        values = part.to_numpy(zero_copy_only=False)
        if (np.signbit(values) & (values == 0)).any():  # a first -0.0 is kept, and a sum from 0 on is 0.0
            raise Unproven
    return part
