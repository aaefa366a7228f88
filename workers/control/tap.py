"""What a user gets of a tap: `TapRecord`, and `Tap`, which iterates over them and renews the lease of the tap."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from malstrom_py.clock import Clock, SystemClock
from malstrom_py.codec import Codec
from malstrom_py.codec.job_codec import without_classes
from malstrom_py.errors import CodecError, DeadlineError, JobEnded, PlanError, shown
from malstrom_py.workers.reports.commands import TapCommand
from malstrom_py.workers.reports.taps import Keys, TapPage, TapRow

LOOK_S: Final = 1.0
"""How long a request waits for records: a tap lives for a few seconds after the last one."""


START_S: Final = 60.0
"""How long a tap waits for the start of its job."""

_AGAIN_S: Final = 0.1
_VALUE_MAX: Final = 2_000


class TapRecord(NamedTuple):
    """A record that a step has emitted, on ``worker``, by its ``output``.

    ``timestamp``: in the unit of the stream, None without timestamps. ``key``: None without keys. An object of a
    registered class is a dict of its fields; a value that cannot be stored, or is large, is a text on it.
    """

    key: Any
    value: Any
    timestamp: int | None
    worker: int
    output: str = "out"

    def __str__(self) -> str:
        """The record as a line.

        >>> print(TapRecord("ant", 7, 60, 0))
        worker 0  time 60  key 'ant'  7
        """
        where = f"worker {self.worker}" + (f", {self.output}" if self.output not in ("", "out") else "")
        time = "" if self.timestamp is None else f"  time {self.timestamp}"
        key = "" if self.key is None else f"  key {shown(self.key)}"
        return f"{where}{time}{key}  {shown(self.value, characters_max=_VALUE_MAX)}"


class Tap(Iterator[TapRecord]):
    """Iterates over records that a step emits, until the job ends. Made by `JobHandle.tap`.

    ``passed``: how many records have passed so far; ``shown``: how many of them were returned. ``unit``: of the
    timestamps. Once it is not iterated over any more, the workers stop sampling after some seconds.
    """

    def __init__(
        self,
        ask: Callable[[TapCommand], TapPage],
        step: str,
        keys: Keys,
        *,
        count: int | None = None,
        timeout_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.passed = self.shown = 0
        self._ask = ask
        self.step = step
        self._keys = keys
        self._count = count
        self._codec = without_classes()
        self._rows: deque[TapRow] = deque()
        self._clock = clock or SystemClock()
        self._until_s = None if timeout_s is None else self._clock.monotonic_s() + timeout_s
        self._page = self._first()
        self._page_s = self._clock.monotonic_s()
        self._base = self._page.passed
        self.keyed, self.unit = self._page.keyed, self._page.unit
        self._has_ended = False

    def _first(self) -> TapPage:
        """Return the first page, which has no records, once the job has started."""
        until_s = self._clock.monotonic_s() + START_S
        while not (page := self._ask(TapCommand(self.step, LOOK_S, self._keys))).log:
            if self._clock.monotonic_s() >= until_s:
                raise DeadlineError(
                    f"step {self.step!r} cannot be tapped: its job has not started within {START_S:g} s",
                    wait="the start of a job",
                    deadline_s=START_S,
                )
            self._clock.sleep_s(_AGAIN_S)
        return page

    def __next__(self) -> TapRecord:
        if self._count is not None and self.shown >= self._count:
            raise StopIteration
        while not self._rows:
            if self._has_ended or not self.look():
                raise StopIteration
        self.shown += 1
        return record_of(self._rows.popleft(), self._codec)

    def rate(self, seconds: float = 1.0) -> float | None:
        """Count the records of the next ``seconds``, and return how many pass in a second; None once the job has ended.
        These records are not returned by the iterator.
        """
        until_s, began_s, before = self._clock.monotonic_s() + seconds, self._page_s, self.passed
        while (goes_on := self._clock.monotonic_s() < until_s) and self.look():
            self._rows.clear()
        self._rows.clear()
        return None if goes_on else (self.passed - before) / (self._page_s - began_s)  # counts are as of a page

    def look(self) -> bool:
        """Ask for the next records, and wait a second at most for some. Return False once there will be none."""
        left_s = LOOK_S if self._until_s is None else min(LOOK_S, self._until_s - self._clock.monotonic_s())
        if left_s <= 0 or self._has_ended:
            return False
        before = self._page
        try:
            page = self._ask(TapCommand(self.step, left_s, self._keys, before.after, before.log))
        except JobEnded:
            self._has_ended = True
            return False
        if page.log != before.log:  # of another coordinator, or after a pause: it counts from 0
            self._base = -self.passed
        if not page.log:  # the job has not started again yet
            self._clock.sleep_s(_AGAIN_S)
        self._page, self._page_s, self._has_ended = page, self._clock.monotonic_s(), page.ended
        self.passed = max(self.passed, page.passed - self._base)
        self._rows.extend(page.rows)
        return True


def record_of(row: TapRow, codec: Codec) -> TapRecord:
    """Return the record of ``row``, decoded by ``codec``."""
    key, value = codec.decode_at_rest(row.key), codec.decode_at_rest(row.value)
    return TapRecord(key, value, row.timestamp, row.worker, row.output)


def stored_keys(*keys: Any) -> Keys:
    """Return the form in which ``keys`` are looked for. `PlanError` if one has none.

    >>> stored_keys(17) == stored_keys(17)
    True
    """
    try:
        return tuple(Codec().encode_at_rest(key, step="tap") for key in keys)
    except CodecError:
        kinds = ", ".join(type(key).__name__ for key in keys)
        raise PlanError(
            f"tap: a key of type {kinds} cannot be sent to the job: tap without a key, and filter the records"
        ) from None
