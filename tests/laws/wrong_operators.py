"""Steps that are wrong on purpose, one or more for each law. Each is right but for the one thing that its name says.

Those that only go wrong when keys move are in `tests.laws.wrong_movers`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import (
    MAX_EPOCH,
    MIN_EPOCH,
    AbsBarrier,
    DataMessage,
    Epoch,
    Interrogate,
    Rescale,
    StateMessage,
)
from malstrom_py.operators.aggregate import Count
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.column_figures import ColumnFigures
from malstrom_py.operators.logic import KeyedLogic, Output
from malstrom_py.operators.stateful_op import StatefulOp
from malstrom_py.state.figure_states import shape_of_one
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.testing import as_step
from tests.laws.logics import Deadlines

Factory = Callable[[Any], Any]


def op(logic: Callable[[], Any], **options: Any) -> Factory:
    """A step with a new logic each time it is built."""
    return lambda stream: stream.stateful_op("wrong", logic(), **options)


# -- determinism --


def random_values(message: DataMessage[Any, int], state: None, output: Output[Any, float]) -> None:
    output.emit(message.key, random.random(), message.timestamp)


class CountsInTheClass(KeyedLogic[Any, int, int, int]):
    """Counts in an attribute of the class, which all instances of a process share."""

    count: ClassVar[int] = 0

    def on_data(self, message: DataMessage[Any, int], key_state: int | None, output: Output[Any, int]) -> None:
        CountsInTheClass.count += 1
        output.emit(message.key, CountsInTheClass.count, message.timestamp)


# -- no mutation of inputs --


def sorts_its_input(message: DataMessage[Any, list[int]], state: None, output: Output[Any, int]) -> None:
    message.value.sort()
    output.emit(message.key, message.value[0], message.timestamp)


def append_and_send(key: Any, value: int, total: list[int]) -> tuple[list[int], list[int]]:
    """Sends a list and changes it afterwards."""
    total.append(value)
    return total, total


# -- state round trip --


class Unregistered:
    """No dataclass, no named tuple, no Enum: nothing that can be stored."""

    total = 0


def keeps_what_cannot_be_stored(key: Any, value: int, state: Unregistered | None) -> tuple[int, Unregistered]:
    state = state or Unregistered()
    state.total += value
    return state.total, state


@dataclass
class Forgetful:
    """A dataclass that loses a field when it is pickled between workers."""

    total: int = 0

    def __getstate__(self) -> dict[str, int]:
        return {"total": 0}

    def __setstate__(self, state: dict[str, int]) -> None:
        self.total = state["total"]


def keeps_what_forgets(key: Any, value: int, state: Forgetful) -> tuple[int, Forgetful]:
    return state.total + value, Forgetful(state.total + value)


# -- forwarding --


class ForwardsTwice(Count):
    """Forwards control messages twice: its base class does so already."""

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        super().on_control(message, out)
        if isinstance(message, Rescale):
            out.forward(message)


class SwallowsInterrogate(Count):
    """Answers, and passes nothing on."""

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        if isinstance(message, Interrogate):
            self.state.handle(message)
        else:
            super().on_control(message, out)


class EpochFirst(StatefulOp):
    """Passes the epoch on before what it makes the logic send."""

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        held = _Held()
        super().on_epoch(epoch, held)
        out.forward(epoch)
        for batch in held.batches:
            out.send(batch)


class _Held:
    """An outlet that keeps batches and drops control messages."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def send(self, message: Any, port: int = 0) -> None:
        self.batches.append(message)

    def forward(self, message: Any) -> None:
        """Dropped."""

    def passed(self) -> int:
        return MIN_EPOCH

    def drain(self) -> None:
        """Nothing is sent yet."""


class Announces(KeyedLogic[Any, int, int, int]):
    """Sends something at each epoch but the last."""

    def on_data(self, message: DataMessage[Any, int], key_state: int | None, output: Output[Any, int]) -> int:
        return message.value

    def on_epoch(self, epoch: Epoch, state: MutableMapping[Any, int], output: Output[Any, int]) -> None:
        for key, value in sorted(state.items()):
            output.emit(key, value, min(epoch.time, 1 << 40))


# -- epoch order --


def sends_into_the_past(message: DataMessage[Any, int], state: None, output: Output[Any, int]) -> None:
    assert message.timestamp is not None
    output.emit(message.key, message.value, message.timestamp - 5)


class PastUnchecked(Operator):
    """The same without the checks of ``stateful_op``."""

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        out.send(batch.with_timestamps([time - 5 for time in batch.timestamps or []]))


# -- key kept --


def renames_the_key(message: DataMessage[Any, int], state: None, output: Output[Any, int]) -> None:
    output.emit(f"{message.key}!", message.value, message.timestamp)


class SwapsKeys(Operator):
    """Sends a record under the key of another, which is there too."""

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self._before: Any = None

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        keys = batch.keys or []
        out.send(batch.with_keys([self._before if self._before is not None else key for key in keys]))
        self._before = keys[-1]


# -- batch-split invariance --


