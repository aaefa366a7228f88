"""From which snapshot a job goes on: the newest that is whole.

Rule: what is damaged is skipped and told of; where all are, it is an error, and never an empty beginning (S4).
"""

from __future__ import annotations

from malstrom_py.errors import SnapshotError
from malstrom_py.snapshot.checkpointer import LATEST, Checkpointer
from malstrom_py.snapshot.log import Claim, history
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.snapshot.pruning import ARTEFACTS
from malstrom_py.snapshot.verifying import faults_of


def latest_manifest(checkpointer: Checkpointer, *, job: str) -> tuple[Manifest | None, list[str]]:
    """The newest snapshot of ``job`` of which every digest fits, and a warning for each that was skipped.

    None if there never was one, or the last start was told to begin afresh and has committed none yet.

    Raises:
        SnapshotError: there are snapshots, and none of them can be used; or there were some.
    """
    entries = checkpointer.entries()
    warnings: list[str] = []
    for entry in history(entries):
        if entry.manifest is None:
            warnings.append(entry.fault)
            continue
        fault = next(faults_of(checkpointer, entry.manifest), "")
        if not fault:
            return entry.manifest, warnings
        warnings.append(f"{entry.manifest.id}: {fault}")
    if warnings:
        number = f"{len(warnings)} snapshot{'s' if len(warnings) > 1 else ''}"
        raise SnapshotError(
            f"job {job!r} has {number} in {checkpointer!r}, and none of them can be used: {'; '.join(warnings)}. Bring "
            f'back one of them from a copy, or start afresh with resume="none"'
        )
    if not all(isinstance(entry.content, Claim) for entry in entries):
        return None, warnings
    path = _trace_of_one(checkpointer, has_log=bool(entries))
    if path is None:
        return None, warnings
    if len(checkpointer.entries()) > len(entries):
        # Whoever is about to be fenced off has committed between the two looks.
        return latest_manifest(checkpointer, job=job)
    raise SnapshotError(
        f"job {job!r}: the log of its snapshots in {checkpointer!r} is gone, though {path} is there. Bring it back "
        f'from a copy, or start afresh with resume="none"'
    )


def _trace_of_one(checkpointer: Checkpointer, *, has_log: bool) -> str | None:
    """What shows that there was a snapshot, though the log knows of none: a start without one has a log, and nothing
    is noted as the newest."""
    for path in checkpointer.files():
        if path == LATEST or (not has_log and path.startswith(f"{ARTEFACTS}/")):
            return path
    return None
