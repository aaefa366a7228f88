"""The result of a query of Spark is the state that the keys of a step begin with."""

from __future__ import annotations

from typing import Any

import malstrom_py as mp
from malstrom_py import sources


def test_a_dataframe_of_spark_gives_keys_their_first_state(spark: Any) -> None:
    frame = spark.range(10).selectExpr("id % 3 AS key", "id AS n").groupBy("key").agg({"n": "sum"}).toDF("key", "state")
    read = mp.Job("docs").source("in", sources.Memory([0, 1, 2, 3])).key_by("key", lambda n: n)
    assert mp.collect(read.sum("total", by=lambda n: 1, initial_state=frame)) == [19, 13, 16, 1]
    structs = spark.sql("SELECT 1L AS key, named_struct('seen', 4L) AS state")
    seen = read.stateful_map("seen", lambda key, n, state: (state, state), initial_state=structs)
    assert mp.collect(seen) == [None, {"seen": 4}, None, None]
