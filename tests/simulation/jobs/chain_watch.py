"""Compares each snapshot that is about to be committed with the state of its barrier: what is stored must be all of it.

A delta that lacks a key shows in the output of a run only if the run is lost soon after, and the key matters then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest.mock import patch

from malstrom_py.codec import Codec
from malstrom_py.codec.job_codec import without_classes
from malstrom_py.errors import SnapshotError
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.manifest import Artefact, Manifest
from malstrom_py.snapshot.store import Store
from malstrom_py.state.artefact import entries_in
from malstrom_py.state.join_image import records_of
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.workers.control.state_changes import compared
from malstrom_py.workers.control.step_state import StepReader
from malstrom_py.workers.coordinator.snapshot_coordinator import SnapshotCoordinator
from malstrom_py.workers.engine.snapshot_capture import SnapshotCapture
from malstrom_py.workers.reports.job_state import StateShape
from malstrom_py.workers.simulator.simulated_snapshots import SimulatedStore

Watch = Callable[..., Any]
Whole = tuple[bytes, Codec]
"""All state of a step on a worker, as a full artefact."""


class ChainWatch:
    """Notes in ``broken`` which step of which worker is not whole in a snapshot."""

    def __init__(self, broken: list[str]) -> None:
        self._broken = broken
        self._at_barrier: dict[SnapshotCapture, dict[str, Whole]] = {}
        self._whole: dict[tuple[str, str, int], Whole] = {}
        self._last: dict[str, tuple[StepReader | None, dict[Any, Any]]] = {}

    def watches(self) -> Iterator[tuple[Any, str, Watch]]:
        """What is watched: a method of a class, and what takes its place."""
        yield KeyedState, "artefact", self.made
        yield SnapshotCapture, "cut", self.cut
        yield SnapshotCoordinator, "_store", self.stored

    def made(self, right: Watch, state: KeyedState, barrier: Any, *, remark: bytes = b"") -> bytes:
        """A step writes its state, or what has changed of it."""
        if state.tracked and isinstance(barrier.backend, SnapshotCapture):
            self._at_barrier.setdefault(barrier.backend, {})[state.step] = (state.snapshot(), state.codec)
        made: bytes = right(state, barrier, remark=remark)
        return made

    def cut(self, right: Watch, capture: SnapshotCapture, worker: int, *given: Any) -> Any:
        """The worker has all of it."""
        for step, whole in self._at_barrier.pop(capture, {}).items():
            self._whole[capture.barrier.snapshot, step, worker] = whole
        return right(capture, worker, *given)

    def stored(self, right: Watch, snapshotting: SnapshotCoordinator, manifest: Manifest) -> None:
        """S2: of each worker the chain that the manifest names gives all state that it had at the barrier."""
        chains: dict[tuple[str, int], list[Artefact]] = {}
        for artefact in manifest.artefacts:
            chains.setdefault((artefact.operator, artefact.partition), []).append(artefact)
        states: dict[str, dict[Any, Any]] = {}
        for (snapshot, step, worker), (whole, codec) in list(self._whole.items()):
            if snapshot != manifest.id:
                continue
            states.setdefault(step, {}).update(_values(whole, step))
            del self._whole[snapshot, step, worker]
            chain = [self._read(snapshotting.checkpointer, artefact) for artefact in chains.get((step, worker), ())]
            found = _states(chain, codec, step) if chain else {}
            wanted = _states([whole], codec, step)
            if found != wanted:
                self._broken.append(
                    f"snapshot {snapshot}: step {step} of worker {worker} is stored as {found}, and was {wanted} (S2)"
                )
        for step, wanted in states.items():
            self._answered(step, wanted, snapshotting.checkpointer, manifest)
        right(snapshotting, manifest)

    def _answered(self, step: str, wanted: dict[Any, Any], checkpointer: Any, manifest: Manifest) -> None:
        """A query for the state of a step gives what all workers had at the barrier, and so does one for some keys."""
        reader = StepReader(StoreCheckpointer(_store(checkpointer), manifest.job), manifest, step, StateShape("value"))
        found = {key: _of_table(value) for key, value in reader.items()}
        of_keys = {key: _of_table(reader.of_key(key)) for key in list(wanted)[:3]}
        if found != wanted or any(wanted[key] != value for key, value in of_keys.items()):
            self._broken.append(
                f"snapshot {manifest.id}: a query for step {step} gives {found}, of keys {of_keys}, and not {wanted}"
            )
        before, were = self._last.get(step, (None, {}))
        self._last[step] = reader, wanted
        if before is not None:
            with suppress(SnapshotError):  # it has been pruned
                states, gone = compared(before, reader)
                left = {key: value for key, value in were.items() if key not in gone}
                now = left | {key: _of_table(value) for key, value in states}
                if now != wanted:
                    self._broken.append(f"snapshot {manifest.id}: step {step} has changed to {now}, and not {wanted}")

    def _read(self, checkpointer: Any, artefact: Artefact) -> bytes:
        """Without an operation of the simulated store, before each of which a run may be lost."""
        return _store(checkpointer).get(f"{checkpointer.job}/{artefact.path}")


def _store(checkpointer: Any) -> Store:
    assert isinstance(checkpointer, StoreCheckpointer)
    return checkpointer.store._store if isinstance(checkpointer.store, SimulatedStore) else checkpointer.store


def _values(whole: bytes, step: str) -> dict[Any, Any]:
    """Return the states of keys as a program without the classes of the job reads them."""
    entries = entries_in([whole], without_classes(), step=step)
    return {entry.key: _of_table(entry.value) for entry in entries if entry.value is not None}


def _states(chain: list[bytes], codec: Codec, step: str) -> dict[Any, Any]:
    return {key: (_of_table(value), times) for _, key, value, times in entries_in(chain, codec, step=step)}


def _of_table(state: Any) -> Any:
    """Return the state of a key of a table that is stored as columns in the form in which rows have it."""
    if not isinstance(state, dict) or not all(type(row) is tuple and len(row) == 4 for row in state.values()):
        return state
    records = list(records_of(state))
    values = [value for _, side, value in records if side]
    waiting = [(value, moment) for moment, side, value in records if not side]
    return [values[0] if values else None, waiting or ()]


@contextmanager
def chains_watched(broken: list[str]) -> Iterator[None]:
    """As long as this lasts snapshots are compared; what is missing goes to ``broken``."""
    watch = ChainWatch(broken)
    with ExitStack() as stack:
        for place, name, watching in watch.watches():
            stack.enter_context(patch.object(place, name, _around(getattr(place, name), watching)))
        yield


def _around(right: Watch, watching: Watch) -> Watch:
    return lambda self, *given, **named: watching(right, self, *given, **named)
