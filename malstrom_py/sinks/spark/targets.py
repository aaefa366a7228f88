"""The targets of Spark's sink, each with a committer that notes its intent first; here of Parquet files in a folder.

These are renamed into the folder without Spark. A file keeps its name when it is published again, so a rename can be
repeated, and files of other programs are never changed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from malstrom_py.errors import SinkError
from malstrom_py.local_files import sync
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.sinks.files.schemas import bring_to, in_files
from malstrom_py.sinks.files.target_columns import TargetColumns
from malstrom_py.sinks.output_record import StepOutput, begin_record, find_record, record_output
from malstrom_py.sinks.spark.journal import Journal, check_others
from malstrom_py.sinks.spark.schema import appended_schema, check_partitions, existing_in, schema_of_staged, without
from malstrom_py.sinks.staged import Committer
from malstrom_py.sinks.staged.folder import FolderPlace
from malstrom_py.sinks.staged.payloads import StagedFile, checked, pack
from malstrom_py.sinks.staged.problems import sink_errors

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class SparkTarget:
    """What is written, and how.

    ``staging``: the folder that contains ``_staging``; for a path that folder, or the parent of one that is created or
    emptied. ``given``: the user's schema, including the columns of ``partition_by``.
    """

    path: Path | None
    staging: Path
    format: str
    mode: str
    partition_by: tuple[str, ...]
    given: pa.Schema | None

    @property
    def description(self) -> Mapping[str, Any]:
        """The target and its options, in plain types."""
        return {
            "path": None if self.path is None else str(self.path),
            "mode": self.mode,
            "format": self.format,
            "partition_by": list(self.partition_by),
        }

    @property
    def writer_partition_by(self) -> tuple[str, ...]:
        """The columns by which the writers partition."""
        return self.partition_by

    def start(self) -> None:
        """Prepare a run, before anything else."""

    def names_present(self) -> Sequence[str] | None:
        """Return the columns of the target that is appended to; None if there are none, or they are not known."""
        return None

    def columns_of_table(self, *, only_existing: bool) -> TargetColumns | None:
        """Return the columns of the table that is appended to; None without one.

        ``only_existing``: start no session.
        """
        return None

    def check(self) -> None:
        """Raise `SinkError` at the start of the job if the target cannot take the rows."""
        raise NotImplementedError

    def committer(self, context: CommitContext) -> SparkCommitter:
        """Return the committer of ``context``."""
        raise NotImplementedError


class SparkCommitter(Committer):
    """One commit to ``target``. Its intent is noted before anything is visible; the sink removes it."""

    def __init__(self, target: SparkTarget, context: CommitContext) -> None:
        super().__init__(FolderPlace(target.staging), context)
        self._target = target
        self.journal = Journal(target.staging, context)
        self.schema: pa.Schema | None = None

    def has_published(self, snapshots: Collection[str]) -> bool:
        """Return whether one of ``snapshots`` is noted as published."""
        if self.has_own_record(snapshots):
            return True
        return any(snapshot in snapshots for snapshot in self.journal.published())

    def has_own_record(self, snapshots: Collection[str]) -> bool:
        """Return whether the record of the folder is of one of ``snapshots``, and of this step alone.

        With the outputs of several steps it does not say which of them have committed the snapshot.
        """
        path = self._target.path
        known = None if path is None else find_record(path, self.context.job)
        return known is not None and known.snapshot in snapshots and list(known.outputs) == [self.context.step]

    def prepare(self, files: Sequence[StagedFile]) -> None:
        is_begun = self.journal.path.exists()
        self.schema = self.agreed(files, is_begun=is_begun)
        if not is_begun:
            of_payload = attrgetter("payload")
            payloads = [pack([*some]) for _, some in groupby(sorted(files, key=of_payload), of_payload)]
            self.journal.begin(self._target.description, payloads)

    def agreed(self, files: Sequence[StagedFile], *, is_begun: bool) -> pa.Schema | None:
        """Convert staged ``files`` to one schema and return it; None if there are none.

        ``is_begun``: rows of this commit may be visible already. SinkError: no schema fits all, or not the target.
        """
        raise NotImplementedError

    def begin(self, committed: Sequence[SnapshotId]) -> None:
        target, context = self._target, self.context
        if target.path is not None:
            check_others(target.path, replaces=target.mode != "append")
            # Spark's overwrite removes the record, too, and a new folder contains its own.
            if target.mode == "append" or not committed:
                with sink_errors("cannot write to", target.path):
                    begin_record(target.path, context.job, committed, before=context.snapshot)
        # A target that this job has published itself, at its last commit, passes.
        if target.mode == "append" or not self.has_published(committed):
            target.check()


class FolderTarget(SparkTarget):
    """The folder ``path``, which must be without rows before with mode "error"."""

    @property
    def folder(self) -> Path:
        """The path."""
        assert self.path is not None
        return self.path

    def names_present(self) -> Sequence[str] | None:
        existing = existing_in(self.folder) if self.mode == "append" else None
        return None if existing is None else existing.schema.names

    def needs_columns(self) -> bool:
        """Return whether a commit without rows publishes an empty file, with the columns of ``given``."""
        if self.given is None or existing_in(self.folder) is not None:
            return False
        if self.mode != "append":
            self.check_without_rows()
        return True

    def check(self) -> None:
        if self.mode != "append":
            self.check_without_rows()
        elif (existing := existing_in(self.folder)) is not None:
            check_partitions(self.partition_by, existing, self.folder)
            if self.given is not None:
                appended_schema(without(self.given, self.partition_by), self.partition_by, existing, self.folder)

    def check_without_rows(self) -> None:
        """Raise `SinkError` if the folder shows rows. Our record of an attempt that failed may be in it."""
        with sink_errors("cannot read", self.folder), contextlib.suppress(FileNotFoundError):
            if any(not entry.name.startswith((".", "_")) for entry in self.folder.iterdir()):
                raise SinkError(f"{self.path} is not empty, and mode is 'error': remove it, or use another mode")

    def committer(self, context: CommitContext) -> FolderCommitter:
        return FolderCommitter(self, context)


class FolderCommitter(SparkCommitter):
    """One commit of files to a folder."""

    def __init__(self, target: FolderTarget, context: CommitContext) -> None:
        super().__init__(target, context)
        self._folder = target.folder
        self._check_without_rows = target.check_without_rows
        self._takes_back_all = False
        self._prefix = "-".join(map(checked, (context.job, context.step, context.snapshot)))

    def path_of(self, number: int, file: StagedFile) -> str:
        name = self._folder / file.folder / f"{self._prefix}-{number:05d}{file.suffix}"
        return name.relative_to(self._target.staging).as_posix()

    def is_done(self, files: Sequence[StagedFile]) -> bool:
        """Return whether the commit has made the folder that had to be empty. Appending can be repeated instead."""
        if self._target.mode == "append" or self.place.has_staged(files):
            return False
        return self.has_published([self.context.snapshot])

    def agreed(self, files: Sequence[StagedFile], *, is_begun: bool) -> pa.Schema | None:
        by, schema = self._target.partition_by, schema_of_staged(files)
        if self._target.mode != "append":
            if not is_begun:
                self._check_without_rows()
        elif schema is not None and (existing := existing_in(self._folder)) is not None:
            schema = appended_schema(schema, by, existing, self._folder)
        if schema is not None:
            bring_to(self.place, schema, files)
        return schema

    def published(self) -> Container[str]:
        if self._takes_back_all:
            return ()
        known, root = find_record(self._folder, self.context.job), self._folder.relative_to(self._target.staging)
        return frozenset((root / name).as_posix() for name in (known.files_of(self.context.step) if known else ()))

    def note(self, files: Sequence[StagedFile], paths: Sequence[str]) -> None:
        if not self._folder.exists():
            self._folder.mkdir()
            sync(self._folder.parent)
        names = [os.path.relpath(self._target.staging / path, self._folder) for path in paths]
        written = None if self.schema is None else in_files(self.schema).serialize().to_pybytes()
        record_output(self._folder, self.context, StepOutput("parquet", names, written))

    def withdraw(self) -> None:
        """Note that the commit is aborted: should this process die, the next start takes back what is visible."""
        intent = self.journal.intent()
        if intent is not None:  # no other process has finished it
            self._takes_back_all = True
            self.journal.begin(intent.target, intent.payloads, is_aborted=True)
