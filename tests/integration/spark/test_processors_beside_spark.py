"""Code with state written for PySpark gives here what it gives in Spark, over the same rows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.spark import apply_in_pandas_with_state, stateful
from malstrom_py.testing import OperatorTester
from tests.integration.spark.local_spark import PATIENCE_S
from tests.spark_processors import COUNTED, SEEN, SILENT, Lasting, Silence, Stock, Sum, SumInPandas, silent, timed_once

ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"

BEFORE = [
    {"key": f"k-{n * 7 % 5}", "n": n % 4 - 1, "item": "xyz"[n * 5 % 3], "at_ms": 1000 * n + 1000} for n in range(200)
]
AFTER = [{"key": "last", "n": 0, "item": "x", "at_ms": 10_000_000}]


def by_spark(spark: Any, folder: Path, step: Callable[[Any], Any], time_mode: str) -> list[Any]:
    """Run a query over two files, one after the other, and return its rows."""
    schema = "key string, n long, item string, at_ms long"
    for number, rows in enumerate((BEFORE, AFTER)):
        spark.createDataFrame(rows, schema).coalesce(1).write.mode("append").parquet(str(folder / "in" / str(number)))
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "in" / "*"))
    if time_mode == "eventTime":
        stream = stream.selectExpr("*", "timestamp_millis(at_ms) AS at").withWatermark("at", "0 seconds")
    writer = step(stream.groupBy("key")).writeStream.format("parquet").outputMode("append")
    before = spark.conf.get(_PROVIDER)
    spark.conf.set(_PROVIDER, ROCKS)
    try:
        query = (
            writer.option("path", str(folder / "out"))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
    finally:
        spark.conf.set(_PROVIDER, before)
    return [tuple(row) for row in spark.read.parquet(str(folder / "out")).collect()]


def here(step: Callable[[Any], Any], time_mode: str) -> list[Any]:
    """Run a job over the same rows, and return its values."""
    stream: Any = mp.Job("processors").source("in", sources.Memory([*BEFORE, *AFTER], parts=1))
    if time_mode == "eventTime":
        stream, _ = stream.assign_timestamps("at", "at_ms", unit="ms").generate_epochs(
            "epochs", mp.limit_out_of_orderness(0)
        )
    return [tuple(row.values()) for row in mp.collect(step(stream.key_by("key", "key")))]


@pytest.mark.only_classic
@pytest.mark.parametrize(
    ("make", "output", "time_mode"),
    [
        (Sum, COUNTED, "none"),
        (SumInPandas, COUNTED, "none"),
        (Stock, Stock.OUTPUT, "none"),
        (lambda: Silence(40_000), Silence.OUTPUT, "eventTime"),
    ],
    ids=["sum", "pandas", "stock", "silence"],
)
def test_same_results(spark: Any, tmp_path: Path, make: Callable[[], Any], output: str, time_mode: str) -> None:
    in_pandas = make is SumInPandas
    name = "transformWithStateInPandas" if in_pandas else "transformWithState"
    theirs = by_spark(spark, tmp_path, lambda it: getattr(it, name)(make(), output, "append", time_mode), time_mode)
    ours = here(lambda it: stateful(it, "step", make(), output, in_pandas=in_pandas, time_mode=time_mode), time_mode)
    if time_mode == "eventTime":  # at the end of a stream all timers fire here
        ours = [row for row in ours if row[0] != "last"]
    assert Counter(ours) == Counter(theirs)
    assert len(theirs) >= 5


PHASES = [
    [("a", 0, "x"), ("a", 2, "y"), ("b", 1, "x"), ("c", 3, "x")],
    [("a", 4, "z"), ("a", 1, "x"), ("b", -1, "x"), ("c", 5, "y")],
    [("a", 6, "y"), ("b", 7, "x"), ("c", 8, "x")],
]
"""Key, n and item: each phase begins when the state of the one before that has an end has ended."""

TIMERS = [2, 3, 3]
"""How many timers each phase has: one for a key, of which each call has one time, if n is not 3."""

SHORT_MS = 700


@pytest.mark.only_classic
def test_same_results_by_the_clock(spark: Any, tmp_path: Path) -> None:
    """What ends and fires by the clock: Spark gets the next rows once timers show that the time has passed."""
    schema = "key string, n long, item string"
    (tmp_path / "in").mkdir()
    grouped = spark.readStream.schema(schema).parquet(str(tmp_path / "in" / "*")).groupBy("key")
    before = spark.conf.get(_PROVIDER)
    spark.conf.set(_PROVIDER, ROCKS)
    step = grouped.transformWithState(Lasting(SHORT_MS), Lasting.OUTPUT, "append", "processingTime")
    query = step.writeStream.format("memory").queryName("lasting").outputMode("append").start()
    tester = OperatorTester(
        lambda it: stateful(it, "step", Lasting(SHORT_MS), Lasting.OUTPUT, time_mode="processingTime"), keyed=True
    )
    seen: list[Any] = []
    ours: list[Any] = []
    try:
        for number, (rows, timers) in enumerate(zip(PHASES, TIMERS, strict=True)):
            spark.createDataFrame(rows, schema).coalesce(1).write.parquet(str(tmp_path / "in" / str(number)))
            tester.send_local([(row[0], dict(zip(("key", "n", "item"), row, strict=True))) for row in rows]).step()
            tester.clock.advance(SHORT_MS / 1000)
            tester.step()
            made = [one.value for one in tester.receive_local() if isinstance(one, mp.DataMessage)]
            assert len(made) == len(rows) + timers
            ours += (tuple(one.values()) for one in made)
            ends_s = time.monotonic() + PATIENCE_S
            while len(seen) < len(ours) and time.monotonic() < ends_s:
                assert query.exception() is None
                time.sleep(0.05)
                seen = [tuple(row) for row in spark.table("lasting").collect()]
            assert Counter(seen) == Counter(ours), number
    finally:
        query.stop()
        spark.conf.set(_PROVIDER, before)


@pytest.mark.only_classic
@pytest.mark.parametrize("function", [silent, timed_once])
def test_same_results_of_a_function_with_timeouts(spark: Any, tmp_path: Path, function: Any) -> None:
    theirs = by_spark(
        spark,
        tmp_path,
        lambda it: it.applyInPandasWithState(function, SILENT, SEEN, "append", "EventTimeTimeout"),
        "eventTime",
    )
    ours = here(
        lambda it: apply_in_pandas_with_state(it, "step", function, SILENT, SEEN, timeout="EventTimeTimeout"),
        "eventTime",
    )
    ours = [row for row in ours if row[0] != "last"]  # at the end of a stream all timeouts come here
    assert Counter(ours) == Counter(theirs)
    assert len(theirs) >= 5
