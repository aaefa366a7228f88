"""``sink``: passes batches to the writers of a sink on this worker.

A `PartitionedSink` has one writer per part, on the worker that owns the part's slot: the stream is keyed by the name of
the part, so that a writer moves like the state of any key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import (
    MAX_EPOCH,
    MIN_EPOCH,
    AbsBarrier,
    Acquire,
    Collect,
    DataMessage,
    Epoch,
    PartMessage,
    StateMessage,
)
from malstrom_py.errors import MalstromError, OperatorError, PlanError, SinkError, SparkError, lasting
from malstrom_py.errors.text import describe_function, missing_methods, text_of, text_with_place
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import ErrorPolicy
from malstrom_py.operators.flat import FlatResults
from malstrom_py.operators.keyed import StatefulOperator, keys_of
from malstrom_py.sinks.base import (
    BaseTransactionalSink,
    BaseTransactionalWriter,
    BaseWriter,
    CommitContext,
    PartitionedSink,
    SinkPart,
    SnapshotId,
    StatelessSink,
    TransactionalSink,
    as_sink,
    as_writer,
)
from malstrom_py.state.keyed_state import Migrate
from malstrom_py.worker_context import WorkerId, WorkerInfo


def _error(error: Exception, step: str, what: str) -> SinkError:
    ours = isinstance(error, SinkError | SparkError) and text_of(error)
    text = ours or text_with_place(error)
    made = SinkError(f"sink {step!r} {what}: {text}")
    return lasting(made) if isinstance(error, MalstromError) and error.lasting else made


@contextmanager
def sink_errors(step: str, what: str) -> Iterator[None]:
    """Make an error of a user's sink a `SinkError` that names the step and ``what`` failed."""
    try:
        yield
    except PlanError:
        raise
    except Exception as error:
        raise _error(error, step, what) from error


class WriteSink(Operator):
    """Writes each batch as it arrives. The worker opens, commits and closes.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sinks, sources
    >>> job, out = mp.Job("docs"), sinks.Memory()
    >>> job.source("numbers", sources.Memory([1, 2])).sink("out", out)
    >>> mp.run(job).read, out.items
    (2, [1, 2])
    """

    def __init__(
        self,
        context: StepContext,
        *,
        sink: StatelessSink | TransactionalSink,
        flat: FlatResults | None = None,
        unit: str | None = None,
    ) -> None:
        super().__init__(context)
        self._unit = unit
        self.sink = as_sink(sink)
        """The sink of this step, with all members of the contract."""
        self._flat = flat
        self.sink.use_types(context.codec.types)
        self.takes_columns = self.sink.takes_columns
        self.writer: BaseWriter | None = None
        self._payloads: list[bytes] = []
        self._epoch = MIN_EPOCH
        self._is_moving = False

    @property
    def transactional(self) -> BaseTransactionalSink | None:
        """The sink, if it is transactional."""
        return self.sink if isinstance(self.sink, BaseTransactionalSink) else None

    def open(self) -> None:
        """Open this worker's writer."""
        here = self.context
        info = WorkerInfo(here.job, here.step, WorkerId(here.worker), here.workers, self._unit)
        sink = self.sink
        with sink_errors(self.context.step, "could not be opened"):
            opened_by = sink.open if isinstance(sink, BaseTransactionalSink) else sink.build
            writer = opened_by(info)
        transactional = self.transactional is not None
        self.writer = as_writer(writer, opened_by, self.context.step, transactional=transactional)
        with sink_errors(self.context.step, "could not be opened"):
            if self._flat is not None and not sink.takes_flat(info):
                self._flat = None

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        if self._flat is None:
            self._write(batch)
            return
        for piece in self._flat.pieces(batch, self.context.step):
            self._write(piece)

    def _write(self, batch: Batch) -> None:
        if self.writer is None:
            raise SinkError(f"sink {self.context.step!r} is not open")
        if isinstance(batch, ColumnBatch) and not batch.form.has_fields:
            batch = batch.with_values(batch.values)
        try:  # without the cost of a context per batch
            self.writer.write(batch)
        except Exception as error:
            raise self.error(error, "could not write") from error

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        """Notify a writer that records event time; the stream ends here."""
        self._epoch = epoch.time
        if not self._is_moving:
            self._advanced(epoch.time)

    def continue_at(self, epoch: int) -> None:
        self._epoch = epoch
        self._advanced(epoch)

    def rewind(self, epoch: Epoch) -> Epoch:
        self._epoch = epoch.time
        return epoch

    def _advanced(self, epoch: int) -> None:
        if self.writer is not None:
            with sink_errors(self.context.step, "could not write"):
                self.writer.advanced(epoch)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        """Pre-commit at a barrier what was written before it (S1)."""
        if isinstance(message, AbsBarrier) and self.transactional is not None:
            snapshot = SnapshotId(message.snapshot)
            context = CommitContext(self.context.job, self.context.step, snapshot, message.incarnation)
            self._payloads.append(self.pre_commit(context))

    def pre_commit(self, context: CommitContext) -> bytes:
        """Make the writer's data durable, but not visible, and return the payload for the commit."""
        if not isinstance(self.writer, BaseTransactionalWriter):
            raise SinkError(f"sink {self.context.step!r} is not open")
        with sink_errors(self.context.step, "could not pre-commit"):
            return self.writer.pre_commit(context)

    def take_payloads(self) -> list[bytes]:
        """Remove and return the payloads of pre-commits."""
        payloads, self._payloads = self._payloads, []
        return payloads

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        """The stream ends here."""

    def owns_nothing(self) -> None:
        """Notify a writer that records event time of a worker without parts and slots: it joins (R1) or leaves (R8)."""
        self._advanced(MAX_EPOCH)

    def moving(self) -> None:
        """Hold epochs back until `moved`: what arrives may be of an earlier time (R2, R3)."""
        self._is_moving = True

    def moved(self, version: int) -> None:
        """Notify a writer that orders rows of several workers: keys moved with ``version`` of the routing table."""
        self._is_moving = False
        if self.writer is not None:
            self.writer.moved(version)
            self._advanced(self._epoch)

    def close(self) -> None:
        """Close the writer, if it is open."""
        writer, self.writer = self.writer, None
        if writer is not None:
            with sink_errors(self.context.step, "could not be closed"):
                writer.close()

    def error(self, error: Exception, what: str) -> SinkError:
        """Return ``error`` as a `SinkError` that names this step."""
        return _error(error, self.context.step, what)


