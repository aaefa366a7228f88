"""Steps that are wrong on purpose and only show it in a delta: each misses one way in which state changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from functools import partial
from typing import Any

from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.operators.aggregate import Count, Distinct
from malstrom_py.operators.base import StepContext
from malstrom_py.operators.collect import CollectStep
from malstrom_py.operators.logic import KeyedLogic, Output
from malstrom_py.operators.stateful_map import TtlMap
from malstrom_py.operators.stateful_op import StatefulOp
from malstrom_py.state.change_log import Changes, SlotsOf
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.state.timers import Timers
from malstrom_py.testing import as_step
from tests.laws.logics import Latest, Scores, Slow, running_op, running_total
from tests.laws.parts import NumberingParts
from tests.laws.wrong_operators import Factory, WrongState, op


class _NotesNothing(KeyedState):
    def note(self, keys: Iterable[Any]) -> None:
        """Nothing."""


class ForgetsBatches(WrongState):
    """The keys of a batch are not noted."""

    kind = _NotesNothing


class LogicUnnoted(StatefulOp):
    """Nor are they where a logic takes them: record by record, in batches, all at an epoch, or on schedule."""

    def __init__(self, context: StepContext, **options: Any) -> None:
        super().__init__(context, **options)
        default, self.state = self.state.values, _NotesNothing(context.step, context.codec)
        self.state.values = default


class _UnnotedWhen(Timers):
    """Timers that do not report what ``silent`` names."""

    silent = ""

    def set(self, key: Any, time: int) -> None:
        self._quietly("set", partial(super().set, key, time))

    def take(self, key: Any) -> list[int]:
        taken: list[int] = self._quietly("take", partial(super().take, key))
        return taken

    def due(self, frontier: int) -> Iterator[tuple[Any, int]]:
        return self._unnoted(frontier) if self.silent == "due" else super().due(frontier)

    def _unnoted(self, frontier: int) -> Iterator[tuple[Any, int]]:
        known = set(self.noted or ())
        for key, time in super().due(frontier):
            if self.noted is not None and key not in known:
                self.noted.discard(key)
            yield key, time

    def _quietly(self, what: str, change: Callable[[], Any]) -> Any:
        noted = self.noted
        if what == self.silent:
            self.noted = None
        try:
            return change()
        finally:
            self.noted = noted


class _SilentWhenSet(_UnnotedWhen):
    silent = "set"


class ArmsAtEpochs(KeyedLogic[Any, int, str, int]):
    """Sets a timer at each epoch, for keys whose state does not change."""

    def on_data(self, message: DataMessage[Any, int], key_state: int | None, output: Output[Any, str]) -> int:
        return message.value

    def on_epoch(self, epoch: Epoch, state: MutableMapping[Any, int], output: Output[Any, str]) -> None:
        if epoch.time < MAX_EPOCH - 9:
            for key in state:
                output.set_timer(key, epoch.time + 9)

    def on_timer(self, key: Any, time: int, key_state: int | None, output: Output[Any, str]) -> int | None:
        output.emit(key, f"at {time}", time)
        return key_state


class TimersUnnoted(StatefulOp):
    """A timer that is set changes nothing, it says."""

    def __init__(self, context: StepContext, **options: Any) -> None:
        super().__init__(context, **options)
        self.state.timers = _SilentWhenSet()


class ExpiryUnnoted(TtlMap):
    """A state that goes in time changes nothing, either."""

    def expire(self, epoch: Epoch) -> None:
        expiry = self.state.expiry
        for key in () if expiry is None else expiry.expired(epoch.time - 1):
            self.states.pop(key, None)


class ChangesInPlace(KeyedLogic[Any, int, int, list[int]]):
    """Changes states at epochs without assigning them."""

    def on_data(
        self, message: DataMessage[Any, int], key_state: list[int] | None, output: Output[Any, int]
    ) -> list[int]:
        return [*(key_state or ()), message.value]

    def on_epoch(self, epoch: Epoch, state: MutableMapping[Any, list[int]], output: Output[Any, int]) -> None:
        for key, values in sorted(state.items()):
            output.emit(key, sum(values), min(epoch.time, MAX_EPOCH - 1))
            values.append(1)


class _Unnoting(KeyedState):
    def unnoted(self, change: Callable[[], Any]) -> Any:
        """Make ``change``, and forget which keys it noted."""
        noted = None if self._changes is None else self._changes.noted
        known = set(noted or ())
        made = change()
        if noted is not None:
            noted.intersection_update(known)
        return made


class _LeavesUnnoted(_Unnoting):
    def collect(self, keys: Iterable[Any]) -> bytes | None:
        taken: bytes | None = self.unnoted(lambda: super(_LeavesUnnoted, self).collect(keys))
        return taken


class LeavesUnnoted(WrongState):
    """Keys that leave stay in what was persisted."""

    kind = _LeavesUnnoted


class _ComesUnnoted(_Unnoting):
    def acquire(self, states: bytes) -> None:
        self.unnoted(lambda: super(_ComesUnnoted, self).acquire(states))


class ComesUnnoted(WrongState):
    """Keys that come are not persisted."""

    kind = _ComesUnnoted


class SentUnnoted(CollectStep):
    """Keeps what it sent by time in the persisted list forever."""

    def _take_out(self, keys: Collection[Any], out: Any) -> None:
        changes, self.state._changes = self.state._changes, None
        super()._take_out(keys, out)
        self.state._changes = changes


class NewValuesUnnoted(Distinct):
    """A set that is changed in place is the same set, it says."""

    def changes(self, keys: Collection[Any]) -> None:
        super().changes([key for key in keys if key not in self.states])


class PositionsUnnoted(NumberingParts):
    """The position of a part that is written again is not noted."""

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.state = _NotesNothing(context.step, context.codec)


class _SureOfTheLast(Changes):
    def due(self, parent: str | None) -> set[Any] | None:
        return None if parent is None or self.noted is None else self.noted


class _NeverLost(KeyedState):
    def track(self, slots_of: SlotsOf) -> None:
        self._changes = _SureOfTheLast(slots_of)


class NeverLost(WrongState):
    """Takes for granted that what it wrote last was committed."""

    kind = _NeverLost


class SilentOnceInstalled(Count):
    """Tracks changes, but not those after it was installed."""

    installed = False

    def install(self, chain: Sequence[bytes], slots: Collection[int], *, migrate: Any = None) -> None:
        super().install(chain, slots, migrate=migrate)
        self.installed = True

    def changes(self, keys: Collection[Any]) -> None:
        if not self.installed:
            super().changes(keys)


def expiring(context: StepContext) -> ExpiryUnnoted:
    return ExpiryUnnoted(context, fn=running_total, ttl=5, default=int)


LAW = "delta invariance"
CHAIN = "chain invariance"
TIMED: dict[str, Any] = {"timed": True}
RARE: dict[str, Any] = {**TIMED, "max_examples": 200}  # fifty find it about once in four times

CHANGES: list[tuple[str, str, Factory, dict[str, Any]]] = [
    (LAW, "forgets batches", as_step(ForgetsBatches), {}),
    (LAW, "record by record", as_step(partial(LogicUnnoted, logic=running_op, default=None)), {}),
    (LAW, "whole batches", as_step(partial(LogicUnnoted, logic=Scores(), default=None)), {}),
    (LAW, "at epochs", as_step(partial(LogicUnnoted, logic=Latest(), default=None)), TIMED),
    (LAW, "on schedule", as_step(partial(LogicUnnoted, logic=Slow(), default=None)), {"ticks": True}),
    (LAW, "timers that are set", as_step(partial(TimersUnnoted, logic=ArmsAtEpochs(), default=None)), RARE),
    (LAW, "timers that are due", as_step(expiring), TIMED),
    (LAW, "changed in place", op(ChangesInPlace), TIMED),
    (LAW, "keys that leave", as_step(LeavesUnnoted), {}),
    (LAW, "keys that come", as_step(ComesUnnoted), {}),
    (LAW, "lists that were sent", as_step(partial(SentUnnoted, size=None, every_s=2.0)), {"ticks": True}),
    (LAW, "new values", as_step(partial(NewValuesUnnoted, by=None)), {}),
    (LAW, "positions", as_step(PositionsUnnoted), {}),
    (LAW, "never lost", as_step(NeverLost), {}),
    (CHAIN, "silent once installed", as_step(SilentOnceInstalled), {}),
]
"""Law, name, step, options of ``check_operator``."""
