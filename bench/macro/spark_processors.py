"""``python -m bench.macro.spark_processors``: a `StatefulProcessor` in a job, and in Spark, over the same rows.

W1, a running sum per key: by rows and in frames of pandas. Spark reads the same Parquet files in one micro-batch, with
its RocksDB store. Rule: both are timed from the start of the query or job to its end, after one run that is not timed.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import malstrom_py as mp
from bench.macro.spark import CORES, FILES, spark_here
from bench.micro import machine
from bench.micro.timing import spread
from malstrom_py import sinks, sources
from malstrom_py.spark import stateful
from tests.spark_processors import COUNTED, Sum, SumInPandas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PANDAS: Final = 20
"""In frames there are so many times fewer rows: a call costs half a millisecond, and a batch has few rows of a key."""

_ROCKS: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def in_spark(spark: SparkSession, rows: Path, folder: Path, *, in_pandas: bool) -> float:
    """Return how long Spark's query takes, in seconds."""
    began_s = perf_counter()
    grouped = spark.readStream.schema("key string, n long").parquet(str(rows)).groupBy("key")
    run: Any = grouped.transformWithStateInPandas if in_pandas else grouped.transformWithState
    sums = run(SumInPandas() if in_pandas else Sum(), COUNTED, "append", "none")
    with tempfile.TemporaryDirectory(dir=folder) as checkpoint:
        writer = sums.writeStream.format("noop").outputMode("append").option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
        return perf_counter() - began_s


def here(rows: Path, *, in_pandas: bool) -> float:
    """Return how long a job takes, in seconds."""
    counted = [0]

    def count(values: list[Any]) -> None:
        counted[0] += len(values)

    began_s = perf_counter()
    keyed = mp.Job("processors").source("in", sources.Files(rows / "*.parquet")).key_by("key", "key")
    sums = stateful(keyed, "sum", SumInPandas() if in_pandas else Sum(), COUNTED, in_pandas=in_pandas)
    sums.sink("out", sinks.Callable(count, batch=True))
    result = mp.run(sums.job, progress=False)
    assert counted[0] == result.read
    return perf_counter() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    print(machine.describe())
    with tempfile.TemporaryDirectory() as name, spark_here(Path(name)) as spark:
        folder = Path(name)
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKS)
        spark.conf.set("spark.sql.shuffle.partitions", str(CORES))
        for in_pandas in (False, True):
            count, rows = given.rows // (PANDAS if in_pandas else 1), folder / f"rows-{in_pandas}"
            made = spark.range(0, count, 1, FILES)
            keys = made.selectExpr(f"concat('key-', id * 7919 % {given.keys}) AS key", "id % 100 AS n")
            keys.write.parquet(str(rows))
            theirs, ours = [], []
            for number in range(given.repeat + 1):
                theirs.append(in_spark(spark, rows, folder, in_pandas=in_pandas))
                ours.append(here(rows, in_pandas=in_pandas))
                if number == 0:
                    theirs.clear()
                    ours.clear()
            rates = [[count / 1000 / length for length in lengths] for lengths in (ours, theirs)]
            ratio = spread([first / second for first, second in zip(*rates, strict=True)])
            print(
                f"  {'pandas' if in_pandas else 'rows'}: {spread(rates[0]).show(0)} thousand rows/s on one worker, "
                f"Spark on {CORES} cores {spread(rates[1]).show(0)}: {ratio.show(1)} times",
                flush=True,
            )


if __name__ == "__main__":
    main()
