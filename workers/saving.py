"""Writes down what a worker holds at a barrier: its keyed state as artefacts, the rest for the manifest.

Rule: runs beside the worker's own work, so it touches nothing but the image and the store. When it has come back, all
is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import Final, TypeVar

from malstrom_py.errors import FencedError, SnapshotError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import Checkpointer
from malstrom_py.snapshot.keyed import is_delta
from malstrom_py.snapshot.manifest import Artefact, Kind, artefact_path
from malstrom_py.workers.cut import Cut, Saved

T = TypeVar("T")

_PAUSES_S: Final = (0.1, 0.5, 2.0)
"""How long is waited before a store that has failed is tried again."""


def save(cut: Cut, checkpointer: Checkpointer) -> Saved:
    """Have ``checkpointer`` write down ``cut``. `SnapshotError` if it cannot, though it was tried again."""
    artefacts = tuple(_artefact(cut, step, state, checkpointer) for step, state in cut.states.items())
    return Saved(cut.snapshot, cut.worker, artefacts, cut.sources, cut.parts, cut.frontiers, cut.payloads)


def persistently(work: Callable[[], T]) -> T:
    """What ``work`` comes to, tried again a few times where a store has failed: it may be away for a moment."""
    for pause_s in _PAUSES_S:
        try:
            return work()
        except FencedError:
            raise
        except SnapshotError:
            sleep(pause_s)
    return work()


def kind_of(state: bytes) -> Kind:
    """What keyed state was persisted as."""
    return "delta" if is_delta(state) else "full"


def _artefact(cut: Cut, step: str, state: bytes, checkpointer: Checkpointer) -> Artefact:
    snapshot, kind = SnapshotId(cut.snapshot), kind_of(state)
    write = checkpointer.save_delta if kind == "delta" else checkpointer.save_snapshot
    sha256 = persistently(lambda: write(snapshot, step, cut.worker, state))
    path = artefact_path(snapshot, step, cut.worker, kind)
    return Artefact(step, cut.worker, kind, snapshot, path, len(state), sha256)
