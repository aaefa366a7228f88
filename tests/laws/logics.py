"""Logics as users write them: with batches, epochs, timers and schedules. All of them obey the laws."""

from __future__ import annotations

from collections.abc import MutableMapping
from datetime import timedelta
from typing import Any

from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.operators.logic import KeyedLogic, Output


def running_total(key: Any, value: int, total: int) -> tuple[int, int]:
    return total + value, total + value


def running_op(message: DataMessage[Any, int], state: int | None, output: Output[Any, int]) -> int | None:
    """The same as a logic; a total that three divides is dropped."""
    total = (state or 0) + message.value
    output.emit(message.key, total, message.timestamp)
    return total if total % 3 else None


def odd_aside(message: DataMessage[Any, int], state: int | None, output: Output[Any, int]) -> int | None:
    """Odd values, and sums that five divides, go to side outputs."""
    (output.side("odd") if message.value % 2 else output).send(message)
    total = (state or 0) + message.value
    if total % 5 == 0:
        output.side("sums").emit(message.key, total, message.timestamp)
        return None
    return total


def halves(message: DataMessage[Any, int], output: Output[Any, int]) -> None:
    if message.value % 2 == 0:
        output.emit(message.key, message.value // 2, message.timestamp)
        output.send(message)


class sizes_and_epochs:  # noqa: N801  used like a function
    """A stateless logic with ``on_epoch``."""

    def on_data(self, message: DataMessage[None, int], output: Output[None, str]) -> None:
        output.emit(message.key, str(message.value), message.timestamp)

    def on_epoch(self, epoch: Epoch, output: Output[None, str]) -> None:
        if epoch.time < MAX_EPOCH:
            output.emit(None, "epoch", epoch.time)


class Latest(KeyedLogic[Any, int, int, int]):
    """Keeps the last value; each epoch sends and drops the even ones."""

    def on_data(self, message: DataMessage[Any, int], key_state: int | None, output: Output[Any, int]) -> int:
        return message.value

    def on_epoch(self, epoch: Epoch, state: MutableMapping[Any, int], output: Output[Any, int]) -> None:
        for key, value in sorted(state.items()):
            if value % 2 == 0:
                output.emit(key, value, min(epoch.time, MAX_EPOCH - 1))
                del state[key]


class Scores(KeyedLogic[Any, int, int, list[int]]):
    """Whole batches: the sum of the last three values of each key."""

    def on_batch(
        self,
        keys: list[Any],
        values: list[int],
        timestamps: list[int] | None,
        state: MutableMapping[Any, list[int]],
        output: Output[Any, int],
    ) -> None:
        for index, (key, value) in enumerate(zip(keys, values, strict=True)):
            state[key] = [*state.get(key, []), value][-3:]
            output.emit(key, sum(state[key]), timestamps[index] if timestamps else None)


class Deadlines(KeyedLogic[Any, int, str, int]):
    """Sends the number of records that came before a key's deadline, at the deadline."""

    def __init__(self, *, patience: int) -> None:
        self._patience = patience

    def on_data(self, message: DataMessage[Any, int], key_state: int | None, output: Output[Any, str]) -> int:
        assert message.timestamp is not None
        if key_state is None:
            output.set_timer(message.key, message.timestamp + self._patience)
        return (key_state or 0) + 1

    def on_timer(self, key: Any, time: int, key_state: int | None, output: Output[Any, str]) -> None:
        output.emit(key, f"{key_state} by {time}", time)


class Sessions(KeyedLogic[Any, int, list[int], tuple[int, ...]]):
    """Values of a key, as one list, sent once event time has passed the last of them by ``gap``.

    Sets a timer per record, some of them due immediately, and timers from timers.
    """

    def __init__(self, *, gap: int) -> None:
        self._gap = gap

    def on_data(
        self, message: DataMessage[Any, int], key_state: tuple[int, ...] | None, output: Output[Any, list[int]]
    ) -> tuple[int, ...]:
        assert message.timestamp is not None
        last = max(message.timestamp, (key_state or (0,))[0])
        output.set_timer(message.key, last + self._gap)
        output.set_timer(message.key, 3)
        return (last, *(key_state or (0,))[1:], message.value)

    def on_timer(
        self, key: Any, time: int, key_state: tuple[int, ...] | None, output: Output[Any, list[int]]
    ) -> tuple[int, ...] | None:
        if key_state is None or time < key_state[0] + self._gap:
            return key_state
        output.emit(key, list(key_state[1:]), time)
        output.set_timer(key, time + 1)
        return None


class Slow(KeyedLogic[Any, int, int, int]):
    """Gathers, and sends on schedule."""

    def on_data(self, message: DataMessage[Any, int], key_state: int | None, output: Output[Any, int]) -> int:
        return (key_state or 0) + message.value

    def on_schedule(self, state: MutableMapping[Any, int], output: Output[Any, int]) -> None:
        for key, value in sorted(state.items()):
            output.emit(key, value)
            state[key] = value // 2


class Alarms(KeyedLogic[Any, int, Any, tuple[int, ...]]):
    """Gathers, and sends by the runtime's clock: a while after each record, and at the full minute."""

    def on_data(
        self, message: DataMessage[Any, int], key_state: tuple[int, ...] | None, output: Output[Any, Any]
    ) -> tuple[int, ...]:
        output.set_timer(message.key, timedelta(seconds=1 + message.value % 3), clock="processing")
        output.set_timer(message.key, 60_000, clock="processing")
        return (*(key_state or ()), message.value)

    def on_timer(
        self, key: Any, time: int, key_state: tuple[int, ...] | None, output: Output[Any, Any]
    ) -> tuple[int, ...] | None:
        output.emit(key, (time, key_state))
        if time == 60_000:
            return None
        return key_state if key_state is None else (*key_state[1:], -1)
