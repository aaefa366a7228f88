"""Ctrl-C while a job runs. Rule: it is never lost, and it never cuts a commit in two.

Python raises `KeyboardInterrupt` wherever the program happens to be, and code that swallows it there (a bare
``except:``, some native libraries) would let the job run on. So it is noted as well, and raised again after the step.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """Watches for Ctrl-C as a context. Does nothing outside the main thread, or beside a handler of the program's own.

    >>> with Interrupts() as interrupts, interrupts.held():
    ...     pass
    """

    def __init__(self) -> None:
        self._seen = False
        self._held = False
        self._watching = False

    def __enter__(self) -> Self:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_signal)
            self._watching = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watching:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._watching = False

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if there was a Ctrl-C that came to nothing."""
        if self._seen:
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let the block end before a Ctrl-C is raised. A second one is raised at once."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        self.check()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        first, self._seen = not self._seen, True
        if not (self._held and first):
            raise KeyboardInterrupt
