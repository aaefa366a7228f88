"""What the sinks of both table formats do: `table.LakeTable` has the difference.

Rules:
- A file is moved next to the table's other files right before the commit that adds it to the table, and a move is never
  taken back. A moved file that is in no commit is invisible, and the table's own clean-up (vacuum, removal of orphan
  files) deletes it.
- Clearing looks at the staging folder alone, so it cannot delete a file that the table refers to.
- S7: a snapshot that the table has noted is not added again, and neither is an older one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from malstrom_py.connectors.lake.table import LakeTable, Seen, app_of, lake_file
from malstrom_py.connectors.lake.upserts import UpsertEncoder, checked_keys, last_rows
from malstrom_py.connectors.lake.writer import LakeEncoder
from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import CommitContext, has_no_results
from malstrom_py.sinks.staged import Committer, StagedSink, problems
from malstrom_py.sinks.staged.objects import FILE_BYTES_MAX
from malstrom_py.sinks.staged.payloads import StagedFile
from malstrom_py.sinks.staged.writing import StagedWriter
from malstrom_py.snapshot.ids import number_of
from malstrom_py.validation import checked_whole
from malstrom_py.worker_context import WorkerInfo


class LakeSink(StagedSink):
    """A transactional sink that appends to ``table``, or merges rows into it by their ``keys``."""

    takes_columns = True

    def __init__(
        self,
        table: LakeTable[Any, Any],
        *,
        mode: str = "append",
        keys: str | Iterable[str] = (),
        delete_field: str | None = None,
        file_bytes_max: int = 256 << 20,
    ) -> None:
        asked_by = f"sinks.{table.kind}"
        self._table = table
        self._keys = checked_keys(mode, keys, delete_field, asked_by)
        self._delete_field = delete_field
        self._file_bytes_max = checked_whole(file_bytes_max, f"{asked_by}: file_bytes_max", most=FILE_BYTES_MAX)

    def __repr__(self) -> str:
        by = f", mode='upsert', keys={list(self._keys)!r}" if self._keys else ""
        by += f", partition_by={list(self._table.partition_by)!r}" if self._table.partition_by else ""
        return f"{self._table.kind}({self._table.name!r}{by})"

    def open(self, worker: WorkerInfo) -> StagedWriter:
        table, bytes_max = self._table, self._file_bytes_max
        if self._keys:
            encoder: LakeEncoder = UpsertEncoder(
                table, worker, self._keys, self._delete_field, file_bytes_max=bytes_max
            )
        else:
            encoder = LakeEncoder(table, worker, file_bytes_max=bytes_max)
        return StagedWriter(encoder.where, encoder.files, encoder)

    def takes_flat(self, worker: WorkerInfo) -> bool:
        """Return whether results of windows become flat columns: not where the table has others."""
        seen = self._table.look(app_of(worker.job, worker.step))
        return has_no_results(None if seen is None else seen.shape.schema.names)

    def committer(self, context: CommitContext) -> LakeCommitter | None:
        # What cannot be written is refused here: at a start, before the job reads anything.
        seen = self._table.look(app_of(context.job, context.step))
        if seen is None:
            return None
        if self._keys:
            return UpsertCommitter(self._table, seen, context, self._keys)
        return LakeCommitter(self._table, seen, context)


class LakeCommitter(Committer):
    """One commit to ``table``, as it was ``seen``: its files are added."""

    takes_back = False
    folders_are_values = False

    def __init__(self, table: LakeTable[Any, Any], seen: Seen, context: CommitContext) -> None:
        super().__init__(seen.shape.place, context)
        self._table = table
        self._seen = seen
        self._app = app_of(context.job, context.step)
        self._number = number_of(context.snapshot)

    def path_of(self, number: int, file: StagedFile) -> str:
        # It depends on the staged name alone: files of a later commit never get the name of one that readers have.
        _, _, *names = file.name.split("/")
        return f"{file.folder}/{'-'.join(names)}".lstrip("/")

    def is_done(self, files: Sequence[StagedFile]) -> bool:
        if self._seen.number is None or self._seen.number < self._number:
            return False
        # A snapshot that was added before has no staged files. That of another run at the same time has.
        if self._seen.number > self._number and self.place.has_staged(files):
            raise self._overtaken()
        return True

    def note(self, files: Sequence[StagedFile], paths: Sequence[str]) -> None:
        added = [lake_file(self.context, *pair) for pair in zip(files, paths, strict=True)]
        if not self._table.commit(self._app, self._number, added) and not self._table.contains(paths[0]):
            raise self._overtaken()

    def _overtaken(self) -> SinkError:
        """Return the error for rows that were never added, because another run has committed a later snapshot."""
        return SinkError(
            f"rows of step {self.context.step!r} are not added to {self._table.where}: it has rows of a later "
            f"snapshot of job {self.context.job!r}, so another start of the job has taken over. Let one run of a job "
            f"write at a time"
        )


class UpsertCommitter(LakeCommitter):
    """One commit to ``table``: its staged rows are merged by their ``keys``. Nothing is published by moves."""

    def __init__(self, table: LakeTable[Any, Any], seen: Seen, context: CommitContext, keys: Sequence[str]) -> None:
        super().__init__(table, seen, context)
        self._keys = keys

    def moves(self, files: Sequence[StagedFile]) -> list[tuple[StagedFile, str]]:
        return []

    def note(self, files: Sequence[StagedFile], paths: Sequence[str]) -> None:
        try:
            rows = last_rows([self.place.read(file) for file in files], self._keys)
        except FileNotFoundError:
            # Another process in the same commit removes what it has merged.
            seen = self._table.look(self._app)
            if seen is None or seen.number != self._number:
                raise problems.removed(files[0].name) from None
            return
        if not self._table.merge(self._app, self._number, rows, self._keys):
            raise self._overtaken()
        self.place.discard(files)
