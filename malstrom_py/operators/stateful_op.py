"""``stateful_op``: the general keyed step, driven by a user's `StatefulLogic`.

Rules it enforces: an output keeps its input's key; no output at or below the last epoch passed on; a record
its logic raised on leaves state and outputs as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from itertools import repeat
from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.errors import OperatorError
from malstrom_py.logic import Output, hooks_of
from malstrom_py.messages import MAX_EPOCH, MIN_EPOCH, DataMessage, Epoch
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import Failures, describe_function
from malstrom_py.operators.keyed import check_hashable, keys_of


class StatefulOp(Operator):
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

    def __init__(self, context: StepContext, *, logic: Any, default: Callable[[], Any] | None) -> None:
        super().__init__(context)
        hooks = hooks_of(logic, context.step)
        self.states: dict[Any, Any] = {}
        self._on_data = hooks.get("on_data")
        self._on_batch = hooks.get("on_batch")
        self._on_epoch = hooks.get("on_epoch")
        self._default = default
        self._failures = Failures(context)
        self._passed = MIN_EPOCH

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        output: Output[Any, Any] = Output()
        if self._on_batch is not None:
            self._whole(self._on_batch, batch, output)
        elif self._on_data is not None:
            self._each(self._on_data, batch, output, out)
        self._send(output, out)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        if self._on_epoch is not None:
            output: Output[Any, Any] = Output()
            held = set(self.states)
            try:
                self._on_epoch(epoch, self.states, output)
            except Exception as error:
                raise self._failures.error(error, self._on_epoch, policy=False) from error
            self._check_keys(output, held, self._on_epoch)
            self._discard(held | self.states.keys())
            self._send(output, out)
        self._passed = epoch.time
        out.forward(epoch)

    @property
    def keys(self) -> int | None:
        return len(self.states)

    def _whole(self, function: Callable[..., Any], batch: Batch, output: Output[Any, Any]) -> None:
        keys = keys_of(batch, self.context.step)
        touched = _distinct(keys, self.context.step)
        try:
            function(keys, batch.values, batch.timestamps, self.states, output)
        except Exception as error:
            raise self._failures.error(error, function, policy=False) from error
        self._check_keys(output, touched, function)
        self._discard(touched)

    def _each(self, function: Callable[..., Any], batch: Batch, output: Output[Any, Any], out: Outlet) -> None:
        keys = keys_of(batch, self.context.step)
        states, default = self.states, self._default
        rows = enumerate(zip(keys, batch.values, batch.timestamps or repeat(None), strict=False))
        index, mark = 0, 0
        while True:
            try:
                for index, (key, value, timestamp) in rows:  # noqa: B007  read when a row raises
                    mark = len(output)
                    state = states.get(key)
                    if state is None and default is not None:
                        state = default()
                    state = function(DataMessage(key, value, timestamp), state, output)
                    for other in output.keys[mark:]:
                        if other is not key and other != key:
                            raise self._foreign_key(other, function)
                    if state is None:
                        states.pop(key, None)
                    else:
                        states[key] = state
                return
            except OperatorError:
                raise
            except Exception as error:
                check_hashable(keys[index], self.context.step)
                output.truncate(mark)
                self._failures.record(error, function, batch, index, out)

    def _discard(self, keys: Set[Any]) -> None:
        """A state of None is no state: the key is dropped."""
        states = self.states
        if None in map(states.get, keys):
            for key in keys:
                if states.get(key) is None:
                    states.pop(key, None)

    def _send(self, output: Output[Any, Any], out: Outlet) -> None:
        if not output:
            return
        batch = output.batch()
        timestamps = batch.timestamps
        step = self.context.step
        if not self.context.timed:
            if timestamps is not None:
                raise OperatorError(f"step {step!r} sent a timestamp on an untimed stream: send None", step=step)
        elif timestamps is None or None in timestamps:
            raise OperatorError(
                f"step {step!r} sent a record without a timestamp on a timed stream: "
                f"give it one, for instance its input's",
                step=step,
            )
        else:
            self._check_times(timestamps)
        out.send(batch)

    def _check_times(self, timestamps: list[int]) -> None:
        step = self.context.step
        for kind in set(map(type, timestamps)) - {int}:
            raise OperatorError(
                f"step {step!r} sent a timestamp of type {kind.__name__}: send an int in the stream's unit", step=step
            )
        if min(timestamps) <= self._passed:
            raise OperatorError(
                f"step {step!r} sent a record at {min(timestamps)}, at or below the epoch {self._passed} "
                f"it has passed on: nothing may follow an epoch that it has closed",
                step=step,
            )
        if max(timestamps) >= MAX_EPOCH:
            raise OperatorError(f"step {step!r} sent a timestamp that does not fit an int64", step=step)

    def _check_keys(self, output: Output[Any, Any], allowed: Set[Any], function: object) -> None:
        foreign = _distinct(output.keys, self.context.step) - allowed
        if foreign:
            raise self._foreign_key(next(iter(foreign)), function)

    def _foreign_key(self, key: object, function: object) -> OperatorError:
        where = describe_function(function)
        return OperatorError(
            f"step {self.context.step!r} sent a record under key {key!r}, which its input does not have "
            f"(in {where}): outputs keep their input's key; use key_by behind this step to change it",
            step=self.context.step,
            key=key,
            function=where,
        )


def _distinct(keys: list[Any], step: str) -> set[Any]:
    try:
        return set(keys)
    except TypeError:
        for key in keys:
            check_hashable(key, step)
        raise
