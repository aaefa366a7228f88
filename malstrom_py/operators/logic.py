"""The interface of user logic for ``stateful_op`` and ``stateless_op``: hooks, `Output`, and the checks of outputs.

Rules, enforced by `CheckedOutput`: an output has the key of its input; on a timed stream it has a timestamp above the
last epoch forwarded, on an untimed stream none. The same holds for side outputs, which the step must declare.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, MutableMapping, Sequence, Set
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, overload

from malstrom_py.clock import Clock as RuntimeClock
from malstrom_py.clock import SystemClock
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, DataMessage, Epoch
from malstrom_py.data.time import from_clock, to_span, to_time
from malstrom_py.errors import OperatorError, PlanError, shown
from malstrom_py.errors.text import describe_error, describe_function
from malstrom_py.events import AnyEvent
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.keyed import distinct
from malstrom_py.validation import is_coroutine_function

K = TypeVar("K")
VI = TypeVar("VI")
VO = TypeVar("VO")
S = TypeVar("S")

Clock = Literal["event", "processing"]

HOOKS: Final = ("on_data", "on_batch", "on_epoch", "on_timer", "on_schedule", "on_event")


class Output(Generic[K, VO]):
    """Collects the records and timers of a logic. An output has its input's key; on a timed stream it has a timestamp
    above the last watermark forwarded, on an untimed one none.

    >>> output = Output()
    >>> output.emit("a", 1, None)
    >>> output.send(DataMessage("a", 2))
    >>> output.values
    [1, 2]

    ``values`` has all values that were sent, in order, those for side outputs as a `Sided`. ``ended``: whether the
    stream has ended. Then every timer fires, and one that ``on_timer`` sets is dropped, so send what still waits.
    ``watermark``: the last one that the step has passed on, `mp.MIN_EPOCH` before the first.
    """

    __slots__ = ("_clock", "ended", "keys", "sided", "timers", "timestamps", "values", "watermark")

    def __init__(self, watermark: int = MIN_EPOCH, clock: RuntimeClock | None = None) -> None:
        self.ended = False
        self.watermark = watermark
        self._clock = clock
        self.keys: list[K] = []
        self.timers: list[tuple[K, Any, Clock]] = []
        self.values: list[VO] = []
        self.timestamps: list[int | None] = []
        # Side outputs share the lists, so that they are checked and truncated with the others; a logic without side
        # outputs pays for one attribute per batch.
        self.sided = False

    def emit(self, key: K, value: VO, timestamp: int | None = None) -> None:
        """Send one record."""
        self.keys.append(key)
        self.values.append(value)
        self.timestamps.append(timestamp)

    def send(self, message: DataMessage[K, VO]) -> None:
        """Send one record as a message."""
        self.emit(message.key, message.value, message.timestamp)

    @overload
    def set_timer(self, key: K, time: int, *, clock: Literal["event"] = "event") -> None: ...
    @overload
    def set_timer(self, key: K, time: int | datetime | timedelta, *, clock: Literal["processing"]) -> None: ...
    def set_timer(self, key: K, time: Any, *, clock: Clock = "event") -> None:
        """Call ``on_timer`` for ``key`` once the step's frontier has reached ``time`` (T6).

        With ``clock="processing"``, once the runtime's clock has: ``time`` is in ms since 1970, an aware datetime, or a
        timedelta from now. It is about ``linger_s`` late. At the end of the stream all timers fire, and ``on_timer``
        can set no more: see ``ended``.
        """
        self.timers.append((key, time, clock))

    def side(self, name: str) -> SideOutput[K]:
        """Return the side output ``name``, a separate stream that the step must declare.

        >>> output = Output()
        >>> output.side("rejected").emit("a", -1)
        >>> output.side("rejected").values, output.values
        ([-1], [Sided('rejected')])
        """
        self.sided = True
        return SideOutput(self, name)

    def now_ms(self) -> int:
        """Return the time of the runtime's clock, in ms since 1970."""
        return from_clock((self._clock or SystemClock()).now_s(), "ms")

    def __len__(self) -> int:
        return len(self.values)

    def truncate(self, length: int, timers: int) -> None:
        """Remove all but the first ``length`` records, of side outputs too, and the first ``timers`` timers."""
        del self.keys[length:], self.values[length:], self.timestamps[length:], self.timers[timers:]

    @property
    def timed(self) -> bool:
        """Whether any record has a timestamp."""
        return any(timestamp is not None for timestamp in self.timestamps)


