"""The initial state of a step's keys: rows of (key, state) from the user, checked and converted to the step's state.

Rule: users give the state as they see it in the step: for steps with a function its state, for aggregates the form that
`FORMS` lists. A step without such a form takes no initial state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final

from malstrom_py.agg import Aggregation
from malstrom_py.data.equality import seen_form, settled
from malstrom_py.errors import OperatorError, PlanError, shown
from malstrom_py.errors.text import describe_error, describe_function, failed_in
from malstrom_py.validation import function_of

ROWS_MAX: Final = 1_000_000
"""The maximum number of rows stored in the job and copied to each worker; a function that returns rows has no limit."""

_COLUMNS: Final = ["key", "state"]


class _Unfit(Exception):
    """A state does not have the expected form. Not a ValueError: a user's ``__deepcopy__`` may raise that."""


Form = Callable[[Any], Any]
"""Convert a user's state to that of the step; raise `_Unfit`, with the expected form, if that is not possible."""


@dataclass(frozen=True, slots=True, eq=False)
class InitialState:
    """The initial state of the keys of ``step``: the given ``rows``, or those that ``load`` returns."""

    step: str
    form: Form = field(repr=False)
    rows: tuple[tuple[Any, Any], ...] | None = field(default=None, repr=False)
    load: Callable[[], Any] | None = None

    def states(self) -> dict[Any, Any]:
        """Return key -> state of the step, as copies. Call ``load`` if there is one.

        Raises:
            PlanError: the rows are wrong.
            OperatorError: ``load`` raised.
        """
        return _checked(self._read() if self.load is not None else self.rows or (), self.step, self.form)

    def _read(self) -> Iterable[tuple[Any, Any]]:
        load = self.load
        assert load is not None
        try:
            return list(_pairs(load(), self.step))
        except PlanError:
            raise
        except Exception as error:
            where = describe_function(load)
            raise OperatorError(
                f"step {self.step!r}: initial_state failed: {describe_error(error)} (in {failed_in(load, error)})",
                step=self.step,
                function=where,
            ) from error


def initial_state_of(
    given: object, kind: str, step: str, factory: object, register: Callable[[type], object]
) -> InitialState | None:
    """Check ``given`` for a step of ``kind`` and return it; None if it is None.

    ``factory`` makes the operator of the step. Rows and DataFrames are read here, and ``register`` is called
    with the types of their states; a function is called when a job starts.

    Raises:
        PlanError: the step takes no initial state, or a row is wrong.
    """
    if given is None:
        return None
    form = _form_of(kind, step, factory.keywords if isinstance(factory, partial) else {})
    if callable(given):
        return InitialState(step, form, load=function_of(given, step))
    rows = tuple(islice(_pairs(given, step), ROWS_MAX + 1))
    if len(rows) > ROWS_MAX:
        raise PlanError(
            f"step {step!r}: initial_state has more than {ROWS_MAX:,} rows, which would be copied with the job: give a "
            f"function that returns them; each worker calls it when the job starts"
        )
    _checked(rows, step, form)
    for kind_of_state in {type(state) for _, state in rows}:
        register(kind_of_state)
    return InitialState(step, form, rows=rows)


def _pairs(given: Any, step: str) -> Iterator[tuple[Any, Any]]:
    """Iterate over the rows of ``given``: a mapping, pairs, or a DataFrame with the columns key and state."""
    if isinstance(given, Mapping):
        yield from given.items()
        return
    columns = _columns_of(given, step)
    if columns is not None:
        yield from zip(*columns, strict=True)
        return
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise PlanError(
            f"step {step!r}: initial_state must be rows of (key, state), a dict, a DataFrame with the columns key and "
            f"state, or a function that returns one of these, got {type(given).__name__}"
        )
    for number, row in enumerate(given):
        if not isinstance(row, tuple | list) or len(row) != 2:
            raise PlanError(
                f"step {step!r}: row {number} of initial_state is of type {type(row).__name__}, not a pair (key, state)"
            )
        yield row[0], row[1]


def _columns_of(given: Any, step: str) -> tuple[Iterable[Any], Iterable[Any]] | None:
    """Return the columns key and state of a DataFrame as Python values; None if ``given`` is not a DataFrame."""
    rooms = {base.__module__.partition(".")[0] for base in type(given).__mro__}
    if rooms.isdisjoint({"polars", "pandas", "pyarrow", "pyspark"}):
        return None
    if "polars" in rooms and hasattr(given, "collect"):
        given = given.collect()  # a LazyFrame
    names = given.schema.names if "pyarrow" in rooms else getattr(given, "columns", None)
    if names is None:
        return None
    if sorted(map(str, names)) != _COLUMNS:
        raise PlanError(
            f"step {step!r}: a DataFrame as initial_state has the columns key and state, this one has "
            f"{', '.join(map(str, names)) or 'none'}: rename them, and leave out the others"
        )
    if "pyspark" in rooms:
        collected = given.select(*_COLUMNS).limit(ROWS_MAX + 1).collect()
        return [_plain(row[0]) for row in collected], [_plain(row[1]) for row in collected]
    if "polars" in rooms:
        return given["key"].to_list(), given["state"].to_list()
    if "pandas" in rooms:
        return _without_missing(given["key"]), _without_missing(given["state"])
    return given["key"].to_pylist(), given["state"].to_pylist()


