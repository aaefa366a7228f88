"""Every step that takes columns, with each of its options, gives the same for columns, rows and a mix of both.

Also where its keys leave and return, and new instances continue from what was persisted.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import polars as pl
import pytest
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import agg, windows
from malstrom_py.testing import check_operator
from malstrom_py.testing.laws import StepUnderTest
from tests.tidy.test_operators import STEPS

LAW = "form invariance"

VALUES: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    n=st.integers(0, 5),
    m=st.none() | st.integers(-3, 3),
    big=st.none() | st.sampled_from([2**53 + 1, 2**62, -(2**62), 2**63 - 1, -(2**63), 0, 1]),
    x=st.floats(-3, 3),
    odd=st.none() | st.sampled_from([0.0, -0.0, 0.1, 1e300, math.inf, -math.inf, math.nan]),
    s=st.sampled_from(["ant", "bee", "ä\0", ""]),
    b=st.none() | st.booleans(),
)

FIGURES: Any = {
    "rows": agg.count(),
    "total": agg.sum("n"),
    "known": agg.sum("m", skip_nulls=True),
    "mean": agg.mean("x"),
    "std": agg.std("x"),
    "least": agg.min("m", skip_nulls=True),
    "most": agg.max("s"),
    "first": agg.first("m"),
    "last": agg.last("s"),
    "earliest": agg.earliest("n"),
    "latest": agg.latest("m", skip_nulls=True),
    "kinds": agg.n_unique("s"),
}

IN_ARRAYS: Any = {
    "rows": agg.count(),
    "known": agg.count("b", skip_nulls=True),
    "total": agg.sum("n"),
    "big": agg.sum("big", skip_nulls=True),
    "mean": agg.mean("m", skip_nulls=True),
    "least": agg.min("x"),
    "most": agg.max("odd", skip_nulls=True),
    "first": agg.first("odd"),
    "known first": agg.first("m", skip_nulls=True),
    "known last": agg.last("odd", skip_nulls=True),
    "last": agg.last("b"),
    "text": agg.last("s"),
}
"""Figures that arrays hold; `FIGURES` has some that they do not."""

OF_FUNCTIONS: Any = {
    "rows": agg.count(),
    "total": agg.sum(lambda row: row["n"] + 1),
    "mean": agg.mean(lambda row: row["x"] * 2),
    "least": agg.min(lambda row: row["m"], skip_nulls=True),
    "last": agg.last(lambda row: row["s"]),
    "named": agg.max("n"),
}

TUMBLING, SLIDING, SESSION = windows.tumbling(7), windows.sliding(6, 4), windows.session(4)
KEYS: list[list[Any]] = [["a", "ä", None], [1, 2, -3]]
"""Of joins, which may keep columns if their keys are text or numbers."""

Case = tuple[Callable[..., Any], dict[str, Any]]


def timed(step: Callable[..., Any], **options: Any) -> Case:
    return step, {"timed": True, **options}


def joined(step: Callable[..., Any], **options: Any) -> Case:
    return step, {"inputs": 2, "timed": True, **options}


FUNCTIONS = ("aggregate of functions", "sum by a function")

CASES: dict[str, Case] = {
    "filter": timed(lambda s: s.filter("step", pl.col("n") > 2)),
    "filter rows": timed(lambda s: s.filter("step", lambda row: row["n"] > 2)),
    "select": timed(lambda s: s.select("step", "s", y=pl.col("n") * 2)),
    "with_columns": timed(lambda s: s.with_columns("step", y=pl.col("m") + pl.col("n"))),
    "map_batches": timed(lambda s: s.map_batches("step", lambda batch: batch.slice(0))),
    "map": timed(lambda s: s.map("step", lambda row: row["n"])),
    "map_with_key": timed(lambda s: s.map_with_key("step", "key")),
    "branch": timed(lambda s: s.branch("step", lambda row: row["n"] > 2)),
    "split": timed(lambda s: s.split("step", 2, lambda row: {row["n"] % 2})),
    "cloned": timed(lambda s: s.cloned("step", 2)),
    "inspect": timed(lambda s: s.inspect("step", lambda row: None)),
    "union": joined(lambda a, b: a.union("step", b)),
    "key_by text": timed(lambda s: s.key_by("step", "s"), keyed=False),
    "key_by number": timed(lambda s: s.key_by("step", "m"), keyed=False),
    "key_by and count": (lambda s: s.key_by("step", "s").count("n"), {"keyed": False}),
    "key_local": timed(lambda s: s.key_local("step", lambda row: row["s"]), keyed=False),
    "assign_timestamps": (lambda s: s.assign_timestamps("step", "n"), {"keyed": False}),
    "map to rows": timed(lambda s: s.map("step", lambda row: {"n": row["n"] + 1, "m": row["m"], "s": row["s"]})),
    "filter_map": timed(lambda s: s.filter_map("step", lambda row: {"s": row["s"]} if row["m"] else None)),
    "map_with_key by a function": timed(lambda s: s.map_with_key("step", lambda key, row: {"k": key, "n": row["n"]})),
    "key_by a function": timed(lambda s: s.key_by("step", lambda row: row["n"] % 2), keyed=False),
    "assign_timestamps by a function": (lambda s: s.assign_timestamps("step", lambda row: row["n"]), {"keyed": False}),
    "sum by a function": timed(lambda s: s.sum("step", by=lambda row: row["n"] * 2)),
    "sum of floats by a function": timed(lambda s: s.sum("step", by=lambda row: row["x"] / 3)),
    "min by a function": timed(lambda s: s.min("step", by=lambda row: row["s"].lower())),
    "sum by a function, without nulls": timed(lambda s: s.sum("step", by=lambda row: row["big"], skip_nulls=True)),
    "aggregate of functions": timed(lambda s: s.aggregate("step", **OF_FUNCTIONS)),
    "generate_epochs": (
        lambda s: s.assign_timestamps("at", "n").generate_epochs("step", mp.limit_out_of_orderness(2)),
        {"keyed": False},
    ),
    "count": timed(lambda s: s.count("step")),
    "count for a time": timed(lambda s: s.count("step", ttl=4)),
    "sum": timed(lambda s: s.sum("step", by="n")),
    "sum of floats": timed(lambda s: s.sum("step", by="x")),
    "sum without nulls": timed(lambda s: s.sum("step", by="m", skip_nulls=True)),
    "sum beyond 64 bits": timed(lambda s: s.sum("step", by="big", skip_nulls=True)),
    "min": timed(lambda s: s.min("step", by="n")),
    "min of odd floats": timed(lambda s: s.min("step", by="odd", skip_nulls=True)),
    "max": timed(lambda s: s.max("step", by="s")),
    "mean": timed(lambda s: s.mean("step", by="x")),
    "aggregate": timed(lambda s: s.aggregate("step", **FIGURES)),
    "aggregate in arrays": timed(lambda s: s.aggregate("step", **IN_ARRAYS)),
    "aggregate for a time": timed(lambda s: s.aggregate("step", ttl=4, **FIGURES)),
    "final": timed(lambda s: s.aggregate("sums", **FIGURES).final("step")),
    "distinct by": timed(lambda s: s.distinct("step", by="m")),
    "distinct by large numbers": timed(lambda s: s.distinct("step", by="big")),
    "distinct by odd floats": timed(lambda s: s.distinct("step", by="odd")),
    "distinct by booleans": timed(lambda s: s.distinct("step", by="b")),
    "distinct by text": timed(lambda s: s.distinct("step", by="s")),
    "distinct for a time": timed(lambda s: s.distinct("step", by="s", ttl=3)),
    "top_n": timed(lambda s: s.top_n("step", 2, by="n")),
    "top_n of floats": timed(lambda s: s.top_n("step", 3, by="x")),
    "top_n of text": timed(lambda s: s.top_n("step", 2, by="s")),
    "reduce": timed(lambda s: s.reduce("step", lambda one, other: max(one, other, key=lambda row: row["n"]))),
    "fold": timed(lambda s: s.fold("step", lambda total, row: total + row["n"], default=int)),
    "fold that drops states": timed(
        lambda s: s.fold("step", lambda total, row: None if total > 9 else total + row["n"], default=int)
    ),
    "fold of fields": timed(
        lambda s: s.fold(
            "step",
            lambda state, row: {"n": state["n"] + row["x"], "most": max(state["most"], row["n"]), "last": row["b"]},
            default=lambda: {"n": 0, "most": 2, "last": False},
        )
    ),
    "stateful_map": timed(lambda s: s.stateful_map("step", lambda key, row, n: (n + row["n"],) * 2, default=int)),
    "collect": timed(lambda s: s.collect("step", size=3)),
    **{
        f"{name} of {kind}": timed(lambda s, name=name, kind=kind: gathered(s.window("step", kind), name))
        for name in (*("aggregate", "aggregate in arrays", "sum", "count", "collect", "min", "mean"), *FUNCTIONS)
        for kind in (TUMBLING, SLIDING, SESSION, windows.count(2))
    },
    "flat": timed(lambda s: s.window("window", TUMBLING).aggregate(**IN_ARRAYS).flat("step")),
    "flat of a number": timed(lambda s: s.window("window", SLIDING, emit=2).count().flat("step")),
    **{
        f"join {how} of {kind}": joined(lambda a, b, how=how, kind=kind: a.join("step", b, window=kind, how=how))
        for how in ("inner", "left", "outer")
        for kind in (TUMBLING, SLIDING, SESSION)
    },
    **{
        f"join_interval {how}": joined(lambda a, b, how=how: a.join_interval("step", b, lower=-1, upper=4, how=how))
        for how in ("inner", "left", "outer")
    },
    **{
        f"join_asof {how} {direction}": joined(
            lambda a, b, how=how, to=direction: a.join_asof("step", b, how=how, direction=to, tolerance=5)
        )
        for how in ("inner", "left")
        for direction in ("backward", "forward", "nearest")
    },
    **{
        f"join_table {how}, wait={wait}, {'timed' if is_timed else 'untimed'}": joined(
            lambda a, b, how=how, wait=wait: a.join_table("step", b, how=how, wait=wait), timed=is_timed
        )
        for how in ("inner", "left")
        for wait, is_timed in ((False, True), (True, True), (6, True), (False, False), (True, False))
    },
}


def gathered(stream: Any, name: str) -> Any:
    """Gather windows by a field, in one of the ways there are."""
    ways: dict[str, Callable[[], Any]] = {
        "aggregate": lambda: stream.aggregate(**FIGURES),
        "aggregate in arrays": lambda: stream.aggregate(**IN_ARRAYS),
        "count": stream.count,
        "collect": stream.collect,
        "sum": lambda: stream.sum("n"),
        "min": lambda: stream.min("s"),
        "mean": lambda: stream.mean("x"),
        "aggregate of functions": lambda: stream.aggregate(**OF_FUNCTIONS),
        "sum by a function": lambda: stream.sum(lambda row: row["n"] * 2),
    }
    return ways[name]()


def modules_of(step: Callable[..., Any], options: dict[str, Any]) -> set[str]:
    """Return the modules of ``malstrom_py.operators`` whose operators a case consists of."""
    form = {name: value for name, value in options.items() if name in ("keyed", "inputs", "timed", "types")}
    operators = StepUnderTest(step, **{"keyed": True, **form}).build()._runner.operators.values()
    return {type(operator).__module__.rpartition(".")[2] for operator in operators}


FURTHER = [
    f"{name} of {kind}"
    for name in ("sum", "count", "min", "mean", "sum by a function")
    for kind in (TUMBLING, SESSION, windows.count(2))
]
"""Windows of one figure, for `make long`: sliding ones show it, and "aggregate" is of each kind of windows."""


@pytest.mark.long(*FURTHER)
@pytest.mark.parametrize("name", CASES)
def test_columns_rows_and_a_mix_give_the_same(name: str) -> None:
    step, options = CASES[name]
    for keys in KEYS if options.get("inputs") == 2 else KEYS[:1]:
        report = check_operator(step, values=VALUES, keys=keys, laws=[LAW], max_examples=8, **options)
        assert report.cases[LAW]


def test_every_step_that_takes_columns_has_a_case() -> None:
    takes = {module for module in STEPS if "takes_columns" in inspect.getsource(import_module(f"{PACKAGE}.{module}"))}
    covered = {module for step, options in CASES.values() for module in modules_of(step, options)}
    assert takes - {"read_source", "write_sink"} <= covered, "give it cases above"


PACKAGE = "malstrom_py.operators"