class Sided:
    """A value for the side output ``name``. Its repr hides the value, which may be secret."""

    __slots__ = ("name", "value")

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.value = value

    def __repr__(self) -> str:
        return f"Sided({self.name!r})"


class SideOutput(Generic[K]):
    """One side output of a step. The rules of `Output` apply: its input's key, and a timestamp if it is timed."""

    __slots__ = ("_name", "_output")

    def __init__(self, output: Output[K, Any], name: str) -> None:
        self._output = output
        self._name = name

    def emit(self, key: K, value: Any, timestamp: int | None = None) -> None:
        """Send one record to this side output."""
        self._output.emit(key, Sided(self._name, value), timestamp)

    def send(self, message: DataMessage[K, Any]) -> None:
        """Send one record to this side output, as a message."""
        self.emit(message.key, message.value, message.timestamp)

    @property
    def values(self) -> list[Any]:
        """The values sent to this side output so far."""
        sided = (value for value in self._output.values if isinstance(value, Sided))
        return [value.value for value in sided if value.name == self._name]


class StatefulLogic(Protocol[K, VI, VO, S]):
    """The one method that a logic must have. A plain function with the same parameters is also a logic."""

    def on_data(self, message: DataMessage[K, VI], key_state: S | None, output: Output[K, VO]) -> S | None:
        """Process one record with its key's state (``default()``, or None, if the key has none).

        Returns the new state, or None to drop it.
        """
        ...


class KeyedLogic(Generic[K, VI, VO, S]):
    """Base class of logics: override ``on_data`` or, for speed, ``on_batch``; and ``on_epoch`` if you need it.

    ``state`` maps the keys on this worker to their state. Change it by assignment only, because a snapshot writes the
    keys that were assigned; drop a key with ``del state[key]`` (assigning None drops it too). Only records add keys.

    >>> class Latest(KeyedLogic[str, int, int, int]):
    ...     def on_data(self, message, key_state, output):
    ...         return message.value                       # keep it, send nothing yet
    ...     def on_epoch(self, epoch, state, output):
    ...         for key, value in sorted(state.items()):
    ...             output.emit(key, value, None)
    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> words = job.source("words", sources.Memory([("a", 1), ("b", 2), ("a", 3)]))
    >>> keyed = words.key_by("key", lambda word: word[0]).map("value", lambda word: word[1])
    >>> mp.collect(keyed.stateful_op("latest", Latest()))
    [3, 2]
    """

    def on_data(self, message: DataMessage[K, VI], key_state: S | None, output: Output[K, VO]) -> S | None:
        """Process one record; return the key's new state, or None to drop it."""
        raise NotImplementedError

    def on_batch(
        self,
        keys: list[K],
        values: list[VI],
        timestamps: list[int] | None,
        state: MutableMapping[K, S],
        output: Output[K, VO],
    ) -> None:
        """Process a whole batch, instead of ``on_data``. Change the state of the batch's keys only."""
        raise NotImplementedError

    def on_epoch(self, epoch: Epoch, state: MutableMapping[K, S], output: Output[K, VO]) -> None:
        """React to ``epoch``, a watermark that the step has reached and that is forwarded after this call.

        Outputs at or below it are allowed here, above the watermark before it.
        """

    def on_timer(self, key: K, time: int, key_state: S | None, output: Output[K, VO]) -> S | None:
        """React to a timer of ``key``, due because the step's frontier, or the clock, has reached ``time``.

        Return the new state. Timers of event time are called before ``on_epoch`` of the watermark that fires them. At
        the end of the stream (``output.ended``) all timers fire, those of later times too; a timer that is set here
        then is dropped and counted.
        """
        raise NotImplementedError

    def on_schedule(self, state: MutableMapping[K, S], output: Output[K, VO]) -> None:
        """Do periodic work, about every ``linger_s`` of the runtime's clock."""

    def on_event(self, event: AnyEvent) -> None:
        """React to an event of the job (`malstrom_py.events`); ignore kinds that you do not know.

        Called between two batches on each worker. `Input` comes before each batch and has its records; `InputClosed`
        for each input after the last watermark, then `Stop`, unless the job was stopped before. An error fails the job.
        """


LogicLike = StatefulLogic[K, VI, VO, S] | Callable[[DataMessage[K, VI], S | None, Output[K, VO]], S | None]


