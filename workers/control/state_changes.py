"""What changes in the state of a step, from each snapshot of a running job to the next.

Rule: two snapshots are compared, a slot at a time, and only slots that are not in the same artefacts. What is compared
is what is read: an artefact that was written again says nothing. If the earlier snapshot is gone, all state is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from malstrom_py.clock import SystemClock
from malstrom_py.errors import JobEnded, SnapshotError
from malstrom_py.metrics import ENDED
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.workers.control.step_state import SnapshotReader, StepReader
from malstrom_py.workers.reports.commands import Command, StatusCommand
from malstrom_py.workers.reports.job_status import JobStatus

if TYPE_CHECKING:
    import pyarrow as pa

LOOK_S: Final = 0.2
"""The interval at which the job is asked for its last snapshot."""


class StateChanges(NamedTuple):
    """What has changed in the state of a step by ``snapshot``, in comparison with the snapshot ``since``.

    ``table``: the keys whose state is new or another one, as of `StepState.to_arrow`. ``gone``: the keys that have none
    any more. ``since`` None: that snapshot was removed before it was read, and ``table`` has all keys.
    """

    snapshot: SnapshotId
    since: SnapshotId | None
    table: pa.Table
    gone: list[Any]


def changes(
    ask: Callable[[Command], Any], reader: SnapshotReader, step: str, since: SnapshotId | None
) -> Iterator[StateChanges]:
    """Yield what changes in the state of ``step`` with each snapshot that is found, until the job has ended."""
    clock = SystemClock()
    before = reader.manifest if since is None else _listed(reader, since)
    while True:
        ended, last = _look(ask)
        if ended or last != reader.manifest.id:
            reader.manifest = reader.newest()
        if before is None or reader.manifest.id != before.id:
            change, before = _changed(reader, step, before)
            yield change
        elif ended:
            return
        else:
            clock.sleep_s(LOOK_S)


def _look(ask: Callable[[Command], Any]) -> tuple[bool, str | None]:
    """Return whether the job has ended, and its last snapshot, if it answers."""
    try:
        status: JobStatus = ask(StatusCommand(LOOK_S))
    except JobEnded:
        return True, None
    return status.state in ENDED, None if status.snapshots is None else status.snapshots.last


def _listed(reader: SnapshotReader, id: SnapshotId) -> Manifest | None:
    """Return the snapshot ``id``, unless it has been removed."""
    return next((one for one in reader.manifests() if one.id == id), None)


def _changed(reader: SnapshotReader, step: str, before: Manifest | None) -> tuple[StateChanges, Manifest]:
    """Return what has changed since ``before``, and the snapshot that this is as of."""

    def read(manifest: Manifest) -> StateChanges:
        after = reader.step(step, manifest)
        if before is None or step not in before.plan.steps:
            return StateChanges(manifest.id, None, after.table(None, None), [])
        states, gone = compared(reader.step(step, before), after)
        return StateChanges(manifest.id, before.id, after.as_table(lambda: states), gone)

    try:
        found = reader.read(read)
    except SnapshotError:
        if before is None or _listed(reader, before.id) is not None:
            raise
        before = None
        found = reader.read(read)
    return found, reader.manifest


def compared(before: StepReader, after: StepReader) -> tuple[list[tuple[Any, Any]], list[Any]]:
    """Return the keys whose state differs with their states, and the keys that have none any more."""
    states: list[tuple[Any, Any]] = []
    gone: list[Any] = []
    for slot in sorted({*before.artefacts, *after.artefacts}):
        if before.artefacts.get(slot) == after.artefacts.get(slot):
            continue
        old, new = before.entries(slot), after.entries(slot)
        were, now = _values(before, old, new), _values(after, new, old)
        for key in {**were, **now}:
            was, value = were.get(key), now.get(key)
            if value is None and was is not None:
                gone.append(key)
            elif value is not None and not _same(was, value):
                states.append((key, after.shape.shown(value)))
    return states, gone


def _values(reader: StepReader, entries: dict[Any, bytes], others: dict[Any, bytes]) -> dict[Any, Any]:
    """Return the values of those of ``entries`` that are not in ``others``."""
    keys = [key for key, entry in entries.items() if others.get(key) != entry]
    return dict(zip(keys, reader.values(keys, [entries[key] for key in keys]), strict=True))


def _same(was: Any, value: Any) -> bool:
    """Return whether two states are equal, though their stored forms differ, as of sets or with other timers."""
    try:
        return bool(was == value)
    except Exception:  # such as of arrays
        return False
