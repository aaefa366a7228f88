"""A key with most of the rows, on Ray: windows gather its rows where they arrive, and each key has what it has else."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import malstrom_py as mp
from malstrom_py import agg, sinks, sources, windows
from tests.integration.ray.traffic import PATIENCE_S

ROWS: list[dict[str, Any]] = [
    {"key": "hot" if n % 10 else f"k{n % 7}", "time": n, "v": n % 1000} for n in range(60_000)
]


def by_key(out: sinks.Memory) -> mp.Job:
    """Return a job that counts and sums in windows, and writes (key, result)."""
    job = mp.Job("hot-key")
    read = job.source("rows", sources.Memory(ROWS, parts=2)).assign_timestamps("time", itemgetter("time"))
    on_time, _ = read.generate_epochs("epochs", mp.limit_out_of_orderness(60_000))
    gathered = on_time.key_by("key", itemgetter("key")).window("window", windows.tumbling(20_000))
    results = gathered.aggregate(n=agg.count(), v=agg.sum("v"), most=agg.max("v"))
    results.map_with_key("pair", lambda key, result: (key, result)).sink("out", out)
    return job


def test_f5_rows_of_a_hot_key_are_gathered_where_they_arrive_and_results_are_those_of_one_worker(
    out: sinks.Memory,
) -> None:
    expected: dict[Any, Any] = {}
    for row in ROWS:
        at = (row["key"], row["time"] // 20_000)
        n, v, most = expected.get(at, (0, 0, 0))
        expected[at] = n + 1, v + row["v"], max(most, row["v"])
    handle = mp.RayRuntime(2, num_cpus=0.2).start(by_key(out))
    handle.wait(timeout_s=PATIENCE_S)
    found = [((key, window.start // 20_000), tuple(window.value.values())) for key, window in out.items]
    assert dict(found) == expected
    assert len(found) == len(expected)
    # Few rows travelled; more where a busy machine cuts small batches.
    assert handle.metrics().steps["window"].rows_in < len(ROWS) / 4
