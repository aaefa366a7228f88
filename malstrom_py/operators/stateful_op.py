"""``stateful_op``: the general keyed step, which calls the hooks of a user's `StatefulLogic`.

Rules: outputs obey `CheckedOutput`; a record on which the logic raised leaves state, timers and outputs unchanged. T6:
timers fire at the step's own frontier. A hook over all keys gets the states as `Assigned`: reading costs the same as a
dict, and the checks afterwards cost by the keys assigned, not by all keys.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, MutableMapping, Sequence, Set, ValuesView
from itertools import islice, repeat
from operator import is_
from typing import Any

from malstrom_py.clock import Clock
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.data.time import from_clock
from malstrom_py.errors import OperatorError, mark_safe, shown
from malstrom_py.errors.text import describe_function
from malstrom_py.events import AnyEvent, Input, InputClosed, Stop, StopCause
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.first_rows import NoneWatch
from malstrom_py.operators.keyed import StatefulOperator, check_hashable, distinct, keys_of
from malstrom_py.operators.logic import CheckedOutput, Output, hooks_of
from malstrom_py.state.entries import BY_CLOCK
from malstrom_py.state.many_values import Defaulting
from malstrom_py.state.timers import Timers


class Assigned(MutableMapping[Any, Any]):
    """A view of ``values``, key -> state, that tracks changes. ``changed``: the keys assigned or dropped; ``made``:
    those of them that had no state before.
    """

    __slots__ = ("_values", "changed", "made")

    def __init__(self, values: MutableMapping[Any, Any]) -> None:
        self._values = values
        self.changed: set[Any] = set()
        self.made: set[Any] = set()

    @property
    def before(self) -> Set[Any]:
        """The keys that had state before."""
        keys = self._values.keys()
        return (keys | self.changed) - self.made if self.changed else keys

    def __getitem__(self, key: Any) -> Any:
        return self._values[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._change(key)
        self._values[key] = value

    def __delitem__(self, key: Any) -> None:
        if key in self._values:
            self._change(key)
        del self._values[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __repr__(self) -> str:
        return repr(self._values)

    def get(self, key: Any, default: Any = None) -> Any:
        return self._values.get(key, default)

    def keys(self) -> KeysView[Any]:
        return self._values.keys()

    def values(self) -> ValuesView[Any]:
        return self._values.values()

    def items(self) -> ItemsView[Any, Any]:
        return self._values.items()

    def popitem(self) -> tuple[Any, Any]:
        for key in reversed(self._values):
            return key, self.pop(key)
        raise mark_safe(KeyError("no key has state"))

    def clear(self) -> None:
        self.changed |= self._values.keys()
        self._values.clear()

    def _change(self, key: Any) -> None:
        if key not in self.changed:
            self.changed.add(key)
            if key not in self._values:
                self.made.add(key)


class StatefulOp(StatefulOperator):
    """Runs ``logic`` with one state per key.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> def every_second(message, seen, output):
    ...     seen = (seen or 0) + 1
    ...     if seen == 2:
    ...         output.send(message)
    ...         return None                                # drop the key's state
    ...     return seen
    >>> job = mp.Job("docs")
    >>> words = job.source("words", sources.Memory(["a", "b", "a", "a"])).key_by("word", str)
    >>> mp.collect(words.stateful_op("every-second", every_second))
    ['a']
    """

    keeps_on_disk = True

    def __init__(
        self,
        context: StepContext,
        *,
        logic: Any,
        default: Callable[[], Any] | None = None,
        sides: Sequence[str] = (),
        event_time: bool = True,
    ) -> None:
        super().__init__(context)
        hooks = hooks_of(logic, context.step)
        self._on_data = hooks.get("on_data")
        self._on_batch = hooks.get("on_batch")
        self._on_epoch = hooks.get("on_epoch")
        self._on_timer = hooks.get("on_timer")
        self._on_schedule = hooks.get("on_schedule")
        self._on_event = hooks.get("on_event")
        self.listens = self._on_event is not None
        self._inputs_open = True
        self._is_stopping = False
        self.scheduled = self._on_schedule is not None or self._on_timer is not None
        self._default = default
        if default is not None and self._on_batch is not None:
            self.state.values = Defaulting(default)
        self._checked = CheckedOutput(context, sides, event_time=event_time)
        self.watch = self._none_watch = NoneWatch(context, self._on_data, "the new state of the key")

    @property
    def dormant(self) -> bool:
        expires = self._expires_by_clock and self.state.count
        return self._on_schedule is None and not self.state.has_timers(BY_CLOCK) and not expires

    def _output(self) -> Output[Any, Any]:
        return Output(self._checked.passed, self.context.clock)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        output = self._output()
        if self.listens:
            about = {"worker": self.context.worker, "rows": len(batch)}
            self.on_event(Input("|".join(self.context.inputs), about, batch))
        self.expire_now()
        if self._on_batch is not None:
            self._whole(self._on_batch, batch, output)
        elif self._on_data is not None:
            self._each(self._on_data, batch, output, out)
        if self.state.untried:
            self.state.try_first()
        self._finish(output, out)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        output = self._output()
        output.ended = epoch.time == MAX_EPOCH
        if output.ended:
            self._fire_by_clock(MAX_EPOCH, output)
        self._fire(epoch.time, output)
        expires = self.state.expiry is not None
        if expires and epoch.time != MAX_EPOCH:
            self.expire(epoch)
        if self._on_epoch is not None:
            self._over_all(self._on_epoch, output, epoch)
            self._set_timers(output)
            self._fire(epoch.time, output)
        if expires and epoch.time == MAX_EPOCH:
            self.expire(epoch)
        self._checked.send(output, out, closing=epoch.time)
        self._checked.passed = epoch.time
        out.forward(epoch)
        if epoch.time == MAX_EPOCH and self.listens and self._inputs_open:
            self._inputs_open = False
            for step in self.context.inputs:
                self.on_event(InputClosed(step))
            if not self._is_stopping:
                self.on_event(Stop(StopCause.ALL_INPUTS_CLOSED, self.context.worker))

    def on_event(self, event: AnyEvent) -> None:
        if isinstance(event, Stop):
            if self._is_stopping or event.worker != self.context.worker:
                return
            self._is_stopping = True
        assert self._on_event is not None
        with self.failures.of_hook(self._on_event):
            self._on_event(event)

    def on_schedule(self, out: Outlet, clock: Clock) -> None:
        output = self._output()
        self._fire_by_clock(from_clock(clock.now_s(), "ms"), output)
        self.expire_now()
        if self._on_schedule is not None:
            self._over_all(self._on_schedule, output)
        self._finish(output, out)

    def continue_at(self, epoch: int) -> None:
        """Continue after ``epoch``, which was passed on where the state is from: no hook is called for it again."""
        self._checked.passed = epoch

    def fire_timers(self, time: int, out: Outlet) -> None:
        """Call ``on_timer`` for the timers due at ``time`` that are left because an earlier call raised."""
        output = self._output()
        output.ended = time == MAX_EPOCH
        self._fire(time, output)
        self._checked.send(output, out, closing=time)

    def _whole(self, function: Callable[..., Any], batch: Batch, output: Output[Any, Any]) -> None:
        keys = keys_of(batch, self.context.step)
        touched = distinct(keys, self.context.step)
        self.state.note(touched)
        before = len(self.state.values)
        try:
            function(keys, batch.values, batch.timestamps, self.state.values, output)
        except Exception as error:
            raise self.failures.error(error, function, policy=False) from error
        self._checked.check_keys(output, touched, function)
        self._check_states(before, touched, function)
        self._discard(touched)
        if self.state.expiry is not None:
            self.touched(batch)

    def _each(self, function: Callable[..., Any], batch: Batch, output: Output[Any, Any], out: Outlet) -> None:
        keys = keys_of(batch, self.context.step)
        self.changes(keys)
        self.dropped_at.clear()
        states, default, dropped = self.state.values, self._default, self.dropped_at
        call = self._watched(function) if self._none_watch.active else function
        rows = enumerate(zip(keys, batch.values, batch.timestamps or repeat(None), strict=False))
        sent, asked = output.keys, output.timers
        index, mark, timers = 0, 0, 0
        failed: list[int] = []
        while True:
            try:
                for index, (key, value, timestamp) in rows:
                    mark, timers = len(sent), len(asked)
                    state = states.get(key)
                    if state is None and default is not None:
                        state = default()
                    state = call(DataMessage(key, value, timestamp), state, output)
                    # The common case is at most one output under the record's own key; others are checked.
                    if len(sent) > mark + 1 or (len(sent) > mark and sent[mark] is not key) or len(asked) > timers:
                        self._check_key(key, mark, timers, output, function)
                    if state is None:
                        states.pop(key, None)
                        dropped[key] = index - len(failed)
                    else:
                        states[key] = state
                if self.state.expiry is not None:
                    self.touched(batch.drop(failed) if failed else batch)
                return
            except Exception as error:
                if isinstance(error, OperatorError) and error.rule and error.step == self.context.step:
                    raise  # a broken rule, already complete
                check_hashable(keys[index], self.context.step)
                output.truncate(mark, timers)
                self.failures.record(error, function, batch, index, out)
                failed.append(index)

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``function`` to watch whether it returns any state, for at most a thousand records."""

        def watched(*arguments: Any) -> Any:
            state = function(*arguments)
            self._none_watch.results((state,))
            return state

        return watched

    def _over_all(self, function: Callable[..., Any], output: Output[Any, Any], *arguments: Any) -> None:
        states = Assigned(self.state.whole())
        sent = len(output)
        try:
            with self.failures.of_hook(function):
                function(*arguments, states, output)
        finally:
            self.state.note(states.changed)
        if len(output) > sent or output.timers:
            self._checked.check_keys(output, states.before, function, since=sent)
        for key in states.made:
            if key in states:
                raise self._checked.foreign_key(key, function)
        self._discard(states.changed)

    def _check_states(self, before: int, allowed: Set[Any], function: object) -> None:
        """Check that new keys are keys of the batch: others may belong to another worker, and would be lost when keys
        move.
        """
        states = self.state.values
        # New keys are the last in the dict.
        for key in islice(reversed(states), max(0, len(states) - before)):
            if key not in allowed:
                raise self._checked.foreign_key(key, function)

    def _finish(self, output: Output[Any, Any], out: Outlet) -> None:
        """Set the requested timers, fire those that are already due, and send all outputs."""
        self._set_timers(output)
        self._fire(self._checked.passed, output)
        self._checked.send(output, out)

    def _fire(self, frontier: int, output: Output[Any, Any]) -> None:
        self._call_timers(self.state.timers, "event", frontier, output)

    def _fire_by_clock(self, now: int, output: Output[Any, Any]) -> None:
        self._call_timers(self.state.clock_timers, "processing", now, output)

    def _call_timers(self, timers_due: Timers, clock: str, reached: int, output: Output[Any, Any]) -> None:
        states, function = self.state.values, self._on_timer
        if function is None:
            return
        expires = self.state.expiry is not None and self._expires_by_clock is (clock == "processing")
        for key, time in self.state.fired(timers_due, reached):
            if expires:
                self.state.expire(time - 1)
            mark, timers = len(output), len(output.timers)
            try:
                state = function(key, time, states.get(key), output)
            except Exception as error:
                raise self.failures.error(error, function, key=key, policy=False) from error
            self._check_key(key, mark, timers, output, function)
            self._check_later(key, time, clock, output, function)
            self._set(key, state, time if expires else None)
            if output.ended:  # one that always sets the next would fire forever
                self.counters.dropped_timers += len(output.timers)
                output.timers.clear()
            self._set_timers(output)

    def _check_later(self, key: Any, time: int, clock: str, output: Output[Any, Any], function: object) -> None:
        """Refuse a timer set by ``on_timer`` that is not later by the same clock: it would fire forever."""
        for _, other, by in output.timers:
            if by == clock and type(other) is int and other <= time:
                raise OperatorError(
                    f"step {self.context.step!r}: on_timer of key {shown(key)} at {time} set a timer at {other}, "
                    f"which is not later (in {describe_function(function)}). Set it for a later time.",
                    step=self.context.step,
                    key=key,
                    function=describe_function(function),
                )

    def _set_timers(self, output: Output[Any, Any]) -> None:
        if not output.timers:
            return
        if self._on_timer is None:
            raise OperatorError(
                f"step {self.context.step!r} set a timer, but its logic has no on_timer", step=self.context.step
            )
        if self.state.cold is not None:  # on_epoch may set some of keys on disk
            self.state.bring(key for key, _, _ in output.timers)
        for key, time, clock in output.timers:
            if clock == "processing":
                self.state.clock_timers.set(key, self._checked.clock_time(time, self.context.clock.now_s()))
            else:
                self._checked.check_timer(time)
                self.state.timers.set(key, time)
        output.timers.clear()

    def _check_key(self, key: Any, mark: int, timers: int, output: Output[Any, Any], function: object) -> None:
        for other in output.keys[mark:]:
            if other is not key and other != key:
                raise self._checked.foreign_key(other, function)
        for other, _, _ in output.timers[timers:]:
            if other is not key and other != key:
                raise self._checked.foreign_key(other, function)

    def _set(self, key: Any, state: Any, time: int | None) -> None:
        """Set the state that a timer at ``time`` has made; None: not a time by which states expire."""
        if state is None:
            self.state.values.pop(key, None)
        else:
            self.state.values[key] = state
        if self.state.expiry is not None:
            if state is None:
                self.state.expiry.forget((key,))
            else:
                self.state.date(key, time)

    def _discard(self, keys: Set[Any]) -> None:
        """Drop those of ``keys`` whose state is None."""
        states = self.state.values
        # By identity, because states such as arrays compare item by item.
        if any(map(is_, map(states.get, keys), repeat(None))):
            dropped = [key for key in keys if states.get(key) is None]
            for key in dropped:
                states.pop(key, None)
            if self.state.expiry is not None:
                self.state.expiry.forget(dropped)
