"""A sink of a DAG: keeps the records that reach it until they are taken."""

from __future__ import annotations

from itertools import repeat
from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.messages import DataMessage, Epoch, PartMessage, StateMessage
from malstrom_py.operators.base import Operator, Outlet, StepContext


class Collected(Operator):
    """Keeps batches in the order they came. ``waiting`` are the names of the sinks that have some, for all to share."""

    takes_columns = True

    def __init__(self, context: StepContext, waiting: set[str]) -> None:
        super().__init__(context)
        self._waiting = waiting
        self._batches: list[Batch] = []

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        self._batches.append(batch)
        self._waiting.add(self.context.step)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        """The graph ends here."""

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        """The graph ends here."""

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        """The graph ends here."""

    def take(self) -> list[Any]:
        """The values that came since the last call, in order."""
        return [value for batch in self._drained() for value in batch.values]

    def take_messages(self) -> list[DataMessage[Any, Any]]:
        """The records that came since the last call, in order, with their keys and timestamps."""
        return [
            DataMessage(key, value, timestamp)
            for batch in self._drained()
            for key, value, timestamp in zip(
                batch.keys or repeat(None), batch.values, batch.timestamps or repeat(None), strict=False
            )
        ]

    def kept(self) -> list[Batch]:
        """What would be taken, left where it is."""
        return list(self._batches)

    def _drained(self) -> list[Batch]:
        batches, self._batches = self._batches, []
        self._waiting.discard(self.context.step)
        return batches
