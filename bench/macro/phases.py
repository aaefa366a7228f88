"""How long a job is in each phase of a rescale, as repeated reads of its status show."""

from __future__ import annotations

from itertools import pairwise
from time import monotonic_ns
from types import TracebackType
from typing import Final

import malstrom_py as mp
from bench.macro.sampling import Sampling

EVERY_S: Final = 0.02


class Phases(Sampling):
    """As a context, asks the job for its status. A phase lasts from its first sight to that of the next one."""

    def __init__(self, handle: mp.JobHandle) -> None:
        super().__init__(EVERY_S)
        self._handle = handle
        self._sights: list[tuple[int, str]] = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._sights.append((monotonic_ns(), "ended"))

    def seconds(self, phase: str) -> float:
        """How long ``phase`` has lasted, to about `EVERY_S`."""
        pairs = pairwise(self._sights)
        return sum(until_ns - since_ns for (since_ns, seen), (until_ns, _) in pairs if seen == phase) / 1e9

    def look(self) -> None:
        self._sights.append((monotonic_ns(), self._handle.status().phase))
