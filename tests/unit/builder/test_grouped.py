"""``group_by`` and ``with_watermark`` add steps that a job may add itself, and refuse what they have no step for."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, sources, windows
from malstrom_py.errors import PlanError

START = datetime(2024, 2, 28, tzinfo=UTC)
SALES = [
    {"shop": shop, "item": item, "price": price, "time": START + timedelta(seconds=at)}
    for shop, item, price, at in [("n", "bed", 3, 0), ("s", "rug", 5, 20), ("n", "rug", 4, 50), ("n", "bed", 1, 100)]
]


def sales() -> mp.StreamBuilder[Any, Any]:
    return mp.Job("sales").source("sales", sources.Memory(SALES))


def in_order(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=repr)


def steps_of(stream: Any) -> list[tuple[str, str]]:
    stream.sink("out", sinks.Memory())
    return [(step.name, step.kind) for step in stream.job.plan().steps if step.name != "out"]


def test_a_window_is_the_steps_that_a_job_may_add_itself() -> None:
    short = sales().with_watermark("time", "1 minute").group_by("shop").window("1 minute", "10 seconds")
    timed = sales().assign_timestamps("time", "time", unit="us")
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(timedelta(minutes=1)))
    sliding = windows.sliding(timedelta(minutes=1), timedelta(seconds=10))
    long = on_time.key_by("shop", "shop").window("w", sliding).aggregate(total=agg.sum("price")).flat("rows")
    rows = mp.collect(short.agg(total=agg.sum("price")))
    assert in_order(rows) == in_order(mp.collect(long))
    assert list(rows[0]) == ["shop", "window_start", "window_end", "total"]


def test_steps_are_named_after_the_columns() -> None:
    rows = sales().with_watermark("time", "1 minute").group_by("shop", "item").window("1 minute").agg(n=agg.count())
    assert steps_of(rows) == [
        ("sales", "source"),
        ("time-time", "assign_timestamps"),
        ("time-watermark", "generate_epochs"),
        ("by-shop-item", "key_by"),
        ("by-shop-item-window", "window"),
        ("by-shop-item-rows", "flat"),
    ]
    named = sales().group_by("shop", name="shops").agg(n=agg.count()).final()
    assert [name for name, _ in steps_of(named)] == ["sales", "shops", "shops-agg", "shops-rows", "shops-rows-final"]


def test_groups_of_several_columns_have_their_fields() -> None:
    rows = mp.collect(sales().group_by("shop", "item").agg(total=agg.sum("price")).final())
    assert in_order(rows) == in_order(
        [
            {"total": 4, "shop": "n", "item": "bed"},
            {"total": 5, "shop": "s", "item": "rug"},
            {"total": 4, "shop": "n", "item": "rug"},
        ]
    )


def test_without_final_each_record_sends_its_group() -> None:
    rows = mp.collect(sales().group_by("shop").agg(n=agg.count(), last=agg.last("item")))
    assert [row for row in rows if row["shop"] == "n"] == [
        {"n": 1, "last": "bed", "shop": "n"},
        {"n": 2, "last": "rug", "shop": "n"},
        {"n": 3, "last": "bed", "shop": "n"},
    ]


def test_sessions_end_after_the_gap() -> None:
    timed = sales().with_watermark("time", timedelta(0))
    rows = mp.collect(timed.group_by("shop").session_window("45 seconds").agg(n=agg.count()))
    assert in_order([(row["shop"], row["n"]) for row in rows]) == [("n", 1), ("n", 1), ("n", 1), ("s", 1)]


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("1 minute", timedelta(minutes=1)),
        ("10 SECONDS", timedelta(seconds=10)),
        ("interval 1 hour 30 minutes", timedelta(minutes=90)),
        ("1 week 2 days", timedelta(days=9)),
        ("5 milliseconds 1 microsecond", timedelta(microseconds=5001)),
    ],
)
def test_lengths_are_those_of_spark(text: str, length: timedelta) -> None:
    rows = sales().with_watermark("time", "1 day").group_by("shop").window(text).agg(n=agg.count())
    assert all(row["window_end"] - row["window_start"] == length for row in mp.collect(rows))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda s: s.group_by(), "group_by takes the names of columns, got nothing"),
        (lambda s: s.group_by(lambda row: row["shop"]), "got function: compute the column before it by with_columns"),
        (lambda s: s.group_by("shop", "shop"), "rows would have two fields 'shop'"),
        (lambda s: s.group_by("shop").agg(shop=agg.count()), "rows would have two fields 'shop'"),
        (lambda s: s.group_by("shop").agg(), "name at least one aggregate"),
        (lambda s: s.group_by("shop").agg(n="sum"), "n must be an aggregate"),
        (lambda s: s.group_by("shop").agg(agg.sum("price")), "agg"),
        (lambda s: s.group_by("shop").window("1 month"), "months and years differ in length, so give days, got"),
        (lambda s: s.group_by("shop").window("1m"), "window: a length of time is a timedelta or text such as"),
        (lambda s: s.group_by("shop").window(60), "window: a length of time is a timedelta or text such as"),
        (lambda s: s.group_by("shop").window("9999999999 weeks"), "window: a length of time is"),
        (lambda s: s.group_by("shop").window("1 minute").agg(n=agg.count()), "watermarks"),
        (
            lambda s: s.with_watermark("time", "0 seconds").group_by("shop").window("0 seconds").agg(n=agg.count()),
            "size",
        ),
        (
            lambda s: s.with_watermark("time", "1 day").group_by("shop").window("1 day").agg(window_end=agg.count()),
            "rows would have two fields 'window_end'",
        ),
        (lambda s: s.with_watermark(lambda row: row["time"], "1 day"), "with_watermark takes the name of a column"),
        (lambda s: s.with_watermark("time", "late"), "with_watermark: a length of time is"),
        (lambda s: s.with_watermark("größe.t", "1 day"), "with_watermark: step name 'größe.t' is not legal"),
        (lambda s: s.with_watermark("größe.t", "1 day"), "file names: give name="),
        (lambda s: s.group_by("my shop"), "group_by: step name 'by-my shop' is not legal"),
    ],
)
def test_what_has_no_step_is_refused(wrong: Any, said: str) -> None:
    with pytest.raises(PlanError, match=re.escape(said)):
        wrong(sales())


def test_two_streams_with_watermarks_by_one_column_need_names() -> None:
    job = mp.Job("both")
    left, right = (job.source(name, sources.Memory(SALES)).with_watermark("time", "1 day", name=name) for name in "lr")
    left.union("all", right).sink("out", out := sinks.Memory())
    mp.run(job)
    assert len(out.items) == 2 * len(SALES)


def test_two_groups_of_a_job_need_names() -> None:
    stream = sales()
    stream.group_by("shop").agg(n=agg.count())
    with pytest.raises(PlanError, match="by-shop"):
        stream.group_by("shop").agg(n=agg.count())
    stream.group_by("shop", name="again").agg(n=agg.count())
