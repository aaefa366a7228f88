"""Test mode (``checks=True``): checks each step for errors that a run with one worker does not show.

A step must not change values that it was given or has sent, because branches share them. State must change by return
values or assignment, and be encodable at rest, because it moves and is persisted. Records at an exchange must be
encodable for other workers, and the partitioner must have a slot for them. The checks cost many times the run time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.clock import Clock
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import Control, Epoch, PartMessage, StateMessage
from malstrom_py.errors import CodecError, OperatorError, shown
from malstrom_py.operators.base import Operator, Outlet
from malstrom_py.operators.enrich.enrich import Enrich
from malstrom_py.operators.keyed import StatefulOperator
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.workers.engine.exchange import Exchange

if TYPE_CHECKING:
    from malstrom_py.state.memory import StepMemory

_SENT_MAX: Final = 256
"""Of so many keys the last value that a step has sent is compared with what it was."""


class CheckedStep(Operator):
    """A step that runs ``inner`` and checks it."""

    def __init__(self, inner: Operator, codec: Codec) -> None:
        super().__init__(inner.context)
        self._inner = inner
        self.two_sided = inner.two_sided
        self.watch = inner.watch
        self._codec = codec
        # The last batch and its encoded image: the sender may change the batch later.
        self._taken: tuple[Batch, bytes | None] | None = None
        self._sent: dict[Any, tuple[Batch, bytes | None]] = {}
        if isinstance(inner, Enrich):
            inner.checked = True

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        self._checked(self._inner.on_batch, batch, out)

    def on_side(self, side: int, batch: Batch, out: Outlet) -> None:
        self._checked(partial(self._inner.on_side, side), batch, out)

    def _checked(self, take: Callable[[Batch, Outlet], None], batch: Batch, out: Outlet) -> None:
        self._recheck()
        before = self._image(batch)
        if isinstance(self._inner, StatefulOperator):
            # Row by row, so that a state that was sent and is changed by the next record is found.
            for row in range(len(batch)):
                self._one(self._inner, take, batch.cut(row, row + 1), _Watched(out, self._note_sent))
                out.drain()
        else:
            take(batch, out)
        if before is not None and self._image(batch) != before:
            raise self._error("changed a value it was given")
        self._taken = (batch, before)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        self._recheck()
        if not isinstance(self._inner, StatefulOperator):
            self._inner.on_epoch(epoch, out)
            return
        before = list(self._sent.values())
        self._inner.on_epoch(epoch, _Watched(out, self._note_sent))
        self._recheck_sent(before)

    def _one(self, inner: StatefulOperator, take: Callable[[Batch, Outlet], None], row: Batch, out: Outlet) -> None:
        """Pass one record to ``inner`` and check that the key's state is encodable and, on failure, unchanged."""
        key = (row.keys or [None])[0]
        counters = self.counters
        image = self._image(row)
        before, failed = self._state(inner, key), counters.skipped + counters.dead_letters
        sent = [self._sent[key]] if self._is_known(key) else []
        take(row, out)
        self._recheck_sent(sent)
        if image is not None and self._image(row) != image:
            raise self._error("changed a value it was given")
        after = self._state(inner, key)
        if counters.skipped + counters.dead_letters > failed and after != before:
            raise self._error(f"changed the state of key {shown(key)} in place and then failed on the record")

    def _is_known(self, key: object) -> bool:
        try:
            return key in self._sent
        except TypeError:  # the step reports a key that cannot be hashed
            return False

    def _note_sent(self, batch: Batch) -> None:
        """Remember the last value that was sent under each key, and its present image."""
        if isinstance(batch, ColumnBatch):
            return
        for row, key in enumerate(batch.keys or ()):
            one = batch.cut(row, row + 1)
            self._sent.pop(key, None)
            self._sent[key] = one, self._image(one)
            if len(self._sent) > _SENT_MAX:
                del self._sent[next(iter(self._sent))]

    def _recheck_sent(self, sent: Sequence[tuple[Batch, bytes | None]]) -> None:
        for row, image in sent:
            if image is not None and self._image(row) != image:
                raise self._error("changed a value that it had sent")

    def _state(self, inner: StatefulOperator, key: object) -> bytes:
        try:
            (state,) = inner.state.values_of([key])
        except TypeError:  # the step reports a key that cannot be hashed
            state = None
        return self._codec.encode_at_rest(state, step=self.context.step, key=key)

    def _recheck(self) -> None:
        if self._taken is None:
            return
        batch, image = self._taken
        self._taken = None
        if image is not None and self._image(batch) != image:
            raise self._error("or one before it changed a value that had been sent")

    def _error(self, what: str) -> OperatorError:
        return OperatorError(
            f"step {self.context.step!r} {what}: values are shared with other branches and states are persisted, so "
            f"neither may be changed in place. Return a changed copy instead.",
            step=self.context.step,
        )

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        self._inner.on_part(message, out)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        self._inner.on_control(message, out)

    @property
    def state_ahead(self) -> KeyedState | None:
        return self._inner.state_ahead

    @property
    def memory(self) -> StepMemory | None:
        return self._inner.memory

    @property
    def keys(self) -> int | None:
        return self._inner.keys

    def on_schedule(self, out: Outlet, clock: Clock) -> None:
        self._inner.on_schedule(out, clock)

    def continue_at(self, epoch: int) -> None:
        self._inner.continue_at(epoch)

    def rewind(self, epoch: Epoch) -> Epoch:
        return self._inner.rewind(epoch)

    def _image(self, batch: Batch) -> bytes | None:
        """Return the batch as bytes for a comparison; None if values are not encodable and need not be."""
        if isinstance(self._inner, Exchange):
            self._inner.slots(batch)  # raises what the partitioner would raise with several workers
        try:
            return self._codec.encode_batch(batch, step=self.context.step)
        except CodecError:
            if isinstance(self._inner, Exchange):
                raise
            return None


class _Watched:
    """An outlet that calls ``note`` with each batch before it is sent."""

    def __init__(self, out: Outlet, note: Callable[[Batch], None]) -> None:
        self._out = out
        self._note = note

    def send(self, message: Batch | Control, port: int = 0) -> None:
        if isinstance(message, Batch):
            self._note(message)
        self._out.send(message, port)

    def forward(self, message: Control) -> None:
        self._out.forward(message)

    def drain(self) -> None:
        self._out.drain()

    def passed(self) -> int:
        return self._out.passed()
