"""The events of one job, kept for all who read them, each at its own pace.

Rule: a reader asks for what follows the last event that it has seen, so a slow one delays nothing and costs no memory.
The log keeps the last events; of older ones it keeps those that a late reader needs to know the state of the job.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from time import time
from typing import Any, Final

from malstrom_py.errors import MalstromError
from malstrom_py.errors.text import describe_function
from malstrom_py.events import (
    AnyEvent,
    Ended,
    EventsMissed,
    InputClosed,
    InputRecovered,
    InputSilent,
    NodeFailed,
    ParameterChanged,
    Reload,
    RescaleEnded,
    Stop,
    WorkerLeft,
)
from malstrom_py.logs import log

KEPT_MAX: Final = 10_000
"""How many events a log keeps."""

LASTING_MAX: Final = 10_000
"""How many older events it keeps because they say how a worker has ended. Those of inputs, one of each, all stay."""

PAGE_MAX: Final = 500
"""How many events are read at a time."""

FOLLOW_S: Final = 2.0
"""How long a reader that follows waits in one request."""

ON_EVENT_S: Final = 10.0
"""How long the end of a job waits for the calls of ``on_event``."""

_LASTING: Final = (InputClosed, NodeFailed, Stop, WorkerLeft)

_LOG: Final = logging.getLogger("malstrom_py")


class EventPage:
    """Some events of log ``log`` in order. ``after``: the number with which to ask for the next ones; ``missed``: how
    many were dropped before them; ``ended``: no event follows; ``times``: of each event, in seconds since 1970.
    """

    __slots__ = ("after", "ended", "events", "log", "missed", "times")

    def __init__(
        self,
        log: str,
        after: int,
        events: list[AnyEvent],
        missed: int = 0,
        *,
        ended: bool = False,
        times: list[float] | None = None,
    ) -> None:
        self.log = log
        self.times = times or [0.0] * len(events)
        self.after = after
        self.events = events
        self.missed = missed
        self.ended = ended


TimedEvent = tuple[float, AnyEvent]
"""An event with its time in seconds since 1970."""

EventImage = tuple[str, int, list[tuple[int, TimedEvent]], list[TimedEvent]]
"""The content of a log in plain types: its id, the number of its first event, older events, events."""


@dataclass(frozen=True, slots=True)
class MoveTotals:
    """What all completed rescales of a job have moved."""

    rescales: int = 0
    slots: int = 0
    keys: int = 0
    bytes: int = 0
    duration_s: float = 0.0

    def with_rescale(self, event: RescaleEnded) -> MoveTotals:
        """Return the totals with one more rescale.

        >>> MoveTotals().with_rescale(RescaleEnded(4, slots=512, keys=10)).slots
        512
        """
        return MoveTotals(
            self.rescales + 1,
            self.slots + event.slots,
            self.keys + event.keys,
            self.bytes + event.bytes,
            self.duration_s + event.duration_s,
        )


class EventLog:
    """The events of a job. Any thread may call the methods.

    >>> log = EventLog()
    >>> log.emit(InputClosed("readings")), log.emit(InputClosed("readings"))
    (True, False)
    >>> log.page(0).events
    [InputClosed(id='readings')]
    """

    def __init__(self, kept_max: int = KEPT_MAX, lasting_max: int = LASTING_MAX) -> None:
        self._kept_max = kept_max
        self._lasting_max = lasting_max
        self._lock = threading.Lock()
        self._events: deque[TimedEvent] = deque()
        self._first = 0
        self._lasting: deque[tuple[int, TimedEvent]] = deque()
        self._closed: set[str] = set()
        self.silent: set[str] = set()
        """The sources that were silent last, maybe in an earlier run."""
        self._has_ended = False
        self._waiting: list[tuple[int, Future[EventPage]]] = []
        self._news: list[NodeFailed | Reload | ParameterChanged] = []
        self.totals = MoveTotals()
        """What the rescales so far have moved."""

    @cached_property
    def id(self) -> str:
        """The id of this log: another run of the job has another log."""
        return uuid.uuid4().hex

    def emit(self, event: AnyEvent, at: float | None = None) -> bool:
        """Append ``event``, and return whether it is new: an input is closed once. Nothing follows `Ended`.

        ``at``: its time in seconds since 1970, by default now.
        """
        with self._lock:
            if self._has_ended:
                return False
            if isinstance(event, InputClosed):
                if event.id in self._closed:
                    return False
                self._closed.add(event.id)
            if isinstance(event, InputSilent):
                self.silent.add(event.id)
            elif isinstance(event, InputRecovered | InputClosed):
                self.silent.discard(event.id)
            if isinstance(event, NodeFailed | Reload | ParameterChanged):
                self._news.append(event)
            if isinstance(event, RescaleEnded) and not event.error:
                self.totals = self.totals.with_rescale(event)
            self._has_ended = isinstance(event, Ended)
            self._events.append((time() if at is None else at, event))
            if len(self._events) > self._kept_max:
                self._drop_first()
            waiting, self._waiting = self._waiting, []
            pages = [(future, self._page(after)) for after, future in waiting]
        for future, page in pages:
            future.set_result(page)
        return True

    def news(self) -> list[NodeFailed | Reload | ParameterChanged]:
        """Return what happened between runs since the last call: the workers of the next run are notified of it."""
        with self._lock:
            news, self._news = self._news, []
            return news

    @property
    def image(self) -> EventImage:
        """The content."""
        with self._lock:
            return self.id, self._first, list(self._lasting), list(self._events)

    @classmethod
    def of(cls, image: EventImage) -> EventLog:
        """Return the log of which ``image`` is the content."""
        log = cls()
        log.id, log._first, lasting, events = image
        log._lasting.extend(lasting)
        log._closed |= {event.id for _, (_, event) in lasting if isinstance(event, InputClosed)}
        for at, event in events:
            log.emit(event, at)
        return log

    def page(self, after: int, log: str = "") -> EventPage:
        """Return the next events after number ``after`` of log ``log``: all, if that is another one."""
        with self._lock:
            return self._page(after if log in {"", self.id} else 0)

    def next_page(self, after: int, log: str = "") -> Future[EventPage]:
        """The same as a future that waits for at least one event. A log that has ended does not wait."""
        after = after if log in {"", self.id} else 0
        future: Future[EventPage] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            page = self._page(after)
            if not page.events and not page.ended:
                self._waiting.append((after, future))
                return future
        future.set_result(page)
        return future

    def forget(self, future: Future[Any]) -> None:
        """Stop waiting for an event on behalf of ``future``."""
        with self._lock:
            self._waiting = [waiting for waiting in self._waiting if waiting[1] is not future]

    def _drop_first(self) -> None:
        timed = self._events.popleft()
        if isinstance(timed[1], _LASTING):
            self._lasting.append((self._first, timed))
            if len(self._lasting) - len(self._closed) > self._lasting_max:
                of_workers = (at for at, (_, (_, event)) in enumerate(self._lasting) if type(event) is not InputClosed)
                del self._lasting[next(of_workers)]
        self._first += 1

    def _page(self, after: int) -> EventPage:
        first, missed = self._first, 0
        events: list[TimedEvent] = []
        if after < first:
            older = [(number, event) for number, event in self._lasting if number >= after]
            events = [event for _, event in older[:PAGE_MAX]]
            reached = older[PAGE_MAX][0] if len(older) > PAGE_MAX else first
            missed = reached - after - len(events)
            after = reached
        more: list[TimedEvent] = []
        if after >= first:
            start, room = after - first, PAGE_MAX - len(events)
            more = [self._events[index] for index in range(start, min(len(self._events), start + room))]
        after += len(more)
        is_last = self._has_ended and after == first + len(self._events)
        timed = [*events, *more]
        return EventPage(
            self.id, after, [event for _, event in timed], missed, ended=is_last, times=[at for at, _ in timed]
        )


Ask = Callable[[int, str, float], EventPage]
"""Asks for the events after a number of a log, and waits for some for a number of seconds."""


def read_events(ask: Ask, *, follow: bool) -> Iterator[AnyEvent]:
    """Iterate over the events that ``ask`` returns: those so far or, with ``follow``, until the job has ended."""
    return (event for _, event in read_timed_events(ask, follow=follow))


def read_timed_events(ask: Ask, *, follow: bool) -> Iterator[TimedEvent]:
    """The same with the time of each event."""
    after, log, closed = 0, "", set[str]()
    while True:
        page = ask(after, log, FOLLOW_S if follow else 0.0)
        if page.missed:
            yield page.times[0] if page.times else time(), EventsMissed(page.missed)
        for at, event in zip(page.times, page.events, strict=True):
            if isinstance(event, InputClosed):  # a coordinator that replaces another one may repeat it
                if event.id in closed:
                    continue
                closed.add(event.id)
            yield at, event
        after, log = page.after, page.log
        if page.ended or not (follow or page.events):
            return


OnEvent = Callable[[AnyEvent], object]
"""A user's function that is called with each event, in a separate thread."""


class EventCalls:
    """Calls ``on_event`` with the events that ``ask`` returns, in a thread, until the job has ended."""

    def __init__(self, on_event: OnEvent, ask: Ask, job: str) -> None:
        self._on_event = on_event
        self._ask = ask
        self._job = job
        self._thread = threading.Thread(target=self._call, name=f"malstrom-events-{job}", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the calls, after the job has ended, for a bounded time."""
        self._thread.join(ON_EVENT_S)
        if self._thread.is_alive():
            log(
                _LOG,
                logging.WARNING,
                "job %s has ended, and on_event (%s) has not taken all events within %g s",
                *(self._job, describe_function(self._on_event), ON_EVENT_S),
                job=self._job,
            )

    def _call(self) -> None:
        try:
            for event in read_events(self._ask, follow=True):
                try:
                    self._on_event(event)
                except Exception as error:
                    log(
                        _LOG,
                        logging.ERROR,
                        "job %s: on_event (%s) raised at %s; the job continues",
                        *(self._job, describe_function(self._on_event), type(event).__name__),
                        error=error,
                        job=self._job,
                    )
        except MalstromError as error:
            log(_LOG, logging.WARNING, "job %s: no more events can be read: %s", self._job, error, job=self._job)
