"""The calls to sources while a job runs, in the process that coordinates it: new parts are looked for (R13), and what
is committed is acknowledged.

Rule: a call runs in a thread, because it may block; the thread of the run handles its result, in `turn`. No source gets
two calls of one kind at the same time, not even from two runs of a job that follow each other. A call that fails is
logged as a warning, and the next one is the next try: the next listing, or the positions of the next snapshot.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from malstrom_py.clock import Clock, SystemClock
from malstrom_py.errors.text import public_text
from malstrom_py.logs import log
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.sources.base import Part, acknowledges
from malstrom_py.worker_context import Resources
from malstrom_py.workers.coordinator.machine import PartsFound
from malstrom_py.workers.engine.background import Background
from malstrom_py.workers.transport.messages import COORDINATOR

ACKNOWLEDGE_S: Final = 10.0
"""How long the end of a job waits for its acknowledgements."""

_NAP_S: Final = 0.05

_LOG: Final = logging.getLogger("malstrom_py.coordinator")

Positions = Mapping[str, Mapping[Part, Any]]
"""Step -> part -> position."""


class _Busy(Exception):
    """An earlier run of the job is still in a call of this kind."""


class _CallsInProgress:
    """The calls in progress in this process, so that no source gets two of a kind at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: set[tuple[str, int]] = set()

    def alone(self, kind: str, source: object, call: Callable[[], Any]) -> Any:
        """Return what ``call`` returns; raise `_Busy` during another call of this ``kind`` to ``source``."""
        this = (kind, id(source))
        with self._lock:
            if this in self._now:
                raise _Busy
            self._now.add(this)
        try:
            return call()
        finally:
            with self._lock:
                self._now.discard(this)


_IN_PROGRESS: Final = _CallsInProgress()


@dataclass(slots=True)
class _Listing:
    """The listings of one source. ``known``: its parts so far; ``due_s``: when it is listed next, None while it is;
    ``in_vain``: the number of listings since the last one that has found a part.
    """

    every_s: float
    known: set[Part]
    due_s: float | None
    in_vain: int = 0


@dataclass(slots=True)
class _Acknowledging:
    """The acknowledgements of one source. ``newest``: the positions of the next call, which replace those before."""

    newest: Mapping[Part, Any] | None = None
    runs: bool = False


