"""The steps by which a stage counts: each of the library's that keeps state per key, all with the same outcome.

Each takes a keyed stream of `Passed` and gives one, with a mark more; what it counts is what `records.counted` says.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, Final

import malstrom_py as mp
from malstrom_py import agg
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from tests.simulation.jobs.layouts import Stage
from tests.simulation.jobs.records import NOTHING, Fired, Passed, Tally, counted, ident, is_poison
from tests.simulation.jobs.seen import Seen

Stream = Any
Kept = tuple[Tally, dict[int, tuple[Any, ...]], int]
"""The state of a key in a `Ledger`: what it has counted, its open windows by their start, its last epoch."""


class Poison(Exception):
    """What a step raises on a record that it cannot take."""


def _checked(stage: Stage, passed: Passed) -> Passed:
    if stage.poisoned and is_poison(passed.record):
        raise Poison("a record that this step cannot take")
    return passed


class Ledger(mp.KeyedLogic[Any, Passed, Any, Any]):
    """Counts, and at the end sends what it has counted to the side output "final"."""

    def __init__(self, stage: Stage, seen: Seen, *, timed: bool) -> None:
        self.stage = stage
        self.seen = seen
        self.timed = timed

    def on_data(self, message: mp.DataMessage[Any, Passed], key_state: Any, output: mp.Output[Any, Any]) -> Kept:
        tally, windows, epoch = key_state or (NOTHING, {}, MIN_EPOCH)
        tally, passed = counted(tally, self.stage.name, _checked(self.stage, message.value))
        if message.timestamp is not None and message.timestamp <= epoch:
            self.broken(f"was sent a record at {message.timestamp}, and its key has seen epoch {epoch}")
        output.emit(message.key, passed, message.timestamp)
        return tally, self.opened(message, windows, output), epoch

    def opened(self, message: mp.DataMessage[Any, Passed], windows: Any, output: mp.Output[Any, Any]) -> Any:
        """The windows of a key with one more record."""
        return windows

    def on_epoch(self, epoch: mp.Epoch, state: MutableMapping[Any, Any], output: mp.Output[Any, Any]) -> None:
        for key, (tally, windows, last) in list(state.items()):
            if epoch.time <= last:
                self.broken(f"shows epoch {epoch.time} to a key that has seen {last} (R5)")
            state[key] = (tally, windows, epoch.time)
            if epoch.time == MAX_EPOCH:
                output.side("final").emit(key, (tally, len(windows)), MAX_EPOCH - 1 if self.timed else None)

    def broken(self, what: str) -> None:
        """Note that something is wrong."""
        self.seen.broken.append(f"stage {self.stage.name} {what}")


class WindowLedger(Ledger):
    """Fires the windows of each key by timers, to the side output "windows"."""

    def opened(self, message: mp.DataMessage[Any, Passed], windows: Any, output: mp.Output[Any, Any]) -> Any:
        width, time = self.stage.window or 1, message.timestamp or 0
        start = time // width * width
        output.set_timer(message.key, start + width - 1)
        return {**windows, start: (*windows.get(start, ()), ident(message.value))}

    def on_timer(self, key: Any, time: int, key_state: Any, output: mp.Output[Any, Any]) -> Any:
        start = time - (self.stage.window or 1) + 1
        kept: Kept = key_state or (NOTHING, {}, MIN_EPOCH)
        tally, windows, epoch = kept
        if start not in windows:
            self.broken(f"has a timer at {time} for a window that it does not have (T6)")
            return key_state
        output.side("windows").emit(key, Fired(self.stage.name, key, start, windows[start]), time)
        return tally, {other: content for other, content in windows.items() if other != start}, epoch


class BatchLedger(Ledger):
    """Counts whole batches."""

    def on_batch(
        self,
        keys: list[Any],
        values: list[Passed],
        timestamps: list[int] | None,
        state: MutableMapping[Any, Any],
        output: mp.Output[Any, Any],
    ) -> None:
        times: list[Any] = [None] * len(keys) if timestamps is None else list(timestamps)
        for key, value, time in zip(keys, values, times, strict=True):
            state[key] = Ledger.on_data(self, mp.DataMessage(key, value, time), state.get(key), output)


def _ledger(kind: type[Ledger]) -> Callable[..., tuple[Stream, ...]]:
    def build(keyed: Stream, stage: Stage, seen: Seen, *, timed: bool, on_error: str) -> tuple[Stream, ...]:
        logic, sides = kind(stage, seen, timed=timed), ("final", "windows")[: 1 + (kind is WindowLedger)]
        return tuple(keyed.stateful_op(stage.name, logic, sides=sides, on_error=on_error))

    return build


def _stateful_map(keyed: Stream, stage: Stage, seen: Seen, *, timed: bool, on_error: str) -> tuple[Stream, ...]:
    def count(key: Any, passed: Passed, tally: Tally) -> tuple[Passed, Tally]:
        tally, passed = counted(tally, stage.name, _checked(stage, passed))
        return passed, tally

    if stage.ttl is not None:
        return (keyed.ttl_map(stage.name, count, ttl=stage.ttl, default=lambda: NOTHING, on_error=on_error),)
    return (keyed.stateful_map(stage.name, count, default=lambda: NOTHING, on_error=on_error),)


def _flat_map(keyed: Stream, stage: Stage, seen: Seen, *, timed: bool, on_error: str) -> tuple[Stream, ...]:
    def count(key: Any, passed: Passed, tally: Tally | None) -> tuple[list[Passed], Tally]:
        tally, passed = counted(tally or NOTHING, stage.name, _checked(stage, passed))
        return [passed], tally

    return (keyed.stateful_flat_map(stage.name, count, on_error=on_error, ttl=stage.ttl),)


def _function(keyed: Stream, stage: Stage, seen: Seen, *, timed: bool, on_error: str) -> tuple[Stream, ...]:
    def count(message: mp.DataMessage[Any, Passed], tally: Tally | None, output: mp.Output[Any, Any]) -> Tally:
        tally, passed = counted(tally or NOTHING, stage.name, _checked(stage, message.value))
        output.send(mp.DataMessage(message.key, passed, message.timestamp))
        return tally

    return (keyed.stateful_op(stage.name, count, on_error=on_error, ttl=stage.ttl),)


def _fold(keyed: Stream, stage: Stage, seen: Seen, *, timed: bool, on_error: str) -> tuple[Stream, ...]:
    def add(accumulated: Any, passed: Passed) -> Any:
        return counted(accumulated[0], stage.name, _checked(stage, passed))

    folded = keyed.fold(stage.name, add, default=lambda: (NOTHING, None), on_error=on_error, ttl=stage.ttl)
    return (folded.map(f"{stage.name}-marked", lambda accumulated: accumulated[1]),)


def _reduce(keyed: Stream, stage: Stage, seen: Seen, *, timed: bool, on_error: str) -> tuple[Stream, ...]:
    """The first value of a key is what has been accumulated, so each value has to look like that."""

    def add(accumulated: Any, value: Any) -> Any:
        return (*counted(accumulated[0], stage.name, value[2]), value[2])

    alone = keyed.map(f"{stage.name}-alone", lambda passed: (*counted(NOTHING, stage.name, passed), passed))
    reduced = alone.reduce(stage.name, add)
    return (reduced.map(f"{stage.name}-marked", lambda accumulated: accumulated[1]),)


def _aggregate(keyed: Stream, stage: Stage, seen: Seen, *, timed: bool, on_error: str) -> tuple[Stream, ...]:
    def add(accumulated: Any, passed: Passed) -> Any:
        return counted(accumulated[0], stage.name, _checked(stage, passed))

    def merge(left: Any, right: Any) -> Any:
        raise AssertionError("what depends on the order of all records cannot be merged, and is not")

    tally = agg.custom(lambda: (NOTHING, None), add, merge, lambda accumulated: accumulated[1])
    several = {"n": agg.count(), "marked": tally, "last": agg.last()}
    figures = keyed.aggregate(stage.name, on_error=on_error, ttl=stage.ttl, **several)
    return (figures.map(f"{stage.name}-marked", lambda found: _agreed(found, stage.name, seen)),)


def _agreed(found: dict[str, Any], stage: str, seen: Seen) -> Passed:
    marked: Passed = found["marked"]
    if found["n"] != marked.trail[-1].n or found["last"].record != marked.record:
        seen.broken.append(f"stage {stage}: the aggregates of one key do not agree")
    return marked


KINDS: Final[dict[str, Callable[..., tuple[Stream, ...]]]] = {
    "stateful_map": _stateful_map,
    "stateful_flat_map": _flat_map,
    "function": _function,
    "fold": _fold,
    "reduce": _reduce,
    "aggregate": _aggregate,
    "logic": _ledger(Ledger),
    "batch": _ledger(BatchLedger),
    "windows": _ledger(WindowLedger),
}
"""Each gives the main stream, and for ledgers that of what is final, and that of windows."""

LEDGERS: Final = ("logic", "batch", "windows")
MAY_FAIL: Final = ("stateful_map", "stateful_flat_map", "function", "fold", "aggregate", "logic", "windows")
"""Those that may fail on single records."""
LASTING: Final = ("stateful_map", "stateful_map", "stateful_flat_map", "function", "fold", "aggregate")
"""Those of which the state may have a time to live."""
