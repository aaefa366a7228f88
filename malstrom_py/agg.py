"""The aggregates of the step ``aggregate``: computed record by record, and mergeable.

Rule: an aggregate is immutable and holds no state. A state is plain data that can be persisted; ``add`` returns the new
state. ``field`` is the aggregated part of a value: a function, a column's name, or None for the value itself, like
``by`` of the steps ``sum``, ``min``, ``max`` and ``mean``. Steps and aggregates treat special values alike:

- ``sum``, ``min``, ``max``, ``mean`` and ``std`` take no None: such a record fails, and the step's ``on_error=``
  decides. ``count``, ``first``, ``last``, ``earliest``, ``latest`` and ``n_unique`` take None like any value. With
  ``skip_nulls=True`` all leave None out, as SQL does: the result over no other value is None, or 0 of ``count`` and
  ``n_unique``.
- NaN makes ``sum``, ``mean`` and ``std`` NaN permanently. NaN equals NaN and is larger than every other number: ``max``
  is NaN from the first NaN on, ``min`` is NaN as long as there is nothing else.
- Aware datetimes are instants: they are equal, smaller and larger as in UTC. A result keeps the zone of its value.
- Sums of Decimals are exact, also where the caller's decimal context rounds; one of more than 1,000 digits fails.
  Their mean has 28 digits, or as many as the sum.
- ``sum``, ``min``, ``max`` and ``mean`` return numbers of the type of their input (int, float, Decimal).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from malstrom_py.data import figures
from malstrom_py.errors import PlanError
from malstrom_py.errors.text import describe_function
from malstrom_py.lazy_names import lazy_names
from malstrom_py.validation import is_coroutine_function

S = TypeVar("S")
R_co = TypeVar("R_co", covariant=True)

_ABSENT: Final[Any] = object()

Run = Callable[[Iterable[tuple[Any, Any]], list[Any], MutableMapping[Any, Any]], None]
"""Takes rows (key, value) until they end; per row sets the state of the key, then appends the result."""

Field = Callable[[Any], Any] | str | None
"""The aggregated part of a value: a function, a column's name, or None for the value itself."""

__all__ = [
    "Aggregation",
    "Field",
    "count",
    "custom",
    "earliest",
    "first",
    "last",
    "latest",
    "max",
    "mean",
    "min",
    "n_unique",
    "std",
    "sum",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, {}, "AGG")


@dataclass(frozen=True, slots=True)
class Aggregation(Generic[S, R_co]):
    """An aggregate: how a result is computed from many values. The functions of ``malstrom_py.agg`` return it.

    ``init()`` is the state before the first value, ``add(state, value)`` the state after one more, ``merge(left,
    right)`` the state of the values of ``left`` followed by those of ``right``, ``finish(state)`` the result. ``field``
    is the part of a value that ``add`` takes; ``blind``: ``add`` ignores it. ``check``, if given, raises each error
    that ``add`` would raise: such an ``add`` changes its state in place. ``fast``: `run` without these calls.
    ``arrays``: the name under which `malstrom_py.state.groups` keeps such states in arrays, None if it does not;
    ``skips_nulls``: values that are None are left out. ``in_order``: the result depends on the order of arrival, so
    ``merge`` is called with states of records that arrived one after the other. ``timed``: ``add`` takes pairs of a
    record's timestamp and its value.

    >>> of_prices = mean("price")
    >>> state = of_prices.init()
    >>> for price in (3, 5):
    ...     state = of_prices.add(state, price)
    >>> of_prices.finish(state), of_prices.finish(of_prices.merge(state, (1, 10)))
    (4.0, 6.0)
    """

    name: str
    init: Callable[[], S]
    add: Callable[[S, Any], S]
    merge: Callable[[S, S], S]
    finish: Callable[[S], R_co]
    field: Field = None
    check: Callable[[S, Any], object] | None = None
    blind: bool = False
    fast: Run | None = None
    arrays: str | None = None
    skips_nulls: bool = False
    in_order: bool = False
    timed: bool = False

    def __repr__(self) -> str:
        of = self.field
        field = "" if of is None else repr(of) if isinstance(of, str) else describe_function(of)
        return f"agg.{self.name}({field})"

    def run(self, rows: Iterable[tuple[Any, Any]], results: list[Any], states: MutableMapping[Any, Any]) -> None:
        """Add (key, value) rows until they end: per row set the state of its key, then append the result."""
        if self.fast is not None:
            self.fast(rows, results, states)
            return
        init, add, finish, get = self.init, self.add, self.finish, states.get
        for key, value in rows:
            state = get(key, _ABSENT)
            state = add(init() if state is _ABSENT else state, value)
            result = finish(state)
            states[key] = state
            results.append(result)


