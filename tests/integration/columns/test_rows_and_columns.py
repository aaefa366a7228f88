"""A job with its input as rows and as columns: the same results, on one worker and on three."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.sources import Part

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("d", pa.decimal128(20, 3)),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("list", pa.list_(pa.int64())),
    ]
)
ROW = st.fixed_dictionaries(
    {
        "i": st.none() | st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)]) | st.integers(-1000, 1000),
        "x": st.none() | st.sampled_from([0.0, -0.0, math.nan, math.inf, 5e-324]) | st.floats(),
        "s": st.none() | st.text(alphabet="aé日\0 '\"", max_size=4),
        "b": st.none() | st.booleans(),
        "d": st.none() | st.decimals(-(10**6), 10**6, places=3, allow_nan=False),
        "at": st.none() | st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC)),  # noqa: DTZ001
        "day": st.none() | st.dates(),
        "list": st.none() | st.lists(st.none() | st.integers(-5, 5), max_size=2),
    }
)


class Batches:
    """A source of one part that returns its rows as lists, or as record batches of the same rows."""

    def __init__(self, batches: Sequence[list[dict[str, Any]]], *, columns: bool, schema: pa.Schema = SCHEMA) -> None:
        self._batches = batches
        self._schema = schema if columns else None

    def list_parts(self) -> list[Part]:
        return [Part("all")]

    def build_part(self, part: Part, state: Any) -> _Part:
        return _Part(self._batches, self._schema)


class _Part:
    def __init__(self, batches: Sequence[list[dict[str, Any]]], schema: pa.Schema | None) -> None:
        self._left = list(batches)
        self._schema = schema

    def poll(self, rows_max: int) -> Any:
        if not self._left:
            return None
        rows = self._left.pop(0)
        return rows if self._schema is None else pa.RecordBatch.from_pylist(rows, schema=self._schema)

    def is_finished(self) -> bool:
        return not self._left

    def snapshot(self) -> None:
        return None

    def close(self) -> None:
        """Do nothing."""


def exactly(value: Any) -> Any:
    """Return ``value`` in a form where 0.0 and -0.0 differ, NaN equals itself and True is not 1."""
    if isinstance(value, dict):
        return {name: exactly(value[name]) for name in sorted(value)}
    if isinstance(value, list | tuple):
        return [exactly(item) for item in value]
    return (type(value).__name__, repr(value) if isinstance(value, float | Decimal) else value)


def answers(
    build: Callable[[mp.StreamBuilder[None, dict[str, Any]]], mp.StreamBuilder[Any, Any]],
    batches: Sequence[list[dict[str, Any]]],
    *,
    columns: bool,
    workers: int = 1,
    ordered: bool = True,
) -> tuple[Any, Any]:
    """Group results by key, because different keys have no common order on several workers. Sort them if one
    key has no order either: after two exchanges, if records had different keys at the first."""
    job, out = mp.Job("test"), sinks.Memory()
    build(job.source("in", Batches(batches, columns=columns))).sink("out", out)
    mp.run(job, workers)
    by_key = {repr(exactly(key)): exactly(values) for key, values in out.by_key.items()}
    if not ordered:
        by_key = {key: sorted(values, key=repr) for key, values in by_key.items()}
    return by_key, exactly(out.items) if workers == 1 else len(out.items)


CHAINS: dict[str, Callable[[Any], Any]] = {
    # A column made from rows of None has no type yet: hence the casts.
    "expressions": lambda s: (
        s.filter("f", pl.col("b").is_null() | pl.col("b").cast(pl.Boolean))
        .with_columns(
            "w",
            y=pl.col("x").cast(pl.Float64) * 2,
            t=pl.col("s").cast(pl.String).str.to_uppercase(),
            hour=pl.col("at").cast(pl.Datetime("us", "UTC")).dt.hour(),
        )
        .select("c", "i", "y", "t", "hour", "d", "list", "day", z=pl.coalesce("i", pl.lit(0)))
    ),
    "rows after columns": lambda s: s.filter("f", pl.col("i").is_not_null()).map(
        "row", lambda row: (row["i"], row["x"], row["d"])
    ),
    "columns after rows": lambda s: (
        s.filter("f", lambda row: row["s"] != "a").map("row", dict).select("c", "i", "x", "s", "at", "d", "day")
    ),
    "keys by column": lambda s: s.key_by("k", "s").with_columns("w", y=pl.col("x").cast(pl.Float64) + 1),
    "integer keys and a count": lambda s: s.key_by("k", "i").count("n"),
    "keys by day, then rows": lambda s: s.key_by("k", "day").map("at", lambda row: row["at"]),
    "two exchanges": lambda s: (
        s.key_by("k", "s").key_by("b", "b").filter("f", pl.col("x").cast(pl.Float64).is_not_nan())
    ),
    "split and joined again": lambda s: s.filter("left", pl.col("i") > 0).union(
        "both", s.filter("right", pl.col("i") <= 0)
    ),
    "record batches": lambda s: s.map_batches("m", lambda batch: batch.select(["x", "s", "at", "list"])),
    "branches": lambda s: s.branch("b", lambda row: row["b"])[1].select("c", "b", "x"),
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("workers", [1, 3])
@settings(max_examples=15)
@given(batches=st.lists(st.lists(ROW, min_size=1, max_size=4), max_size=4))
def test_rows_and_columns_give_the_same_answers(name: str, workers: int, batches: list[list[dict[str, Any]]]) -> None:
    build = CHAINS[name]
    if name == "columns after rows":  # the type of a column of None is unknown in rows: it may widen
        batches = [[row] for batch in batches for row in batch if None not in row.values()]
    ordered = workers == 1 or name != "two exchanges"
    as_rows = answers(build, batches, columns=False, workers=workers, ordered=ordered)
    assert answers(build, batches, columns=True, workers=workers, ordered=ordered) == as_rows


@pytest.mark.long(but=("ms",))
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@given(st.lists(ROW, min_size=1, max_size=5))
def test_event_time_of_a_column_is_that_of_its_rows(unit: Any, rows: list[dict[str, Any]]) -> None:
    def late(stream: Any) -> Any:
        timed = stream.assign_timestamps("at", "at", unit=unit, on_error="skip")
        on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(dt.timedelta(days=3650)))
        return on_time.key_by("k", "s").map("row", lambda row: row["at"])

    batches = [rows, [rows[0]], rows]
    assert answers(late, batches, columns=True) == answers(late, batches, columns=False)


def test_steps_by_column_and_counts_make_no_row() -> None:
    rows = [{"s": "ab"[n % 2], "i": n} for n in range(6)]
    job = mp.Job("test")
    keyed = job.source("in", Batches([rows], columns=True)).key_by("k", "s")
    keyed.count("count").sink("counts", counts := sinks.Memory())
    keyed.sum("sum", by="i").sink("sums", sums := sinks.Memory())
    keyed.max("max", by="missing", on_error="skip").sink("maxima", maxima := sinks.Memory())
    result = mp.run(job)
    assert counts.by_key == {"a": [1, 2, 3], "b": [1, 2, 3]}
    assert sums.by_key == {"a": [0, 2, 6], "b": [1, 4, 9]}
    assert (maxima.items, result.steps["max"].skipped) == ([], 6)
