"""Whether a snapshot is whole: every artefact is compared with its digest before it is used (S4).

Whether a snapshot is whole: its artefacts are there, and byte for byte what was written.

Rule: nothing is restored from before every digest has been compared (S4).

Reads artefacts of keyed state. Rule: nothing is believed before it has been compared with its digest (S4).
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
    """Where snapshots are read from."""

    def load_manifest(self, id: SnapshotId) -> Manifest:
        """What `Checkpointer.load_manifest` gives."""
        ...

    def load_artifact(self, path: str) -> bytes:
        """What `Checkpointer.load_artifact` gives."""
        ...

    def files(self) -> list[str]:
        """What `Checkpointer.files` gives."""
        ...


def verify(checkpointer: SnapshotReader, id: SnapshotId) -> list[str]:
    """Every fault of one snapshot, for people; none if it is whole. All of it is read."""
    try:
        manifest = checkpointer.load_manifest(id)
    except SnapshotError as error:
        return [str(error)]
    return list(faults_of(checkpointer, manifest))


def faults_of(checkpointer: SnapshotReader, manifest: Manifest) -> Iterator[str]:
    """The faults of the artefacts of ``manifest``, one by one as they are found.

    Raises:
        SnapshotError: the store cannot be reached or does not let us read, which says nothing about the snapshot.
    """
    there = frozenset(checkpointer.files())
    for artefact in manifest.artefacts:
        if artefact.path not in there:
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
    """What is wrong if ``data`` is said to be ``artefact``; empty if nothing is."""
    if len(data) != artefact.size:
        return f"{artefact.path} has {len(data)} bytes, where {artefact.size} were written"
    if hashlib.sha256(data).hexdigest() != artefact.sha256:
        return f"{artefact.path} is damaged: its digest does not fit"
    return ""


def loaded(checkpointer: SnapshotReader, artefact: Artefact) -> bytes:
    """The bytes of ``artefact``, as they were written. `SnapshotError` if they are not."""
    data = checkpointer.load_artifact(artefact.path)
    if fault := fault_of(artefact, data):
        raise SnapshotError(fault)
    return data
