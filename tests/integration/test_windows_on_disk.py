"""Windows, lists and last values that are larger than the memory they may have, on a real disk: the same results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, sources, windows
from malstrom_py.state.disk import RocksDisk

KEYS: Final = 10_000
ROWS: Final = 15_000

FIGURES: Final = {"n": agg.count(), "total": agg.sum("n")}

STEPS: Final[dict[str, Callable[[Any], Any]]] = {
    "tumbling": lambda s: s.window("w", windows.tumbling(1_200)).aggregate(**FIGURES),
    "sliding": lambda s: s.window("w", windows.sliding(1_600, 800)).aggregate(**FIGURES),
    "sliding, in order": lambda s: s.window("w", windows.sliding(1_600, 800)).aggregate(last=agg.last("n"), **FIGURES),
    "sliding, early": lambda s: s.window("w", windows.sliding(1_600, 800), emit=2).sum("n"),
    "session": lambda s: s.window("w", windows.session(1_100)).aggregate(**FIGURES),
    "count": lambda s: s.window("w", windows.count(2)).sum("n"),
    "collect": lambda s: s.map("n", lambda row: row["n"]).collect("w", size=2),
    "final": lambda s: s.aggregate("sums", **FIGURES).final("w"),
}


def results(name: str, *, columns: bool, state: mp.State | None) -> Counter[str]:
    job, out = mp.Job("windowed"), sinks.Memory()
    rows = [{"n": n, "key": n * 7919 % KEYS, "at": n // 10} for n in range(ROWS)]
    stream: Any = job.source("rows", sources.Memory(rows))
    if columns:
        stream = stream.select("columns", "n", "key", "at")
    if name not in ("collect", "final"):
        timed = stream.assign_timestamps("times", "at")
        stream, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(100))
    STEPS[name](stream.key_by("key", "key")).map_with_key("pairs", lambda key, value: (key, value)).sink("out", out)
    mp.InProcess(state=state, progress=False).run(job)
    return Counter(map(repr, out.items))


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("name", STEPS)
def test_what_is_larger_than_memory_has_the_same_results(name: str, columns: bool, tmp_path: Path) -> None:
    expected = results(name, columns=columns, state=None)
    with patch.object(RocksDisk, "get", autospec=True, side_effect=RocksDisk.get) as reads:
        assert results(name, columns=columns, state=mp.State("1MB", tmp_path)) == expected
    assert reads.call_count
