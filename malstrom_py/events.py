"""Events: what happens to a job and its workers, for users who watch it.

`JobHandle.events` and ``on_event=`` of every runtime give the events of the whole job; `KeyedLogic.on_event` gets them
on each worker, with the data of its step. A consumer ignores kinds that it does not know: later versions add some.
A *node* is a worker of the job; its id is ``worker 3``.

>>> Input("readings", metadata={"worker": 0, "rows": 2})
Input(id='readings', metadata={'worker': 0, 'rows': 2})
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

__all__ = [
    "AnyEvent",
    "Autoscaled",
    "BackPressureBegun",
    "BackPressureEnded",
    "Ended",
    "Error",
    "Event",
    "EventsMissed",
    "HotKeyBegun",
    "HotKeyEnded",
    "Input",
    "InputClosed",
    "InputRecovered",
    "InputSilent",
    "NodeFailed",
    "ParameterChanged",
    "Reload",
    "RescaleBegun",
    "RescaleEnded",
    "Restarting",
    "SnapshotCompleted",
    "Stop",
    "StopCause",
    "WorkerJoined",
    "WorkerLeft",
]

if TYPE_CHECKING:
    import pyarrow as pa

    from malstrom_py.data.batch import Batch


class Event(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, repr_omit_defaults=True):
    """Base of all events."""


class Input(Event, frozen=True, tag=True):
    """An input has data.

    On a worker: before each batch of a step; ``id`` is the step that sent it, several joined by ``|`` where the step
    has several inputs; ``data`` is the batch. In the events of the job: when a worker has read the first records of
    source ``id`` in a run; records are not part of these events, so ``data`` is None.
    ``metadata``: ``worker`` and ``rows``.
    """

    id: str
    metadata: Mapping[str, Any] = {}
    batch: Any = None

    @property
    def data(self) -> pa.Table | None:
        """The records as an Arrow table, made when it is asked for: their columns, or one column ``value``, and before
        it ``key`` and ``timestamp`` where they have them.

        Raises: pyarrow.ArrowInvalid, pyarrow.ArrowTypeError: the values have no common Arrow type.
        """
        return None if self.batch is None else _table(self.batch)


class InputClosed(Event, frozen=True, tag=True):
    """Input ``id`` has ended: no record follows. Once per input, though a restart may read some of it again.

    In the events of the job ``id`` is a source: all its partitions on all workers have ended, or the job is drained. On
    a worker it is a step that sends to this one.
    """

    id: str


class InputSilent(Event, frozen=True, tag=True):
    """No worker has read a record of source ``id`` for ``seconds``, longer than its ``silent_after``. Not for logics.

    Time does not count in which workers cannot read it: during back-pressure, a rescale or the barrier of a snapshot.
    Once, until `InputRecovered` or `InputClosed`.
    """

    id: str
    seconds: float


class InputRecovered(Event, frozen=True, tag=True):
    """Source ``id``, which was silent, has records again."""

    id: str


class NodeFailed(Event, frozen=True, tag=True):
    """A worker was lost, or a function on it raised. Not: workers that end because another one failed.

    ``affected_input_ids``: the sources that it read, and the ``key_by`` steps whose records it sent. ``trace``: the
    frames of the user's code in which the function raised, as Python prints them; empty if none did, or with
    ``redact_errors``. On workers the event comes once, when the job has been restarted, before any record.
    """

    source_node_id: str
    error: str
    affected_input_ids: tuple[str, ...] = ()
    trace: str = ""


class StopCause(StrEnum):
    """Why a worker stopped. ``FAILED``: the run failed; the job restarts from its last snapshot, or ends. ``RELOAD``:
    the code of a step is reloaded, ``PARAMETER``: a parameter is set; the next run begins from the snapshot at which
    this one has stopped.
    """

    MANUAL = "manual"
    ALL_INPUTS_CLOSED = "all-inputs-closed"
    FAILED = "failed"
    RELOAD = "reload"
    PARAMETER = "parameter"


class Stop(Event, frozen=True, tag=True):
    """A worker has stopped, ``worker``. On the worker itself: it stops; after MANUAL with drain, records still follow.

    Each `WorkerJoined` is followed by exactly one of `Stop`, `NodeFailed` and `WorkerLeft` for that worker.
    """

    cause: StopCause
    worker: int


class Reload(Event, frozen=True, tag=True):
    """The code of step ``operator_id`` was replaced on all workers at ``snapshot``, and is on trial: if the job fails
    in that time, an `Error` follows, and the former code continues from that snapshot.
    """

    operator_id: str
    snapshot: str = ""


class ParameterChanged(Event, frozen=True, tag=True):
    """Parameter ``name`` has another ``value``, on all workers from one cut on. On workers: before any record."""

    name: str
    value: Any


class Error(Event, frozen=True, tag=True):
    """Something failed that is not one worker: a snapshot, a commit, a reload that was rolled back."""

    text: str


class Autoscaled(Event, frozen=True, tag=True):
    """The autoscaler goes from ``workers`` to ``target`` workers, for this ``reason``; a rescale follows.

    ``error``: it could not, and tries again later. The numbers that the decision is based on are of the last samples:
    ``arrival_per_s``: the rows that arrived; ``needed_per_s``: the same with what reads the lag in time;
    ``capacity_per_s``: what the workers take at their target; ``busy`` and ``waiting``: mean shares of their time, and
    ``busiest``: of the busiest one; ``lag_rows``: the rows that could be read, None where no source knows.
    """

    workers: int
    target: int
    reason: str
    error: str = ""
    arrival_per_s: float = 0.0
    needed_per_s: float = 0.0
    capacity_per_s: float = 0.0
    busy: float = 0.0
    busiest: float = 0.0
    waiting: float = 0.0
    lag_rows: int | None = None


class RescaleBegun(Event, frozen=True, tag=True):
    """The job begins to go from ``workers`` to ``target`` workers. A later request may change the target. The two are
    the same if key groups move by load only.
    """

    workers: int
    target: int


class RescaleEnded(Event, frozen=True, tag=True):
    """The job has ``workers`` workers. ``error``: the rescale was called off, or the run failed before its end.

    ``slots``, ``parts``, ``keys``, ``bytes``, ``duration_s``: what moved, and how long it took; ``imbalance_before``,
    ``imbalance_after``: why. All as in `RescaleReport`.
    """

    workers: int
    error: str = ""
    slots: int = 0
    parts: int = 0
    keys: int = 0
    bytes: int = 0
    duration_s: float = 0.0
    imbalance_before: float | None = None
    imbalance_after: float | None = None


class SnapshotCompleted(Event, frozen=True, tag=True):
    """Snapshot ``id`` is durable, and the sinks have committed what is in it.

    ``bytes``: written for it; ``duration_s``: from its barrier to its commit; ``pause_s``: the longest of a worker.
    """

    id: str
    bytes: int = 0
    duration_s: float = 0.0
    pause_s: float = 0.0


class WorkerJoined(Event, frozen=True, tag=True):
    """A worker is connected: at the start of a run, or in a rescale."""

    worker: int


class WorkerLeft(Event, frozen=True, tag=True):
    """A worker has left in a rescale, with nothing left to do."""

    worker: int


class BackPressureBegun(Event, frozen=True, tag=True):
    """Source ``id`` waits on ``worker`` for a second already, because a step after it is slower."""

    id: str
    worker: int


class BackPressureEnded(Event, frozen=True, tag=True):
    """Source ``id`` no longer waits on ``worker``."""

    id: str
    worker: int


class HotKeyBegun(Event, frozen=True, tag=True):
    """A key has become too heavy for one worker, so that more workers do not help: it makes ``share`` of all rows which
    arrive by exchange ``id``, and ``worker`` is busy with it for the part ``busy`` of its time.

    ``key``: its text, shortened, as in `HotKey`.
    """

    id: str
    key: str
    worker: int
    share: float
    busy: float


class HotKeyEnded(Event, frozen=True, tag=True):
    """The key is no longer too heavy for one worker, or the run ends."""

    id: str
    key: str


class Restarting(Event, frozen=True, tag=True):
    """A run has ended, and another follows after ``pause_s`` seconds. ``error``: why it failed; empty if it did not."""

    error: str
    pause_s: float


class Ended(Event, frozen=True, tag=True):
    """The job has ended; no event follows. ``how``: "finished", "failed" or "stopped"."""

    how: str
    error: str = ""


class EventsMissed(Event, frozen=True, tag=True):
    """``count`` events were dropped, because they were read too late; `InputClosed` never is, nor are the last
    10,000 of the events that say how a worker has ended: `NodeFailed`, `WorkerLeft`, `Stop`.
    """

    count: int


AnyEvent = (
    Input
    | InputClosed
    | InputSilent
    | InputRecovered
    | NodeFailed
    | Stop
    | Reload
    | ParameterChanged
    | Error
    | Autoscaled
    | RescaleBegun
    | RescaleEnded
    | SnapshotCompleted
    | WorkerJoined
    | WorkerLeft
    | BackPressureBegun
    | BackPressureEnded
    | HotKeyBegun
    | HotKeyEnded
    | Restarting
    | Ended
    | EventsMissed
)
"""All kinds of events of this version."""


def _table(batch: Batch) -> pa.Table:
    import pyarrow as pa

    columns = getattr(batch, "columns", None)
    if columns is not None:
        table = pa.Table.from_batches([columns])
    elif all(isinstance(value, dict) for value in batch.values):
        table = pa.Table.from_pylist(batch.values)
    else:
        table = pa.table({"value": batch.values})
    for name, values in (("timestamp", batch.timestamps), ("key", batch.keys)):
        if values is not None and name not in table.column_names:
            table = table.add_column(0, name, [pa.array(values)])
    return table