def _without_missing(column: Any) -> list[Any]:
    """Return a pandas column with None for missing values: NaN, NaT, NA."""
    return [None if gone else value for value, gone in zip(column.tolist(), column.isna(), strict=True)]


def _plain(value: Any) -> Any:
    """Return a Spark struct as a dict, any other value unchanged."""
    return value.asDict(recursive=True) if hasattr(value, "asDict") else value


def _checked(rows: Iterable[tuple[Any, Any]], step: str, form: Form) -> dict[Any, Any]:
    states: dict[Any, Any] = {}
    for number, (given, state) in enumerate(rows):
        key = settled(given)
        try:
            twice = key in states
        except Exception as error:  # a TypeError, or an error of the user's own __hash__
            raise PlanError(
                f"step {step!r}: row {number} of initial_state has a key of type {type(key).__name__}, which cannot be "
                f"hashed: give a tuple instead of a list"
            ) from error
        if twice:
            raise PlanError(f"step {step!r}: initial_state has key {shown(key)} twice: give each key one state")
        if state is None:
            raise PlanError(
                f"step {step!r}: initial_state of key {shown(key)} is None, which is not a state: leave the key out "
                f"(missing values of a DataFrame are None)"
            )
        try:
            states[key] = form(copy.deepcopy(state))
        except _Unfit as error:
            raise PlanError(f"step {step!r}: initial_state of key {shown(key)} {error}") from error
        except Exception as error:
            raise PlanError(
                f"step {step!r}: initial_state of key {shown(key)}, of type {type(state).__name__}, cannot be copied: "
                f"give plain data, or instances of a dataclass"
            ) from error
    return states


def _same(state: Any) -> Any:
    return state


def _count(state: Any) -> int:
    if type(state) is not int or state < 1:
        raise _Unfit(f"is of type {type(state).__name__}, and must be the number of records: an int above 0")
    return state


def _mean(state: Any) -> tuple[int, Any]:
    if not isinstance(state, tuple | list) or len(state) != 2 or type(state[0]) is not int or state[0] < 1:
        raise _Unfit("must be a pair: the number of records, an int above 0, and the sum of their values")
    return state[0], _sum(state[1])


def _sum(state: Any) -> Any:
    try:
        _ = state + (state - state)  # numbers and timedeltas can; texts and lists can only be added
    except Exception:
        raise _Unfit(f"is of type {type(state).__name__}, and must be the sum so far: a number") from None
    return state


def _seen(state: Any) -> set[Any]:
    if not isinstance(state, list | tuple | set | frozenset):
        raise _Unfit(f"is of type {type(state).__name__}, and must be a list or set of the values seen")
    try:
        return set(map(seen_form, state))
    except TypeError:
        raise _Unfit("holds a value that cannot be hashed") from None


def _one(state: Any) -> tuple[Any]:
    return (state,)


FORMS: Final[Mapping[str, Form]] = {
    **dict.fromkeys(("stateful_map", "stateful_flat_map", "stateful_op", "ttl_map", "reduce", "fold"), _same),
    **dict.fromkeys(("min", "max"), _same),
    "sum": _sum,
    "count": _count,
    "mean": _mean,
    "distinct": _seen,
}
"""Kind of step -> the form of its given state. States of functions, min and max stay unchanged."""

_OF_AGGREGATES: Final[Mapping[str, Form]] = {
    **dict.fromkeys(("min", "max", "custom"), _same),
    "sum": _sum,
    **dict.fromkeys(("first", "last"), _one),
    "count": _count,
    "mean": _mean,
}


def _form_of(kind: str, step: str, options: Mapping[str, Any]) -> Form:
    if kind == "aggregate":
        aggregations: Mapping[str, Aggregation[Any, Any]] = options["aggregations"]
        for label, one in aggregations.items():
            if one.name not in _OF_AGGREGATES:
                raise PlanError(
                    f"step {step!r}: initial_state cannot be given for {label}={one}: use agg.custom, whose state is "
                    f"your own, or a separate step"
                )
        forms = {label: _OF_AGGREGATES[aggregations[label].name] for label in sorted(aggregations)}
        return partial(_aggregated, forms)
    if kind not in FORMS:
        raise PlanError(
            f"step {step!r}: {kind} takes no initial_state, because its state is internal: use stateful_map or "
            f"fold, whose state is yours"
        )
    return FORMS[kind]


def _aggregated(forms: Mapping[str, Form], state: Any) -> tuple[Any, ...]:
    """Return a key's states as a tuple, in the order of the aggregates' names."""
    if not isinstance(state, Mapping) or set(state) != set(forms):
        raise _Unfit(f"must be a dict with a state for each aggregate: {', '.join(forms)}")
    made = []
    for label, form in forms.items():
        if state[label] is None:
            raise _Unfit(f"has None for {label}, which is not a state")
        try:
            made.append(form(state[label]))
        except _Unfit as error:
            raise _Unfit(f"is wrong at {label}: it {error}") from None
    return tuple(made)
