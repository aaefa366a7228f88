"""Looks at something again and again, in a thread, while the code inside runs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from time import sleep
from types import TracebackType
from typing import Self


class Sampling(ABC):
    """As a context, calls `look` about every ``every_s`` seconds."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"bench-{type(self).__name__.lower()}", daemon=True)

    @abstractmethod
    def look(self) -> None:
        """One look."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.is_set():
            self.look()
            sleep(self._every_s)
