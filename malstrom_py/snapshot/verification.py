"""Verification of snapshots: all artefacts exist, and their bytes are those that were written.

Rule: no artefact is used before its digest is verified (S4).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from malstrom_py.errors import SnapshotError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.manifest import Artefact, Manifest
from malstrom_py.snapshot.store import Range, is_lost, ranges_of
from malstrom_py.state.artefact import Selection, selected


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
    """Yield the faults of the artefacts of ``manifest``. If there are none, ``checkpointer.note_whole`` is called.

    Raises:
        SnapshotError: the store cannot be reached or denies access; the snapshot may still be whole.
    """
    existing, whole = frozenset(checkpointer.files()), True
    for artefact in manifest.artefacts:
        if artefact.path not in existing:
            whole = False
            yield f"{artefact.path} is missing"
            continue
        try:
            fault = fault_of(artefact, checkpointer.load_artifact(artefact.path))
        except SnapshotError as error:
            if not is_lost(error):
                raise
            fault = str(error)
        if fault:
            whole = False
            yield fault
    note_whole = getattr(checkpointer, "note_whole", None)
    if whole and note_whole is not None:
        note_whole(manifest.id)


def fault_of(artefact: Artefact, data: bytes) -> str:
    """Compare ``data`` with the size and the digest of ``artefact``; return the fault, or an empty text."""
    if len(data) != artefact.size:
        return f"{artefact.path} has {len(data)} bytes, where {artefact.size} were written"
    if hashlib.sha256(data).hexdigest() != artefact.sha256:
        return f"{artefact.path} is damaged: its digest does not match"
    return ""


def load_slots(checkpointer: SnapshotReader, artefact: Artefact, slots: Collection[int]) -> Selection:
    """Return the part of a verified ``artefact`` with ``slots``.

    Each block has its own checksum, which is verified where the part is used. `SnapshotError` if the artefact is
    damaged.
    """
    load = getattr(checkpointer, "load_ranges", None)

    def read(ranges: Sequence[Range]) -> list[bytes]:
        found: list[bytes] = (
            ranges_of(checkpointer.load_artifact(artefact.path), ranges)
            if load is None
            else load(artefact.path, ranges)
        )
        for (start, end), data in zip(ranges, found, strict=True):
            if len(data) != end - start:
                raise SnapshotError(f"{artefact.path} is damaged: it ends before byte {end}")
        return found

    return selected(read, artefact.size, slots)


def load_verified(checkpointer: SnapshotReader, artefact: Artefact) -> bytes:
    """Return the bytes of ``artefact``. `SnapshotError` if the digest does not match."""
    data = checkpointer.load_artifact(artefact.path)
    if fault := fault_of(artefact, data):
        raise SnapshotError(fault)
    return data