def count(field: Field = None, *, skip_nulls: bool = False) -> Aggregation[int, int]:
    """Count the records; their values do not matter. With ``skip_nulls`` count those whose field is not None.

    >>> count(), sum("price"), count("price", skip_nulls=True)
    (agg.count(), agg.sum('price'), agg.count('price'))
    """
    if skip_nulls:
        return _nulls(
            Aggregation(
                "count", int, figures.one_more, figures.plus, figures.unchanged, _field(field, "count"), arrays="count"
            ),
            skip=True,
        )
    if field is not None:
        raise PlanError("agg.count counts all records: with a field it takes skip_nulls=True, as COUNT(field) of SQL")
    return Aggregation(
        "count",
        int,
        figures.one_more,
        figures.plus,
        figures.unchanged,
        blind=True,
        fast=figures.count_rows,
        arrays="count",
    )


def sum(field: Field = None, *, skip_nulls: bool = False) -> Aggregation[Any, Any]:
    """Sum the values; 0 for no values.

    >>> import malstrom_py as mp
    >>> from malstrom_py import agg, sources
    >>> sales = mp.Job("docs").source("sales", sources.Memory([{"shop": "a", "n": 2}, {"shop": "a", "n": 3}]))
    >>> mp.collect(sales.key_by("shop", "shop").aggregate("so-far", sold=agg.sum("n"), sales=agg.count()))
    [{'sold': 2, 'sales': 1}, {'sold': 5, 'sales': 2}]
    """
    return _nulls(
        Aggregation(
            "sum",
            int,
            figures.plus,
            figures.plus,
            figures.unchanged,
            _field(field, "sum"),
            fast=figures.sum_rows,
            arrays="sum",
        ),
        skip=skip_nulls,
    )


def min(field: Field = None, *, skip_nulls: bool = False) -> Aggregation[Any, Any]:
    """Return the smallest value, of equal ones the first; None for no values."""
    return _nulls(
        Aggregation(
            "min",
            figures.nothing,
            figures.smaller,
            figures.smaller_state,
            figures.unchanged,
            _field(field, "min"),
            fast=figures.min_rows,
            arrays="min",
        ),
        skip=skip_nulls,
    )


def max(field: Field = None, *, skip_nulls: bool = False) -> Aggregation[Any, Any]:
    """Return the largest value, of equal ones the first; None for no values."""
    return _nulls(
        Aggregation(
            "max",
            figures.nothing,
            figures.larger,
            figures.larger_state,
            figures.unchanged,
            _field(field, "max"),
            fast=figures.max_rows,
            arrays="max",
        ),
        skip=skip_nulls,
    )


def mean(field: Field = None, *, skip_nulls: bool = False) -> Aggregation[tuple[int, Any], Any]:
    """Compute the arithmetic mean; None for no values."""
    return _nulls(
        Aggregation(
            "mean",
            figures.no_mean,
            figures.mean_add,
            figures.mean_merge,
            figures.mean_of,
            _field(field, "mean"),
            fast=figures.mean_rows,
            arrays="mean",
        ),
        skip=skip_nulls,
    )


def std(field: Field = None, *, skip_nulls: bool = False) -> Aggregation[tuple[int, Any, Any], float | None]:
    """Compute the sample standard deviation, a float, as in Polars (divided by n - 1); None for fewer than two values.

    Numerically stable: by Welford's recurrence, merged by that of Chan, Golub and LeVeque.

    >>> of_values = std()
    >>> state = of_values.init()
    >>> for value in (1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16):
    ...     state = of_values.add(state, value)
    >>> round(of_values.finish(state), 6)
    5.477226
    """
    return _nulls(
        Aggregation(
            "std", figures.no_deviation, figures.std_add, figures.std_merge, figures.std_of, _field(field, "std")
        ),
        skip=skip_nulls,
    )


def first(field: Field = None, *, skip_nulls: bool = False) -> Aggregation[Any, Any]:
    """Return the field of the first record in order of arrival, not of timestamps; None for no records."""
    return _nulls(
        Aggregation(
            "first",
            tuple,
            figures.first_add,
            figures.first_merge,
            figures.only,
            _field(field, "first"),
            arrays="first",
            in_order=True,
        ),
        skip=skip_nulls,
    )


def last(field: Field = None, *, skip_nulls: bool = False) -> Aggregation[Any, Any]:
    """Return the field of the last record in order of arrival, not of timestamps; None for no records."""
    return _nulls(
        Aggregation(
            "last",
            tuple,
            figures.last_add,
            figures.last_merge,
            figures.only,
            _field(field, "last"),
            arrays="last",
            in_order=True,
        ),
        skip=skip_nulls,
    )


def earliest(field: Field = None, *, skip_nulls: bool = False) -> Aggregation[Any, Any]:
    """Return the field of the record with the smallest timestamp, of several the first to arrive; None for no records.

    With `latest` it is the open and the close of a candle, in any order of arrival:

    >>> import malstrom_py as mp
    >>> from malstrom_py import agg, sources, windows
    >>> trades = mp.Job("docs").source("trades", sources.Memory([{"at": 5, "paid": 7}, {"at": 2, "paid": 3}]))
    >>> timed = trades.assign_timestamps("time", "at").generate_epochs("epochs", mp.limit_out_of_orderness(10))[0]
    >>> candles = timed.key_by("all", lambda trade: "all").window("candles", windows.tumbling(10))
    >>> found = candles.aggregate(open=agg.earliest("paid"), close=agg.latest("paid"), first=agg.first("paid"))
    >>> [candle.value for candle in mp.collect(found)]
    [{'open': 3, 'close': 7, 'first': 7}]
    """
    return _of_moment("earliest", field, figures.earlier, skip=skip_nulls)


