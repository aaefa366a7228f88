"""State of stopped queries of Spark is the state that the keys of a step begin with."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import agg, sources
from malstrom_py.errors import PlanError, SourceError
from malstrom_py.spark import apply_in_pandas_with_state, stateful
from tests.spark_processors import Stock

LINES = [("to", 1, 1.0), ("be", 3, 2.0), ("to", 12, 3.0)]
LATER = [{"word": "to", "x": 5.0}, {"word": "or", "x": 1.0}]


@pytest.fixture
def lines(spark: Any, tmp_path: Path) -> Any:
    """A stream of `LINES`."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    frame = spark.createDataFrame(LINES, "word string, at int, x double")
    frame = frame.withColumn("time", F.timestamp_seconds("at"))
    frame.coalesce(1).write.parquet(f"{tmp_path}/lines")
    return spark.readStream.schema(frame.schema).parquet(f"{tmp_path}/lines")


@pytest.fixture
def rocksdb(spark: Any) -> Iterator[None]:
    """The state store that ``transformWithState`` needs."""
    name = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(name, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    yield
    spark.conf.unset(name)


def started(frame: Any, path: Path, mode: str = "update") -> Any:
    """A running query which has read its input."""
    query = frame.writeStream.format("noop").outputMode(mode).option("checkpointLocation", str(path)).start()
    until = time.monotonic() + 60
    while not any(batch.numInputRows for batch in query.recentProgress) and time.monotonic() < until:
        query.awaitTermination(0.1)
    return query


def kept(frame: Any, path: Path, mode: str = "update") -> Path:
    """The checkpoint of a query that has read its input and is stopped."""
    started(frame, path, mode).stop()
    return path


def later(name: str) -> Any:
    return mp.Job(name).source("in", sources.Memory(LATER)).key_by("word", "word")


def test_an_aggregation_continues(lines: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    totals = lines.groupBy("word").agg(F.count("*"), F.sum("x"), F.avg("x"), F.max("at"))
    path = kept(totals, tmp_path / "totals")
    stored = sources.SparkCheckpoint(path)
    assert dict(stored) == {
        "to": {"count": 2, "sum": 4.0, "sum_2": 4.0, "count_2": 2, "max": 12},
        "be": {"count": 1, "sum": 2.0, "sum_2": 2.0, "count_2": 1, "max": 3},
    }

    begin = {word: {"n": state["count"], "mean": (state["count_2"], state["sum_2"])} for word, state in stored}
    after = later("continued").aggregate("totals", n=agg.count(), mean=agg.mean("x"), initial_state=begin)
    assert mp.collect(after) == [{"n": 3, "mean": 3.0}, {"n": 1, "mean": 1.0}]
    again = later("given").stateful_map("totals", lambda word, line, state: (state, state), initial_state=stored)
    assert [state and state["max"] for state in mp.collect(again)] == [12, None]


def test_keys_of_windows_are_tuples_in_utc(spark: Any, lines: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        windows = lines.withWatermark("time", "1 day").groupBy(F.window("time", "10 seconds"), "word").count()
        found = dict(sources.SparkCheckpoint(kept(windows, tmp_path / "windows", "append")))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    first, second, third = (datetime(1970, 1, 1, 0, 0, second, tzinfo=UTC) for second in (0, 10, 20))
    assert found == {
        ((first, second), "to"): {"count": 1},
        ((first, second), "be"): {"count": 1},
        ((second, third), "to"): {"count": 1},
    }


@pytest.mark.usefixtures("rocksdb")
@pytest.mark.only_classic  # Connect would ask for the processor's module where Spark runs Python
def test_all_variables_of_transform_with_state_continue(lines: Any, tmp_path: Path) -> None:
    query = lines.groupBy("word").transformWithStateInPandas(
        _processor(), "word string, n long", "update", "processingTime"
    )
    path = kept(query, tmp_path / "seen")
    stored = sources.SparkCheckpoint(path)
    assert dict(stored) == {
        "to": {
            "total": {"n": 2, "x": 4.0},
            "seen": [{"at": 1}, {"at": 12}],
            "by": {1: {"n": 1}, 12: {"n": 2}},
            "recent": {"x": 3.0},
            "recent_by": {(1, 1.0): {"n": 1}, (12, 3.0): {"n": 2}},
            "recent_list": [{"at": 1}, {"at": 12}],
        },
        "be": {
            "total": {"n": 1, "x": 2.0},
            "seen": [{"at": 3}],
            "by": {3: {"n": 1}},
            "recent": {"x": 2.0},
            "recent_by": {(3, 2.0): {"n": 1}},
            "recent_list": [{"at": 3}],
        },
    }, "what has expired is left out"
    assert dict(sources.SparkCheckpoint(path, variable="by")) == {
        "to": {1: {"n": 1}, 12: {"n": 2}},
        "be": {3: {"n": 1}},
    }

    def longer(word: str, line: Any, state: Any) -> tuple[Any, Any]:
        seen = [*(state or {"seen": []})["seen"], {"at": -1}]
        return len(seen), {"seen": seen}

    assert mp.collect(later("continued").stateful_map("seen", longer, initial_state=stored)) == [3, 1]
    with pytest.raises(SourceError, match=r"no state variable 'nix', only .*total"):
        list(sources.SparkCheckpoint(path, variable="nix"))


@pytest.mark.only_classic
@pytest.mark.usefixtures("rocksdb")
def test_a_processor_continues_where_its_query_stopped(lines: Any, tmp_path: Path) -> None:
    items = lines.selectExpr("word", "CAST(x AS long) AS n", "word AS item")
    path = kept(items.groupBy("word").transformWithState(Stock(), Stock.OUTPUT, "append", "none"), tmp_path / "stock")
    rows = [{"word": "to", "n": 5, "item": "or"}]
    keyed = mp.Job("continued").source("in", sources.Memory(rows)).key_by("word", "word")
    stock = stateful(keyed, "stock", Stock(), Stock.OUTPUT, initial_state=sources.SparkCheckpoint(path))
    assert mp.collect(stock) == [
        {"key": "to", "items": "[('or', 5), ('to', 4)]", "last": "[(1, 'to'), (3, 'to'), (5, 'or')]"}
    ]


@pytest.mark.only_classic
def test_apply_in_pandas_with_state_continues(lines: Any, tmp_path: Path) -> None:
    import pandas as pd  # type: ignore[import-untyped,unused-ignore]

    def count(key: Any, frames: Any, state: Any) -> Any:
        n = (state.get[0] if state.exists else 0) + sum(map(len, frames))
        state.update((n,))
        yield pd.DataFrame({"n": [n]})

    query = lines.groupBy("word").applyInPandasWithState(count, "n long", "n long", "update", "NoTimeout")
    known = sources.SparkCheckpoint(kept(query, tmp_path / "counts"))
    assert dict(known) == {"to": {"n": 2}, "be": {"n": 1}}
    keyed = mp.Job("counts").source("in", sources.Memory([{"word": "to"}])).key_by("word", "word")
    assert mp.collect(apply_in_pandas_with_state(keyed, "count", count, "n long", "n long", initial_state=known)) == [
        {"n": 3}
    ]


def test_what_cannot_be_read_is_named(lines: Any, tmp_path: Path) -> None:
    query = started(lines.groupBy("word").count(), tmp_path / "counts")
    try:
        with pytest.raises(SourceError, match="is running: stop it"):
            list(sources.SparkCheckpoint(tmp_path / "counts"))
    finally:
        query.stop()
    assert dict(sources.SparkCheckpoint(tmp_path / "counts")) == {"to": {"count": 2}, "be": {"count": 1}}
    with pytest.raises(SourceError, match=r"no operator 4 with state, only 0 \(stateStoreSave\)"):
        list(sources.SparkCheckpoint(tmp_path / "counts", operator=4))
    with pytest.raises(SourceError, match="has no state variables: leave out variable="):
        list(sources.SparkCheckpoint(tmp_path / "counts", variable="n"))
    with pytest.raises(SourceError, match=r"no checkpoint of a query at .*nowhere.*PATH_NOT_FOUND"):
        later("wrong").count("n", initial_state=sources.SparkCheckpoint(tmp_path / "nowhere"))
    with pytest.raises(SourceError, match="no operator 0 with state, only none"):
        list(sources.SparkCheckpoint(kept(lines.select("word"), tmp_path / "words", "append")))


@pytest.mark.parametrize("wrong", [{"path": 1}, {"path": ""}, {"operator": -1}, {"operator": "0"}, {"variable": ""}])
def test_wrong_arguments_are_plan_errors(wrong: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=rf"sources\.SparkCheckpoint: {next(iter(wrong))} must be"):
        sources.SparkCheckpoint(**{"path": "/checkpoint", **wrong})


def _processor() -> Any:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Seen(StatefulProcessor):  # type: ignore[misc,unused-ignore]
        """Keeps one variable of each kind, with and without a time to live."""

        def init(self, handle: Any) -> None:
            day_ms = 86_400_000
            self.total = handle.getValueState("total", "n long, x double")
            self.seen = handle.getListState("seen", "at int")
            self.by = handle.getMapState("by", "at int", "n long")
            self.recent = handle.getValueState("recent", "x double", ttlDurationMs=day_ms)
            self.recent_by = handle.getMapState("recent_by", "at int, x double", "n long", ttlDurationMs=day_ms)
            self.recent_list = handle.getListState("recent_list", "at int", ttlDurationMs=day_ms)
            self.gone = handle.getValueState("gone", "x double", ttlDurationMs=1)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            import pandas as pd  # type: ignore[import-untyped,unused-ignore]

            n, total = 0, 0.0
            for frame in rows:
                for at, x in zip(frame["at"].tolist(), frame["x"].tolist(), strict=True):
                    n, total = n + 1, total + x
                    self.seen.appendValue((at,))
                    self.by.updateValue((at,), (n,))
                    self.recent.update((x,))
                    self.recent_by.updateValue((at, x), (n,))
                    self.recent_list.appendValue((at,))
                    self.gone.update((x,))
            self.total.update((n, total))
            yield pd.DataFrame({"word": [key[0]], "n": [n]})

        def close(self) -> None:
            pass

    return Seen()
