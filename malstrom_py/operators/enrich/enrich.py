"""``enrich``: combines each record with the answer of an asynchronous function, in the order of arrival.

Rules. Order holds for the whole step: records wait in one queue with the epochs between them, the maximum epoch too, so
that no record is sent after an epoch that it preceded. The queue is bounded: while it is full, the region takes in
nothing (F2, back-pressure); it is full with what leaves within a fraction of a second. The queue is state. A barrier
waits until the queue has no epochs (`holds_epochs`), then persists it (S1): the frontier at the barrier is the same on
every worker, and the waiting records are after it, so that each can resume on the worker that owns its key. A restored
step first repeats the calls for its records.

The queue does not move in a rescale, because its records could be sent below the frontier of the new owner: when state
moves, every owner has received the epoch of the cut (R4, R5). Held epochs are a risk for the state of later steps: a
key that leaves before such an epoch never gets it, and a key that arrives before gets it twice. So `Collect` waits for
the calls of its keys and sends their records, all entries before them and all epochs; `Acquire` sends all epochs. Both
end within the longest time of a call, or with a `DeadlineError`. Then no state of these keys is left to move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from malstrom_py.data.batch import Batch
from malstrom_py.data.equality import seen_form
from malstrom_py.data.messages import (
    AbsBarrier,
    Acquire,
    Collect,
    Epoch,
    Interrogate,
    StateMessage,
    SuspendMarker,
)
from malstrom_py.data.row_form import looked_up
from malstrom_py.errors import InternalError, OperatorError, shown
from malstrom_py.errors.text import describe_function
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.batch_sizing import UNLIMITED, Speed
from malstrom_py.operators.enrich.calls import (
    ABSENT,
    Answers,
    Asking,
    Cache,
    Call,
    Calls,
    Gathered,
    Held,
    artefact_of,
    encoded,
    held_in,
    in_one_slot,
)
from malstrom_py.operators.failures import ErrorPolicy, call_each
from malstrom_py.operators.keyed import distinct, keys_of
from malstrom_py.state.change_log import SlotsOf
from malstrom_py.state.keyed_state import Migrate

_HELD_S: Final = 0.25
"""How much time of work the queue holds beside the calls under way."""

ANSWERED_MAX: Final = 1024
"""The number of answered records that may wait for an earlier, slow call, beside the calls under way."""


class Enrich(Operator):
    """Sends ``(value, info)``, or ``combine(value, info)``, per record, where ``info = await function(thing)``; the
    thing is the record's key, or what ``by`` takes of its value.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> async def name_of(carrier):
    ...     return {"UA": "United", "B6": "JetBlue"}[carrier]
    >>> flights = mp.Job("docs").source("flights", sources.Memory([("UA", 1), ("B6", 2), ("UA", 3)]))
    >>> numbers = flights.key_by("carrier", lambda flight: flight[0]).map("number", lambda flight: flight[1])
    >>> mp.collect(numbers.enrich("name", name_of, cache=mp.Cache(size=100)))
    [(1, 'United'), (2, 'JetBlue'), (3, 'United')]
    """

    holding = True

    def __init__(
        self,
        context: StepContext,
        *,
        asking: Asking,
        by: Callable[[Any], Any] | None = None,
        cache: Cache | None = None,
        combine: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        super().__init__(context)
        self._asking = asking
        self._by = by
        self._combine = combine
        self._failures = ErrorPolicy(context)
        self._calls = Calls(asking, context.step)
        self._answers = None if cache is None else Answers(cache)
        self._under_way: dict[Any, Call] = {}
        self._queue: deque[Held | Epoch] = deque()
        self._slots_of: SlotsOf | None = None
        self._unasked = False
        self._rows_largest = 0
        self._speed = Speed()
        self._held_since_s: float | None = None
        self.checked = False
        """Whether to check that each record can be persisted and does not change while it waits (test mode)."""

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        self._ask_restored()
        things: list[Any] | None = None
        if self._by is not None:
            batch, things = call_each(self._by, batch, self._failures, out)
        keys = keys_of(batch, self.context.step)
        distinct(keys, self.context.step)
        calls = self._ask(keys if things is None else things)
        timestamps: Sequence[Any] = batch.timestamps or [None] * len(batch)
        entries = list(map(Held, keys, batch.values, timestamps, calls))
        if self.checked:
            for entry in entries:
                entry.image = encoded(entry, self.context)
        self._queue.extend(entries)
        self._rows_largest = max(self._rows_largest, len(batch))
        self._calls.start()
        self._leave(out)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        if self._queue:
            self._queue.append(epoch)
        else:
            out.forward(epoch)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        match message:
            case Interrogate():
                message.keys.update(key for key in self._keys() if message.predicate(key))
            case Collect():
                self._let_leave(message.keys, out)
            case Acquire():
                self._let_leave((), out)
            case AbsBarrier():
                slots_of = self._slots_of
                if slots_of is None:
                    # Nothing has held the barrier back until no epoch waits.
                    self._let_leave((), out)
                    slots_of = in_one_slot
                message.backend.persist(self.context.step, artefact_of(self._queue, slots_of, self.context))
            case SuspendMarker():
                # No output may follow. The snapshot before the marker has these records, or the job does not resume.
                self._queue.clear()
                self.close()
        out.forward(message)

    @property
    def awaiting(self) -> bool:
        return bool(self._queue)

    @property
    def backlogged(self) -> bool:
        held, concurrency = len(self._queue), self._asking.concurrency
        may = concurrency + min(self._rows_largest, self._room)
        # An answered record waits only for an earlier one, and leaves directly after it.
        return held > may and (
            self._calls.under_way > may or held > concurrency + max(self._rows_largest, ANSWERED_MAX)
        )

    @property
    def load(self) -> float:
        return self._calls.under_way / (self._asking.concurrency + self._room)

    @property
    def _room(self) -> int:
        """The number of records that may wait beside the calls under way: what leaves in `_HELD_S` at recent speed."""
        return min(UNLIMITED, max(1, self._speed.within_s(_HELD_S)))

    @property
    def holds_epochs(self) -> bool:
        return any(isinstance(entry, Epoch) for entry in self._queue)

    @property
    def keys(self) -> int | None:
        return len(self._keys())

    def resume(self, out: Outlet) -> int:
        self._ask_restored()
        left = self._leave(out)
        if not left:
            self._calls.check()
        return left

    def restore(self, state: bytes, owned: Callable[[Any], bool] = lambda key: True) -> None:
        """Append the records of a barrier whose keys are ``owned`` here (S5: any N restores on any M)."""
        self._hold([one for one in held_in([state], (0,), self.context) if owned(one.key)])

    def track(self, slots_of: SlotsOf) -> None:
        self._slots_of = slots_of

    def install(self, chain: Sequence[bytes], slots: Collection[int], *, migrate: Migrate | None = None) -> None:
        """Append the records that waited on one worker to the queue; ``migrate`` does not apply to them."""
        self._hold(held_in(chain, slots, self.context))

    def _hold(self, held: Sequence[Held]) -> None:
        for key in {one.key for one in held} & self._keys():
            raise InternalError(f"step {self.context.step!r}: records of key {shown(key)} waited on two workers")
        self._queue.extend(held)
        self._unasked = True

    def continue_chain(self, snapshot: str) -> None:
        """Do nothing: the queue is persisted in full."""

    def close(self) -> None:
        """Cancel the calls under way."""
        self._calls.close()

    def _ask(self, things: Sequence[Any]) -> list[Call]:
        """Return the call about each of ``things``: a new one, one under way, or one from the cache."""
        answers = self._answers
        if answers is None:
            return list(map(self._calls.ask, things))
        now_s = self.context.clock.monotonic_s()
        calls: list[Call] = []
        for thing in things:
            try:
                form = seen_form(thing)
                call = self._under_way.get(form)
                if call is None:
                    answer = answers.get(form, now_s=now_s)
                    if answer is ABSENT:
                        call = self._under_way[form] = self._calls.ask(thing)
                    else:
                        call = Call(thing, answer, done=True)
            except Exception as error:  # a TypeError, or an error of the user's own __hash__
                call = Call.unmade(thing, self._not_hashable(thing, error))
            calls.append(call)
        return calls

    def _ask_restored(self) -> None:
        """Repeat the calls for restored records, before any new call."""
        if not self._unasked:
            return
        self._unasked = False
        rows = [entry for entry in self._queue if isinstance(entry, Held) and entry.call is None]
        for row in rows:
            try:
                thing = row.key if self._by is None else looked_up(self._by)(row.value)
            except Exception as error:
                row.call = Call.unmade(None, error)
            else:
                (row.call,) = self._ask([thing])
        self._calls.start()

    def _come_back(self, calls: Collection[Call]) -> None:
        """Store the answers of ``calls`` in the cache."""
        if self._answers is None or not calls:
            return
        now_s = self.context.clock.monotonic_s()
        for call in calls:
            form = seen_form(call.thing)
            self._under_way.pop(form, None)
            if call.error is None:
                self._answers.put(form, call.answer, now_s=now_s)

    def _leave(self, out: Outlet) -> int:
        """Send the finished head of the queue, and return the number of records and epochs."""
        self._come_back(self._calls.take())
        queue, before = self._queue, len(self._queue)
        rows = Gathered(out)
        while queue:
            entry = queue[0]
            if isinstance(entry, Epoch):
                queue.popleft()
                rows.send()
                out.forward(entry)
            elif entry.call is None or not entry.call.done:
                break
            else:
                queue.popleft()
                try:
                    self._finish(entry, entry.call, rows, out)
                except BaseException:
                    rows.send()
                    out.drain()  # records before the error are sent in any case, so that the outcome is deterministic
                    raise
        rows.send()
        self._note(before - len(queue))
        return before - len(queue)

    def _note(self, left: int) -> None:
        """Measure the speed: ``left`` entries have left, and the rest waits from now on."""
        now_s = self.context.clock.monotonic_s()
        if self._held_since_s is not None and left:
            self._speed.took(left, now_s - self._held_since_s)
        if left or self._held_since_s is None:
            self._held_since_s = now_s if self._queue else None

    def _finish(self, entry: Held, call: Call, rows: Gathered, out: Outlet) -> None:
        if entry.image is not None and encoded(entry, self.context) != entry.image:
            raise OperatorError(
                f"step {self.context.step!r} changed a value while it waited (in "
                f"{describe_function(self._asking.function)}): values are shared with other branches and persisted, so "
                f"they may not be changed in place. Return the answer instead.",
                step=self.context.step,
                key=entry.key,
            )
        blame: object = self._asking.function if call.made else self._by
        error = call.error
        value: Any = None
        if error is None:
            try:
                value = (entry.value, call.answer) if self._combine is None else self._combine(entry.value, call.answer)
            except Exception as raised:
                error, blame = raised, self._combine
        if error is None:
            rows.add(entry, value)
            return
        if not isinstance(error, Exception):
            raise error
        self._failures.record(error, blame, entry.as_batch(), 0, out)

    def _let_leave(self, keys: Collection[Any], out: Outlet) -> None:
        """Wait until the records of ``keys``, all epochs, and all entries before these have left."""
        self._ask_restored()
        last = 0
        for place, entry in enumerate(self._queue, 1):
            if isinstance(entry, Epoch) or entry.key in keys:
                last = place
        while last > 0:
            left = self._leave(out)
            last -= left
            if not left:
                back = self._calls.wait()
                if not back:
                    raise InternalError(f"step {self.context.step!r} waits for a call that is not running")
                self._come_back(back)

    def _keys(self) -> set[Any]:
        return {entry.key for entry in self._queue if isinstance(entry, Held)}

    def _not_hashable(self, thing: object, why: Exception) -> OperatorError:
        where = "the key" if self._by is None else f"what {describe_function(self._by)} returns"
        error = OperatorError(
            f"step {self.context.step!r}: {where} is of type {type(thing).__name__}, which cannot be hashed, so no "
            f"answer can be kept for it. Return something immutable, for instance a tuple instead of a list, or leave "
            f"out cache=.",
            step=self.context.step,
        )
        error.__cause__ = why
        return error
