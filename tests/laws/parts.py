"""The step of a partitioned sink, made to show what it does: it sends each record's number within its part."""

from __future__ import annotations

from typing import Any

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import DataMessage, Epoch, StateMessage
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.write_sink import WriteParts


class CountingPart:
    """Counts what it is given, from its position on."""

    def __init__(self, position: int) -> None:
        self.position = position

    def write(self, batch: Batch) -> None:
        self.position += len(batch)

    def snapshot(self) -> int:
        return self.position

    def close(self) -> None:
        """Nothing is open."""


class CountingSink:
    """Parts by key."""

    def __init__(self) -> None:
        self.parts: dict[str, CountingPart] = {}

    def assign_part(self, message: DataMessage[Any, Any]) -> str:
        return str(message.key)

    def build_part(self, part: str, state: Any) -> CountingPart:
        self.parts[part] = CountingPart(state or 0)
        return self.parts[part]


class NumberingParts(WriteParts):
    """Writes row by row and sends the position of the part after each; forwards what a sink buffers."""

    def __init__(self, context: StepContext) -> None:
        self.counting = CountingSink()
        super().__init__(context, sink=self.counting, keyed=False)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        positions = []
        for index, part in enumerate(batch.keys or []):
            super().on_batch(batch.take([index]), out)
            positions.append(self.counting.parts[part].position)
        out.send(batch.with_values(positions))

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        out.forward(epoch)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        super().on_control(message, out)
        out.forward(message)


def numbering_parts(context: StepContext) -> NumberingParts:
    return NumberingParts(context)