class OncePerBatch(KeyedLogic[Any, int, int, int]):
    """Sends the sum of a key once per batch."""

    def on_batch(
        self,
        keys: list[Any],
        values: list[int],
        timestamps: list[int] | None,
        state: MutableMapping[Any, int],
        output: Output[Any, int],
    ) -> None:
        for key, value in zip(keys, values, strict=True):
            state[key] = state.get(key, 0) + value
        for key in dict.fromkeys(keys):
            output.emit(key, state[key])


# -- form invariance --


class CountsColumnsByBatch(Operator):
    """Sends the size of a batch of columns in place of each row's value; rows pass."""

    takes_columns = True

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        out.send(batch.with_values([len(batch)] * len(batch)) if isinstance(batch, ColumnBatch) else batch)


class DropsNulls(Operator):
    """Passes rows, and of columns those without a null."""

    takes_columns = True

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        if isinstance(batch, ColumnBatch):
            batch = batch.compress(batch.columns.column(0).is_valid().to_pylist())
        out.send(batch)


# -- key isolation --


class CountsAllKeys(KeyedLogic[Any, int, int, int]):
    """Sends the number of keys there are, which are other keys' business."""

    def on_batch(
        self,
        keys: list[Any],
        values: list[int],
        timestamps: list[int] | None,
        state: MutableMapping[Any, int],
        output: Output[Any, int],
    ) -> None:
        for key, value in zip(keys, values, strict=True):
            state[key] = value
            output.emit(key, len(state))


# -- snapshot invariance --


class WrongState(Count):
    """Counts with a hand-made keyed state."""

    kind: type[KeyedState] = KeyedState

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.state = self.kind(context.step, context.codec)
        self._over_columns = ColumnFigures(self.state, [self.aggregation], shape_of_one())


class _ForgetsTimers(KeyedState):
    def snapshot(self) -> bytes:
        timers = [(key, self.timers.take(key)) for key in list(self.timers.keys())]
        stored = super().snapshot()
        for key, times in timers:
            for time in times:
                self.timers.set(key, time)
        return stored


class ForgetsTimers(StatefulOp):
    """Persists values without timers."""

    def __init__(self, context: StepContext, **options: Any) -> None:
        super().__init__(context, **options)
        self.state = _ForgetsTimers(context.step, context.codec)


class ClearsAtBarrier(Count):
    """Is empty once it has been persisted."""

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        super().on_control(message, out)
        if isinstance(message, AbsBarrier):
            self.state.values.clear()


# -- scale invariance --


class _TakesAll(KeyedState):
    def restore(self, state: bytes, owned: Callable[[Any], bool] = lambda key: True) -> None:
        if not self.values:
            super().restore(state, owned)


class RestoresOneOnly(WrongState):
    """Takes what one instance persisted, and not that of the next."""

    kind = _TakesAll


# -- disk invariance --


class SendsWhatIsInMemory(Count):
    """Sends all counts at the end: those that it finds in memory."""

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        if epoch.time == MAX_EPOCH:
            out.send(Batch(list(self.state.values.values()), keys=list(self.state.values)))
        out.forward(epoch)


WRONG: list[tuple[str, str, Factory, dict[str, Any]]] = [
    ("determinism", "random", op(lambda: random_values), {}),
    ("determinism", "state in the class", op(CountsInTheClass), {}),
    ("no mutation of inputs", "sorts its input", op(lambda: sorts_its_input), {"values": [[3, 1], [2, 0]]}),
    (
        "no mutation of inputs",
        "changes what it sent",
        lambda s: s.stateful_map("wrong", append_and_send, default=list),
        {},
    ),
    ("state round trip", "no stored form", lambda s: s.stateful_map("wrong", keeps_what_cannot_be_stored), {}),
    (
        "state round trip",
        "forgets in flight",
        lambda s: s.stateful_map("wrong", keeps_what_forgets, default=Forgetful),
        {},
    ),
    ("forwarding", "twice", as_step(ForwardsTwice), {}),
    ("forwarding", "not at all", as_step(SwallowsInterrogate), {}),
    ("forwarding", "epoch first", as_step(partial(EpochFirst, logic=Announces(), default=None)), {"timed": True}),
    ("epoch order", "into the past", op(lambda: sends_into_the_past), {"timed": True}),
    ("epoch order", "into the past, unchecked", as_step(PastUnchecked), {"timed": True}),
    ("key kept", "a new key", op(lambda: renames_the_key), {}),
    ("key kept", "the key of another", as_step(SwapsKeys), {}),
    ("batch-split invariance", "once per batch", op(OncePerBatch), {}),
    ("form invariance", "counts columns by batch", as_step(CountsColumnsByBatch), {"keyed": False}),
    ("form invariance", "drops nulls of columns", as_step(DropsNulls), {"values": [{"n": 1}, {"n": None}]}),
    ("key isolation", "counts all keys", op(CountsAllKeys), {}),
    ("snapshot invariance", "clears at the barrier", as_step(ClearsAtBarrier), {}),
    (
        "snapshot invariance",
        "forgets timers",
        as_step(partial(ForgetsTimers, logic=Deadlines(patience=7), default=None)),
        {"timed": True},
    ),
    ("scale invariance", "restores one only", as_step(RestoresOneOnly), {}),
    ("disk invariance", "sends what is in memory", as_step(SendsWhatIsInMemory), {}),
]
"""Law, name, step, options of ``check_operator``."""