class KeyByPart(Operator):
    """Keys each record by its part, from ``assign_part``, and keeps the record's own key beside its value."""

    def __init__(self, context: StepContext, *, sink: PartitionedSink) -> None:
        super().__init__(context)
        self._sink = sink
        self._failures = ErrorPolicy(context)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        keys = batch.keys or [None] * len(batch)
        times: list[Any] = batch.timestamps or [None] * len(batch)
        parts: list[str] = []
        with self._failures.of_hook(self._sink.assign_part):
            for key, value, timestamp in zip(keys, batch.values, times, strict=True):
                parts.append(self._sink.assign_part(DataMessage(key, value, timestamp)))
        for kind in set(map(type, parts)) - {str}:
            raise OperatorError(
                f"step {self.context.step!r}: assign_part returned a partition of type {kind.__name__}: the name of a "
                f"partition is a str (in {describe_function(self._sink.assign_part)})",
                step=self.context.step,
            )
        pairs = list(zip(keys, batch.values, strict=True)) if batch.keys is not None else batch.values
        out.send(batch.with_values(pairs).with_keys(parts))

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        """Parts of sources belong to the source region, which ends here."""


class WriteParts(StatefulOperator):
    """Writes each record to the writer of its part, which is opened when the part first arrives or is acquired."""

    def __init__(self, context: StepContext, *, sink: PartitionedSink, keyed: bool) -> None:
        super().__init__(context)
        self.sink = sink
        self._keyed = keyed
        self._parts: dict[str, SinkPart] = {}

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        self.state.note(keys_of(batch, self.context.step))
        rows: dict[str, list[int]] = {}
        for index, part in enumerate(keys_of(batch, self.context.step)):
            rows.setdefault(part, []).append(index)
        for part, indices in rows.items():
            taken = batch.take(indices)
            if self._keyed:
                keys, values = (list(column) for column in zip(*taken.values, strict=True))
                taken = Batch(values, keys=keys, timestamps=taken.timestamps)
            else:
                taken = Batch(taken.values, timestamps=taken.timestamps)
            writer = self._part(part)
            with sink_errors(self.context.step, f"could not write to partition {part!r}"):
                writer.write(taken)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        """The stream ends here."""

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        """Read the writers' positions before they are collected or persisted; open writers of acquired parts."""
        if isinstance(message, AbsBarrier):
            self._fetch(self._parts)
        elif isinstance(message, Collect):
            self._fetch(message.keys & self._parts.keys())
        self.state.handle(message)
        if isinstance(message, Collect):
            for part in message.keys & self._parts.keys():
                self._close(part)
        elif isinstance(message, Acquire):
            for part in self.state.values.keys() - self._parts.keys():
                self._part(part)

    def install(self, chain: Sequence[bytes], slots: Collection[int], *, migrate: Migrate | None = None) -> None:
        """Restore the positions and open the writers, so that rows written after a position are removed in any case."""
        for part in self.take_over(chain, slots, migrate)[0]:
            self._part(part)

    def close(self) -> None:
        """Close the writers of all parts, then raise the first error."""
        errors: list[Exception] = []
        for part in list(self._parts):
            try:
                self._close(part)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _part(self, part: str) -> SinkPart:
        writer = self._parts.get(part)
        if writer is None:
            # A part without a position yet has a placeholder, so that it counts as a key with state.
            if part not in self.state.values:
                self.state.note((part,))
                self.state.values[part] = _OPENED
            state = self.state.values[part]
            with sink_errors(self.context.step, f"could not open partition {part!r}"):
                writer = self.sink.build_part(part, None if state == _OPENED else state)
            if wrong := missing_methods(writer, self.sink.build_part, ("write(batch)", "snapshot", "close")):
                raise SinkError(f"sink {self.context.step!r}: {wrong}")
            self._parts[part] = writer
        return writer

    def _fetch(self, parts: Iterable[str]) -> None:
        for part in parts:
            with sink_errors(self.context.step, f"could not return its offset in partition {part!r}"):
                position = self._parts[part].snapshot()
            position = _OPENED if position is None else position
            known = self.state.values.get(part)
            if type(position) not in _PLAIN or type(known) is not type(position) or known != position:
                self.state.note((part,))
            self.state.values[part] = position

    def _close(self, part: str) -> None:
        with sink_errors(self.context.step, f"could not close partition {part!r}"):
            self._parts.pop(part).close()


_OPENED = "malstrom_py: part without a position"

_PLAIN = frozenset({int, str, bytes})
"""Types of positions that can be compared. Positions of other types are persisted each time."""
