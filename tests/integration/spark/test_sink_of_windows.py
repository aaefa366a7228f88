"""Results of windows in a table of Spark: flat rows, in a new table and in one that is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import malstrom_py as mp
from malstrom_py import agg, sinks, sources, windows

TABLE = "malstrom_windows"
SALES = [{"article": "tea", "at": -5}, {"article": "tea", "at": 9}, {"article": "jam", "at": 61}]


def test_a_table_gets_flat_rows(spark: Any, tmp_path: Path) -> None:
    spark.sql(f"DROP TABLE IF EXISTS {TABLE}")
    for number in range(2):
        job = mp.Job(f"sales-{number}")
        timed = job.source("sales", sources.Memory(SALES)).assign_timestamps("time", "at", unit="s")
        on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(100))
        minutes = on_time.key_by("by", "article").window("minutes", windows.tumbling(60)).aggregate(n=agg.count())
        minutes.sink("out", sinks.Spark(table=TABLE, session=spark, staging=tmp_path))
        mp.run(job, progress=False)
    seconds = ("article", "unix_timestamp(window_start) AS start", "unix_timestamp(window_end) AS end", "n")
    found = sorted(tuple(row) for row in spark.table(TABLE).selectExpr(*seconds).collect())
    assert found == sorted([("tea", -60, 0, 1), ("tea", 0, 60, 1), ("jam", 60, 120, 1)] * 2)
    spark.sql(f"DROP TABLE {TABLE}")