class StatelessLogic(Protocol[K, VI, VO]):
    """The logic of ``stateless_op``; ``on_epoch(epoch, output)`` is optional. A plain function is also a logic."""

    def on_data(self, message: DataMessage[K, VI], output: Output[K, VO]) -> None:
        """Process one record."""
        ...


StatelessLike = StatelessLogic[K, VI, VO] | Callable[[DataMessage[K, VI], Output[K, VO]], None]


def hooks_of(logic: object, step: str) -> dict[str, Callable[..., Any]]:
    """Return the hooks that a logic overrides, by name. `PlanError` for an unknown hook, or if none takes data."""
    hooks = _hooks(logic, step, HOOKS, KeyedLogic)
    if not hooks.keys() & {"on_data", "on_batch"}:
        raise PlanError(f"step {step!r}: {type(logic).__name__} has neither on_data nor on_batch: it cannot take data")
    return hooks


def stateless_hooks_of(logic: object, step: str) -> dict[str, Callable[..., Any]]:
    """Return the hooks of a logic of ``stateless_op``: ``on_data`` and perhaps ``on_epoch``. `PlanError` as above."""
    hooks = _hooks(logic, step, ("on_data", "on_epoch"), object)
    if "on_data" not in hooks:
        raise PlanError(f"step {step!r}: {type(logic).__name__} has no on_data: it cannot take data")
    return hooks


def _hooks(logic: object, step: str, known: Sequence[str], base: type) -> dict[str, Callable[..., Any]]:
    if isinstance(logic, type):
        raise PlanError(f"step {step!r}: pass an instance, {logic.__name__}(…), not the class itself")
    kind = type(logic)
    wanted = [name for name in dir(kind) if name.startswith("on_") and callable(getattr(logic, name))]
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
            raise PlanError(f"step {step!r}: {kind.__name__}.{name} is not a hook of this step; {hint}")
    hooks = {name: getattr(logic, name) for name in wanted if getattr(kind, name) is not getattr(base, name, None)}
    hooks = {"on_data": logic} if not hooks and callable(logic) else hooks
    for name, hook in hooks.items():
        if is_coroutine_function(hook):
            raise PlanError(
                f"step {step!r}: {name} is a coroutine function, which is not awaited here: make it a plain one, and "
                f"use enrich for calls that wait"
            )
    return hooks


