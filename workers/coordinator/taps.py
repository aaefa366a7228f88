"""The taps of a job at its coordinator: what is sampled, and the last records, for those who ask for them.

Rule: a tap lives by its lease. Each request renews it; without requests the workers stop sampling, and the records are
forgotten, so a client that dies leaves no cost. All that is kept is bounded, and what is lost is counted.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

from malstrom_py.errors import OperationInProgress, PlanError
from malstrom_py.workers.reports.commands import TapCommand
from malstrom_py.workers.reports.taps import LEASE_S, Keys, TapPage, Tapped, TappedStep, TapRow, TapStep

RENEW_S: Final = 1.0
"""How often workers get an order again: they send what they hold back, and workers that are new begin."""

TAPS_MAX: Final = 16
"""How many taps a job has at a time."""

KEPT_MAX: Final = 1_000
_KEPT_BYTES_MAX: Final = 4 << 20
PAGE_MAX: Final = 500


class _Tap:
    """The last records of one tap, and who waits for the next."""

    def __init__(self, step: TappedStep) -> None:
        self.id = uuid.uuid4().hex
        self.until_s = self.renew_s = 0.0
        self.waiting: list[tuple[int, Future[TapPage]]] = []
        self._step = step
        self._rows: deque[TapRow] = deque()
        self._bytes = self._end = self._passed = 0

    def add(self, tapped: Tapped) -> None:
        self._passed += tapped.passed
        for row in tapped.rows:
            self._rows.append(row)
            self._bytes += row.size
            self._end += 1
            while len(self._rows) > KEPT_MAX or self._bytes > _KEPT_BYTES_MAX:
                self._bytes -= self._rows.popleft().size

    def page(self, after: int, *, ended: bool = False) -> TapPage:
        first = self._end - len(self._rows)
        start = max(0, after - first)
        rows = [self._rows[index] for index in range(start, min(len(self._rows), start + PAGE_MAX))]
        return TapPage(self.id, first + start + len(rows), rows, self._passed, self._step.keyed, self._step.unit, ended)

    def has_more(self, after: int) -> bool:
        return self._end > after


class Taps:
    """The taps of job ``job``. Any thread may call the methods.

    >>> taps = Taps("docs")
    >>> taps.steps = {"words": TappedStep(keyed=False, unit=None)}
    >>> page = taps.next_page(TapCommand("words", timeout_s=0.0), now_s=0.0).result()
    >>> taps.due(0.0)
    [TapStep(step='words', keys=None, lease_s=5.0)]
    >>> asked = taps.next_page(TapCommand("words", timeout_s=1.0, log=page.log), now_s=0.5)
    >>> taps.add(Tapped(0, "words", None, (), passed=7))
    >>> asked.result().passed
    7
    """

    def __init__(self, job: str) -> None:
        self.steps: Mapping[str, TappedStep] = {}
        """The steps that can be tapped."""
        self._job = job
        self._lock = threading.Lock()
        self._taps: dict[tuple[str, Keys], _Tap] = {}
        self._has_ended = False

    def next_page(self, command: TapCommand, now_s: float) -> Future[TapPage]:
        """Begin or renew a tap. Return the next records as soon as there are any; without them for a tap that begins.

        Raises:
            PlanError: there is no such step, or its records have no keys.
            OperationInProgress: there are too many taps.
        """
        future: Future[TapPage] = Future()
        future.set_running_or_notify_cancel()
        if not (self.steps or self._has_ended):
            future.set_result(TapPage("", 0, [], 0))  # the job has not started yet: the client asks again
            return future
        with self._lock:
            tap = self._renewed(command.step, command.keys, now_s)
            if tap is None:
                page = TapPage(command.log, command.after, [], 0, ended=True)
            else:
                after = command.after if command.log == tap.id else 0
                if command.log and not (tap.has_more(after) or self._has_ended):
                    tap.waiting.append((after, future))
                    return future
                page = tap.page(after, ended=self._has_ended)
        future.set_result(page)
        return future

    def forget(self, command: TapCommand, future: Future[Any]) -> TapPage:
        """Stop waiting on behalf of ``future``, and return the records so far."""
        with self._lock:
            if (tap := self._taps.get((command.step, command.keys))) is None:
                return TapPage(command.log, command.after, [], 0)
            tap.waiting = [waiting for waiting in tap.waiting if waiting[1] is not future]
            return tap.page(command.after if command.log == tap.id else 0)

    def due(self, now_s: float) -> list[TapStep]:
        """Return the orders that the workers get now."""
        with self._lock:
            due = {key: tap for key, tap in self._taps.items() if tap.renew_s <= now_s < tap.until_s}
            for tap in due.values():
                tap.renew_s = now_s + RENEW_S
            return [TapStep(step, keys) for step, keys in due]

    def add(self, tapped: Tapped) -> None:
        """Keep what a worker has sampled, for those who wait for it."""
        with self._lock:
            if (tap := self._taps.get((tapped.step, tapped.keys))) is None:
                return
            tap.add(tapped)
            waiting, tap.waiting = tap.waiting, []
            pages = [(future, tap.page(after)) for after, future in waiting]
        for future, page in pages:
            future.set_result(page)

    def end(self) -> None:
        """Answer all who wait, because the job has ended."""
        with self._lock:
            self._has_ended = True
            pages = [(one, tap.page(after, ended=True)) for tap in self._taps.values() for after, one in tap.waiting]
            for tap in self._taps.values():
                tap.waiting = []
        for future, page in pages:
            future.set_result(page)

    def _renewed(self, step: str, keys: Keys, now_s: float) -> _Tap | None:
        """Return the tap for one more lease; None if the job has ended without it."""
        for key in [key for key, tap in self._taps.items() if tap.until_s <= now_s and not tap.waiting]:
            del self._taps[key]
        if (tap := self._taps.get((step, keys))) is None:
            if self._has_ended:
                return None
            self._check(step, keys)
            tap = self._taps[step, keys] = _Tap(self.steps[step])
        tap.until_s = now_s + LEASE_S
        return tap

    def _check(self, step: str, keys: Keys) -> None:
        if step not in self.steps:
            raise PlanError(
                f"job {self._job!r} has no step {step!r} to tap: its steps are {', '.join(map(repr, self.steps))}"
            )
        if keys is not None and not self.steps[step].keyed:
            keyed = ", ".join(repr(name) for name, known in self.steps.items() if known.keyed)
            others = f", or a step whose records have keys: {keyed}" if keyed else ""
            raise PlanError(
                f"job {self._job!r}: the records of step {step!r} have no keys. Tap it without a key{others}"
            )
        if len(self._taps) >= TAPS_MAX:
            raise OperationInProgress(
                f"job {self._job!r} has {TAPS_MAX} taps already: end one of them, and try again after {LEASE_S:g} s",
                job=self._job,
                operation="tap",
            )
