"""A job whose state hardly changes writes it once, and resumes from what was merged (S2, S5)."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any, Final

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.snapshot.store import MemoryStore
from tests.integration.monitoring.conftest import until

KEYS: Final = 1000


class Counting(MemoryStore):
    """Counts the bytes that are written, by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.written = Counter[str]()

    def put(self, path: str, data: bytes) -> None:
        if "/artefacts/" in path:
            self.written[path.split(".", 1)[1]] += len(data)
        super().put(path, data)


def counted(key: int, row: int, seen: int) -> tuple[int, int]:
    """Count the rows of a key."""
    return seen + 1, seen + 1


def rows_of(job: str, rows: int, out: sinks.Memory) -> mp.Job:
    made = mp.Job(job)
    numbers = made.source("in", sources.Generator(lambda part, start: count(start), parts=1))
    kept: Any = numbers.filter("few", lambda n: n < rows).key_by("key", lambda n: n % KEYS)
    kept.stateful_map("count", counted, default=int).sink("out", out)
    return made


def test_s2_state_that_does_not_change_is_written_once_and_resumes_from_merged_deltas() -> None:
    store, out = Counting(), sinks.Memory()
    kept = mp.Snapshots(store, interval_s=None, chain_max=2)
    handle = mp.InProcess(1, snapshots=kept).start(rows_of("kept", 5 * KEYS, out), control=False)
    until(lambda: handle.status().counts.read > 5 * KEYS, "all rows are read")
    handle.snapshot()
    assert len(out.items) == 5 * KEYS
    full = store.written["full"]
    assert full > 5 * KEYS
    for _ in range(20):
        handle.snapshot()
    until(lambda: store.written["compacted.delta"] > 0, "deltas are merged")
    handle.snapshot()
    handle.stop()
    assert store.written["full"] == full
    assert store.written["compacted.full"] == 0
    assert store.written["compacted.delta"] + store.written["delta"] < full / 2
    again = mp.InProcess(1, snapshots=kept).start(rows_of("kept", 5 * KEYS, out), control=False)
    again.stop()
    handle = mp.InProcess(2, snapshots=kept).start(rows_of("kept", 10**12, out), control=False)
    before = handle.status().counts.read
    until(lambda: handle.status().counts.read > before + 3 * KEYS, "more rows are read")
    handle.stop(drain=False)
    assert len(out.items) > 8 * KEYS
    assert all(values == list(range(1, len(values) + 1)) for values in out.by_key.values())
