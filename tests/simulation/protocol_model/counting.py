"""The fake operator of a region: it counts per key, and fires windows at epochs."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field

from malstrom_py.data.messages import MIN_EPOCH
from tests.simulation.protocol_model.oracle import Oracle, Seen
from tests.simulation.protocol_model.records import WINDOW, ChannelKey, Record

HeldRows = tuple[ChannelKey, Record]


@dataclass
class KeyState:
    """Of one key: how many records, which windows have not fired, the last epoch that it has seen."""

    count: int = 0
    windows: dict[int, list[Seen]] = field(default_factory=dict)
    epoch: int = MIN_EPOCH


class Counting:
    """What one region holds on one worker."""

    def __init__(self, region: str, exchanges: tuple[str, ...]) -> None:
        self.region = region
        self.keys: dict[int, KeyState] = {}
        self.epochs = dict.fromkeys(exchanges, MIN_EPOCH)
        self.epoch = MIN_EPOCH
        self.held: list[HeldRows] = []
        self.same: set[int] = set()
        self.aside: dict[str, bytes] = {}

    def process(self, oracle: Oracle, exchange: str, record: Record) -> None:
        """Count a record, and put it into its window."""
        oracle.require(
            record.time > self.epochs[exchange], f"{record} arrived after epoch {self.epochs[exchange]} of {exchange}"
        )
        state = self.keys.setdefault(record.key, KeyState())
        self.changed(record.key)
        state.count += 1
        state.windows.setdefault(record.time // WINDOW, []).append((exchange, record))
        oracle.processed(self.region, exchange, record)

    def advance(self, oracle: Oracle, exchange: str, time: int) -> int | None:
        """An epoch has come in at ``exchange``. How far the region has got by it, if it has."""
        oracle.require(time > self.epochs[exchange], f"{exchange} goes back from {self.epochs[exchange]} to {time}")
        self.epochs[exchange] = time
        merged = self.merged()
        if merged <= self.epoch:
            return None
        self.epoch = merged
        for key, state in self.keys.items():
            oracle.require(merged > state.epoch, f"key {key} of {self.region} sees epoch {merged} twice (R5)")
            state.epoch = merged
            for window in [w for w in state.windows if (w + 1) * WINDOW - 1 <= merged]:
                oracle.fired(self.region, key, window, state.windows.pop(window))
                self.changed(key)
        return merged

    def merged(self) -> int:
        """T6: windows fire at the region's own frontier, merged over its inputs."""
        return min(self.epochs.values())

    def taken_out(self, slots: tuple[int, ...]) -> dict[str, bytes]:
        """The state of ``slots``, which leaves; a slot is a key here."""
        return {str(slot): pickle.dumps(self.keys.pop(slot)) for slot in slots if slot in self.keys}

    def changed(self, key: int) -> None:
        """R12: what went ahead of a key is out of date."""
        self.same.discard(key)

    def copied(self, slot: int) -> dict[str, bytes]:
        """R12: the state of a slot that goes ahead."""
        if slot not in self.keys:
            return {}
        self.same.add(slot)
        return {str(slot): pickle.dumps(self.keys[slot])}

    def confirmed(self, slots: tuple[int, ...]) -> dict[str, bytes]:
        """R12: of the keys that have not changed since they went ahead, only the last epoch leaves at the cut."""
        return {str(slot): pickle.dumps(self.keys.pop(slot).epoch) for slot in slots if slot in self.same}

    def keep_aside(self, states: dict[str, bytes]) -> None:
        """R12: state that came ahead."""
        self.aside |= states

    def put_confirmed(self, oracle: Oracle, confirmed: dict[str, bytes]) -> None:
        """R12: state that came ahead is used."""
        for slot, epoch in confirmed.items():
            oracle.require(slot in self.aside, f"slot {slot} was confirmed, and has not come (R12)")
            self.put_in(oracle, {slot: self.aside[slot]})
            self.keys[int(slot)].epoch = pickle.loads(epoch)

    def move_over(self) -> None:
        """R12: what went and what came ahead is forgotten."""
        self.same.clear()
        self.aside.clear()

    def put_in(self, oracle: Oracle, states: dict[str, bytes]) -> None:
        """State that comes from another worker."""
        for slot, state in states.items():
            oracle.require(int(slot) not in self.keys, f"state of slot {slot} is installed onto state (R5)")
            self.keys[int(slot)] = pickle.loads(state)
