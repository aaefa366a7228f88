"""Reads artefacts of keyed state. Rule: nothing is believed before it has been compared with its digest (S4)."""

from __future__ import annotations

from malstrom_py.errors import SnapshotError
from malstrom_py.snapshot.manifest import Artefact
from malstrom_py.snapshot.verifying import Readable, fault_of


def loaded(checkpointer: Readable, artefact: Artefact) -> bytes:
    """The bytes of ``artefact``, as they were written. `SnapshotError` if they are not."""
    data = checkpointer.load_artifact(artefact.path)
    if fault := fault_of(artefact, data):
        raise SnapshotError(fault)
    return data
