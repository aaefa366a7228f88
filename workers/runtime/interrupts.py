"""Ctrl-C and SIGTERM while a job runs. Rule: no signal is lost, and none interrupts a commit.

Python raises `KeyboardInterrupt` at an arbitrary point, and code there may swallow it (a bare ``except:``, some native
libraries). So the signal is also recorded, and raised again after the step. The handler that the program had before
still decides what a signal does: Python's own, a library's (Spark cancels what runs in a session), or the user's, which
need not raise. SIGTERM is a planned stop, within a limit, where the runtime was asked for that.
"""

from __future__ import annotations

import os
import queue
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn, Self

from malstrom_py.clock import SystemClock
from malstrom_py.errors import ControlError, DeadlineError, OperationInProgress
from malstrom_py.validation import checked_seconds

_AGAIN_S: Final = 0.1
"""How often a stop is retried that a savepoint delays or that was not answered."""

STOP_S: Final = 120.0
"""How long a stop that SIGTERM began may take."""

LAST_S: Final = 5.0
"""How long the job may take to end after that, without drain, before its process is ended."""

SAME_S: Final = 1.0
"""A SIGTERM within this time of the first one is the same."""

FAILED: Final = 1
TERMINATED: Final = 143
_STDERR: Final = 2


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
        """Raise `KeyboardInterrupt` if a Ctrl-C was swallowed or postponed."""
        if self._waiting:
            self._waiting = False
            self._hand_on(signal.SIGINT, None)
        if self._seen:
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Postpone a Ctrl-C until the block has ended. A second one is raised immediately."""
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


class PlannedStop:
    """Has SIGTERM call ``stop``, as a context. Does nothing outside the main thread, or where SIGTERM is ignored.

    Separate threads call ``stop`` and ``abandon``, because the main thread may hold a lock that they take when the
    signal arrives. If the context has not ended ``limit_s`` after the signal, ``abandon`` is called with the reason; if
    that has not ended it after `LAST_S` either, the process ends with exit code 1. A second SIGTERM ends the process
    immediately, with exit code 143, unless it arrives within `SAME_S`: process supervisors send one signal to the group
    and one to the process. In a forked process SIGTERM ends that process, as usual.

    >>> with PlannedStop(lambda: None):
    ...     pass

    Raises:
        PlanError: the limit is not a number of seconds.
    """

    def __init__(
        self, stop: Callable[[], object], *, abandon: Callable[[str], object] = str, limit_s: float = STOP_S
    ) -> None:
        self._stop = stop
        self._abandon = abandon
        self._limit_s = min(checked_seconds(limit_s, "stop_timeout_s"), threading.TIMEOUT_MAX)
        self._clock = SystemClock()
        self._came: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._came_s: float | None = None
        self._process = os.getpid()
        self._over = threading.Event()
        self._former: Any = None
        self._shared = False

    def __enter__(self) -> Self:
        former = signal.getsignal(signal.SIGTERM)
        if threading.current_thread() is threading.main_thread() and former not in {signal.SIG_IGN, None}:
            threading.Thread(target=self._watch, name="malstrom-sigterm", daemon=True).start()
            self._former = former
            signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._came.put(False)
        if self._former is not None and signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, self._former)
        self._former = None

    def come_first(self, handler: Any) -> None:
        """Install ``handler`` for SIGTERM after this context has ended.

        Ray, which asks for it, then puts a C handler in front of Python's: that one calls ours, and aborts the process
        three seconds later by an alarm.
        """
        if self._former is None:
            signal.signal(signal.SIGTERM, handler)
        else:
            self._former = handler
            self._shared = True

    def take_back(self) -> None:
        """Remove the handler that Ray has put in front of this one, and the alarm that it may have set."""
        if self._shared:
            signal.signal(signal.SIGTERM, self._on_signal)
            signal.alarm(0)
            self._shared = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        if self._shared:
            signal.alarm(0)
        now_s = self._clock.monotonic_s()
        if self._came_s is None:
            self._came_s = now_s
            self._came.put(True)
        elif now_s - self._came_s > SAME_S:
            end_process(TERMINATED, "terminated: a second SIGTERM has ended the job immediately, as SIGKILL does")

    def _watch(self) -> None:
        """Wait for the signal, have the job stopped, and end it if that takes too long."""
        if not self._came.get():
            return
        threading.Thread(target=self._work, name="malstrom-sigterm-stop", daemon=True).start()
        if self._over.wait(self._limit_s):
            return
        why = f"the stop that SIGTERM began has not ended within {self._limit_s:g} s"
        try:
            self._abandon(why)
        except Exception:  # the process ends in any case
            """What the job's runtime raised."""
        if not self._over.wait(LAST_S):
            end_process(FAILED, f"error: {why}: the job has been ended immediately, as SIGKILL does")

    def _work(self) -> None:
        while not self._over.is_set():
            try:
                self._stop()
                return
            except OperationInProgress as error:
                if error.operation == "stop":  # another stop is in progress, with the other drain
                    return
            except (DeadlineError, ControlError):
                """The coordinator may be restarting."""
            except Exception:  # the job has ended or failed, which its caller sees
                return
            self._clock.sleep_s(_AGAIN_S)


def end_process(code: int, line: str) -> NoReturn:
    """End this process now, even if all its threads are blocked, after one line on standard error."""
    with suppress(OSError, ValueError):  # it is closed
        if select.select([], [_STDERR], [], 0)[1]:  # a full pipe would block
            shown_cursor = "\r\x1b[?25h\x1b[K" if os.isatty(_STDERR) else ""  # a progress display hides it
            os.write(_STDERR, f"{shown_cursor}{line}\n".encode())
    os._exit(code)
