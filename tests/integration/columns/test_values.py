"""Instants and NaN in a whole job: as rows and columns, on one worker and on three, as an oracle in UTC has them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import agg, sinks, sources, windows
from tests.integration.columns.test_rows_and_columns import Batches

BERLIN = ZoneInfo("Europe/Berlin")
SCHEMA = pa.schema([("key", pa.string()), ("at", pa.timestamp("us", "Europe/Berlin")), ("x", pa.float64())])
MOMENTS = [(datetime(2024, 10, 27, tzinfo=UTC) + timedelta(minutes=m)).astimezone(BERLIN) for m in range(0, 150, 15)]
ROW = st.fixed_dictionaries(
    {
        "key": st.sampled_from("ab"),
        "at": st.sampled_from(MOMENTS),
        "x": st.builds(float, st.sampled_from(["nan", "1", "2", "inf"])),
    }
)
BATCHES = st.lists(st.lists(ROW, min_size=1, max_size=4), max_size=4)
Row = dict[str, Any]


def exact(value: Any) -> Any:
    """Return a value in which instants are their microseconds, and NaN is a text."""
    if isinstance(value, datetime):
        return round(value.timestamp() * 1_000_000)
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value
    if isinstance(value, dict):
        return {name: exact(value[name]) for name in sorted(value)}
    return [exact(one) for one in value] if isinstance(value, list | tuple) else value


def largest(number: Any) -> Any:
    """Return a key by which NaN is the largest number."""
    return (number != number, 0.0 if number != number else number)


def by(name: str, rows: list[Row]) -> dict[Any, list[Row]]:
    groups = defaultdict(list)
    for row in rows:
        groups[exact(row[name])].append(row)
    return groups


def prefixes(rows: list[Row]) -> Iterator[list[Row]]:
    for group in by("key", rows).values():
        yield from (group[: end + 1] for end in range(len(group)))


def counted(rows: list[Row]) -> list[Any]:
    return [n + 1 for group in by("at", rows).values() for n in range(len(group))]


def firsts(name: str) -> Callable[[list[Row]], list[Any]]:
    return lambda rows: [one[0] for group in by("key", rows).values() for one in by(name, group).values()]


def figures(rows: list[Row]) -> dict[str, Any]:
    return {
        "least": min((row["at"] for row in rows), key=datetime.timestamp),
        "most": max((row["at"] for row in rows), key=datetime.timestamp),
        "kinds": len(by("at", rows)),
        "low": min((row["x"] for row in rows), key=largest),
        "high": max((row["x"] for row in rows), key=largest),
        "numbers": len(by("x", rows)),
    }


FIGURES: Any = {
    "least": agg.min("at"),
    "most": agg.max("at"),
    "kinds": agg.n_unique("at"),
    "low": agg.min("x"),
    "high": agg.max("x"),
    "numbers": agg.n_unique("x"),
}
WINDOWS_APART = windows.tumbling(timedelta(hours=1))
WINDOWS = windows.sliding(timedelta(hours=1), timedelta(minutes=30))


def timed(stream: Any, name: str, at: Callable[[Any], datetime]) -> Any:
    moments = stream.assign_timestamps(f"{name}-time", lambda row: round(at(row).timestamp() * 1000))
    return moments.generate_epochs(f"{name}-epochs", mp.limit_out_of_orderness(timedelta(days=1)))[0]


def windowed(names: list[str]) -> Callable[[Any], Any]:
    def build(s: Any) -> Any:
        keyed = timed(s, "rows", lambda row: row["at"]).key_by("key", "key")
        chosen = {name: FIGURES[name] for name in names}
        return keyed.window("w", WINDOWS).aggregate(**chosen).map("v", lambda one: one.value)

    return build


def of_windows(names: list[str]) -> Callable[[list[Row]], list[Any]]:
    def oracle(rows: list[Row]) -> list[Any]:
        found = defaultdict(list)
        for row in rows:
            pane = int(row["at"].timestamp() // 1800)
            for window in (pane, pane - 1):
                found[row["key"], window].append(row)
        return [{name: figures(group)[name] for name in names} for group in found.values()]

    return oracle


def window_of_one(gather: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Gather windows by one figure, which has its own loop."""
    return lambda s: gather(timed(s, "rows", lambda row: row["at"]).key_by("key", "key").window("w", WINDOWS)).map(
        "v", lambda one: {"": one.value}
    )


def of_windows_of_one(name: str) -> Callable[[list[Row]], list[Any]]:
    return lambda rows: [{"": one[name]} for one in of_windows([name])(rows)]


NUMBERED = [(moment.astimezone(UTC), number) for number, moment in enumerate(MOMENTS)]


def joined(join: Callable[[Any, Any], Any]) -> tuple[Callable[[Any], Any], Callable[[list[Row]], list[int]]]:
    """Number the instants by a join: the left stream has them in Berlin, the right one in UTC."""

    def build(s: Any) -> Any:
        right = timed(s.job.source("numbers", sources.Memory(NUMBERED)), "numbers", lambda row: row[0])
        left = timed(s, "rows", lambda row: row["at"]).key_by("key", "at")
        return join(left, right.key_by("instant", lambda row: row[0])).map("number", lambda pair: pair.right[1])

    return build, lambda rows: [round((row["at"] - NUMBERED[0][0]) / timedelta(minutes=15)) for row in rows]


HOUR = timedelta(hours=1)

