"""Verification of snapshots: all artefacts exist, and their bytes are those that were written.

Rule: no artefact is used before its digest is verified (S4).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, Protocol

from malstrom_py.errors import SnapshotError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.manifest import Artefact, Manifest
from malstrom_py.snapshot.store import Range, is_lost, ranges_of
from malstrom_py.state.artefact import StoredArtefact

_TOGETHER: Final = 16 << 20
"""So many bytes of an artefact are read together to compare its digest."""


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
    """Yield the faults of the artefacts of ``manifest``. If there are none, call the checkpointer's ``note_whole(id)``.

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
            fault = _fault_in(checkpointer, artefact)
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


def _fault_in(checkpointer: SnapshotReader, artefact: Artefact) -> str:
    """Compare what is stored with the size and the digest of ``artefact``; return the fault, or an empty text.

    What follows the bytes of a large artefact is never read.
    """
    size, digest = 0, hashlib.sha256()
    for piece in _pieces(checkpointer, artefact):
        size += len(piece)
        digest.update(piece)
    return _compared(artefact, size, digest.hexdigest())


def _compared(artefact: Artefact, size: int, sha256: str) -> str:
    """Compare a size and a digest with those of ``artefact``; return the fault, or an empty text."""
    if size != artefact.size:
        return f"{artefact.path} has {size} bytes, where {artefact.size} were written"
    if sha256 != artefact.sha256:
        return f"{artefact.path} is damaged: its digest does not match"
    return ""


def _pieces(checkpointer: SnapshotReader, artefact: Artefact) -> Iterator[bytes]:
    """Yield the bytes of ``artefact``: of a large one some millions together, if the checkpointer has ranges."""
    load = getattr(checkpointer, "load_ranges", None)
    if load is None or artefact.size <= _TOGETHER:
        yield checkpointer.load_artifact(artefact.path)
        return
    for start, end in pairwise((*range(0, artefact.size, _TOGETHER), artefact.size)):
        yield from load(artefact.path, [(start, end)])


def verified_pieces(checkpointer: SnapshotReader, artefact: Artefact) -> Iterator[bytes]:
    """Yield the bytes of ``artefact``. `SnapshotError` at their end, or before, if the digest does not match."""
    size, digest, last = 0, hashlib.sha256(), b""
    for piece in _pieces(checkpointer, artefact):
        size += len(piece)
        digest.update(piece)
        yield last
        last = piece
    if fault := _compared(artefact, size, digest.hexdigest()):
        raise SnapshotError(fault)
    yield last


def verified(checkpointer: SnapshotReader, artefact: Artefact) -> StoredArtefact:
    """Verify ``artefact``, and return it as `stored` does. `SnapshotError` if its digest does not match."""
    if fault := _fault_in(checkpointer, artefact):
        raise SnapshotError(fault)
    return stored(checkpointer, artefact)


def stored(checkpointer: SnapshotReader, artefact: Artefact) -> StoredArtefact:
    """Return ``artefact``, which was verified before, and of which only the index is read here; of a checkpointer
    without ``load_ranges`` all is in memory.

    Each block has its own checksum, which is verified where the block is used. `SnapshotError` if the artefact is
    damaged.
    """
    load = getattr(checkpointer, "load_ranges", None)
    data = checkpointer.load_artifact(artefact.path) if load is None else b""

    def read(ranges: Sequence[Range]) -> list[bytes]:
        found: list[bytes] = ranges_of(data, ranges) if load is None else load(artefact.path, ranges)
        for (start, end), piece in zip(ranges, found, strict=True):
            if len(piece) != end - start:
                raise SnapshotError(f"{artefact.path} is damaged: it ends before byte {end}")
        return found

    return StoredArtefact(read, artefact.size)


def load_verified(checkpointer: SnapshotReader, artefact: Artefact) -> bytes:
    """Return the bytes of ``artefact``. `SnapshotError` if the digest does not match."""
    return b"".join(verified_pieces(checkpointer, artefact))
