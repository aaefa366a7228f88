"""``stateless_op``: the general step without state, which calls the hooks of a user's logic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.errors import OperatorError
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import ErrorPolicy
from malstrom_py.operators.logic import CheckedOutput, Output, stateless_hooks_of


class StatelessOp(Operator):
    """Calls ``logic.on_data(message, output)`` per record (a plain function of that shape is a logic too), and
    ``logic.on_epoch(epoch, output)``, if it has one, before an epoch is passed on.

    Outputs keep their input's key; times follow the rules of `stateful_op`.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> def halves(message, output):
    ...     if message.value % 2 == 0:
    ...         output.emit(message.key, message.value // 2, message.timestamp)
    >>> mp.collect(mp.Job("docs").source("numbers", sources.Memory([1, 2, 4])).stateless_op("halves", halves))
    [1, 2]
    """

    def __init__(self, context: StepContext, *, logic: Any, sides: Sequence[str] = ()) -> None:
        super().__init__(context)
        hooks = stateless_hooks_of(logic, context.step)
        self._on_data = hooks["on_data"]
        self._on_epoch = hooks.get("on_epoch")
        self._checked = CheckedOutput(context, sides)
        self._failures = ErrorPolicy(context)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        output: Output[Any, Any] = Output()
        self._each(self._on_data, batch, output, out)
        self._send(output, out, part=batch.part)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        # T2: an epoch may be repeated, to change the idle flag of its sender.
        if self._on_epoch is not None and epoch.time > self._checked.passed:
            output: Output[Any, Any] = Output()
            output.ended = epoch.time == MAX_EPOCH
            with self._failures.of_hook(self._on_epoch):
                self._on_epoch(epoch, output)
            # An epoch has no key, and a record with a key must be on the worker that owns the key.
            self._checked.check_keys(output, frozenset() if self.context.keyed else {None}, self._on_epoch)
            self._send(output, out, part=None, closing=epoch.time)
        self._checked.passed = epoch.time
        out.forward(epoch)

    def continue_at(self, epoch: int) -> None:
        """Resume after ``epoch``, which was forwarded before the snapshot: no hook is called for it again."""
        self._checked.passed = epoch

    def rewind(self, epoch: Epoch) -> Epoch:
        self._checked.passed = epoch.time
        return epoch

    def _each(self, function: Callable[..., Any], batch: Batch, output: Output[Any, Any], out: Outlet) -> None:
        rows = enumerate(zip(batch.keys or repeat(None), batch.values, batch.timestamps or repeat(None), strict=False))
        index, mark, timers = 0, 0, 0
        while True:
            try:
                for index, (key, value, timestamp) in rows:  # noqa: B007  read when a row raises
                    mark, timers = len(output), len(output.timers)
                    function(DataMessage(key, value, timestamp), output)
                    for other in output.keys[mark:]:
                        if other is not key and other != key:
                            raise self._checked.foreign_key(other, function)
                return
            except Exception as error:
                if isinstance(error, OperatorError) and error.rule and error.step == self.context.step:
                    raise  # a rule of ours, not an error of the user's function
                output.truncate(mark, timers)
                self._failures.record(error, function, batch, index, out)

    def _send(self, output: Output[Any, Any], out: Outlet, *, part: str | None, closing: int | None = None) -> None:
        if output.timers:
            raise OperatorError(
                f"step {self.context.step!r} set a timer, but keeps no state: use stateful_op", step=self.context.step
            )
        self._checked.send(output, out, part=part, closing=closing)
