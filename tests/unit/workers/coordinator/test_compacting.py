"""Long chains are compacted without writing again what did not change (S2): counted in bytes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import pytest

from malstrom_py.errors import SnapshotError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.manifest import Artefact, Kind, artefact_path
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.state.artefact import artefact as encoded
from malstrom_py.workers.coordinator.snapshot_coordinator import _compacted, worth_merging

KEYS: Final = 1000
CHAIN_MAX: Final = 8


def artefact(number: int, kind: Kind, size: int) -> Artefact:
    id = SnapshotId(f"20261122T042242{number:06}Z-1a2b3c4d")
    return Artefact("sum", 0, kind, id, artefact_path(id, "sum", 0, kind), size, "0" * 64)


def random_keys(number: int) -> set[int]:
    return set(random.Random(number).sample(range(KEYS), KEYS // 100))


def same_keys(number: int) -> set[int]:
    return set(range(KEYS // 100))


def no_keys(number: int) -> set[int]:
    return set()


@pytest.mark.parametrize(
    ("changed", "again", "in_full"), [(random_keys, 3.6, 5), (same_keys, 0.2, 0), (no_keys, 0.0, 0)]
)
def test_s2_what_is_large_is_seldom_written_again(
    changed: Callable[[int], set[int]], again: float, in_full: int
) -> None:
    keys = {artefact(0, "full", KEYS): set(range(KEYS))}  # which keys each artefact of the chain has
    changes = written = fulls = 0
    for number in range(1, 301):
        new = changed(number)
        keys[artefact(number, "delta", len(new))] = new
        changes += len(new)
        chain = tuple(keys)
        if len(chain) > CHAIN_MAX:
            some = worth_merging(chain)
            assert len(some) > 1
            assert chain[-len(some) :] == some
            merged = set[int]().union(*(keys.pop(one) for one in some))
            keys[artefact(number, some[0].kind, len(merged))] = merged
            written += len(merged)
            fulls += some[0].kind == "full"
        assert len(keys) <= CHAIN_MAX
        assert sum(map(len, keys.values())) <= 1.6 * KEYS, "a restore reads it all"
    assert written <= again * changes
    assert fulls <= in_full


def test_s4_what_is_not_what_was_written_is_not_merged() -> None:
    checkpointer, chain = StoreCheckpointer(MemoryStore(), "job"), list[Artefact]()
    for number in (1, 2):
        data = encoded({0: ([b"key"], [b"\x10%d" % number])}, delta=True)
        made = artefact(number, "delta", len(data))
        digest = checkpointer.save_delta(made.snapshot, "sum", 0, data)
        chain.append(Artefact("sum", 0, "delta", made.snapshot, made.path, made.size, digest))
    assert _compacted(chain, checkpointer).kind == "delta"
    checkpointer.save_delta(chain[1].snapshot, "sum", 0, checkpointer.load_artifact(chain[0].path))  # whole, and old
    with pytest.raises(SnapshotError, match="its digest does not match"):
        _compacted(chain, checkpointer)
