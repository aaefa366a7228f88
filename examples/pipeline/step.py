"""``python step.py spark-warehouse/orders``: the job between the two tables; each run reads the orders that are new."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import malstrom_py as mp
from malstrom_py import agg, sinks, sources

HERE = Path(__file__).parent


def main(table: Path) -> None:
    spark = SparkSession.builder.getOrCreate()
    orders = spark.readStream.schema("shop STRING, price DOUBLE").parquet(f"file://{table.absolute()}")
    job = mp.Job("totals")
    rows = job.source("orders", sources.Spark(orders, staging=HERE / "staging"))
    totals = rows.group_by("shop").agg(total=agg.sum("price")).select("row", "shop", "total")
    totals.sink("out", sinks.Spark(path=HERE / "totals"))
    mp.run(job, snapshots=mp.Snapshots(HERE / "snapshots"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