CASES: dict[str, tuple[Callable[[Any], Any], Callable[[list[Row]], list[Any]]]] = {
    "key_by": (lambda s: s.key_by("key", "at").count("n"), counted),
    "key_by a function": (lambda s: s.key_by("key", lambda row: (1, row["at"])).count("n"), counted),
    "key_by some in utc": (
        lambda s: s.key_by("key", lambda r: r["at"].astimezone(UTC) if r["key"] == "a" else r["at"]).count("n"),
        counted,
    ),
    "distinct times": (lambda s: s.key_by("key", "key").distinct("d", by="at"), firsts("at")),
    "distinct numbers": (lambda s: s.key_by("key", "key").distinct("d", by="x"), firsts("x")),
    "top_n times": (
        lambda s: s.key_by("key", "key").top_n("t", 2, by="at").map("at", lambda best: [row["at"] for row in best]),
        lambda rows: [sorted((row["at"] for row in rows), key=datetime.timestamp)[::-1][:2] for rows in prefixes(rows)],
    ),
    "top_n numbers": (
        lambda s: s.key_by("key", "key").top_n("t", 2, by="x").map("x", lambda best: [row["x"] for row in best]),
        lambda rows: [sorted((row["x"] for row in rows), key=largest)[::-1][:2] for rows in prefixes(rows)],
    ),
    "aggregate": (
        lambda s: s.key_by("key", "key").aggregate("a", **FIGURES),
        lambda rows: list(map(figures, prefixes(rows))),
    ),
    "min": (
        lambda s: s.key_by("key", "key").min("m", by="x"),
        lambda rows: [figures(rows)["low"] for rows in prefixes(rows)],
    ),
    "max": (
        lambda s: s.key_by("key", "key").max("m", by="at"),
        lambda rows: [figures(rows)["most"] for rows in prefixes(rows)],
    ),
    "windows": (windowed([*FIGURES]), of_windows([*FIGURES])),
    "windows of numbers": (windowed(["low", "high"]), of_windows(["low", "high"])),
    "window.min of times": (window_of_one(lambda w: w.min(lambda row: row["at"])), of_windows_of_one("least")),
    "window.max of times": (window_of_one(lambda w: w.max(lambda row: row["at"])), of_windows_of_one("most")),
    "window.min of numbers": (window_of_one(lambda w: w.min("x")), of_windows_of_one("low")),
    "window.max of numbers": (window_of_one(lambda w: w.max("x")), of_windows_of_one("high")),
    "join_table": joined(lambda left, right: left.join_table("join", right, how="left", wait=True)),
    "join": joined(lambda left, right: left.join("join", right, window=windows.tumbling(24 * HOUR))),
    "join by session": joined(lambda left, right: left.join("join", right, window=windows.session(HOUR))),
    "join_interval": joined(lambda left, right: left.join_interval("join", right, lower=-HOUR, upper=HOUR)),
    "join_asof": joined(lambda left, right: left.join_asof("join", right)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("workers", "columns"), [(3, False), (1, True)])
@settings(max_examples=8)
@example(batches=[[{"key": "a", "at": at, "x": x} for at, x in zip(MOMENTS, [math.nan, 1.0] * 5, strict=True)]])
@given(batches=BATCHES)
def test_f4_instants_and_nan_are_compared_as_an_oracle_in_utc_does(
    name: str, workers: int, columns: bool, batches: list[list[Row]]
) -> None:
    build, oracle = CASES[name]
    job, out = mp.Job("test"), sinks.Memory()
    build(job.source("in", Batches(batches, columns=columns, schema=SCHEMA))).sink("out", out)
    mp.run(job, workers)
    expected = oracle([row for batch in batches for row in batch])
    assert sorted(map(repr, exact(out.items))) == sorted(map(repr, exact(expected)))


def test_results_and_keys_keep_their_zone() -> None:
    job, out, keyed = mp.Job("test"), sinks.Memory(), sinks.Memory()
    twice = MOMENTS[2:7]
    stream = job.source("in", sources.Memory(twice)).key_by("key", lambda at: at)
    stream.max("max").sink("out", out)
    stream.stateful_map("seen", lambda key, value, state: (key, None)).sink("keyed", keyed)
    mp.run(job)
    assert [at.tzinfo for at in out.items] == [BERLIN] * 5
    assert [at.fold for at in out.items] == [at.fold for at in twice]
    assert [str(key) for key in keyed.items] == list(map(str, twice))


def test_sums_of_decimals_do_not_hang_on_who_runs_the_job() -> None:
    prices = [Decimal("1E+20"), Decimal("0.01"), Decimal("1E-30"), Decimal("-1E+20")]

    def results(run: Callable[[mp.Job], Any]) -> list[Any]:
        job, out, sums = mp.Job("test"), sinks.Memory(), sinks.Memory()
        read = job.source("in", sources.Memory(prices))
        keyed = read.key_by("key", lambda _: "all")
        keyed.aggregate("a", total=agg.sum(), mean=agg.mean(), std=agg.std()).sink("out", out)
        moments = timed(read, "prices", lambda _: MOMENTS[0]).key_by("key-timed", lambda _: "all")
        moments.window("w", WINDOWS_APART).sum().map("v", lambda one: one.value).sink("sums", sums)
        with localcontext(prec=3):
            run(job)
        assert sums.items == [out.items[-1]["total"]]
        return out.items

    ran = results(mp.run)
    assert ran[-1]["total"] == sum(map(Fraction, prices))
    assert ran == results(lambda job: mp.InProcess().start(job, control=False).wait())
