"""Steps that are wrong on purpose and only show it when keys move: in chunks, back and forth, to those who join."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Acquire, DataMessage, Epoch, StateMessage
from malstrom_py.operators.aggregate import Count
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.logic import KeyedLogic, Output
from malstrom_py.operators.stateful_op import StatefulOp
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.testing import as_step
from tests.laws.logics import Deadlines
from tests.laws.wrong_operators import Factory, WrongState, op


class KeepsElsewhere(KeyedLogic[Any, int, int, int]):
    """Keeps a count per key in itself, where no control message finds it."""

    def __init__(self) -> None:
        self._seen: dict[Any, int] = {}

    def on_data(self, message: DataMessage[Any, int], key_state: int | None, output: Output[Any, int]) -> int:
        self._seen[message.key] = seen = self._seen.get(message.key, 0) + 1
        output.emit(message.key, seen, message.timestamp)
        return seen


class _CollectsCopies(KeyedState):
    def collect(self, keys: Any) -> bytes | None:
        before = dict(self.values)
        taken = super().collect(keys)
        self.values.update(before)
        return taken


class KeepsWhatItGives(WrongState):
    """Collect does not remove."""

    kind = _CollectsCopies


class _ReportsAll(KeyedState):
    def interrogate(self, predicate: Callable[[Any], bool], found: set[Any]) -> None:
        found.update(self.keys())


class ReportsAll(WrongState):
    """Interrogate does not ask the predicate."""

    kind = _ReportsAll


class _ForgetsTimersUnderWay(KeyedState):
    def collect(self, keys: Any) -> bytes | None:
        for key in keys:
            self.timers.take(key)
        return super().collect(keys)


class ForgetsTimersUnderWay(StatefulOp):
    """Collect takes values and leaves timers out. Nothing else notices: they are persisted."""

    def __init__(self, context: StepContext, **options: Any) -> None:
        super().__init__(context, **options)
        self.state = _ForgetsTimersUnderWay(context.step, context.codec)


class KeepsACopy(KeyedLogic[Any, int, int, int]):
    """Goes by what it remembers itself of a key it has had, which is stale when the key comes back."""

    def __init__(self) -> None:
        self._totals: dict[Any, int] = {}

    def on_data(self, message: DataMessage[Any, int], key_state: int | None, output: Output[Any, int]) -> int:
        total = self._totals.get(message.key, key_state or 0) + message.value
        self._totals[message.key] = total
        output.emit(message.key, total, message.timestamp)
        return total


class WritesBehind(KeyedLogic[Any, int, int, int]):
    """Assigns the states of its last batch again, even if their keys have left."""

    def __init__(self) -> None:
        self._last: dict[Any, int] = {}

    def on_batch(
        self,
        keys: list[Any],
        values: list[int],
        timestamps: list[int] | None,
        state: MutableMapping[Any, int],
        output: Output[Any, int],
    ) -> None:
        state.update(self._last)
        self._last = {}
        for index, (key, value) in enumerate(zip(keys, values, strict=True)):
            state[key] = self._last[key] = state.get(key, 0) + value
            output.emit(key, state[key], timestamps[index] if timestamps else None)


class ResetsWhenNothingComes(Count):
    """Starts from an empty state at an Acquire without state, which brings an empty slot."""

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        super().on_control(message, out)
        if isinstance(message, Acquire) and not message.states:
            self.state.values.clear()


class InstallsLate(Count):
    """Keeps what Acquire brings until it is needed, but only the last of it."""

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self._brought: Acquire | None = None

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        self._install()
        super().on_batch(batch, out)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        if isinstance(message, Acquire):
            self._brought = message
            out.forward(message)
        else:
            self._install()
            super().on_control(message, out)

    def _install(self) -> None:
        if self._brought is not None:
            self.state.handle(self._brought)
            self._brought = None


class _GivesAllThatWasAsked(KeyedState):
    asked: Callable[[Any], bool] = staticmethod(lambda key: True)

    def interrogate(self, predicate: Callable[[Any], bool], found: set[Any]) -> None:
        self.asked = predicate
        super().interrogate(predicate, found)

    def collect(self, keys: Any) -> bytes | None:
        return super().collect([*keys, *(key for key in sorted(self.keys() - set(keys)) if self.asked(key))])


class GivesAllThatWasAsked(WrongState):
    """Collect takes the keys of the last Interrogate, not the ones it is asked for."""

    kind = _GivesAllThatWasAsked


class CountsItsEpochs(KeyedLogic[Any, int, int, int]):
    """Sends how many epochs it has seen itself: who joins has seen one."""

    def __init__(self) -> None:
        self._epochs = 0

    def on_data(self, message: DataMessage[Any, int], key_state: int | None, output: Output[Any, int]) -> int:
        output.emit(message.key, self._epochs, message.timestamp)
        return message.value

    def on_epoch(self, epoch: Epoch, state: MutableMapping[Any, int], output: Output[Any, int]) -> None:
        self._epochs += 1


class IgnoresAcquire(Count):
    """Passes Acquire on, and installs nothing."""

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        if isinstance(message, Acquire):
            out.forward(message)
        else:
            super().on_control(message, out)


LAW = "migration invariance"

MOVERS: list[tuple[str, str, Factory, dict[str, Any]]] = [
    (LAW, "state in the logic", op(KeepsElsewhere), {}),
    (LAW, "collects copies", as_step(KeepsWhatItGives), {}),
    (LAW, "reports all", as_step(ReportsAll), {}),
    (LAW, "ignores Acquire", as_step(IgnoresAcquire), {}),
    (
        LAW,
        "forgets timers under way",
        as_step(partial(ForgetsTimersUnderWay, logic=Deadlines(patience=7), default=None)),
        {"timed": True},
    ),
    (LAW, "keeps a copy", op(KeepsACopy), {}),
    (LAW, "writes later", op(WritesBehind), {}),
    (LAW, "resets when nothing comes", as_step(ResetsWhenNothingComes), {}),
    (LAW, "installs late", as_step(InstallsLate), {}),
    (LAW, "gives all that was asked", as_step(GivesAllThatWasAsked), {}),
    (LAW, "counts its epochs", op(CountsItsEpochs), {"timed": True}),
]
"""Law, name, step, options of ``check_operator``."""
