"""What the sinks of both table formats do: `LakeTable` is the difference."""

from __future__ import annotations

from collections.abc import Sequence

from malstrom_py.connectors.lake.files import clear_left_over, discard, move_into_place, remove_folders, unpack_files
from malstrom_py.connectors.lake.writer import LakeTable, LakeWriter, app_of
from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import CommitContext, SnapshotId
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

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        files = unpack_files(context, payloads)
        if not files:
            return
        app, number, table = app_of(context.job, context.step), number_of(context.snapshot), self._table
        seen = table.look(app)
        if seen is None:
            raise SinkError(f"the table of {self!r} is not there, but rows were written for it: restore it")
        if seen.number is not None and seen.number >= number:
            return
        move_into_place(seen.shape.root, files)
        table.commit(app, number, files)
        remove_folders(seen.shape.root, files)

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        files = unpack_files(context, payloads)
        seen = self._table.look(app_of(context.job, context.step)) if files else None
        if seen is not None:
            discard(seen.shape.root, files)

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        # What cannot be written is refused here, before the job reads anything.
        seen = self._table.look(app_of(context.job, context.step))
        if seen is not None:
            clear_left_over(seen.shape.root, context, committed)
