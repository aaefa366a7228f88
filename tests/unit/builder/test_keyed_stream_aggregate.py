"""`aggregate` in a job: errors are raised at the call, and valid calls run on any number of workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, sources


def sales() -> Any:
    rows = [{"shop": "ab"[number % 2], "price": number} for number in range(10)]
    return mp.Job("j").source("in", sources.Memory(rows, parts=2)).key_by("shop", "shop")


def test_an_aggregate_may_be_called_name_or_self() -> None:
    values = mp.collect(sales().aggregate("figures", name=agg.count(), self=agg.last("price")))
    assert values[0] == {"name": 1, "self": 0}


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
