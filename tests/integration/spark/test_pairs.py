"""Each row of the tables of "If you know PySpark" has equal results in Spark and here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, sources, windows
from tests.integration.spark.pairs import COLUMNS, FRAMES, SALES, STOCK, tables
from tests.tree import ROOT

SHOUT: Any = lambda text: text.upper() + "!"  # noqa: E731 - without annotations, which Spark would warn of


def doubled(batch: Any) -> Any:
    columns = {name: pc.multiply(column, 2) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    return pa.RecordBatch.from_pydict(columns)


def each_doubled(batches: Iterator[Any]) -> Iterator[Any]:
    yield from map(doubled, batches)


@pytest.fixture(scope="module")
def sales(spark: Any) -> Iterator[Any]:
    """`SALES` as a DataFrame, in a session of UTC."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    schema = (
        "id long, shop string, item string, price double, n long, note string, tags array<string>, time timestamp, "
        "doc string"
    )
    yield spark.createDataFrame([tuple(sale.values()) for sale in SALES], schema).coalesce(1)
    spark.conf.set("spark.sql.session.timeZone", before)


def plain(value: Any) -> Any:
    """A value that compares as users would: moments in UTC, floats without their last digits."""
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in sorted(value.items())}
    if isinstance(value, list):
        return list(map(plain, value))
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return round(value, 9) if isinstance(value, float) else value


def in_any_order(rows: list[Any]) -> list[str]:
    """The rows as text: 1 is not 1.0."""
    return sorted(repr(plain(row)) for row in rows)


def here(text: str) -> list[Any]:
    """The rows of a stream."""
    stream = mp.Job("pairs").source("sales", sources.Memory(SALES))
    timed, _ = stream.assign_timestamps("time", "time").generate_epochs(
        "epochs", mp.limit_out_of_orderness(timedelta(minutes=1))
    )
    names = {"stream": stream, "timed": timed, "pl": pl, "agg": agg, "windows": windows, "timedelta": timedelta}
    return mp.collect(eval(text, {**names, "shout": SHOUT, "doubled": doubled, "STOCK": STOCK}))


def there(text: str, df: Any) -> list[Any]:
    """The rows of a DataFrame."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    stock = df.sparkSession.createDataFrame(list(STOCK.items()), "item string, left long")
    names = {"df": df, "F": F, "Window": Window, "stock": stock, "shout": SHOUT, "each_doubled": each_doubled}
    rows: list[Any] = eval(text, names).toArrow().to_pylist()
    return rows


@pytest.mark.parametrize(("theirs", "ours"), FRAMES, ids=[theirs for theirs, _ in FRAMES])
def test_a_call_of_a_dataframe_has_its_pair(sales: Any, theirs: str, ours: str) -> None:
    assert in_any_order(here(ours)) == in_any_order(there(theirs, sales))


def test_each_column_function_has_its_pair(sales: Any) -> None:
    """All in one query: they are rows of one table."""
    spark = ", ".join(f"({theirs}).alias('{number}')" for number, (theirs, _) in enumerate(COLUMNS))
    mine = ", ".join(f"({ours}).alias('{number}')" for number, (_, ours) in enumerate(COLUMNS))
    found = list(map(plain, here(f"stream.select('s', {mine})")))
    expected = list(map(plain, there(f"df.select({spark})", sales)))
    for number, (theirs, ours) in enumerate(COLUMNS):
        label = str(number)
        assert [typed(row[label]) for row in found] == [typed(row[label]) for row in expected], f"{theirs} and {ours}"


def typed(value: Any) -> tuple[type, Any]:
    """A value with its type: 1 is not 1.0."""
    return type(value), value


@pytest.mark.only_classic
def test_a_function_of_foreach_batch_gets_the_same_rows(sales: Any, spark: Any, tmp_path: Path) -> None:
    sales.write.parquet(str(tmp_path / "sales"))

    def rows_with(run: Callable[[Callable[[Any, Any], None]], object]) -> list[str]:
        got: list[Any] = []
        run(lambda rows, _: got.extend(rows.toArrow().to_pylist()))
        return in_any_order(got)

    def of_spark(fn: Callable[[Any, Any], None]) -> None:
        stream = spark.readStream.schema(sales.schema).parquet(str(tmp_path / "sales"))
        query = stream.writeStream.foreachBatch(fn).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()

    def of_a_job(fn: Callable[[Any, Any], None]) -> None:
        job = mp.Job("batches")
        stream = job.source("sales", sources.Spark(path=tmp_path / "sales", session=spark))
        stream.sink("out", sinks.Spark(foreach_snapshot=fn, session=spark, schema=sales.schema))
        mp.run(job, progress=False)

    assert rows_with(of_spark) == rows_with(of_a_job) != []


def test_the_page_has_these_tables() -> None:
    page = (ROOT / "docs" / "migrating-from-spark.md").read_text()
    assert all(table in page for table in tables()), (
        "write what `python -m tests.integration.spark.pairs` prints into the page"
    )
    assert len(FRAMES) + len(COLUMNS) >= 60
