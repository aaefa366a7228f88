"""Spark at both ends, Ray in the middle: ``make demo-spark``, or ``python -m examples.spark_to_ray``.

Spark joins the flights that left New York in 2013 with their airlines and planes. A job on Ray reads that DataFrame and
keeps statistics of each plane; it is given four workers instead of two, then two again, while it reads. What it finds
is a table of Spark's. The exit code is 0 only if Spark alone finds the same, and flights were read before, between and
after the two rescales.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import malstrom_py as mp
from examples.flights.data import one_file, package_data
from examples.flights.on_ray import CPUS, STARTS, start_ray
from examples.flights.pace import Paced
from examples.flights.report import make_console
from examples.flights.rescales import WORKERS, run_and_rescale, went_as_planned
from examples.flights.view import View
from malstrom_py import sinks, sources
from malstrom_py.errors import pip_install
from malstrom_py.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTS = 12
PLANE = ("airline", "tailnum", "manufacturer")

Flight = dict[str, Any]
Seen = tuple[int, int, int | None]
"""Of one plane: flights, minutes of delay, and the worst of them."""

BY_SPARK = """
SELECT airline, tailnum, manufacturer, count(*) AS flights, sum(dep_delay) AS minutes, max(dep_delay) AS worst,
       count(*) AS rows, count(*) AS different
FROM {flights} GROUP BY ALL"""

BY_JOB = """
SELECT airline, tailnum, manufacturer, max(flights) AS flights, max_by(minutes, flights) AS minutes,
       max_by(worst, flights) AS worst, count(*) AS rows, count(DISTINCT flights) AS different
FROM {planes} GROUP BY ALL"""
"""The job writes a row per flight: the last one of a plane has it all, and none is missing or there twice."""


def joined(spark: SparkSession, flights: str) -> DataFrame:
    """Each flight that left, with its airline and its plane."""
    read = spark.read.option("header", True)
    airlines = read.csv(str(package_data() / "airlines.csv")).withColumnRenamed("name", "airline")
    planes = read.csv(str(package_data() / "planes.csv")).select("tailnum", "manufacturer")
    departed = spark.read.parquet(flights).where("dep_delay IS NOT NULL")
    return departed.join(airlines, "carrier").join(planes, "tailnum").select(*PLANE, "dep_delay").repartition(PARTS)


def add(_: str, flight: Flight, seen: Seen) -> tuple[Flight, Seen]:
    """One flight more of a plane: a row of the output, and what is kept."""
    flights, minutes, worst = seen
    delay = flight["dep_delay"]
    seen = flights + 1, minutes + delay, delay if worst is None else max(worst, delay)
    return {name: flight[name] for name in PLANE} | dict(zip(("flights", "minutes", "worst"), seen, strict=True)), seen


def job(flights: sources.PartitionedSource[Flight], table: str) -> mp.Job:
    """The statistics of each plane after each of its flights, into a table of Spark's."""
    job = mp.Job("spark-to-ray")
    (
        job.source("flights", flights)
        .key_by("plane", lambda flight: f"{flight['airline']} {flight['tailnum']}")
        .stateful_map("delays", add, default=lambda: (0, 0, None))
        .sink("planes", sinks.Spark(table=table, mode="overwrite", partition_by="airline"))
    )
    return job


def demo(spark: SparkSession, folder: Path, seconds: float) -> bool:
    """Run the job, rescale it while it runs, and return whether Spark alone finds the same."""
    console = make_console()
    flights = joined(spark, one_file(folder / "flights.parquet")).cache()
    rows = flights.count()
    console.print(f"{rows:,} flights with their planes. Starting Ray on this machine ...")
    ray, started_s = start_ray()
    try:
        seconds = max(seconds, STARTS * started_s)
        console.print(f"They are read in {seconds:.0f} s.\n")
        source = Paced(sources.Spark(flights, staging=folder / "staging"), rows / PARTS / seconds)
        view = View()
        result = run_and_rescale(
            mp.RayRuntime(WORKERS, num_cpus=CPUS).start(job(source, "planes")), view, console, rows
        )
    finally:
        ray.shutdown()
    console.print(f"{result}\n")
    console.print(view.moves(), "")
    found, expected = spark.sql(BY_JOB, planes=spark.table("planes")), spark.sql(BY_SPARK, flights=flights)
    differing = found.exceptAll(expected).unionAll(expected.exceptAll(found)).count()
    planes = result.steps["delays"].keys
    console.print(
        f"NOT EQUAL to Spark alone: {differing:,} rows" if differing else f"EQUAL to Spark alone: {planes:,} planes"
    )
    return went_as_planned(console, view) and result.read == rows and not differing


def start_spark(folder: Path) -> SparkSession:
    """A Spark in this process, with two threads; its tables are in ``folder``."""
    java = find_java(os.environ)
    if not java.fits:
        sys.exit(f"This demo needs Spark, and Spark needs Java: {java.description}. {java.what_to_do}")
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        sys.exit(f"This demo needs Spark: {pip_install('demo', 'ray', 'spark')}")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, Any] = {
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": 4,
        "spark.sql.warehouse.dir": folder / "tables",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    return SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()


def main() -> None:
    """Read the arguments, run, and exit."""
    parser = argparse.ArgumentParser(prog="python -m examples.spark_to_ray", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long reading the flights takes at least")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="demo-spark-") as folder:
        spark = start_spark(Path(folder))
        try:
            holds = demo(spark, Path(folder), seconds)
        finally:
            spark.stop()
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