class CheckedOutput:
    """Checks and sends the outputs of a user's logic: to port 0, and for the n-th of ``sides`` to port n.

    ``passed`` is the last epoch that the step forwarded. ``event_time``: whether the stream has epochs.
    """

    def __init__(self, context: StepContext, sides: Sequence[str] = (), *, event_time: bool = True) -> None:
        self._step = context.step
        self._event_time = event_time
        self._timed = context.timed
        self._keyed = context.keyed is not False
        self._sides = {side: port for port, side in enumerate(sides, 1)}
        self.passed = MIN_EPOCH
        self._closing: int | None = None

    def send(
        self, output: Output[Any, Any], out: Outlet, *, part: str | None = None, closing: int | None = None
    ) -> None:
        """Send the records of ``output``, made from records of ``part`` or at the epoch ``closing``, which is forwarded
        next. `OperatorError` if a record breaks a rule about keys or time.
        """
        self._closing = closing
        if output.sided:
            for port, records in self._by_port(output).items():
                self._send(records, out, port, part)
        elif output:
            self._send(output, out, 0, part)

    def _send(self, output: Output[Any, Any], out: Outlet, port: int, part: str | None) -> None:
        timestamps: Any = output.timestamps if output.timed else None
        if self._timed is None:
            if timestamps is not None and None in timestamps:
                for run in _alike(output):
                    self._send(run, out, port, part)
                return
            if timestamps is not None:
                self._check_times(timestamps)
        elif not self._timed:
            if timestamps is not None:
                raise self._error("sent a timestamp on an untimed stream: send None")
        elif timestamps is None or None in timestamps:
            raise self._error(f"sent a record without a timestamp on a timed stream: {self._a_time_to_give()}")
        else:
            self._check_times(timestamps)
        keys = output.keys if self._keyed else None
        out.send(Batch(output.values, keys=keys, timestamps=timestamps, part=part), port)

    def _by_port(self, output: Output[Any, Any]) -> dict[int, Output[Any, Any]]:
        ports: dict[int, Output[Any, Any]] = {}
        for key, value, timestamp in zip(output.keys, output.values, output.timestamps, strict=True):
            sided = type(value) is Sided
            records = ports.setdefault(self._port(value.name) if sided else 0, Output())
            records.emit(key, value.value if sided else value, timestamp)
        return ports

    def _port(self, side: str) -> int:
        port = self._sides.get(side)
        if port is None:
            there = f"its side outputs are {', '.join(map(repr, self._sides))}" if self._sides else "it has none"
            raise self._error(
                f"sent a record to a side output {shown(side)}, but {there}: give the step sides=[…, {shown(side)}], "
                f"or in a DAG have a node read it"
            )
        return port

    def _check_times(self, timestamps: list[int]) -> None:
        for kind in set(map(type, timestamps)) - {int}:
            raise self._error(f"sent a timestamp of type {kind.__name__}: send an int in the stream's unit")
        if min(timestamps) <= self.passed:
            raise self._error(
                f"sent a record at {min(timestamps)}, at or below the watermark {self.passed} it has passed on: "
                f"a watermark means that no earlier record follows. {_sentence(self._a_time_to_give())}",
                rule="epoch order",
            )
        if max(timestamps) >= MAX_EPOCH:
            raise self._error(
                f"sent a record at the maximum watermark, the end of the stream, or beyond it: {self._a_time_to_give()}"
            )

    def _a_time_to_give(self) -> str:
        """Advise which time to give a record whose time is not allowed."""
        above = "" if self.passed == MIN_EPOCH else f" above the watermark {self.passed}"
        if self._closing is None:
            return f"give it a time{above or ' of the stream'}, for instance its input's"
        if self._closing < MAX_EPOCH:
            return f"give it a time{above or ' of the stream'}, for instance epoch.time, {self._closing}"
        above = above and f"{above}, and"
        return (
            f"give it a time{above} below mp.MAX_EPOCH. At the end that is mp.MAX_EPOCH - 1, see "
            f"docs/event-time.md#one-result-per-key-at-the-end"
        )

    def check_timer(self, time: int) -> None:
        """Raise `OperatorError` if ``time`` is not valid for a timer of event time."""
        if not self._event_time:
            raise self._error('set a timer of event time on a stream without watermarks: give it clock="processing"')
        if type(time) is not int:
            raise self._error(f"set a timer at a time of type {type(time).__name__}: give an int in the stream's unit")
        if time > MAX_EPOCH:
            raise self._error("set a timer at a time beyond the maximum watermark, the end of the stream")

    def clock_time(self, time: object, now_s: float) -> int:
        """Return the ``time`` of a timer of the runtime's clock, in ms. `OperatorError` if it is not valid."""
        try:
            if isinstance(time, timedelta):
                return to_time(from_clock(now_s, "ms") + to_span(time, "ms"), "ms")
            return to_time(time, "ms")
        except (TypeError, ValueError) as error:
            raise self._error(
                f"set a timer of the runtime's clock at a time that cannot be used ({describe_error(error)}): "
                f"give an int in ms since 1970, an aware datetime, or a timedelta from now"
            ) from None

    def check_keys(self, output: Output[Any, Any], allowed: Set[Any], function: object, *, since: int = 0) -> None:
        """Raise `OperatorError` if a timer of ``output``, or a record from ``since`` on, has another key."""
        foreign = distinct([*output.keys[since:], *(key for key, _, _ in output.timers)], self._step) - allowed
        if foreign:
            raise self.foreign_key(next(iter(foreign)), function)

    def foreign_key(self, key: object, function: object) -> OperatorError:
        """Return the error about an output, state or timer under a key that its input does not have."""
        where = describe_function(function)
        return OperatorError(
            f"step {self._step!r} sent a record, made state or set a timer under key {shown(key)}, which its input "
            f"does not have (in {where}): outputs keep their input's key; use key_by after this step to change it",
            step=self._step,
            key=key,
            function=where,
            rule="key kept",
        )

    def _error(self, what: str, *, rule: str = "") -> OperatorError:
        return OperatorError(f"step {self._step!r} {what}", step=self._step, rule=rule)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _alike(output: Output[Any, Any]) -> Iterator[Output[Any, Any]]:
    """Divide ``output`` into runs of records that all have a timestamp, or all have none."""
    rows = zip(output.keys, output.values, output.timestamps, strict=True)
    for _, run in groupby(rows, key=lambda row: row[2] is None):
        records: Output[Any, Any] = Output()
        for row in run:
            records.emit(*row)
        yield records
