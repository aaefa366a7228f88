"""The snapshot from which a job resumes, and savepoints, which are copies of a snapshot in another store.

Rule: a job resumes from the newest whole snapshot. Damaged ones are skipped with a warning. If all are damaged, the
start fails; it never begins empty (S4).

Rule: a savepoint is complete in itself and kept until a user removes it. Its artefacts are verified and written before
its manifest, as for any snapshot (S3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from malstrom_py.errors import FencedError, SnapshotError, lasting
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import LATEST, Checkpointer, StoreCheckpointer
from malstrom_py.snapshot.ids import is_snapshot_id
from malstrom_py.snapshot.log import JobStart, LogEntry, history
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.snapshot.retention import ARTEFACTS, COMMITS
from malstrom_py.snapshot.store import place_of, put_pieces
from malstrom_py.snapshot.verification import faults_of, verified_pieces


def latest_manifest(
    checkpointer: Checkpointer, *, job: str, verified: Manifest | None = None
) -> tuple[Manifest | None, list[str]]:
    """Return the newest snapshot of ``job`` whose digests all match, and a warning for each skipped one.

    None if there never was a snapshot, or if the last start began with ``resume="none"`` and has not committed yet. The
    digests of ``verified`` are not compared again.

    Raises:
        SnapshotError: there are snapshots, and none can be used; or the log is missing although there were snapshots.
    """
    # Read the hint before the log: an older start that is not fenced yet may commit between the two.
    noted, files = newest_noted(checkpointer), checkpointer.files()
    entries = checkpointer.entries()
    warnings: list[str] = []
    for entry in history(entries):
        if entry.manifest is None:
            warnings.append(entry.fault)
            continue
        fault = "" if entry.manifest == verified else next(faults_of(checkpointer, entry.manifest), "")
        if not fault:
            unlogged = missing_in(entries, noted)
            return entry.manifest, [*([unlogged] if unlogged else []), *warnings]
        warnings.append(fault if entry.manifest.id in fault else f"{entry.manifest.id}: {fault}")
    if warnings:
        number = f"{len(warnings)} snapshot{'s' if len(warnings) > 1 else ''}"
        message = (
            f"job {job!r} has {number} in {place_of(checkpointer)}, and none can be used: {'; '.join(warnings)}. "
            f'Restore one of them from a copy, or start without state with resume="none"'
        )
        raise lasting(SnapshotError(message))
    path = _trace_of_snapshot(files, has_log=bool(entries))
    if path is None or not all(isinstance(entry.content, JobStart) for entry in entries):
        return None, warnings
    message = (
        f"job {job!r}: the log of its snapshots in {place_of(checkpointer)} is missing, although {path} exists. "
        f'Restore the log from a copy, or start without state with resume="none"'
    )
    raise lasting(SnapshotError(message))


def check_claim(checkpointer: Checkpointer, manifest: Manifest) -> None:
    """`FencedError` if a newer start has claimed the job since ``manifest``, the last snapshot of a run, was saved."""
    read_next = getattr(checkpointer, "entry_after", None)  # a user's checkpointer has only `entries`
    for entry in checkpointer.entries() if read_next is None else [read_next(manifest.sequence)]:
        if entry is None or entry.sequence <= manifest.sequence or entry.content is None:
            continue
        if entry.content.incarnation > manifest.incarnation:
            raise FencedError(
                f"job {manifest.job!r}: incarnation {manifest.incarnation} does not commit the output of snapshot "
                f"{manifest.id}, because incarnation {entry.content.incarnation} has taken over. End this incarnation; "
                f"the newer one commits that output"
            )


def newest_noted(checkpointer: Checkpointer) -> str:
    """Return the newest snapshot that is recorded outside the log; every such snapshot was in the log before."""
    committed = (path.removeprefix(f"{COMMITS}/") for path in checkpointer.files() if path.startswith(f"{COMMITS}/"))
    return max([checkpointer.latest_hint() or "", *filter(is_snapshot_id, committed)])


def missing_in(entries: Sequence[LogEntry], noted: str) -> str:
    """Return a warning if the log ``entries`` lack the snapshot ``noted``; empty if not, or if an entry that cannot be
    read may be the missing one.
    """
    newest = max((entry.manifest.id for entry in entries if entry.manifest is not None), default="")
    if noted <= newest or any(entry.content is None for entry in entries):
        return ""
    return f"{noted} was the newest snapshot, and its entry in the log is missing"


def _trace_of_snapshot(files: Sequence[str], *, has_log: bool) -> str | None:
    """Return a file that proves that there was a snapshot, although the log has none. A start without snapshots has a
    log and no hint."""
    for path in files:
        if path == LATEST or (not has_log and path.startswith(f"{ARTEFACTS}/")):
            return path
    return None


def copy_savepoint(manifest: Manifest, source: Checkpointer, target: StoreCheckpointer, now_s: float) -> SnapshotId:
    """Copy the snapshot of ``manifest``, which sinks have committed, from ``source`` to ``target``, under the same id.

    Raises:
        SnapshotError: the copy failed; or a job keeps its snapshots at ``target``, and would be fenced off.
    """
    if any(entry.manifest is not None and not entry.manifest.savepoint for entry in target.entries()):
        raise SnapshotError(
            f"job {manifest.job!r}: a savepoint needs a separate place, and a job of that name keeps its snapshots in "
            f"{target}: name another place"
        )
    for artefact in manifest.artefacts:
        put_pieces(target.store, f"{target.job}/{artefact.path}", verified_pieces(source, artefact))
    claim = target.claim(now_s)
    target.save_manifest(
        replace(manifest, sequence=claim.sequence + 1, incarnation=claim.incarnation, parent=None, savepoint=True)
    )
    target.note_sinks_committed(manifest.id)
    target.update_latest(manifest.id)
    return manifest.id
