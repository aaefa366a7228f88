"""How the aggregates of `malstrom_py.agg` begin, add a value, merge two states and end: functions of plain states.

A state is a number, or a tuple, and a function returns a new one; only that of ``n_unique`` is changed in place. What
they do with None, NaN, Decimals and instants is said in `malstrom_py.agg`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, MutableMapping
from decimal import (
    MAX_EMAX,
    MIN_EMIN,
    ROUND_HALF_EVEN,
    Context,
    Decimal,
    DivisionByZero,
    Inexact,
    InvalidOperation,
    Overflow,
    localcontext,
)
from typing import Any, Final

from malstrom_py.data.equality import IN_ORDER, is_nan_form, is_smaller, seen_form

_EXACT: Final = Context(
    prec=1_000,
    rounding=ROUND_HALF_EVEN,
    Emin=MIN_EMIN,
    Emax=MAX_EMAX,
    traps=[InvalidOperation, DivisionByZero, Overflow, Inexact],
)
_DIGITS: Final = 28
_WIDE: Final = Context(prec=50, rounding=ROUND_HALF_EVEN, traps=[InvalidOperation, DivisionByZero, Overflow])
"""Decimal contexts: of sums, and of the standard deviation. That of the caller is another in each thread."""

_EXACTLY: Final = (Decimal, int)

_NO_TYPE: Final[Any] = None
"""Of which no value is an instance: the first row is compared by the general way."""


def unchanged(state: Any) -> Any:
    """Return ``state``: the result of aggregations whose state is their result."""
    return state


def nothing() -> Any:
    """Return the state of no values where None is one."""
    return None


def one_more(seen: int, value: Any) -> int:
    """Count a value."""
    return seen + 1


def plus(left: Any, right: Any) -> Any:
    """Add two numbers; of Decimals exactly."""
    return _exact_sum(left, right) if type(right) is Decimal or type(left) is Decimal else left + right


def _exact_sum(left: Any, right: Any) -> Any:
    """Add two Decimals, or a Decimal and an int, in a context that never rounds."""
    if not isinstance(left, _EXACTLY) or not isinstance(right, _EXACTLY):
        return left + right  # a float, say: Python decides whether they can be added
    try:
        return _EXACT.add(left, right)
    except Inexact:
        raise ArithmeticError(
            f"a sum of Decimals needs more than {_EXACT.prec:,} digits: round the values before, for instance with "
            f"quantize, or sum them as floats"
        ) from None


def _quotient(total: Any, seen: int) -> Any:
    """Divide a sum. A Decimal gets 28 digits, or as many as the sum has: not those of the caller's context."""
    if type(total) is not Decimal or not total.is_finite():
        return total / seen
    context = _EXACT.copy()
    context.traps[Inexact] = False
    context.prec = max(_DIGITS, len(total.as_tuple().digits))
    return context.divide(total, seen)


def smaller(state: Any, value: Any) -> Any:
    """Return the smaller one, of equal ones the state."""
    if state is None:
        is_smaller(value, value)  # a value without order must not enter the state
        return value
    if type(value) in IN_ORDER and type(state) in IN_ORDER:
        return value if value < state or state != state else state  # NaN is the largest
    return value if is_smaller(value, state) else state


def larger(state: Any, value: Any) -> Any:
    """Return the larger one, of equal ones the state."""
    if state is None:
        is_smaller(value, value)
        return value
    if type(value) in IN_ORDER and type(state) in IN_ORDER:
        return value if value > state or value != value else state
    return value if is_smaller(state, value) else state


def smaller_state(left: Any, right: Any) -> Any:
    """Merge two states of the smallest value."""
    return left if right is None else smaller(left, right)


def larger_state(left: Any, right: Any) -> Any:
    """Merge two states of the largest value."""
    return left if right is None else larger(left, right)


def no_mean() -> tuple[int, Any]:
    """Return the number of no values, and their sum."""
    return 0, 0


def mean_add(state: tuple[int, Any], value: Any) -> tuple[int, Any]:
    """Count and add a value."""
    seen, total = state
    return seen + 1, plus(total, value)


def mean_merge(left: tuple[int, Any], right: tuple[int, Any]) -> tuple[int, Any]:
    """Merge two states of a mean."""
    return left[0] + right[0], plus(left[1], right[1])


def mean_of(state: tuple[int, Any]) -> Any:
    """Return the mean."""
    seen, total = state
    return _quotient(total, seen) if seen else None


# The aggregations that are steps, over many rows: without two calls per record, which would cost as much as the rest.


def count_rows(rows: Iterable[tuple[Any, Any]], results: list[Any], states: MutableMapping[Any, Any]) -> None:
    """Count rows."""
    get = states.get
    for key, _ in rows:
        states[key] = seen = get(key, 0) + 1
        results.append(seen)


def sum_rows(rows: Iterable[tuple[Any, Any]], results: list[Any], states: MutableMapping[Any, Any]) -> None:
    """Add rows."""
    get = states.get
    for key, value in rows:
        total = get(key, 0)
        exact = type(value) is Decimal or type(total) is Decimal
        states[key] = total = _exact_sum(total, value) if exact else total + value
        results.append(total)