class SourceCalls:
    """The calls to the ``sources`` of ``job``. ``parts``: those of each source at the start of the run.

    ``background`` makes what runs the calls of each kind: a listing that blocks holds up no acknowledgement.

    >>> from malstrom_py.workers.engine.background import ThreadBackground
    >>> calls = SourceCalls("docs", [], SystemClock(), {}, background=lambda: ThreadBackground(threading.Event()))
    >>> calls.due_s is None, calls.any
    (True, False)
    """

    def __init__(
        self,
        job: str,
        sources: Iterable[ReadSource],
        clock: Clock,
        parts: Mapping[str, Collection[Part]],
        *,
        background: Callable[[], Background],
    ) -> None:
        self._job = job
        self._clock = clock
        self._sources = {source.context.step: source for source in sources}
        now_s = clock.monotonic_s()
        self._listings = {
            step: _Listing(every_s, set(parts.get(step, ())), now_s + every_s)
            for step, source in self._sources.items()
            if (every_s := source.lists_again_every_s) is not None
        }
        self._acknowledgements = {step: _Acknowledging() for step in self._acknowledging()}
        self._found: list[PartsFound] = []
        kinds = {"list": self._listings, "acknowledge": self._acknowledgements}
        self._backgrounds = {kind: background() for kind, any_such in kinds.items() if any_such}
        self.any = bool(self._backgrounds)
        """Whether any source is listed again or acknowledges."""

    def _acknowledging(self) -> list[str]:
        """Return the steps whose source acknowledges. One that two steps read does not: they are at two positions."""
        steps: list[str] = []
        for step, source in self._sources.items():
            if not acknowledges(source.source):
                continue
            readers = [name for name, other in self._sources.items() if other.given is source.given]
            if len(readers) == 1:
                steps.append(step)
            elif readers[0] == step:
                self._warn(
                    step,
                    f"it is read by the steps {', '.join(map(repr, readers))}, so none of its rows is acknowledged and "
                    f"its system keeps all rows: give each step its own source",
                )
        return steps

    @property
    def lists_again(self) -> Collection[str]:
        """The steps whose sources are listed again."""
        return self._listings.keys()

    @property
    def acknowledging(self) -> Collection[str]:
        """The steps whose sources acknowledge."""
        return self._acknowledgements.keys()

    @property
    def in_vain(self) -> int:
        """How often each source that is listed again was listed since the last part that was found."""
        return min((listing.in_vain for listing in self._listings.values()), default=0)

    @property
    def due_s(self) -> float | None:
        """When the next listing begins, in monotonic time; None if none is due later."""
        due_s = (listing.due_s for listing in self._listings.values())
        return min((due for due in due_s if due is not None), default=None)

    @property
    def pending(self) -> bool:
        """Whether a call is in progress."""
        return any(background.pending for background in self._backgrounds.values())

    def turn(self, *, may_list: bool) -> list[PartsFound]:
        """Handle ended calls and begin those that are due. Return the new parts. ``may_list``: no stop is planned."""
        for background in self._backgrounds.values():
            background.turn()
        now_s = self._clock.monotonic_s()
        for step, listing in self._listings.items():
            if may_list and listing.due_s is not None and now_s >= listing.due_s:
                listing.due_s = None
                find = partial(_find_parts, self._sources[step], frozenset(listing.known))
                self._call("list", step, find, self._was_listed)
        found, self._found = self._found, []
        return found if may_list else []

    def committed(self, positions: Positions) -> None:
        """Acknowledge ``positions``: they are in a durable snapshot, or the job is at its end, and all sinks have
        committed.
        """
        for step, acknowledging in self._acknowledgements.items():
            if positions.get(step):
                acknowledging.newest = positions[step]
                self._acknowledge(step)

    def close(self, *, wait: bool) -> None:
        """End the calls. ``wait``: the job has ended, so wait for its acknowledgements, for a bounded time."""
        background = self._backgrounds.get("acknowledge")
        if wait and background is not None:
            self._settle(background)
        for each in self._backgrounds.values():
            each.close()

    def _settle(self, background: Background) -> None:
        clock = SystemClock()  # the thread works in real time
        until_s = clock.monotonic_s() + ACKNOWLEDGE_S
        while background.pending and clock.monotonic_s() < until_s:
            background.turn()
            if background.pending:
                clock.sleep_s(_NAP_S)
        background.turn()
        for step, acknowledging in self._acknowledgements.items():
            if acknowledging.runs or acknowledging.newest is not None:
                self._warn(
                    step,
                    f"its system has not acknowledged within {ACKNOWLEDGE_S:g} s what the job has committed: rows may "
                    f"stay there, and none is lost",
                )

    def _call(self, kind: str, step: str, call: Callable[[], Any], done: Callable[[str, Any], None]) -> None:
        work = partial(_IN_PROGRESS.alone, kind, self._sources[step].given, call)
        self._backgrounds[kind].submit(work, partial(done, step))

    def _was_listed(self, step: str, result: Sequence[tuple[Part, Any]] | BaseException) -> None:
        """Note the parts that are new: from now on they are known."""
        listing = self._listings[step]
        # The pause counts from the end of a listing, so that a slow one leaves time for others.
        listing.due_s = self._clock.monotonic_s() + listing.every_s
        listing.in_vain += 1
        if isinstance(result, BaseException):
            if not isinstance(result, _Busy):
                self._warn(step, f"it was not listed again, and will be: {public_text(result)}")
            return
        if new := [(part, position) for part, position in result if part not in listing.known]:
            listing.known.update(part for part, _ in new)
            listing.in_vain = 0
            self._found.append(PartsFound(step, tuple((str(part), position) for part, position in new)))
            text = "job %s: new partitions of source %s: %d"
            log(_LOG, logging.INFO, text, *(self._job, step, len(new)), job=self._job, step=step)

    def _acknowledge(self, step: str) -> None:
        """Acknowledge the newest positions, unless an earlier call is in progress."""
        acknowledging, source = self._acknowledgements[step], self._sources[step].source
        if not acknowledging.runs and (positions := acknowledging.newest) is not None:
            acknowledging.newest, acknowledging.runs = None, True
            self._call("acknowledge", step, partial(source.acknowledge, self._job, positions), self._was_acknowledged)

    def _was_acknowledged(self, step: str, result: object) -> None:
        self._acknowledgements[step].runs = False
        if isinstance(result, BaseException) and not isinstance(result, _Busy):
            self._warn(step, f"its system has not acknowledged what the job has committed: {public_text(result)}")
        self._acknowledge(step)

    def _warn(self, step: str, what: str) -> None:
        log(_LOG, logging.WARNING, "job %s, source %s: %s", *(self._job, step, what), job=self._job, step=step)


def _find_parts(source: ReadSource, known: Collection[Part]) -> Sequence[tuple[Part, Any]]:
    resources = Resources(worker=COORDINATOR)
    try:
        with resources:
            return source.find_parts(known)
    finally:
        resources.close()
