"""A program that kills itself while Spark publishes for it: ``killing.py remote folder kind when``."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
from pathlib import Path
from typing import Any

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.sinks.spark.publication import Publication
from malstrom_py.sinks.spark.through_spark import ThroughSpark

ROWS = 50
TABLE = "malstrom_killed"


def run(spark: Any, folder: Path, kind: str, rows: int) -> None:
    def stored(frame: Any, snapshot: str) -> None:
        """Stores the id in the transaction of the rows."""
        found = [(row.n,) for row in frame.collect()]
        with sqlite3.connect(folder / "db") as database:
            database.execute("create table if not exists snapshots (id primary key)")
            database.execute("create table if not exists stored (n)")
            if database.execute("insert or ignore into snapshots values (?)", (snapshot,)).rowcount:
                database.executemany("insert into stored values (?)", found)
        database.close()

    made = {
        "table": lambda: sinks.Spark(table=TABLE, session=spark, staging=folder),
        "json": lambda: sinks.Spark(folder / "out", format="json", session=spark),
        "function": lambda: sinks.Spark(foreach_snapshot=stored, session=spark, staging=folder),
    }
    job = mp.Job("killed")
    numbers = job.source("in", sources.Memory([{"n": n} for n in range(rows)], parts=2))
    numbers.sink("out", made[kind]())
    mp.run(job, workers=2, progress=False)


def found(spark: Any, folder: Path, kind: str) -> list[int]:
    """The rows that are visible."""
    if kind == "function":
        with sqlite3.connect(folder / "db") as database:
            rows = [n for (n,) in database.execute("select n from stored")]
        database.close()
        return rows
    frame = spark.read.json(str(folder / "out")) if kind == "json" else spark.table(TABLE)
    return [row.n for row in frame.collect()]


def die(*_args: Any, **_options: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(remote: str, folder: str, kind: str, when: str) -> None:
    from pyspark.sql import SparkSession

    if when == "after":
        Publication.end = die  # type: ignore[method-assign]
    else:
        publish = ThroughSpark.publish

        def killed_meanwhile(*args: Any, **options: Any) -> None:
            threading.Timer(0.2, die).start()
            publish(*args, **options)
            threading.Event().wait(60)

        ThroughSpark.publish = killed_meanwhile  # type: ignore[method-assign]
    run(SparkSession.builder.remote(remote).getOrCreate(), Path(folder), kind, ROWS)


if __name__ == "__main__":
    main(*sys.argv[1:])
