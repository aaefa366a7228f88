"""A savepoint is complete in another store, and fences no job off."""

from __future__ import annotations

import pytest

from malstrom_py.errors import SnapshotError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.manifest import Artefact, Manifest, PlanImage
from malstrom_py.snapshot.selection import copy_savepoint, latest_manifest
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.state.artefact import artefact

JOB = "orders"


def kept(checkpointer: StoreCheckpointer) -> Manifest:
    """Commit a snapshot with one artefact."""
    claim = checkpointer.claim(0.0)
    snapshot = checkpointer.next_id(0.0)
    data = artefact({3: ([b"key"], [b"\x10\x01"])}, delta=False)
    sha256 = checkpointer.save_snapshot(snapshot, "sum", 0, data)
    path = checkpointer.artefact_path(snapshot, "sum", 0, "full")
    manifest = Manifest(
        job=JOB,
        id=snapshot,
        sequence=claim.sequence + 1,
        incarnation=claim.incarnation,
        created="2026-11-22T04:22:42+00:00",
        workers=1,
        plan=PlanImage(64),
        artefacts=(Artefact("sum", 0, "full", snapshot, path, len(data), sha256),),
    )
    checkpointer.save_manifest(manifest)
    return manifest


def test_a_copy_is_whole_and_is_what_a_job_would_go_on_from() -> None:
    source, target = (StoreCheckpointer(MemoryStore(), JOB) for _ in range(2))
    manifest = kept(source)
    assert copy_savepoint(manifest, source, target, 1.0) == manifest.id
    found, warnings = latest_manifest(target, job=JOB)
    assert found is not None
    assert (found.id, found.artefacts, found.savepoint, warnings) == (manifest.id, manifest.artefacts, True, [])
    assert target.sinks_committed(manifest.id)


def test_s3_it_is_refused_where_a_job_keeps_its_snapshots_and_fences_nobody_off() -> None:
    source, other = (StoreCheckpointer(MemoryStore(), JOB) for _ in range(2))
    manifest, theirs = kept(source), kept(other)
    entries = len(other.entries())
    for target in (source, StoreCheckpointer(source.store, JOB), other):
        with pytest.raises(SnapshotError, match="name another place"):
            copy_savepoint(manifest, source, target, 1.0)
    assert len(other.entries()) == entries
    assert other.load_manifest(theirs.id) == theirs


def test_what_cannot_be_read_leaves_no_claim_behind() -> None:
    source, target = (StoreCheckpointer(MemoryStore(), JOB) for _ in range(2))
    manifest = kept(source)
    source.store.delete(f"{JOB}/{manifest.artefacts[0].path}")
    with pytest.raises(SnapshotError, match="is missing"):
        copy_savepoint(manifest, source, target, 1.0)
    assert target.entries() == []


def test_savepoints_stand_beside_each_other() -> None:
    source, target = (StoreCheckpointer(MemoryStore(), JOB) for _ in range(2))
    manifest = kept(source)
    copy_savepoint(manifest, source, target, 1.0)
    assert target.list_checkpoints() == [SnapshotId(manifest.id)]
