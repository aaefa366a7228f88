"""The base of keyed steps: one state per key, keys that cannot be keys, and the functions it names."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py import agg
from malstrom_py.data.batch import Batch
from malstrom_py.errors import InternalError, OperatorError
from malstrom_py.operators.aggregate import Aggregate, Count, Distinct, Fold, Max, Mean, Min, Reduce, Sum, TopN
from malstrom_py.operators.base import OnError, OperatorFactory
from malstrom_py.operators.collect import CollectStep
from malstrom_py.operators.stateful_map import StatefulFlatMap, StatefulMap, TtlMap
from malstrom_py.operators.stateful_op import StatefulOp
from tests.unit.operators.stepping import Row, Stepped, cut


def echo(message: Any, state: Any, output: Any) -> Any:
    output.send(message)
    return (state or 0) + 1


NUMBERS = count()
"""Make every value another, so that `Distinct` lets all of them pass."""

FACTORIES: dict[str, OperatorFactory] = {
    "count": Count,
    "sum": Sum,
    "min": Min,
    "max": Max,
    "mean": Mean,
    "reduce": partial(Reduce, fn=lambda left, right: left * 31 + right),
    "fold": partial(Fold, fn=lambda seen, value: (*seen, value), default=tuple),
    "stateful_map": partial(StatefulMap, fn=lambda _, value, seen: ((seen, value), (seen or 0) + 1), default=None),
    "stateful_op": partial(StatefulOp, logic=echo, default=None),
    "stateful_flat_map": partial(
        StatefulFlatMap, fn=lambda _, value, seen: (iter([(seen, value)]), value), default=None
    ),
    "ttl_map": partial(TtlMap, fn=lambda _, value, seen: ((seen, value), (seen or 0) + 1), ttl=100, default=None),
    "top_n": partial(TopN, n=3, by=None),
    "distinct": partial(Distinct, by=lambda value: (value, next(NUMBERS))),
    "aggregate": partial(Aggregate, aggregations={"n": agg.count(), "least": agg.min(), "unique": agg.n_unique()}),
    "collect": partial(CollectStep, size=1, every_s=None),
}
EVERY_KEYED_STEP = pytest.mark.parametrize("name", sorted(FACTORIES))


def running(values: list[int], name: str) -> Any:
    """What plain Python says of the values of one key so far."""
    if name == "reduce":
        total = values[0]
        for value in values[1:]:
            total = total * 31 + value
        return total
    oracles: dict[str, Any] = {
        "aggregate": {"n": len(values), "least": min(values), "unique": len(set(values))},
        "count": len(values),
        "sum": sum(values),
        "min": min(values),
        "max": max(values),
        "mean": sum(values) / len(values),
        "fold": tuple(values),
        "stateful_map": (len(values) - 1 or None, values[-1]),
        "stateful_op": values[-1],
        "stateful_flat_map": (values[-2] if len(values) > 1 else None, values[-1]),
        "ttl_map": (len(values) - 1 or None, values[-1]),
        "top_n": sorted(values, reverse=True)[:3],
        "distinct": values[-1],
        "collect": values[-1:],
    }
    return oracles[name]


def held(name: str, keys: int) -> int:
    """How many of ``keys`` keys have state: `collect` has sent everything, its lists being of one value."""
    return 0 if name == "collect" else keys


RECORDS = st.lists(st.tuples(st.sampled_from(["a", "b", None, 1]), st.integers(-50, 50)), min_size=1, max_size=30)


@EVERY_KEYED_STEP
@given(records=RECORDS, sizes=st.lists(st.integers(1, 5), max_size=20))
def test_any_cutting_into_batches_gives_what_plain_python_gives(
    name: str, records: list[tuple[Any, int]], sizes: list[int]
) -> None:
    batch = Batch(
        [value for _, value in records], keys=[key for key, _ in records], timestamps=list(range(len(records)))
    )
    step = Stepped(FACTORIES[name], timed=True, keyed=True).push(*cut(batch, sizes))
    expected: list[Row] = []
    seen: dict[Any, list[int]] = {}
    for at, (key, value) in enumerate(records):
        seen.setdefault(key, []).append(value)
        expected.append((key, running(seen[key], name), at))
    assert step.rows() == expected
    assert step.operator.keys == held(name, len(seen))


@EVERY_KEYED_STEP
@pytest.mark.parametrize("on_error", ["fail", "skip", "dead-letter"])
@pytest.mark.parametrize("key", [[1], {}, (1, [])], ids=repr)
def test_a_key_that_cannot_be_hashed_fails_whatever_the_policy(name: str, on_error: OnError, key: Any) -> None:
    step = Stepped(FACTORIES[name], on_error=on_error)
    with pytest.raises(OperatorError, match=rf"'under-test'.*{type(key).__name__} cannot be hashed.*key_by"):
        step.push(Batch([1, 2], keys=["a", key]))


@EVERY_KEYED_STEP
def test_a_batch_without_keys_is_our_bug(name: str) -> None:
    with pytest.raises(InternalError, match="'under-test'"):
        Stepped(FACTORIES[name]).push(Batch([1]))


@EVERY_KEYED_STEP
def test_the_columns_that_came_are_left_as_they_were(name: str) -> None:
    values, keys, timestamps = [1, 2], ["a", "a"], [1, 2]
    Stepped(FACTORIES[name], timed=True, keyed=True).push(Batch(values, keys=keys, timestamps=timestamps))
    assert (values, keys, timestamps) == ([1, 2], ["a", "a"], [1, 2])


@EVERY_KEYED_STEP
def test_two_steps_of_one_factory_share_no_state(name: str) -> None:
    batch = Batch([1], keys=["a"], timestamps=[1])
    first, second = (Stepped(FACTORIES[name], timed=True, keyed=True) for _ in range(2))
    assert first.push(batch).rows() == second.push(batch).rows()
