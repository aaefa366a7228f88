"""From a user's `Output` to the step's outlet: the rules for what user logic may send are enforced here.

Rules: an output keeps its input's key; on a timed stream it has a timestamp above the last epoch passed on, on an
untimed stream none. So does a record for a side output, which the step must have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from itertools import groupby
from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.errors import OperatorError, shown
from malstrom_py.logic import Output, Sided
from malstrom_py.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.failures import describe_function
from malstrom_py.operators.keyed import distinct


class CheckedOutput:
    """Sends what a user's logic put out: to port 0, and for the n-th of ``sides`` to port n.

    ``passed`` is the last epoch that the step has passed on.
    """

    def __init__(self, context: StepContext, sides: Sequence[str] = ()) -> None:
        self._step = context.step
        self._timed = context.timed
        self._keyed = context.keyed is not False
        self._sides = {side: port for port, side in enumerate(sides, 1)}
        self.passed = MIN_EPOCH
        self._closing: int | None = None

    def send(
        self, output: Output[Any, Any], out: Outlet, *, part: str | None = None, closing: int | None = None
    ) -> None:
        """Send the records of ``output``, made of records of ``part``, or because of the epoch ``closing``, which is
        about to be passed on. `OperatorError` if they break a rule of time.
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
                f"sent a record at {min(timestamps)}, at or below the epoch {self.passed} it has passed on: "
                f"nothing may follow an epoch that it has closed. {_sentence(self._a_time_to_give())}",
                rule="epoch order",
            )
        if max(timestamps) >= MAX_EPOCH:
            raise self._error(
                f"sent a record at the maximum epoch, the end of the stream, or beyond it: {self._a_time_to_give()}"
            )

    def _a_time_to_give(self) -> str:
        """What to do about a record whose time cannot be sent, here and now."""
        above = "" if self.passed == MIN_EPOCH else f" above the epoch {self.passed}"
        if self._closing is None:
            return f"give it a time{above or ' of the stream'}, for instance its input's"
        if self._closing < MAX_EPOCH:
            return f"give it a time{above or ' of the stream'}, for instance epoch.time, {self._closing}"
        above = above and f"{above}, and"
        return (
            f"give it a time{above} below mp.MAX_EPOCH. At the end that is mp.MAX_EPOCH - 1, see "
            f"docs/event-time.md#one-figure-per-key-at-the-end"
        )

    def check_timer(self, time: int) -> None:
        """`OperatorError` if ``time`` is none that a timer can have."""
        if type(time) is not int:
            raise self._error(f"set a timer at a time of type {type(time).__name__}: give an int in the stream's unit")
        if time > MAX_EPOCH:
            raise self._error("set a timer at a time beyond the maximum epoch, the end of the stream")

    def check_keys(self, output: Output[Any, Any], allowed: Set[Any], function: object, *, since: int = 0) -> None:
        """`OperatorError` if ``output`` has a timer, or from record ``since`` on a record, under another key."""
        foreign = distinct([*output.keys[since:], *(key for key, _ in output.timers)], self._step) - allowed
        if foreign:
            raise self.foreign_key(next(iter(foreign)), function)

    def foreign_key(self, key: object, function: object) -> OperatorError:
        """The error for an output, or state, under a key that its input does not have; for the caller to raise."""
        where = describe_function(function)
        return OperatorError(
            f"step {self._step!r} sent a record, made state or set a timer under key {shown(key)}, which its input "
            f"does not have (in {where}): outputs keep their input's key; use key_by behind this step to change it",
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
    """``output`` in runs of records that all have a timestamp, or all have none."""
    rows = zip(output.keys, output.values, output.timestamps, strict=True)
    for _, run in groupby(rows, key=lambda row: row[2] is None):
        records: Output[Any, Any] = Output()
        for row in run:
            records.emit(*row)
        yield records
