"""``sink``: hands batches to the writer of a sink on this worker."""

from __future__ import annotations

from collections.abc import Callable

from malstrom_py.batches import Batch
from malstrom_py.errors import SinkError, SparkError
from malstrom_py.messages import AbsBarrier, Epoch, PartMessage, StateMessage
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import said
from malstrom_py.sinks.base import CommitContext, SinkWriter, SnapshotId, StatelessSink, TransactionalSink
from malstrom_py.worker_info import WorkerId, WorkerInfo


class WriteSink(Operator):
    """Writes each batch as it comes. Opening, committing and closing are the worker's business.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sinks, sources
    >>> job, out = mp.Job("docs"), sinks.Memory()
    >>> job.source("numbers", sources.Memory([1, 2])).sink("out", out)
    >>> mp.run(job).read, out.items
    (2, [1, 2])
    """

    def __init__(self, context: StepContext, *, sink: StatelessSink | TransactionalSink) -> None:
        super().__init__(context)
        self.sink = sink
        self.takes_columns = getattr(sink, "takes_columns", False) is True
        self.writer: SinkWriter | None = None
        self._tell_moved: Callable[[int], None] | None = None
        self._payloads: list[bytes] = []

    def open(self) -> None:
        """Open this worker's writer."""
        info = WorkerInfo(self.context.job, self.context.step, WorkerId(self.context.worker))
        sink = self.sink
        try:
            self.writer = sink.open(info) if isinstance(sink, TransactionalSink) else sink.build(info)
        except Exception as error:
            raise self.error(error, "could not be opened") from error
        self._tell_moved = getattr(self.writer, "moved", None)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        if self.writer is None:
            raise SinkError(f"sink {self.context.step!r} is not open")
        try:
            self.writer.write(batch)
        except Exception as error:
            raise self.error(error, "could not write") from error

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        """The stream ends here."""

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        """S1: what has been written before a barrier is pre-committed there."""
        if isinstance(message, AbsBarrier) and isinstance(self.sink, TransactionalSink):
            snapshot = SnapshotId(message.snapshot)
            context = CommitContext(self.context.job, self.context.step, snapshot, message.incarnation)
            self._payloads.append(self.pre_commit(context))

    def pre_commit(self, context: CommitContext) -> bytes:
        """Have the writer make durable what it has, but not visible: its payload."""
        if self.writer is None:
            raise SinkError(f"sink {self.context.step!r} is not open")
        try:
            payload: bytes = self.writer.pre_commit(context)  # type: ignore[attr-defined]  # of a transactional one
        except Exception as error:
            raise self.error(error, "could not pre-commit") from error
        return payload

    def take_payloads(self) -> list[bytes]:
        """What has been pre-committed at barriers, taken out."""
        payloads, self._payloads = self._payloads, []
        return payloads

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        """The stream ends here."""

    def moved(self, version: int) -> None:
        """Keys have left or come with ``version`` of the table: writers that order what several have written ask."""
        if self._tell_moved is not None:
            self._tell_moved(version)

    def close(self) -> None:
        """Close the writer, if it is open."""
        writer, self.writer = self.writer, None
        if writer is not None:
            try:
                writer.close()
            except Exception as error:
                raise self.error(error, "could not be closed") from error

    def error(self, error: Exception, what: str) -> SinkError:
        """``error`` as a `SinkError` that names this step; for the caller to raise."""
        text = str(error) if isinstance(error, SinkError | SparkError) else said(error)
        return SinkError(f"sink {self.context.step!r} {what}: {text}")
