"""Two tables of a Spark Declarative Pipeline: the second one has what the job in `step` makes of the first."""

from __future__ import annotations

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).parent
(HERE / "totals").mkdir(exist_ok=True)
spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    return spark.readStream.schema("shop STRING, price DOUBLE").json(f"file://{HERE}/landing")


@dp.table
def totals() -> DataFrame:
    return spark.readStream.schema("shop STRING, total DOUBLE").parquet(f"file://{HERE}/totals")
