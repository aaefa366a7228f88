"""Checkpointers over every store: messages, the hint, removal and pruning, beyond the contract of checkpointers.

`check_checkpointer` runs over every store in tests/unit/testing/contracts/test_checkpointers.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from malstrom_py.errors import CodecError, FencedError, PlanError, SnapshotError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.manifest import Artefact, PartImage
from malstrom_py.snapshot.selection import latest_manifest
from malstrom_py.snapshot.verification import faults_of
from tests.unit.snapshot.stores import STORES
from tests.unit.snapshot.taken import JOB, Start, artefact, manifest, restored

ID = SnapshotId("20261122T042242123456Z-1a2b3c4d")


@pytest.fixture(params=sorted(STORES))
def checkpointer(request: pytest.FixtureRequest, tmp_path: Path) -> StoreCheckpointer:
    return StoreCheckpointer(STORES[request.param](tmp_path / "store"), JOB)


@pytest.fixture
def start(checkpointer: StoreCheckpointer) -> Start:
    return Start(checkpointer)


@pytest.mark.parametrize("path", ["_latest", "log/000000000001.json", "artefacts/../log/000000000001.json", ""])
def test_nothing_but_artefacts_is_loaded_as_one(start: Start, path: str) -> None:
    start.take(b"one")
    with pytest.raises(SnapshotError):
        start.checkpointer.load_artifact(path)


def test_an_artefact_that_is_missing_is_named(checkpointer: StoreCheckpointer) -> None:
    with pytest.raises(SnapshotError, match=f"artefacts/{ID}/totals-0.full is missing"):
        checkpointer.load_artifact(f"artefacts/{ID}/totals-0.full")


def test_a_snapshot_that_there_is_not_is_told_with_those_that_there_are(start: Start) -> None:
    made = start.take(b"one")
    with pytest.raises(SnapshotError, match=rf"has no snapshot {ID} in .*; its snapshots are: {made.id}$"):
        start.checkpointer.load_manifest(ID)


@pytest.mark.parametrize("hint", ["missing", b"", b"20", f"{ID}\n".encode(), b"\xff" * 40], ids=repr)
def test_s3_a_hint_that_is_missing_empty_or_dangling_is_derived(start: Start, hint: str | bytes) -> None:
    start.take(b"one")
    newest = start.take(b"two")
    store = start.checkpointer.store
    assert store.get(f"{JOB}/_latest") == f"{newest.id}\n".encode()
    assert start.checkpointer.read_latest() == newest.id
    if isinstance(hint, bytes):
        store.put(f"{JOB}/_latest", hint)
    else:
        store.delete(f"{JOB}/_latest")
    assert start.checkpointer.read_latest() == newest.id
    told = [f"{ID} was the newest snapshot, and its entry in the log is missing"] if hint == f"{ID}\n".encode() else []
    assert latest_manifest(start.checkpointer, job=JOB) == (newest, told)


def test_jobs_do_not_see_each_other(checkpointer: StoreCheckpointer) -> None:
    mine, other = Start(checkpointer), StoreCheckpointer(checkpointer.store, "orders-2")
    made = mine.take(b"one")
    assert other.claim(0.0).incarnation == 1
    assert other.list_checkpoints() == []
    with pytest.raises(SnapshotError, match="is of job 'orders', and cannot be committed here"):
        other.save_manifest(made)


def test_s3_another_under_the_same_number_is_refused(start: Start) -> None:
    made = start.take(b"one")
    StoreCheckpointer(start.checkpointer.store, JOB).save_manifest(made)  # the same again changes nothing
    with pytest.raises(SnapshotError, match="was taken after this start of the job had read the log") as raised:
        start.checkpointer.save_manifest(replace(made, id=start.new_id()))
    assert not isinstance(raised.value, FencedError)


def test_s3_an_id_that_is_not_the_largest_is_refused(start: Start) -> None:
    made = start.take(b"one")
    for id in (made.id, ID.replace("2026", "1999")):
        late = manifest(SnapshotId(id), start.claim, start.sequence + 1)
        with pytest.raises(SnapshotError, match=f"its id is not after {made.id}"):
            start.checkpointer.save_manifest(late)


def test_s3_the_number_after_a_gap_is_refused(start: Start) -> None:
    with pytest.raises(SnapshotError, match="its log does not end with entry 7"):
        start.checkpointer.save_manifest(manifest(start.new_id(), start.claim, 8))


def test_s3_a_stale_start_is_fenced_and_told_by_whom(start: Start) -> None:
    start.take(b"one")
    Start(start.checkpointer)
    with pytest.raises(
        FencedError, match=r"incarnation 1 cannot commit snapshot .*, because incarnation 2 has taken over"
    ):
        start.take(b"two")


def test_a_manifest_that_cannot_be_is_not_committed(start: Start) -> None:
    made = manifest(start.new_id(), start.claim, start.sequence + 1, start.save(ID, [b"one"]))
    with pytest.raises(SnapshotError, match=r"is not committed: .* is of a later snapshot"):
        start.checkpointer.save_manifest(made)
    with pytest.raises(CodecError, match="step 'read'"):
        start.checkpointer.save_manifest(replace(made, artefacts=(), sources={"read": {"a": PartImage(object())}}))
    assert start.checkpointer.list_checkpoints() == []


def test_who_needs_a_snapshot_that_is_not_removed_is_told(start: Start) -> None:
    base, delta = start.take(b"one"), start.take(b"two", delta=True)
    with pytest.raises(SnapshotError, match="is the newest, from which the job would resume"):
        start.checkpointer.delete_checkpoint(delta.id)
    start.take(b"three")
    with pytest.raises(SnapshotError, match=f"snapshot {delta.id} needs artefacts of {base.id}"):
        start.checkpointer.delete_checkpoint(base.id)


def test_the_hint_goes_with_its_snapshot(start: Start) -> None:
    made = start.take(b"one")
    afresh = Start(start.checkpointer, resume="none")
    start.checkpointer.delete_checkpoint(made.id)
    assert start.checkpointer.latest_hint() is None
    assert latest_manifest(afresh.checkpointer, job=JOB) == (None, [])


def test_a_chain_made_into_one_is_the_head_of_the_next(start: Start) -> None:
    start.take(b"base")
    second = start.take(b"delta", delta=True)
    merged = b"base and delta"
    digest = start.checkpointer.save_compacted(second.id, "totals", 0, merged)
    path = f"artefacts/{second.id}/totals-0.compacted.full"
    head = Artefact("totals", 0, "full", second.id, path, len(merged), digest)
    id = start.new_id()
    start.checkpointer.save_delta(id, "totals", 0, b"more")
    made = start.commit(manifest(id, start.claim, start.sequence + 1, [head, artefact(id, b"more", kind="delta")]))
    start.checkpointer.prune(1, 0.0, start.now_s + 1e6)
    assert restored(start.checkpointer, made) == {("totals", 0): [merged, b"more"]}
    assert sorted(path for path in start.checkpointer.files() if path.startswith("artefacts")) == sorted(
        one.path for one in made.artefacts
    )


def test_s3_merged_deltas_are_kept_as_long_as_a_snapshot_that_names_them(start: Start) -> None:
    first = start.take(b"base")
    start.take(b"one", delta=True)
    third = start.take(b"two", delta=True)
    digest = start.checkpointer.save_pieces(third.id, "totals", 0, "delta", [b"bo", b"th"], compacted=True)
    path = f"artefacts/{third.id}/totals-0.compacted.delta"
    merged = Artefact("totals", 0, "delta", third.id, path, len(b"both"), digest)
    id = start.new_id()
    start.checkpointer.save_delta(id, "totals", 0, b"more")
    chain = [*first.artefacts, merged, artefact(id, b"more", kind="delta")]
    made = start.commit(manifest(id, start.claim, start.sequence + 1, chain))
    start.checkpointer.prune(2, 0.0, start.now_s + 1e6)
    assert restored(start.checkpointer, third) == {("totals", 0): [b"base", b"one", b"two"]}
    start.checkpointer.prune(1, 0.0, start.now_s + 1e6)
    assert restored(start.checkpointer, made) == {("totals", 0): [b"base", b"both", b"more"]}
    files = [one for one in start.checkpointer.files() if one.startswith("artefacts")]
    assert files == sorted(one.path for one in made.artefacts)
    start.checkpointer.store.put(f"{JOB}/{path}", b"bath")
    assert next(iter(faults_of(start.checkpointer, made)), None) is not None


def test_a_job_whose_name_is_none_is_refused(checkpointer: StoreCheckpointer) -> None:
    with pytest.raises(PlanError, match="job name"):
        StoreCheckpointer(checkpointer.store, "../orders")
