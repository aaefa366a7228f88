"""Verification of snapshots: all artefacts exist, and their bytes are those that were written.

Rule: no artefact is used before its digest is verified (S4).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Protocol

from malstrom_py.errors import SnapshotError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.manifest import Artefact, Manifest
from malstrom_py.snapshot.store import is_lost


class SnapshotReader(Protocol):
    """The part of `Checkpointer` that reads snapshots."""

    def load_manifest(self, id: SnapshotId) -> Manifest:
        """As `Checkpointer.load_manifest`."""
        ...

    def load_artifact(self, path: str) -> bytes:
        """As `Checkpointer.load_artifact`."""
        ...

    def files(self) -> list[str]:
        """As `Checkpointer.files`."""
        ...


def verify(checkpointer: SnapshotReader, id: SnapshotId) -> list[str]:
    """Read all of one snapshot and return its faults, as sentences; none if it is whole."""
    try:
        manifest = checkpointer.load_manifest(id)
    except SnapshotError as error:
        return [str(error)]
    return list(faults_of(checkpointer, manifest))


def faults_of(checkpointer: SnapshotReader, manifest: Manifest) -> Iterator[str]:
    """Yield the faults of the artefacts of ``manifest``.

    Raises:
        SnapshotError: the store cannot be reached or denies access; the snapshot may still be whole.
    """
    existing = frozenset(checkpointer.files())
    for artefact in manifest.artefacts:
        if artefact.path not in existing:
            yield f"{artefact.path} is missing"
            continue
        try:
            fault = fault_of(artefact, checkpointer.load_artifact(artefact.path))
        except SnapshotError as error:
            if not is_lost(error):
                raise
            fault = str(error)
        if fault:
            yield fault


def fault_of(artefact: Artefact, data: bytes) -> str:
    """Compare ``data`` with the size and the digest of ``artefact``; return the fault, or an empty text."""
    if len(data) != artefact.size:
        return f"{artefact.path} has {len(data)} bytes, where {artefact.size} were written"
    if hashlib.sha256(data).hexdigest() != artefact.sha256:
        return f"{artefact.path} is damaged: its digest does not match"
    return ""


def load_verified(checkpointer: SnapshotReader, artefact: Artefact) -> bytes:
    """Return the bytes of ``artefact``. `SnapshotError` if the digest does not match."""
    data = checkpointer.load_artifact(artefact.path)
    if fault := fault_of(artefact, data):
        raise SnapshotError(fault)
    return data
