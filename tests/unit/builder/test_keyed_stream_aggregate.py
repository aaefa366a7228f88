"""`aggregate` in a job: errors are raised at the call, and valid calls run on any number of workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, sources
from malstrom_py.errors import PlanError
from tests.ids import shown


def sales() -> Any:
    rows = [{"shop": "ab"[number % 2], "price": number} for number in range(10)]
    return mp.Job("j").source("in", sources.Memory(rows, parts=2)).key_by("shop", "shop")


def test_at_least_one_is_needed() -> None:
    with pytest.raises(PlanError, match="step 'figures': name at least one aggregate"):
        sales().aggregate("figures")


@pytest.mark.parametrize("wrong", [agg.count, agg.Aggregation, sum, "price", None], ids=shown)
def test_what_is_no_aggregate_is_told_by_its_name(wrong: Any) -> None:
    with pytest.raises(PlanError, match=r"step 'figures': total must be an aggregate, which agg\.count\(\) or"):
        sales().aggregate("figures", n=agg.count(), total=wrong)


def test_an_init_that_raises_is_told_before_anything_runs() -> None:
    def init() -> int:
        raise ValueError

    with pytest.raises(PlanError, match=r"step 'figures': .* raised ValueError"):
        sales().aggregate("figures", own=agg.custom(init, max, max, int))


def test_on_error_is_checked_and_an_aggregate_may_be_called_name_or_self() -> None:
    with pytest.raises(PlanError, match="on_error must be"):
        sales().aggregate("figures", n=agg.count(), on_error="ignore")
    values = mp.collect(sales().aggregate("figures", name=agg.count(), self=agg.last("price")))
    assert values[0] == {"name": 1, "self": 0}


def test_only_keyed_streams_have_it() -> None:
    plain: Any = mp.Job("j").source("in", sources.Memory([1]))
    with pytest.raises(PlanError, match="has no keys"):
        plain.aggregate("figures", n=agg.count())


def test_a_plan_tells_what_is_computed() -> None:
    stream = sales().aggregate("figures", n=agg.count(), mean=agg.mean("price"))
    stream.sink("out", sinks.Memory())
    assert "figures  aggregate <- shop  [n=agg.count(), mean=agg.mean('price')]" in stream.job.explain()


@dataclass(frozen=True)
class Span:
    low: int
    high: int


def widened(span: Span | None, sale: dict[str, int]) -> Span:
    price = sale["price"]
    return Span(price, price) if span is None else Span(min(span.low, price), max(span.high, price))


def joined(left: Span | None, right: Span | None) -> Span | None:
    if left is None or right is None:
        return left or right
    return Span(min(left.low, right.low), max(left.high, right.high))


def ends(span: Span | None) -> tuple[int, int] | None:
    return None if span is None else (span.low, span.high)


def no_span() -> Span | None:
    return None


@pytest.mark.parametrize("workers", [1, 3])
def test_a_registered_class_may_be_a_state_on_any_number_of_workers(workers: int) -> None:
    stream, out = sales(), sinks.Memory()
    stream.job.register_type(Span)
    span = agg.custom(no_span, widened, joined, ends)
    stream.aggregate("figures", n=agg.count(), span=span).sink("out", out)
    mp.run(stream.job, workers, checks=True)
    assert {shop: rows[-1] for shop, rows in out.by_key.items()} == {
        "a": {"n": 5, "span": (0, 8)},
        "b": {"n": 5, "span": (1, 9)},
    }