def latest(field: Field = None, *, skip_nulls: bool = False) -> Aggregation[Any, Any]:
    """Return the field of the record with the largest timestamp, of several the last to arrive; None for no records."""
    return _of_moment("latest", field, figures.later, skip=skip_nulls)


def _of_moment(
    name: str, field: Field, pick: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]], *, skip: bool
) -> Aggregation[Any, Any]:
    made: Aggregation[Any, Any] = Aggregation(
        name, tuple, pick, pick, figures.at_moment, _field(field, name), timed=True
    )
    # A pair is never None, so it is looked into.
    return replace(made, add=partial(figures.pick_known, pick), skips_nulls=True) if skip else made


def n_unique(field: Field = None, *, skip_nulls: bool = False) -> Aggregation[tuple[set[Any], bool], int]:
    """Count the distinct values, which must be hashable. Values that are equal in Python, such as 1, 1.0 and True,
    count once, and so do one instant in several zones, and all NaN, also within tuples.

    The count is exact: the state of a key holds each distinct value once, so its size has no other bound.
    """
    return _nulls(
        Aggregation(
            "n_unique",
            figures.unseen,
            figures.unique_add,
            figures.unique_merge,
            figures.unique_of,
            _field(field, "n_unique"),
            check=figures.unique_check,
        ),
        skip=skip_nulls,
    )


def custom(
    init: Callable[[], S],
    add: Callable[[S, Any], S],
    merge: Callable[[S, S], S],
    finish: Callable[[S], R_co],
) -> Aggregation[S, R_co]:
    """Return your own aggregate. ``add`` and ``merge`` return a new state and do not change their arguments.

    ``merge(init(), state)`` and ``merge(state, init())`` must be equal to ``state``, and the ``merge`` of earlier
    and later values equal to adding all of them in order. A state is persisted: plain data, or of a registered
    class.

    >>> import malstrom_py as mp
    >>> from malstrom_py import agg, sources
    >>> def longer(word, other):
    ...     return other if len(other) > len(word) else word
    >>> longest = agg.custom(init=str, add=longer, merge=longer, finish=str.upper)
    >>> words = mp.Job("docs").source("words", sources.Memory(["ant", "bee", "asps"])).key_by("all", lambda w: "all")
    >>> mp.collect(words.aggregate("so-far", longest=longest, n=agg.count()))
    [{'longest': 'ANT', 'n': 1}, {'longest': 'ANT', 'n': 2}, {'longest': 'ASPS', 'n': 3}]

    Raises:
        PlanError: an argument is not a function.
    """
    for name, function in (("init", init), ("add", add), ("merge", merge), ("finish", finish)):
        if not callable(function) or is_coroutine_function(function):
            got = "a coroutine function" if callable(function) else type(function).__name__
            raise PlanError(f"agg.custom: {name} must be a function, got {got}")
    return Aggregation("custom", init, add, merge, finish, in_order=True)


def _field(field: Field, name: str) -> Field:
    if is_coroutine_function(field):
        raise PlanError(f"agg.{name}: {describe_function(field)} is a coroutine function, which is not awaited here")
    if field is None or isinstance(field, str) or callable(field):
        return field
    raise PlanError(
        f"agg.{name} takes a column's name or a function of the value, or nothing for the value itself, "
        f"got {type(field).__name__}"
    )


def _nulls(one: Aggregation[Any, Any], *, skip: bool) -> Aggregation[Any, Any]:
    """Return ``one``, which leaves out None if ``skip``: the state is None before the first other value."""
    if not skip:
        return one
    return replace(
        one,
        init=figures.nothing,
        add=partial(_add_known, one),
        merge=partial(_merge_known, one),
        finish=partial(_finish_known, one),
        check=None if one.check is None else partial(_check_known, one),
        fast=None,
        skips_nulls=True,
    )


def skipping_nulls(one: Aggregation[Any, Any]) -> Aggregation[Any, Any]:
    """Return ``one`` without values that are None."""
    return _nulls(one, skip=True)


def _add_known(one: Aggregation[Any, Any], state: Any, value: Any) -> Any:
    return state if value is None else one.add(one.init() if state is None else state, value)


def _check_known(one: Aggregation[Any, Any], state: Any, value: Any) -> object:
    return None if value is None or one.check is None else one.check(one.init() if state is None else state, value)


def _merge_known(one: Aggregation[Any, Any], left: Any, right: Any) -> Any:
    return left if right is None else right if left is None else one.merge(left, right)


def _finish_known(one: Aggregation[Any, Any], state: Any) -> Any:
    # As in SQL the sum of no values is unknown, and their number is 0.
    return (None if one.name == "sum" else one.finish(one.init())) if state is None else one.finish(state)
