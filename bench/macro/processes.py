"""What processes use, as the system reports it: resident memory, sampled in a thread, and processor time."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic_ns
from typing import Final

from bench.macro.sampling import Sampling

EVERY_S: Final = 0.02
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
TICKS: Final = os.sysconf("SC_CLK_TCK")


def cpu_s(pids: Mapping[int, int]) -> float:
    """Processor time that the processes have used, in seconds; those that are gone count nothing."""
    used = 0
    for pid in pids.values():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        used += int(fields[11]) + int(fields[12])
    return used / TICKS


def resident(pid: int) -> int:
    """Resident memory in bytes; 0 of a process that is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except OSError:
        return 0


class Watch(Sampling):
    """As a context, samples the resident memory of the processes that ``pids()`` names."""

    def __init__(self, pids: Callable[[], Mapping[int, int]]) -> None:
        super().__init__(EVERY_S)
        self._pids = pids
        self._samples: dict[int, list[tuple[int, int]]] = {}

    def before(self, worker: int, at_ns: int) -> int:
        """What the worker used at that time; when it was first seen, if that was later."""
        samples = self._samples.get(worker, [])
        earlier = [size for time_ns, size in samples if time_ns <= at_ns]
        return earlier[-1] if earlier else samples[0][1] if samples else 0

    def peak(self, worker: int, since_ns: int, until_ns: int) -> int:
        """The most that it used then."""
        return max((size for at, size in self._samples.get(worker, []) if since_ns <= at <= until_ns), default=0)

    @property
    def workers(self) -> list[int]:
        return sorted(self._samples)

    def look(self) -> None:
        now_ns = monotonic_ns()
        for worker, pid in self._pids().items():
            size = resident(pid)
            if size:
                self._samples.setdefault(worker, []).append((now_ns, size))
