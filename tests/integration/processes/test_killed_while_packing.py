"""Worker processes that die while they pack state ahead of a barrier: what they packed does not count (S2, S6)."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.rescale.moves.protocol import PackedAhead
from malstrom_py.workers.engine.snapshot_capture import PackingAhead
from tests.integration.ray.chaos_ends import rows_in
from tests.integration.ray.traffic import PATIENCE_S

KEYS: Final = 20_000
ROWS: Final = 5 * KEYS
DEATHS: Final = {"at its first snapshot": 1, "at a later one": 3}
"""At which snapshot that a process packs ahead it dies: each once, in one process."""


def numbers(part: int, start: int) -> Iterator[int]:
    """Yield the numbers of a part that remain, so slowly that there are snapshots between."""
    for number in range(start, ROWS):
        if number % 500 == 0:
            time.sleep(0.01)
        yield 2 * number + part


def mortal(folder: Path) -> None:
    """Let this process end itself by SIGKILL in the middle of what it packs between two batches."""
    right = PackingAhead.next
    snapshots: dict[str, None] = {}

    def next_keys(ahead: PackingAhead, worker: int) -> PackedAhead | None:
        report = right(ahead, worker)
        is_midway = report is None and any(state._round is not None for state in ahead._states)
        if is_midway:
            snapshots[ahead._snapshot] = None
            for death, number in DEATHS.items():
                if number == len(snapshots) and _is_first(folder / death):
                    os.kill(os.getpid(), signal.SIGKILL)
        return report

    patch.object(PackingAhead, "next", next_keys).start()


def _is_first(path: Path) -> bool:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


_MORTAL: Final = set[int]()


def counted(folder: Path, key: int, number: int, seen: int) -> tuple[dict[str, int], int]:
    """Count the rows of a key, in a process that is `mortal`."""
    if os.getpid() not in _MORTAL:
        _MORTAL.add(os.getpid())
        mortal(folder)
    return {"number": number, "seen": seen + 1}, seen + 1


def test_s6_state_and_files_are_exact_though_workers_die_while_they_pack(tidy: None, tmp_path: Path) -> None:
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    job = mp.Job("dying-while-packing")
    keyed = job.source("in", sources.Generator(numbers, parts=2)).key_by("key", lambda number: number % KEYS)
    rows: Any = keyed.stateful_map("count", partial(counted, deaths), default=int)
    rows.sink("out", sinks.Files(tmp_path / "out", format="json"))
    handle = mp.Processes(2, snapshots=mp.Snapshots(tmp_path / "kept", interval_s=0.2)).start(job)
    handle.wait(timeout_s=PATIENCE_S)
    assert sorted(path.name for path in deaths.iterdir()) == sorted(DEATHS)
    assert handle.status().restarts == len(DEATHS)
    written = rows_in(tmp_path / "out")
    assert sorted(row["number"] for row in written) == list(range(2 * ROWS))
    assert Counter(row["seen"] for row in written) == dict.fromkeys(range(1, 2 * ROWS // KEYS + 1), KEYS)
