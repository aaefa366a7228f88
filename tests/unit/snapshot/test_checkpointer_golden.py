"""The snapshots of tests/vectors/snapshot-1 load, at any scale and in all later versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from malstrom_py.codec import Codec
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.local_store import LocalStore
from malstrom_py.snapshot.manifest import Manifest, PartImage
from malstrom_py.snapshot.selection import latest_manifest
from malstrom_py.snapshot.verification import verify
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.testing.exact import same
from tests.vectors.golden_snapshot import FOLDER, IDS, JOB, PLAN, SLOTS, STATE, TIMES, make


@pytest.fixture
def checkpointer() -> StoreCheckpointer:
    return StoreCheckpointer(LocalStore(FOLDER), JOB)


def newest(checkpointer: StoreCheckpointer) -> Manifest:
    found, warnings = latest_manifest(checkpointer, job=JOB)
    assert warnings == []
    assert found is not None
    return found


def test_s4_every_snapshot_that_was_written_is_whole(checkpointer: StoreCheckpointer) -> None:
    assert checkpointer.list_checkpoints() == list(IDS)
    assert [verify(checkpointer, id) for id in IDS] == [[], [], []]
    assert checkpointer.read_latest() == IDS[2]
    assert all(map(checkpointer.sinks_committed, IDS))


def test_a_manifest_says_what_it_said(checkpointer: StoreCheckpointer) -> None:
    found = newest(checkpointer)
    assert (found.id, found.parent, found.sequence, found.incarnation, found.workers) == (IDS[2], IDS[1], 4, 1, 2)
    assert found.plan == PLAN
    assert found.sources == {
        "read": {"days/1.csv": PartImage({"row": 201}, finished=True), "days/2.csv": PartImage({"row": 202})}
    }
    kept = (1_700_000_000_002, None)
    assert same(dict(found.parts["epochs"]), {"read/days/1.csv": kept, "read/days/2.csv": kept})
    assert found.frontiers == {"item": 1_700_000_000_001}
    assert found.sinks == {"out": (b'["out-0-2.parquet"]', b"[]")}
    assert found.pins == {"read": {"files": ["days/1.csv", "days/2.csv"]}}
    assert (found.result, found.savepoint) == (None, False)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_s5_its_state_is_restored_at_any_scale(checkpointer: StoreCheckpointer, workers: int) -> None:
    found = newest(checkpointer)
    values: dict[Any, Any] = {}
    times: dict[Any, list[int]] = {}
    for worker in range(workers):
        state = KeyedState("totals", Codec())
        for chain in found.chains().values():
            data = [checkpointer.load_artifact(one.path) for one in chain]
            state.install(data, [slot for slot in range(SLOTS) if slot % workers == worker])
        assert not values.keys() & state.values.keys()
        values |= {key: value for key, value in state.values.items() if value is not None}
        times |= {key: state.timers.times(key) for key in state.timers.keys()}  # noqa: SIM118  # it is not a dict
    assert same(sorted(values.items(), key=repr), sorted(STATE.items(), key=repr))
    assert times == TIMES


def test_what_this_version_writes_is_what_was_written(tmp_path: Path) -> None:
    make(tmp_path)

    def files(folder: Path) -> dict[str, bytes]:
        found = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in found}

    assert files(tmp_path) == files(FOLDER)
