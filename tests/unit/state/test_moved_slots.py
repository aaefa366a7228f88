"""Slots that move in their stored form between states that are on disk: each chain of snapshots stays exact (S2)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from malstrom_py.codec import Codec
from malstrom_py.data.messages import AbsBarrier, AnyInMemory, Collect, InMemory
from malstrom_py.rescale.keys.key_hash import encode_key
from malstrom_py.state.ahead_of_barrier import AheadOfBarrier, split
from malstrom_py.state.artefact import Block, Opened, entries_in, is_delta, merged
from malstrom_py.state.change_log import Changes
from malstrom_py.state.entries import NO_TIMES
from malstrom_py.state.expiry import Expiry
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.state.memory import StateMemory, StepMemory
from malstrom_py.testing import CapturingPersistenceBackend
from malstrom_py.testing.disk import MemoryDisk

SLOTS = 4
KEYS = 24


class Side:
    """The state of one worker with its chain of snapshots; ``maybe``: one that may or may not be committed."""

    def __init__(self, *, ttl: int | None) -> None:
        self.state = KeyedState("step", Codec())
        self.state.expiry = None if ttl is None else Expiry(ttl)
        self.memory: StepMemory = StateMemory(0, MemoryDisk, encode_key).keep(self.state)
        self.state.memory = self.memory
        self.state.track(lambda keys: [key % SLOTS for key in keys])
        self.chain: list[bytes] = []
        self.committed: str | None = None
        self.ahead: AheadOfBarrier | None = None
        self.next = ""
        self.watched: InMemory | None = None

    def contents(self) -> dict[Any, Any]:
        keys = list(self.state.keys())
        if self.state.cold is not None:
            keys += self.state.cold.keys()
        values, times = self.state.states_of(keys)
        held = zip(keys, values, strict=True)
        return {key: (value, times.get(key, NO_TIMES).until) for key, value in held if value is not None}

    def touch(self, keys: Sequence[int], value: int, time: int) -> None:
        """Process a batch; some of its rows change nothing."""
        self.state.bring(keys)
        changed = [key for key in keys if (key + value) % 3]
        self.state.note(changed)
        kept = [key for key in changed if (key + value) % 5]
        self.state.set_values(kept, [[value, key] for key in kept])
        self.state.drop_values([key for key in changed if key not in kept])
        if self.state.expiry is not None:
            self.state.touch(kept, [time] * len(kept))

    def watch(self) -> None:
        """Note the keys that come into memory from now on: a slot will leave."""
        self.watched = InMemory()
        self.state.interrogate(self.watched, set())

    def give(self, slot: int, other: Side, pieces: int) -> bool:
        """Move the keys of ``slot`` in memory, then some on disk; return whether all have moved."""
        listed = [key for key in range(KEYS) if key % SLOTS == slot]
        found: set[Any] = set()
        self.state.interrogate(AnyInMemory(set(listed)), found)
        if found:
            message = Collect(dict.fromkeys(sorted(found)).keys(), {}, {})
            self.state.handle(message)
            if "step" in message.states:
                other.state.acquire(message.states["step"])
        for _ in range(pieces):
            count, piece = self.memory.collect_stored(slot, 60)
            if not count:
                return True
            other.memory.acquire_stored(piece)
        return False

    def snapshot(self, name: str, *, is_committed: bool) -> None:
        """Write a snapshot, and check that its chain holds the state of this moment."""
        made = self.state.artefact(AbsBarrier(name, CapturingPersistenceBackend(), self.committed))
        written = [b"".join(part.made()) for part in split(self.state.take_packed(), made)]
        chain = written if not is_delta(written[0]) else [*self.chain, *written]
        expected = self.contents()
        for one in (chain, [merged(chain)]):
            assert {entry.key: (entry.value, entry.times.until) for entry in entries_in(one, Codec())} == expected
        self.ahead, self.next = None, ""
        if is_committed:
            self.chain, self.committed = chain, name


class Two:
    """Two workers between which slots move; nothing changes the keys of a slot while it moves."""

    def __init__(self, seed: int, *, ttl: int | None) -> None:
        self.random = random.Random(seed)
        self.sides = [Side(ttl=ttl), Side(ttl=ttl)]
        self.ttl = ttl
        self.owner = [0] * SLOTS
        self.moving: int | None = None
        self.step = self.deltas = self.replaced = 0

    def run(self) -> Two:
        does = [*[self.batch] * 3, *[self.move] * 2, self.expire, self.pack, self.snapshots]
        for _ in range(80):
            self.step += 1
            self.random.choice(does)()
        return self

    def batch(self) -> None:
        number = self.random.randrange(2)
        own = [key for key in range(KEYS) if self.owner[key % SLOTS] == number and key % SLOTS != self.moving]
        self.sides[number].touch(self.random.sample(own, self.random.randint(0, len(own))), self.step, self.step // 4)
        if self.random.random() < 0.8:
            self.sides[number].state.settle()

    def move(self) -> None:
        if self.moving is None:
            self.moving = self.random.randrange(SLOTS)
            self.sides[self.owner[self.moving]].watch()
        giver, taker = self.sides[self.owner[self.moving]], self.sides[1 - self.owner[self.moving]]
        if giver.give(self.moving, taker, self.random.randint(0, 3)):
            self.owner[self.moving], self.moving, giver.watched = 1 - self.owner[self.moving], None, None

    def expire(self) -> None:
        for side in self.sides if self.ttl is not None else ():
            side.state.expire(self.step // 4)

    def pack(self) -> None:
        side = self.random.choice(self.sides)
        if side.ahead is None:
            side.ahead = side.state.pack_ahead(f"s{self.step}", side.committed, keys_max=self.random.choice([1, 3]))
            side.next = f"s{self.step}"
        for _ in range(self.random.randint(0, 20)):
            if side.ahead.under_way:
                side.ahead.next()

    def snapshots(self) -> None:
        for side in self.sides:
            side.snapshot(side.next or f"s{self.step}", is_committed=self.random.random() < 0.7)
            self.deltas += len(side.chain) > 1
            self.replaced += any(block.entries for one in side.chain for block in replaced(one))


def replaced(data: bytes) -> list[Block]:
    return [block for block in Opened(data).blocks.values() if block.replaces]


@pytest.mark.parametrize("ttl", [None, 6])
def test_s2_chains_are_exact_while_slots_move_forth_and_back(ttl: int | None) -> None:
    runs = [Two(seed, ttl=ttl).run() for seed in range(60)]
    assert sum(run.deltas for run in runs) > 200
    assert sum(run.replaced for run in runs) > 20, "with keys that have come back, or have not left yet"


@pytest.mark.parametrize("fault", ["keys that come into memory are not noted", "slots are not replaced"])
def test_a_wrong_move_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "slots are not replaced":
        note = Changes.note_slot

        def wrong(changes: Changes, slot: int, moved: int, *, left: bool, on_disk: bool = True) -> None:
            note(changes, slot, moved, left=False, on_disk=on_disk)

        monkeypatch.setattr(Changes, "note_slot", wrong)
    else:
        monkeypatch.setattr(Changes, "has_slots", False)
    with pytest.raises(AssertionError):
        [Two(seed, ttl=None).run() for seed in range(60)]
