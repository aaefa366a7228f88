"""Copies one snapshot to another store: a savepoint, which stands by itself and is kept until somebody removes it.

Rule: the order is that of any snapshot: artefacts first, then the manifest (S3). What is copied has been compared with
its digests.
"""

from __future__ import annotations

from dataclasses import replace

from malstrom_py.errors import SnapshotError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import Checkpointer, StoreCheckpointer
from malstrom_py.snapshot.loading import loaded
from malstrom_py.snapshot.manifest import Manifest


def copied(manifest: Manifest, source: Checkpointer, target: StoreCheckpointer, now_s: float) -> SnapshotId:
    """Copy the snapshot of ``manifest``, which sinks have committed, from ``source`` to ``target``, under the same id.

    Raises:
        SnapshotError: it cannot be read, or written; or a job keeps its snapshots there, which would be fenced off.
    """
    if any(entry.manifest is not None and not entry.manifest.savepoint for entry in target.entries()):
        raise SnapshotError(
            f"job {manifest.job!r}: a savepoint stands by itself, and {target} is where a job of that name keeps its "
            f"snapshots already: name another place"
        )
    for artefact in manifest.artefacts:
        target.store.put(f"{target.job}/{artefact.path}", loaded(source, artefact))
    claim = target.claim(now_s)
    target.save_manifest(
        replace(manifest, sequence=claim.sequence + 1, incarnation=claim.incarnation, parent=None, savepoint=True)
    )
    target.note_sinks_committed(manifest.id)
    target.update_latest(manifest.id)
    return manifest.id
