"""How long a job is in each phase of a rescale, as its status tells when it is asked again and again."""

from __future__ import annotations

import threading
from itertools import pairwise
from time import monotonic_ns, sleep
from types import TracebackType
from typing import Final, Self

import malstrom_py as mp

EVERY_S: Final = 0.02


class Phases:
    """As a context, asks the job for its status. A phase lasts from its first sight to that of the next one."""

    def __init__(self, handle: mp.JobHandle) -> None:
        self._handle = handle
        self._sights: list[tuple[int, str]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="bench-phases", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._sights.append((monotonic_ns(), "ended"))

    def seconds(self, phase: str) -> float:
        """How long ``phase`` has lasted, to about `EVERY_S`."""
        pairs = pairwise(self._sights)
        return sum(until_ns - since_ns for (since_ns, seen), (until_ns, _) in pairs if seen == phase) / 1e9

    def _watch(self) -> None:
        while not self._ended.is_set():
            self._sights.append((monotonic_ns(), self._handle.status().phase))
            sleep(EVERY_S)
