"""A chain of steps whose state is transferred, with a recorder after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Acquire, Collect, Epoch, Interrogate, StateMessage
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.keyed import StatefulOperator
from malstrom_py.rescale.moves.protocol import StateChunk
from malstrom_py.rescale.moves.receiving_machine import Ship
from malstrom_py.testing.single_step import Recorder
from malstrom_py.workers.engine.executor import Executor, NodeSpec
from malstrom_py.workers.engine.state_transfer import KeyedSteps, StateTransfer

SLOTS = 8


def slots_of(keys: Sequence[Any]) -> list[int]:
    """Integers by their value, everything else in slot 0."""
    return [key % SLOTS if isinstance(key, int) else 0 for key in keys]


class Kept(StatefulOperator):
    """Keeps the values of each key, and sends them on."""

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        for key, value in zip(batch.keys or [], batch.values, strict=True):
            self.state.values[key] = [*self.state.values.get(key, []), value]
        out.send(batch)


class Holding(Operator):
    """Holds every record until control messages come: those of the keys that leave, or all (what `Enrich` does)."""

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.held: list[tuple[Any, Any]] = []

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        self.held += zip(batch.keys or [], batch.values, strict=True)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        if isinstance(message, Interrogate):
            message.keys.update(key for key, _ in self.held)
        elif isinstance(message, Collect | Acquire):
            keys = {key for key, _ in self.held} if isinstance(message, Acquire) else message.keys
            leaving = [pair for pair in self.held if pair[0] in keys]
            self.held = [pair for pair in self.held if pair[0] not in keys]
            if leaving:
                out.send(Batch([value for _, value in leaving], keys=[key for key, _ in leaving]))
                out.forward(Epoch(7))
        out.forward(message)


class Heard(Operator):
    """Passes everything on and writes down every message that acts on state."""

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.heard: list[StateMessage] = []

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        out.send(batch)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        self.heard.append(message)
        out.forward(message)


class Region:
    """A chain of steps with keys, and a recorder after them."""

    def __init__(self, *kinds: Callable[[StepContext], Operator], worker: int = 0, **options: Any) -> None:
        self.operators = [kind(StepContext("test", f"step-{rank}", keyed=True)) for rank, kind in enumerate(kinds)]
        self.recorder = Recorder(StepContext("test", "recorder"))
        specs = [
            NodeSpec(operator.context.step, operator, ((rank - 1, 0),) if rank else ())
            for rank, operator in enumerate([*self.operators, self.recorder])
        ]
        self.executor = Executor(specs)
        keyed = [KeyedSteps(range(len(kinds)), slots_of, ("in",))]
        self.shipping = StateTransfer("R", worker, self.executor, keyed, **options)

    def push(self, keys: Sequence[Any], values: Iterable[Any]) -> Region:
        if keys:
            self.executor.push(0, Batch(list(values), keys=list(keys)))
            self.executor.run()
        return self

    def ship(self, owners: Mapping[int, int], version: int = 1) -> list[tuple[int, StateChunk]]:
        """Send the slots to their new ``owners``: each parcel, and whose it is."""
        self.shipping.start(Ship(version, tuple(sorted(owners.items()))))
        parcels = []
        while self.shipping.under_way:
            parcels.append(self.shipping.next())
        return parcels

    def values(self, rank: int = 0) -> dict[Any, Any]:
        operator = self.operators[rank]
        assert isinstance(operator, StatefulOperator)
        return operator.state.values

    def came_out(self) -> list[Any]:
        return [value for message in self.recorder.take() if isinstance(message, Batch) for value in message.values]


def keys_in(parcel: StateChunk) -> set[Any]:
    """The keys of a parcel, as its receiver finds them."""
    receiver = Region(Kept)
    receiver.shipping.install(parcel)
    return set(receiver.values())
