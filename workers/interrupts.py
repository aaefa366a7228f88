"""Ctrl-C while a job runs. Rule: it is never lost, and it never cuts a commit in two.

Python raises `KeyboardInterrupt` wherever the program happens to be, and code that swallows it there (a bare
``except:``, some native libraries) would let the job run on. So it is noted as well, and raised again after the step.
What to make of it stays with the handler that the program had: Python's own, that of a library (Spark stops what runs
in a session), or the user's, which need not raise at all.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupts:
    """Watches for Ctrl-C as a context. Does nothing outside the main thread, or where Ctrl-C is ignored.

    >>> with Interrupts() as interrupts, interrupts.held():
    ...     pass
    """

    def __init__(self) -> None:
        self._seen = False
        self._held = False
        self._waiting = False
        self._former: Callable[[int, FrameType | None], Any] | None = None

    def __enter__(self) -> Self:
        former = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(former):
            self._former = former
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._former is not None and signal.getsignal(signal.SIGINT) == self._on_signal:
            signal.signal(signal.SIGINT, self._former)
        self._former = None

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if there was a Ctrl-C that came to nothing, or had to wait."""
        if self._waiting:
            self._waiting = False
            self._hand_on(signal.SIGINT, None)
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
        if self._held and not self._seen and not self._waiting:
            self._waiting = True
        else:
            self._hand_on(number, frame)

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        try:
            if self._former is not None:
                self._former(number, frame)
        except BaseException:
            self._seen = True
            raise
