"""Every step of ours obeys every law, with data that puts it to the test."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import agg, windows
from malstrom_py.operators.base import Operator
from malstrom_py.testing import LAWS, as_step, check_operator
from tests.laws.logics import (
    Alarms,
    Deadlines,
    Latest,
    Scores,
    Sessions,
    Slow,
    halves,
    odd_aside,
    running_op,
    running_total,
    sizes_and_epochs,
)
from tests.laws.parts import numbering_parts
from tests.tidy.test_operators import STEPS

KEYED = {"key isolation", "key kept"}
STATE = {
    "chain invariance",
    "delta invariance",
    "migration invariance",
    "scale invariance",
    "snapshot invariance",
    "state round trip",
}
KEYLESS = frozenset(KEYED | {"chain invariance", "delta invariance", "scale invariance"})
EPOCHS = {"epoch order"}
DISK = "disk invariance"
ON_DISK = {
    *("stateful_map", "stateful_flat_map", "ttl_map", "stateful_op", "reduce", "fold", "distinct", "top_n"),
    *("count", "sum", "min", "max", "mean", "aggregate", "final"),
    *("time_windows", "session_windows", "count_windows", "collect", "flat"),
    *("window_join", "session_join", "interval_join", "asof_join", "table_join"),
}
"""The steps whose state may be on disk; ``flat`` follows such a step."""

FORMS = {"form invariance"}
"""Has cases where columns can hold the values; `tests.laws.test_forms` has all steps that take columns."""


@dataclass(frozen=True)
class Row:
    """How a step is checked. ``step``: the module of ``malstrom_py.operators``; ``untested``: laws without a case."""

    step: str
    factory: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)
    untested: frozenset[str] = frozenset()


def stateful(step: str, factory: Callable[..., Any], **options: Any) -> Row:
    """A keyed step with state: every law has cases."""
    return Row(step, factory, options)


def stateless(step: str, factory: Callable[..., Any], **options: Any) -> Row:
    """A step without state, on a keyed stream."""
    return Row(step, factory, options, frozenset(STATE))


def unkeyed(step: str, factory: Callable[..., Any], **options: Any) -> Row:
    """A step of the source region."""
    return Row(step, factory, {"keyed": False, **options}, frozenset(STATE | KEYED))


PAIRS = st.tuples(st.integers(-9, 9), st.integers(0, 3))
WORDS = ["ant", "bee", "asp", "cow", "bat"]


def risky(value: int) -> float:
    return 12 / value


def seen_since(key: Any, value: int, state: int) -> tuple[int, int | None]:
    return state + value, (state + value) if value % 5 else None


def gaps(key: Any, value: int, last: int | None) -> tuple[list[int], int]:
    return list(range(last or 0, value)), value


async def look_up(thing: Any) -> tuple[str, Any]:
    """Sometimes answers later than calls that were made afterwards."""
    for _ in range(sum(repr(thing).encode()) % 4):
        await asyncio.sleep(0)
    return "known", thing


def risky_pair(value: int, info: Any) -> tuple[float, Any]:
    return 12 / value, info


FIGURES = {
    "n": agg.count(),
    "total": agg.sum(),
    "least": agg.min(),
    "most": agg.max(),
    "mean": agg.mean(),
    "std": agg.std(),
    "first": agg.first(),
    "last": agg.last(),
    "earliest": agg.earliest(),
    "latest": agg.latest(skip_nulls=True),
    "kinds": agg.n_unique(lambda v: v % 3),
}

NANS = st.builds(float, st.sampled_from(["nan", "0", "1", "inf", "nan"]))  # never the same object
REPEATED_HOUR = st.builds(
    lambda minutes, zone: (datetime(2024, 10, 27, tzinfo=UTC) + timedelta(minutes=minutes)).astimezone(zone),
    st.sampled_from([0, 30, 45, 60, 90, 105, 120]),
    st.sampled_from([ZoneInfo("Europe/Berlin"), UTC]),
)
COMPARED = NANS | st.tuples(NANS)
EXTREMES = {"least": agg.min(), "most": agg.max(), "kinds": agg.n_unique()}

NAMES = st.sampled_from(["ann", "bob", "", None])

COLUMN_FIGURES: Any = {
    "n": agg.count(),
    "least": agg.min("value"),
    "mean": agg.mean("value"),
    "last": agg.last("value", skip_nulls=True),
    "latest": agg.latest("value"),
}


def in_columns(stream: Any) -> Any:
    return stream.select("columns", value=pl.col("value"))


def chained(earlier: tuple[int, ...], value: int) -> tuple[int, ...]:
    return (*earlier, value)


def extended(earlier: list[int], later: list[int]) -> list[int]:
    """Change the first argument."""
    earlier.extend(later)
    return earlier


LISTS = [[number] for number in range(7)]
WIDE = windows.sliding(6, 4)
SOON: Any = {"lower": 1, "upper": 4, "how": "outer"}
AHEAD: Any = {"direction": "forward", "tolerance": 4, "how": "inner"}


def joined_in_columns(left: Any, right: Any) -> Any:
    ours, theirs = (stream.select(name, value=pl.col("value")) for name, stream in (("left", left), ("right", right)))
    return ours.join("step", theirs, window=WIDE, how="outer")


TABLE = [
    stateless("map", lambda s: s.map("step", lambda v: (v, -v)), timed=True),
    stateless("map", lambda s: s.map("step", risky, on_error="dead-letter"), timed=True),
    stateless("map_with_key", lambda s: s.map_with_key("step", lambda k, v: (k, v)), timed=True),
    stateless("key_as_field", lambda s: s.map_with_key("step", "key"), timed=True),
    stateless("filter", lambda s: s.filter("step", lambda v: v % 2), timed=True),
    stateless("filter", lambda s: s.filter("step", risky, on_error="skip")),
    stateless("filter_map", lambda s: s.filter_map("step", lambda v: v if v > 0 else None), timed=True),
    stateless("flat_map", lambda s: s.flat_map("step", lambda v: range(v % 4)), timed=True),
    stateless("flatten", lambda s: s.flatten("step"), values=st.lists(st.integers(), max_size=3), timed=True),
    stateless("inspect", lambda s: s.inspect("step", lambda v: None), timed=True),
    stateless("inspect_frontier", lambda s: s.inspect_frontier("step", lambda time: None), timed=True),
    unkeyed("inspect_frontier", lambda s: s.inspect_frontier("step", lambda time: None)),
    stateless("branch", lambda s: s.branch("step", lambda v: v > 0), timed=True),
    stateless("split", lambda s: s.split("step", 3, lambda v: {v % 3, v % 2}), timed=True),
    stateless("cloned", lambda s: s.cloned("step", 2), timed=True),
    stateless("union", lambda a, b: a.union("step", b), inputs=2, timed=True),
    stateless("stateless_op", lambda s: s.stateless_op("step", halves), timed=True),
    unkeyed("stateless_op", lambda s: s.stateless_op("step", sizes_and_epochs()), timed=True),
    unkeyed("map", lambda s: s.map("step", str), timed=True),
    stateless("filter_columns", lambda s: s.filter("step", pl.col("value") % 2 == 1), timed=True),
    stateless("select", lambda s: s.select("step", v=pl.col("value") * 2, w=-pl.col("value")), timed=True),
    unkeyed("select", lambda s: s.select("step", v=pl.col("value") * 2)),
    stateless("with_columns", lambda s: s.with_columns("step", v=pl.col("value") + 1), timed=True),
    stateless("map_batches", lambda s: s.map_batches("step", lambda batch: batch.slice(0)), timed=True),
    unkeyed("key_local", lambda s: s.key_local("step", lambda v: v % 3), timed=True),
    unkeyed("key_by", lambda s: s.key_by("step", lambda v: v % 3), timed=True),
    unkeyed("key_by", lambda s: s.key_by("step", risky, on_error="dead-letter")),
    unkeyed("assign_timestamps", lambda s: s.assign_timestamps("step", lambda v: v, unit="s")),
    Row(
        "generate_epochs",
        lambda s: s.assign_timestamps("at", abs).generate_epochs("step", mp.limit_out_of_orderness(10)),
        {"keyed": False},
        frozenset(KEYED | {"chain invariance", "delta invariance", "state round trip", "scale invariance"}),
    ),
    stateful("stateful_map", lambda s: s.stateful_map("step", running_total, default=int), timed=True),
    stateful("stateful_map", lambda s: s.stateful_map("step", seen_since, default=int, on_error="skip")),
    stateful("stateful_flat_map", lambda s: s.stateful_flat_map("step", gaps), timed=True),
    stateful("ttl_map", lambda s: s.ttl_map("step", running_total, ttl=5, default=int), timed=True),
    stateful("reduce", lambda s: s.reduce("step", max), timed=True),
    stateful("fold", lambda s: s.fold("step", lambda total, v: (*total, v), default=tuple), timed=True),
    stateful("count", lambda s: s.count("step"), timed=True),
    stateful("sum", lambda s: s.sum("step", by=lambda v: v[0]), values=PAIRS, timed=True),
    stateful("min", lambda s: s.min("step"), values=st.floats(-5, 5), timed=True),
    stateful("max", lambda s: s.max("step", by=lambda v: v[1]), values=PAIRS, timed=True),
    stateful("mean", lambda s: s.mean("step"), values=st.floats(-5, 5), timed=True),
    stateful("aggregate", lambda s: s.aggregate("step", **FIGURES), values=st.integers(-9, 9), timed=True),
    stateful("aggregate", lambda s: s.aggregate("step", n=agg.sum(risky), kinds=agg.n_unique(), on_error="skip")),
    stateless("enrich", lambda s: s.enrich("step", look_up), timed=True),
    stateless("enrich", lambda s: s.enrich("step", look_up, concurrency=2, cache=mp.Cache(size=2)), timed=True),
    stateless(
        "enrich", lambda s: s.enrich("step", look_up, by=lambda v: v % 3, combine=risky_pair, on_error="dead-letter")
    ),
    stateful("time_windows", lambda s: s.window("step", windows.tumbling(7)).aggregate(**FIGURES), timed=True),
    stateful("time_windows", lambda s: s.window("step", windows.sliding(6, 4)).collect(), timed=True),
    stateful("time_windows", lambda s: s.window("step", windows.sliding(5, 2)).fold(max, default=int), timed=True),
    stateful("time_windows", lambda s: s.window("step", windows.tumbling(9), on_error="skip").sum(risky), timed=True),
    Row("flat", lambda s: s.window("w", WIDE).count().flat("step"), {"timed": True, "keys": ["a"]}, KEYLESS),
    stateful("time_windows", lambda s: s.window("step", WIDE).aggregate(**FIGURES), timed=True),
    stateful("time_windows", lambda s: s.window("step", WIDE).reduce(extended), values=LISTS, timed=True),
    stateful(
        "session_windows", lambda s: s.window("step", windows.session(4)).reduce(extended), values=LISTS, timed=True
    ),
    stateful("window_join", lambda a, b: a.join("step", b, window=WIDE, how="outer"), inputs=2, timed=True),
    stateful("window_join", joined_in_columns, inputs=2, timed=True),
    stateful("session_join", lambda a, b: a.join("step", b, window=windows.session(4)), inputs=2, timed=True),
    stateful("interval_join", lambda a, b: a.join_interval("step", b, **SOON), inputs=2, timed=True),
    stateful("asof_join", lambda a, b: a.join_asof("step", b), inputs=2, timed=True),
    stateful("asof_join", lambda a, b: a.join_asof("step", b, **AHEAD), inputs=2, timed=True),
    stateful("table_join", lambda a, b: a.join_table("step", b), inputs=2, timed=True),
    stateful("table_join", lambda a, b: a.join_table("step", b, how="left", wait=6), inputs=2, timed=True),
    stateful("table_join", lambda a, b: a.join_table("step", b, how="left", wait=True), inputs=2),
    stateful("session_windows", lambda s: s.window("step", windows.session(3)).collect(), timed=True),
    stateful("count_windows", lambda s: s.window("step", windows.count(3)).max(), timed=True),
    stateful("final", lambda s: s.sum("sum").final("step")),
    stateful("sum", lambda s: in_columns(s).sum("step", by="value"), keys=NAMES, timed=True),
    stateful("aggregate", lambda s: in_columns(s).aggregate("step", **COLUMN_FIGURES), keys=NAMES, timed=True),
    stateful("final", lambda s: in_columns(s).aggregate("sums", n=agg.sum("value")).final("step"), keys=NAMES),
    stateful("distinct", lambda s: in_columns(s).distinct("step", by="value"), keys=NAMES, timed=True),
    stateful("top_n", lambda s: s.top_n("step", 2, by=lambda v: v[0]), values=PAIRS, timed=True),
    stateful("distinct", lambda s: s.distinct("step"), values=WORDS, timed=True),
    stateful("collect", lambda s: s.collect("step", size=3), timed=True),
    stateful("collect", lambda s: s.collect("step", size=2)),
    Row("collect", lambda s: s.collect("step", every=timedelta(seconds=2)), {"ticks": True}, frozenset({DISK})),
    stateful("stateful_op", lambda s: s.stateful_op("step", running_op), timed=True),
    stateful("stateful_op", lambda s: s.stateful_op("step", odd_aside, sides=["odd", "sums"]), timed=True),
    stateful("stateful_op", lambda s: s.stateful_op("step", Latest()), timed=True),
    stateful("stateful_op", lambda s: s.stateful_op("step", Scores()), timed=True),
    stateful("stateful_op", lambda s: s.stateful_op("step", Deadlines(patience=7)), timed=True),
    stateful("stateful_op", lambda s: s.stateful_op("step", Sessions(gap=6)), timed=True),
    stateful("stateful_op", lambda s: s.stateful_op("step", Slow()), ticks=True),
    stateful(
        "stateful_map",
        lambda s: s.map("twice", lambda v: 2 * v).stateful_map("step", running_total, default=int),
        keys=st.one_of(st.sampled_from([1, "1", None, True, ("a", 1)]), st.integers(0, 3)),
    ),
    stateful("stateful_op", lambda s: s.stateful_op("step", Alarms()), ticks=True),
    stateful("aggregate", lambda s: s.aggregate("step", ttl=4, **FIGURES), timed=True),
    stateful("stateful_op", lambda s: s.stateful_op("step", Sessions(gap=3), ttl=4), timed=True),
    stateful("distinct", lambda s: s.distinct("step"), values=COMPARED | REPEATED_HOUR),
    stateful("top_n", lambda s: s.top_n("step", 2), values=NANS),
    stateful("aggregate", lambda s: s.aggregate("step", **EXTREMES), values=st.tuples(NANS)),
    stateful("aggregate", lambda s: s.aggregate("step", **EXTREMES), values=REPEATED_HOUR),
    stateful("count", lambda s: s.count("step", ttl=timedelta(seconds=2)), ticks=True),
    stateful("stateful_op", lambda s: s.stateful_op("step", Alarms(), ttl=timedelta(seconds=2)), ticks=True),
    stateful("write_parts", as_step(numbering_parts)),
    Row(
        "key_by",
        lambda s: s.key_by("key", lambda v: v % 3).stateful_map("step", running_total, default=int),
        {"keyed": False},
        frozenset(KEYED | {"chain invariance", "delta invariance", "scale invariance"}),
    ),
    stateful("time_windows", lambda s: in_columns(s).window("step", WIDE).aggregate(**COLUMN_FIGURES), timed=True),
]
"""All steps but those at the ends of a job."""

FURTHER = [
    stateless("map_with_key", lambda s: s.map_with_key("step", lambda k, v: 12 / v, on_error="skip"), timed=True),
    stateful("time_windows", lambda s: s.window("step", WIDE).fold(chained, default=tuple), timed=True),
    stateful("window_join", lambda a, b: a.join("step", b, window=windows.tumbling(7)), inputs=2, timed=True),
    stateful("interval_join", lambda a, b: a.join_interval("step", b, lower=-3, upper=5), inputs=2, timed=True),
    stateful("asof_join", lambda a, b: a.join_asof("step", b, direction="nearest"), inputs=2, timed=True),
    stateful("session_windows", lambda s: s.window("step", windows.session(4)).mean(), timed=True),
    stateful("count_windows", lambda s: s.window("step", windows.count(2)).reduce(max)),
    stateful("sum", lambda s: s.sum("step", skip_nulls=True), values=st.none() | st.integers(-9, 9), timed=True),
    stateful("count", lambda s: in_columns(s).count("step"), keys=NAMES, timed=True),
    stateful("min", lambda s: in_columns(s).min("step", by="value"), values=st.floats(-5, 5), timed=True),
    stateful("sum", lambda s: s.sum("step", ttl=4), timed=True),
    stateful("distinct", lambda s: s.distinct("step", ttl=3), values=WORDS, timed=True),
    stateful("stateful_flat_map", lambda s: s.stateful_flat_map("step", gaps, ttl=3), timed=True),
    stateful("stateful_op", lambda s: s.stateful_op("step", Latest(), ttl=3), timed=True),
    stateful("top_n", lambda s: s.top_n("step", 2), values=REPEATED_HOUR),
]
"""Options whose laws `TABLE` shows with another step, or with another option of the same one: for `make long`."""

ENDS = {"read_source", "write_sink"}
"""The steps without an input or an output: `tests/unit/sources` and `tests/unit/sinks` check their contracts."""


PARTS_OF_STEPS = {
    *("ColumnStep", "Figure", "FigureStep", "FunctionStep", "KeepKeys", "KeyByPart", "RestoreEpochs", "TimeJoin"),
    "WindowOperator",
}
"""Operators that no step of a stream is made of alone."""


def step_names() -> set[str]:
    """Return the names of all operators, in the form of the table."""
    names: set[str] = set()
    for module in STEPS:
        operators = import_module(f"malstrom_py.operators.{module}")
        for name, kind in vars(operators).items():
            own = isinstance(kind, type) and issubclass(kind, Operator) and kind.__module__ == operators.__name__
            if own and name not in PARTS_OF_STEPS:
                names.add(re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower().removesuffix("_step"))
    return names


def test_every_step_is_in_the_table() -> None:
    assert {row.step for row in TABLE} | ENDS == step_names()


def case(number: int, row: Row) -> Any:
    marks = [] if number < len(TABLE) else [pytest.mark.long]
    return pytest.param(row, id=f"{row.step}-{number}", marks=marks)


@pytest.mark.parametrize("row", [case(*numbered) for numbered in enumerate(TABLE + FURTHER)])
def test_a_step_of_ours_obeys_every_law(row: Row) -> None:
    report = check_operator(row.factory, max_examples=8, **row.options)
    assert list(report.cases) == [law.name for law in LAWS]
    untested = {law for law, cases in report.cases.items() if not cases}
    assert untested - FORMS - {DISK} == row.untested - FORMS - {DISK}
    assert (DISK not in untested) == (row.step in ON_DISK and DISK not in row.untested)
