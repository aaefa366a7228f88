"""What a processor sends has in a job the values that Spark makes of it in the types of the output, or is an error."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.spark import stateful
from malstrom_py.spark.ddl import struct_of
from tests.spark_processors import Keeps, Sends

pytestmark = pytest.mark.only_classic

NAIVE = datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001
ZONED = NAIVE.replace(tzinfo=timezone(timedelta(hours=2)))

BOTH: list[tuple[str, Any]] = [
    *(("int", one) for one in (5, -(2**31), None, 1.0, np.int64(5))),
    *(("bigint", one) for one in (5, -(2**63), np.int32(3), 1e18)),
    *(("double", one) for one in (5, 1.5, None, np.float32(0.1), True)),
    *(("float", one) for one in (5, 0.1, 1e300)),
    *(("string", one) for one in ("x", None, b"x")),
    *(("boolean", one) for one in (True, None, np.bool_(False))),
    *(("binary", one) for one in (b"x", "x")),
    *(("date", one) for one in (NAIVE.date(), NAIVE, ZONED)),
    *(("timestamp", one) for one in (NAIVE, ZONED)),
    ("timestamp_ntz", NAIVE),
    *(("decimal(5,2)", one) for one in (Decimal("1.2"), None)),
    *(("array<int>", one) for one in ([1, None], (1, 2))),
    ("map<string,int>", {"a": 1, "b": None}),
    *(("struct<a:int,b:string>", one) for one in ({"b": "x", "c": 2}, (1, "x"), Row(a=1, b="x"))),
    ("array<struct<at:timestamp>>", [{"at": ZONED}]),
]
ROWS: list[tuple[str, Any]] = [
    *(("int", one) for one in (1.5, -1.5, Decimal("5.5"))),
    ("double", float("nan")),
    ("timestamp", pd.Timestamp("2026-01-01 00:00:00.123456789")),
    ("decimal(5,2)", 5),
    ("struct<a:int,b:int>", Row(b=2, a=1)),
    ("map<string,int>", [{"key": "a", "value": 1}, {"key": "b", "more": 2}, Row(value=3, key="c")]),
    ("struct<a:int,b:int>", [("a", 1), ("b", 2)]),
    ("map<string,array<map<int,int>>>", [("a", [{1: 2}, [(3, 4)], None])]),
    ("array<struct<m:map<string,int>>>", [Row(m={"a": 1}), {"m": [("b", 2)]}, None]),
]
FRAMES: list[tuple[str, Any]] = [
    *(("int", one) for one in (float("nan"), "5", True, pd.NA)),
    *(("double", one) for one in (float("nan"), "1.5", Decimal("1.5"))),
    *(("boolean", one) for one in (2, "true")),
    *(("timestamp", one) for one in (pd.NaT, pd.Timestamp("2026-01-01", tz="Asia/Tokyo"))),
    ("decimal(5,2)", 1.5),
    ("binary", float("nan")),
    *(("struct<a:int,b:string>", one) for one in ({"a": 1, "b": "x"}, {"b": "x"}, [1, "x"])),
    ("struct<a:timestamp>", (NAIVE,)),
    ("struct<a:struct<b:int>>", [(1, "x")]),
    *(("array<string>", one) for one in ({"a": 1}, "xy", np.array(["a", "b"], dtype=object))),
    *(("array<timestamp>", one) for one in ([ZONED, None], np.array([NAIVE], dtype="datetime64[ns]"))),
    ("map<string,array<timestamp>>", {"a": [NAIVE]}),
]
REFUSED: list[tuple[str, Any, bool]] = [
    *(("int", one, False) for one in (2**31, "5")),
    ("string", 5, False),
    ("decimal(5,2)", Decimal("1.255"), False),
    *(("int", one, True) for one in (1.5, 2**31)),
    ("decimal(5,2)", Decimal("1.255"), True),
    ("timestamp", "2026-01-02", True),
    ("map<string,int>", [None], True),  # in a row it ends the process of Spark's Python
]
"""Type, value, and whether it is sent in a frame."""

STORED: list[tuple[str, Any]] = [
    *(("int", one) for one in (5, -(2**31), None, np.int64(5))),
    *(("bigint", one) for one in (5, 2**63 - 1)),
    *(("double", one) for one in (5.5, float("inf"), np.float32(0.1))),
    ("float", 0.1),
    ("string", "x"),
    ("boolean", True),
    *(("binary", one) for one in (b"x", "x", bytearray(b"y"))),
    *(("decimal(5,2)", one) for one in (Decimal("1.2"), Decimal("1.255"), Decimal("-1.255"))),
    *(("date", one) for one in (NAIVE.date(), NAIVE)),
    ("timestamp", NAIVE),
    *(("timestamp_ntz", one) for one in (NAIVE, ZONED)),
    ("interval day to second", timedelta(seconds=5)),
    ("array<int>", [1, None]),
    *(("map<string,float>", one) for one in ({"a": 0.1}, {})),
    *(("struct<a:int,b:string>", one) for one in ((1, "x"), Row(a=1, b="x"))),
]
LOST: list[tuple[str, Any]] = [
    *(("int", one) for one in (5.0, 5.7, "5", True, 2**31, Decimal(5), float("nan"))),
    *(("double", one) for one in (5, "5", True, Decimal("5.5"))),
    *(("float", one) for one in (5, 1e300)),
    *(("string", one) for one in (b"x", NAIVE, [1])),
    *(("boolean", one) for one in (1, "true")),
    *(("decimal(5,2)", one) for one in (5, 1.5, "1.5")),
    *(("array<int>", one) for one in ([1.5], 5, "ab")),
    ("map<string,int>", {"a": 1.5}),
    ("struct<a:int,b:string>", Row(b="x", a=1)),
]
"""Type, and value of a state; those that Spark makes another value of, without an error."""


def by_spark(spark: Any, row: dict[str, Any], output: str, *, in_pandas: bool) -> list[tuple[Any, ...]]:
    rows = spark.createDataFrame([("k",)], "key string").groupBy("key")
    step = rows.transformWithStateInPandas if in_pandas else rows.transformWithState
    found = step(Sends(row, in_pandas=in_pandas), output, "append", "none").toArrow()
    return [tuple(one.values()) for one in found.to_pylist()]


def here(row: dict[str, Any], output: str, *, in_pandas: bool) -> list[tuple[Any, ...]]:
    keyed = mp.Job("types").source("in", sources.Memory([{"key": "k"}])).key_by("key", "key")
    step = stateful(keyed, "step", Sends(row, in_pandas=in_pandas), output, in_pandas=in_pandas)
    return [tuple(one.values()) for one in mp.collect(step)]


def columns(pairs: list[tuple[str, Any]]) -> tuple[dict[str, Any], str]:
    return {f"c{n}": value for n, (_, value) in enumerate(pairs)}, ", ".join(
        f"c{n} {kind}" for n, (kind, _) in enumerate(pairs)
    )


@pytest.mark.parametrize("in_pandas", [False, True], ids=["rows", "frames"])
def test_values_are_those_of_spark(spark: Any, in_pandas: bool) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        row, output = columns([*BOTH, *(FRAMES if in_pandas else ROWS)])
        theirs = by_spark(spark, row, output, in_pandas=in_pandas)
        ours = here(row, output, in_pandas=in_pandas)
        assert [list(map(repr, one)) for one in ours] == [list(map(repr, one)) for one in theirs]
        other = dict(reversed(row.items())) | {"more": 7}
        assert list(map(repr, here(other, output, in_pandas=in_pandas))) == list(map(repr, ours)), "names decide"
        assert struct_of(output, "it") == type(struct_of(output, "it")).fromDDL(output)
        for kind, value in ((kind, value) for kind, value, in_frame in REFUSED if in_frame == in_pandas):
            with pytest.raises(mp.OperatorError, match=r"step 'step' failed: .*column 'v' of the output is .*, got "):
                here({"v": value}, f"v {kind}", in_pandas=in_pandas)
            with pytest.raises(PySparkException):
                by_spark(spark, {"v": value}, f"v {kind}", in_pandas=in_pandas)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_columns_that_are_missing(spark: Any) -> None:
    """A row without a column has null there; a frame without one is refused."""
    output = "v int, w string"
    assert by_spark(spark, {"v": 1}, output, in_pandas=False) == here({"v": 1}, output, in_pandas=False) == [(1, None)]
    with pytest.raises(PySparkException):
        by_spark(spark, {"v": 1}, output, in_pandas=True)
    with pytest.raises(mp.OperatorError, match="a frame has the columns v, and the output v, w"):
        here({"v": 1}, output, in_pandas=True)


def test_values_of_state_are_those_of_spark_or_refused(spark: Any) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        rows = spark.createDataFrame([("k",)], "key string").groupBy("key")
        found = rows.transformWithState(Keeps([*STORED, *LOST]), Keeps.OUTPUT, "append", "none").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    theirs = [row.seen for row in sorted(found, key=lambda row: row.at)]

    def here(pairs: list[tuple[str, Any]]) -> list[str]:
        keyed = mp.Job("types").source("in", sources.Memory([{"key": "k"}])).key_by("key", "key")
        return [row["seen"] for row in mp.collect(stateful(keyed, "step", Keeps(pairs), Keeps.OUTPUT))]

    assert here(STORED) == theirs[: len(STORED)]
    for (kind, value), seen in zip(LOST, theirs[len(STORED) :], strict=True):
        assert not seen.startswith(f"[{value!r},")
        with pytest.raises(mp.OperatorError, match=r"column 'v' of state 'v-0' is .*, got .* Spark would not keep"):
            here([(kind, value)])


def test_comments_in_schemas_are_those_of_spark(spark: Any) -> None:
    comments = (
        "/* first */ a int, -- of `b`, c int\n`b -- b` string comment 'x -- y', c decimal /* *\n / */ (5, 2) -- end"
    )
    ours = struct_of(comments, "it")
    assert ours.simpleString() == type(ours).fromDDL(comments).simpleString()
