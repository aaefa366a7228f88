"""From which snapshot a job goes on, and savepoints: copies in another store.

From which snapshot a job goes on: the newest that is whole.

Rule: what is damaged is skipped and told of; where all are, it is an error, and never an empty beginning (S4).

Copies one snapshot to another store: a savepoint, which stands by itself and is kept until somebody removes it.

Rule: the order is that of any snapshot: artefacts first, then the manifest (S3). What is copied has been compared with
its digests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from malstrom_py.errors import SnapshotError, lasting
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import LATEST, Checkpointer, StoreCheckpointer
from malstrom_py.snapshot.ids import is_snapshot_id
from malstrom_py.snapshot.log import JobStart, LogEntry, history
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.snapshot.retention import ARTEFACTS, COMMITS
from malstrom_py.snapshot.store import place_of
from malstrom_py.snapshot.verification import faults_of, loaded


def latest_manifest(checkpointer: Checkpointer, *, job: str) -> tuple[Manifest | None, list[str]]:
    """The newest snapshot of ``job`` of which every digest fits, and a warning for each that was skipped.

    None if there never was one, or the last start was told to begin afresh and has committed none yet.

    Raises:
        SnapshotError: there are snapshots, and none of them can be used; or there were some.
    """
    # Before the log, in which it stands by then: somebody who is about to be fenced off may commit meanwhile.
    noted, files = newest_noted(checkpointer), checkpointer.files()
    entries = checkpointer.entries()
    warnings: list[str] = []
    for entry in history(entries):
        if entry.manifest is None:
            warnings.append(entry.fault)
            continue
        fault = next(faults_of(checkpointer, entry.manifest), "")
        if not fault:
            unlogged = missing_in(entries, noted)
            return entry.manifest, [*([unlogged] if unlogged else []), *warnings]
        warnings.append(fault if entry.manifest.id in fault else f"{entry.manifest.id}: {fault}")
    if warnings:
        number = f"{len(warnings)} snapshot{'s' if len(warnings) > 1 else ''}"
        told = "; ".join(warnings)
        said = (
            f"job {job!r} has {number} in {place_of(checkpointer)}, and none of them can be used: {told}. "
            f'Bring back one of them from a copy, or start afresh with resume="none"'
        )
        raise lasting(SnapshotError(said))
    path = _trace_of_one(files, has_log=bool(entries))
    if path is None or not all(isinstance(entry.content, JobStart) for entry in entries):
        return None, warnings
    said = (
        f"job {job!r}: the log of its snapshots in {place_of(checkpointer)} is gone, though {path} is there. Bring it "
        f'back from a copy, or start afresh with resume="none"'
    )
    raise lasting(SnapshotError(said))


def newest_noted(checkpointer: Checkpointer) -> str:
    """The newest snapshot that is noted anywhere but in the log: what is noted was in the log before."""
    committed = (path.removeprefix(f"{COMMITS}/") for path in checkpointer.files() if path.startswith(f"{COMMITS}/"))
    return max([checkpointer.latest_hint() or "", *filter(is_snapshot_id, committed)])


def missing_in(entries: Sequence[LogEntry], noted: str) -> str:
    """What is wrong if ``noted`` was the newest snapshot, and these are the log; empty if nothing is. An entry that
    cannot be read may be the one that is missed.
    """
    newest = max((entry.manifest.id for entry in entries if entry.manifest is not None), default="")
    if noted <= newest or any(entry.content is None for entry in entries):
        return ""
    return f"{noted} was the newest snapshot, and its entry in the log is gone"


def _trace_of_one(files: Sequence[str], *, has_log: bool) -> str | None:
    """What shows that there was a snapshot, though the log knows of none: a start without one has a log, and nothing
    is noted as the newest."""
    for path in files:
        if path == LATEST or (not has_log and path.startswith(f"{ARTEFACTS}/")):
            return path
    return None


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