def min_rows(rows: Iterable[tuple[Any, Any]], results: list[Any], states: MutableMapping[Any, Any]) -> None:
    """Keep the smallest of rows."""
    get, usual = states.get, _NO_TYPE
    for key, value in rows:
        best = get(key)
        if type(value) is not usual or type(best) is not usual:
            states[key] = best = value if best is None and type(value) is usual else smaller(best, value)
            usual = type(value) if type(value) in IN_ORDER else None
        elif not value >= best and (value == value or best != best):  # also where one is NaN, the largest
            states[key] = best = value
        results.append(best)


def max_rows(rows: Iterable[tuple[Any, Any]], results: list[Any], states: MutableMapping[Any, Any]) -> None:
    """Keep the largest of rows."""
    get, usual = states.get, _NO_TYPE
    for key, value in rows:
        best = get(key)
        if type(value) is not usual or type(best) is not usual:
            states[key] = best = value if best is None and type(value) is usual else larger(best, value)
            usual = type(value) if type(value) in IN_ORDER else None
        elif not value <= best and (best == best or value != value):  # also where one is NaN, the largest
            states[key] = best = value
        results.append(best)


def mean_rows(rows: Iterable[tuple[Any, Any]], results: list[Any], states: MutableMapping[Any, Any]) -> None:
    """Compute the mean of rows."""
    get = states.get
    for key, value in rows:
        seen, total = get(key, (0, 0))
        exact = type(value) is Decimal or type(total) is Decimal
        seen, total = seen + 1, _exact_sum(total, value) if exact else total + value
        mean = _quotient(total, seen) if exact else total / seen
        states[key] = (seen, total)
        results.append(mean)


def no_deviation() -> tuple[int, Any, Any]:
    """Return the number of no values, their mean, and the sum of squares of their distances from it."""
    return 0, 0, 0


def std_add(state: tuple[int, Any, Any], value: Any) -> tuple[int, Any, Any]:
    """Add a value by the recurrence of Welford; of Decimals with 50 digits."""
    if type(value) is Decimal or type(state[1]) is Decimal:
        with localcontext(_WIDE):
            return _std_sum(state, value)
    return _std_sum(state, value)


def _std_sum(state: tuple[int, Any, Any], value: Any) -> tuple[int, Any, Any]:
    seen, mean, squares = state
    seen += 1
    ahead = value - mean
    mean += ahead / seen
    return seen, mean, squares + ahead * (value - mean)


def std_merge(left: tuple[int, Any, Any], right: tuple[int, Any, Any]) -> tuple[int, Any, Any]:
    """Merge two states by the formula of Chan, Golub and LeVeque."""
    if not left[0] or not right[0]:
        return left if left[0] else right
    if type(left[1]) is Decimal or type(right[1]) is Decimal:
        with localcontext(_WIDE):
            return _std_merged(left, right)
    return _std_merged(left, right)


def _std_merged(left: tuple[int, Any, Any], right: tuple[int, Any, Any]) -> tuple[int, Any, Any]:
    seen = left[0] + right[0]
    apart = right[1] - left[1]
    mean = left[1] + apart * right[0] / seen
    return seen, mean, left[2] + right[2] + apart * apart * left[0] * right[0] / seen


def std_of(state: tuple[int, Any, Any]) -> float | None:
    """Return the standard deviation of a sample."""
    seen, _, squares = state
    return math.sqrt(_quotient(squares, seen - 1)) if seen > 1 else None


def first_add(state: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    """Keep the first value."""
    return state or (value,)


def first_merge(left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
    """Keep the first of two states that has a value."""
    return left or right


def last_add(state: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    """Keep the last value."""
    return (value,)


def last_merge(left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
    """Keep the last of two states that has a value."""
    return right or left


def only(state: tuple[Any, ...]) -> Any:
    """Return the value of a state of one or none."""
    return state[0] if state else None


def earlier(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the earlier of two pairs of a timestamp and a value, of which ``one`` arrived first."""
    return one if one and not (other and other[0] < one[0]) else other


def later(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the later of two pairs of time and value; of one time the second."""
    return other if other and not (one and one[0] > other[0]) else one


def pick_known(pick: Callable[[Any, Any], Any], state: tuple[Any, ...], timed: tuple[Any, ...]) -> Any:
    """Add a pair of time and value, unless the value is None."""
    return state if timed[1] is None else pick(state, timed)


def at_moment(state: tuple[Any, ...]) -> Any:
    """Return the value of a pair."""
    return state[1] if state else None


def unseen() -> tuple[set[Any], bool]:
    """Return the set of no values, and that NaN is not among them."""
    return set(), False


def unique_check(state: tuple[set[Any], bool], value: Any) -> object:
    """Raise what `unique_add` would."""
    return seen_form(value) in state[0]


def unique_add(state: tuple[set[Any], bool], value: Any) -> tuple[set[Any], bool]:
    """Add a value to the set, in place."""
    seen, has_nan = state
    form = seen_form(value)
    if is_nan_form(form):  # its own flag: NaN itself is not in the set, as in earlier snapshots
        return seen, True
    seen.add(form)
    return seen, has_nan


def unique_merge(left: tuple[set[Any], bool], right: tuple[set[Any], bool]) -> tuple[set[Any], bool]:
    """Merge two sets."""
    return left[0] | right[0], left[1] or right[1]


def unique_of(state: tuple[set[Any], bool]) -> int:
    """Return how many values differ."""
    seen, has_nan = state
    return len(seen) + has_nan
