"""A program that kills itself while Spark publishes for it: ``killing.py remote folder kind when``.

Before it does, it writes what it was killed in the middle of to `SEEN`.
"""

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
from malstrom_py.sinks.spark.journal import Journal
from malstrom_py.sinks.spark.through_spark import ThroughSparkCommitter

ROWS = 50
TABLE = "malstrom_killed"
SEEN = "seen"
SLOW = {"maxRecordsPerFile": 1}
"""A file for each row, so that Spark is at it for a while."""


def run(spark: Any, folder: Path, kind: str, rows: int, *, killed_inside: bool = False) -> None:
    def stored(frame: Any, snapshot: str) -> None:
        """Stores the id in the transaction of the rows."""
        found = [(row.n,) for row in frame.collect()]
        with sqlite3.connect(folder / "db") as database:
            database.execute("create table if not exists snapshots (id primary key)")
            database.execute("create table if not exists stored (n)")
            if database.execute("insert or ignore into snapshots values (?)", (snapshot,)).rowcount:
                database.executemany("insert into stored values (?)", found)
            if killed_inside:
                die_seen(folder, "transaction")
        database.close()

    made = {
        "table": lambda: sinks.Spark(table=TABLE, session=spark, staging=folder, options=SLOW),
        "json": lambda: sinks.Spark(folder / "out", format="json", session=spark, options=SLOW),
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


def die_seen(folder: Path, what: str) -> None:
    (folder / SEEN).write_text(what)
    die()


def target_of(spark: Any, folder: Path, kind: str) -> Path:
    """The folder that Spark writes to."""
    warehouse = spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:")
    return folder / "out" if kind == "json" else Path(warehouse) / TABLE


def die_inside(target: Path, folder: Path, over: threading.Event) -> None:
    """Die as soon as Spark writes to ``target``."""
    while not over.is_set():
        begun = next(target.glob("_temporary/**/part-*"), None)
        if begun is not None and not over.is_set():
            die_seen(folder, str(begun))


def main(remote: str, folder: str, kind: str, when: str) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(remote).getOrCreate()
    if when == "after":
        Journal.mark_published = die  # type: ignore[method-assign]
    elif kind != "function":
        publish = ThroughSparkCommitter.note
        target = target_of(spark, Path(folder), kind)

        def killed_meanwhile(*args: Any, **options: Any) -> None:
            over = threading.Event()
            threading.Thread(target=die_inside, args=(target, Path(folder), over)).start()
            publish(*args, **options)
            over.set()

        ThroughSparkCommitter.note = killed_meanwhile  # type: ignore[method-assign]
    run(spark, Path(folder), kind, ROWS, killed_inside=when == "during")


if __name__ == "__main__":
    main(*sys.argv[1:])
