"""What the sinks of both table formats do: `LakeTable` is the difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from malstrom_py.connectors.lake.files import unpack_files
from malstrom_py.connectors.lake.types import Shape
from malstrom_py.connectors.lake.writer import LakeTable, LakeWriter, app_of
from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import CommitContext, SnapshotId, has_no_results
from malstrom_py.snapshot.ids import number_of
from malstrom_py.worker_context import WorkerInfo


class LakeSink:
    """A transactional sink that appends to a table. Rule (S7): a snapshot that the table has noted is not added again,
    and neither is an older one.
    """

    takes_columns = True
    _file_bytes_max: int

    @property
    def _table(self) -> LakeTable:
        raise NotImplementedError

    def open(self, worker: WorkerInfo) -> LakeWriter:
        return LakeWriter(self._table, worker, file_bytes_max=self._file_bytes_max)

    def takes_flat(self, worker: WorkerInfo) -> bool:
        """Return whether results of windows become flat columns: not where the table has others."""
        seen = self._table.look(app_of(worker.job, worker.step))
        return has_no_results(None if seen is None else seen.shape.schema.names)

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        files = unpack_files(context, payloads)
        if not files:
            return
        app, number, table = app_of(context.job, context.step), number_of(context.snapshot), self._table
        seen = table.look(app)
        if seen is None:
            raise SinkError(f"the table of {self!r} is not there, but rows were written for it: restore it")
        if seen.number is not None and seen.number >= number:
            # A snapshot that was added before has no staged files. That of another run at the same time has.
            if seen.number > number and seen.shape.place.has_staged(files):
                raise _overtaken(context, seen.shape)
            return
        seen.shape.place.move(files)
        if not table.commit(app, number, files) and not table.contains(files[0]):
            raise _overtaken(context, seen.shape)
        seen.shape.place.tidy(files)

    def hold(self, context: CommitContext, payloads: Sequence[bytes]) -> Callable[[], None]:
        """Protect the staged files from other runs of this job, until the returned function is called."""
        files = unpack_files(context, payloads)
        seen = self._table.look(app_of(context.job, context.step)) if files else None
        return (lambda: None) if seen is None else seen.shape.place.hold(files)

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        files = unpack_files(context, payloads)
        seen = self._table.look(app_of(context.job, context.step)) if files else None
        if seen is not None:
            seen.shape.place.discard(files)

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        # What cannot be written is refused here, before the job reads anything.
        seen = self._table.look(app_of(context.job, context.step))
        if seen is not None:
            seen.shape.place.clear(context, committed)


def _overtaken(context: CommitContext, shape: Shape) -> SinkError:
    """Return the error for rows that were never added, because another run has committed a later snapshot."""
    return SinkError(
        f"rows of step {context.step!r} are not added to {shape.where}: it has rows of a later snapshot of job "
        f"{context.job!r}, so another start of the job has taken over. Let one run of a job write at a time"
    )
