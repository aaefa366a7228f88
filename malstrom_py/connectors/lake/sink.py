"""What the sinks of both table formats do: `LakeTable` is the difference.

Rules:
- A file is moved next to the table's other files right before the commit that adds it to the table, and a move is never
  taken back. A moved file that is in no commit is invisible, and the table's own clean-up (vacuum, removal of orphan
  files) deletes it.
- Clearing looks at the staging folder alone, so it cannot delete a file that the table refers to.
- S7: a snapshot that the table has noted is not added again, and neither is an older one.
"""

from __future__ import annotations

from collections.abc import Sequence

from malstrom_py.connectors.lake.files import LakeFile, lake_file
from malstrom_py.connectors.lake.types import Seen
from malstrom_py.connectors.lake.writer import LakeEncoder, LakeTable, app_of
from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import CommitContext, has_no_results
from malstrom_py.sinks.staged import Committer, StagedSink
from malstrom_py.sinks.staged.payloads import StagedFile
from malstrom_py.sinks.staged.writing import StagedWriter
from malstrom_py.snapshot.ids import number_of
from malstrom_py.worker_context import WorkerInfo


class LakeSink(StagedSink):
    """A transactional sink that appends to a table."""

    takes_columns = True
    _file_bytes_max: int

    @property
    def _table(self) -> LakeTable:
        raise NotImplementedError

    def open(self, worker: WorkerInfo) -> StagedWriter:
        encoder = LakeEncoder(self._table, worker, file_bytes_max=self._file_bytes_max)
        return StagedWriter(encoder.where, encoder.files, encoder)

    def takes_flat(self, worker: WorkerInfo) -> bool:
        """Return whether results of windows become flat columns: not where the table has others."""
        seen = self._table.look(app_of(worker.job, worker.step))
        return has_no_results(None if seen is None else seen.shape.schema.names)

    def committer(self, context: CommitContext) -> LakeCommitter | None:
        # What cannot be written is refused here: at a start, before the job reads anything.
        table = self._table
        seen = table.look(app_of(context.job, context.step))
        return None if seen is None else LakeCommitter(table, seen, context)


class LakeCommitter(Committer):
    """One commit to ``table``, as it was ``seen``."""

    takes_back = False
    folders_are_values = False

    def __init__(self, table: LakeTable, seen: Seen, context: CommitContext) -> None:
        super().__init__(seen.shape.place, context)
        self._table = table
        self.seen = seen
        self._number = number_of(context.snapshot)

    def path_of(self, number: int, file: StagedFile) -> str:
        # It depends on the staged name alone: files of a later commit never get the name of one that readers have.
        _, _, *names = file.name.split("/")
        return f"{file.folder}/{'-'.join(names)}".lstrip("/")

    def is_done(self, files: Sequence[StagedFile]) -> bool:
        if self.seen.number is None or self.seen.number < self._number:
            return False
        # A snapshot that was added before has no staged files. That of another run at the same time has.
        if self.seen.number > self._number and self.place.has_staged(files):
            raise self._overtaken()
        return True

    def note(self, files: Sequence[StagedFile], paths: Sequence[str]) -> None:
        app = app_of(self.context.job, self.context.step)
        added: list[LakeFile] = [lake_file(self.context, *pair) for pair in zip(files, paths, strict=True)]
        if not self._table.commit(app, self._number, added) and not self._table.contains(paths[0]):
            raise self._overtaken()

    def _overtaken(self) -> SinkError:
        """Return the error for rows that were never added, because another run has committed a later snapshot."""
        return SinkError(
            f"rows of step {self.context.step!r} are not added to {self.seen.shape.where}: it has rows of a later "
            f"snapshot of job {self.context.job!r}, so another start of the job has taken over. Let one run of a job "
            f"write at a time"
        )
