"""Joins whose state is larger than the memory that it may have, on a real disk: the same pairs as without one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources, windows
from malstrom_py.state.disk import RocksDisk

KEYS: Final = 5_000
ROWS: Final = 10_000

JOINS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "window": lambda a, b: a.join("join", b, window=windows.tumbling(600), how="outer"),
    "sliding": lambda a, b: a.join("join", b, window=windows.sliding(600, 300)),
    "session": lambda a, b: a.join("join", b, window=windows.session(500), how="outer"),
    "interval": lambda a, b: a.join_interval("join", b, lower=-300, upper=600, how="outer"),
    "as of": lambda a, b: a.join_asof("join", b),
    "table": lambda a, b: a.join_table("join", b, how="left", wait=True),
}


def pairs(name: str, *, columns: bool, state: mp.State | None) -> Counter[Any]:
    job, out, streams = mp.Job("joined"), sinks.Memory(), list[Any]()
    for side, count in (("left", ROWS), ("right", KEYS)):
        rows = [{"n": n, "key": n * 7919 % (KEYS + 100), "at": n // 10, "text": f"{n:0300}"} for n in range(count)]
        stream: Any = job.source(f"{side}-rows", sources.Memory(rows))
        if columns:
            stream = stream.select(f"{side}-columns", "n", "key", "at", "text")
        timed = stream.assign_timestamps(f"{side}-times", "at")
        on_time, _ = timed.generate_epochs(f"{side}-epochs", mp.limit_out_of_orderness(100))
        streams.append(on_time.key_by(f"{side}-key", "key"))
    JOINS[name](*streams).sink("out", out)
    mp.InProcess(state=state, progress=False).run(job)
    return Counter((left and left["n"], right and right["n"]) for left, right in out.items)


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("name", JOINS)
def test_a_join_larger_than_memory_gives_the_same_pairs(name: str, columns: bool, tmp_path: Path) -> None:
    expected = pairs(name, columns=columns, state=None)
    with patch.object(RocksDisk, "get", autospec=True, side_effect=RocksDisk.get) as reads:
        assert pairs(name, columns=columns, state=mp.State("1MB", tmp_path)) == expected
    # Keys, not calls: a busy machine has fewer and larger batches.
    assert sum(len(call.args[1]) for call in reads.call_args_list) > 1000
