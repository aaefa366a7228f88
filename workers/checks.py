"""Test mode (``checks=True``): what goes unnoticed with one worker is found here, step by step.

A step must not change the values it is given, for other branches share them; what goes over an exchange must be
encodable for other workers, and state must be encodable at rest, for it moves and is persisted. Costs several
times the run time.
"""

from __future__ import annotations

from malstrom_py.batches import Batch
from malstrom_py.clock import Clock
from malstrom_py.codec import Codec
from malstrom_py.errors import CodecError, OperatorError
from malstrom_py.messages import Epoch, PartMessage, StateMessage
from malstrom_py.operators.base import Operator, Outlet
from malstrom_py.operators.keyed import StatefulOperator
from malstrom_py.workers.exchange import SendToExchange


class Checked(Operator):
    """Runs ``inner`` and checks what it does."""

    def __init__(self, inner: Operator, codec: Codec) -> None:
        super().__init__(inner.context)
        self._inner = inner
        self._codec = codec

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        before = self._image(batch)
        self._inner.on_batch(batch, out)
        if before is not None and self._image(batch) != before:
            raise OperatorError(
                f"step {self.context.step!r} changed a value it was given: values are shared with other branches "
                f"and must not be changed. Return a changed copy instead.",
                step=self.context.step,
            )
        if isinstance(self._inner, StatefulOperator):
            for key in set(batch.keys or ()):
                state = self._inner.state.values.get(key)
                self._codec.encode_at_rest((key, state), step=self.context.step, key=key)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        self._inner.on_epoch(epoch, out)

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        self._inner.on_part(message, out)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        self._inner.on_control(message, out)

    def on_schedule(self, out: Outlet, clock: Clock) -> None:
        self._inner.on_schedule(out, clock)

    def _image(self, batch: Batch) -> bytes | None:
        """The batch as bytes, to be compared; None where values need not be encodable and are not."""
        try:
            return self._codec.encode_batch(batch, step=self.context.step)
        except CodecError:
            if isinstance(self._inner, SendToExchange):
                raise
            return None
