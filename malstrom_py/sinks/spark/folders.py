"""Publication of Parquet files into a folder by renames, without Spark. A file keeps its name when it is published
again, so a rename can be repeated, and files of other programs are never changed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from malstrom_py.errors import SinkError
from malstrom_py.errors.text import public_text
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.files.schemas import bring_to, in_files
from malstrom_py.sinks.output_record import StepOutput, find_record, record_output
from malstrom_py.sinks.spark.schema import (
    appended_schema,
    check_partitions,
    empty_file,
    existing_in,
    schema_of_staged,
    without,
)
from malstrom_py.sinks.staged.folder import FolderPlace, sync
from malstrom_py.sinks.staged.payloads import StagedFile, checked
from malstrom_py.sinks.staged.problems import sink_errors

if TYPE_CHECKING:
    import pyarrow as pa


class OutcomeUnknown(Exception):
    """It is unknown which rows of a publication are visible: its record is kept, and the next start finishes it."""


def holds_something(folder: Path) -> bool:
    """Return whether ``folder`` is a folder that is not empty."""
    return folder.is_dir() and any(folder.iterdir())


def check_folder(target: Path, *, replace: bool) -> None:
    """Raise `SinkError` if ``target`` cannot be replaced, or is not empty although ``replace`` is false."""
    if target.is_symlink():
        raise SinkError(f"{target} is a symbolic link, which cannot be replaced: give the folder that it points to")
    if not replace and holds_something(target):
        raise SinkError(f"{target} is not empty, and mode is 'error': remove it, or use another mode")
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(target)
    if os.path.ismount(target):
        raise SinkError(f"{target} is a mount point, which cannot be replaced: give a folder in it")


@dataclass(frozen=True, slots=True)
class ParquetFolder:
    """Publishes into the folder ``path``, which must be empty before with mode "error".

    ``given``: the user's schema, including the columns of ``partition_by``.
    """

    path: Path
    mode: str
    partition_by: tuple[str, ...]
    given: pa.Schema | None

    @property
    def description(self) -> Mapping[str, Any]:
        """The target and its options, in plain types."""
        return {"path": str(self.path), "mode": self.mode, "format": "parquet", "partition_by": list(self.partition_by)}

    @property
    def staging(self) -> Path:
        """The folder that contains ``_staging``: the target, or its parent if the target must be empty."""
        return self.path if self.mode == "append" else self.path.parent

    @property
    def place(self) -> FolderPlace:
        """Where the files are staged."""
        return FolderPlace(self.staging)

    @property
    def writer_partition_by(self) -> tuple[str, ...]:
        """The columns by which the writers partition."""
        return self.partition_by

    def start(self) -> None:
        """Prepare a run: nothing to do without Spark."""

    def names_there(self) -> Sequence[str] | None:
        """Return the columns of the files that are appended to; None if there are none."""
        existing = existing_in(self.path) if self.mode == "append" else None
        return None if existing is None else existing.schema.names

    def check(self) -> None:
        """Raise `SinkError` at the start of the job if the target cannot take the rows."""
        with sink_errors("cannot read", self.path):
            if self.mode != "append":
                self._check_without_rows()
            elif (existing := existing_in(self.path)) is not None:
                check_partitions(self.partition_by, existing, self.path)
                if self.given is not None:
                    appended_schema(without(self.given, self.partition_by), self.partition_by, existing, self.path)

    def is_done(self, context: CommitContext, staged: Sequence[StagedFile]) -> bool:
        """Return whether the commit has made the folder that had to be empty. Appending can be repeated instead."""
        if self.mode == "append" or self.place.has_staged(staged):
            return False
        known = find_record(self.path, context.job)
        return known is not None and known.snapshot == context.snapshot and context.step in known.outputs

    def prepare(self, staged: Sequence[StagedFile]) -> pa.Schema | None:
        """Convert the staged files to one schema and return it; `SinkError` if no schema fits all."""
        schema = schema_of_staged(staged)
        if self.mode != "append":
            self._check_without_rows()
        elif schema is not None and (existing := existing_in(self.path)) is not None:
            schema = appended_schema(schema, self.partition_by, existing, self.path)
        if schema is not None:
            bring_to(self.place, schema, staged)
        return schema

    def publish(
        self, work: Path, context: CommitContext, staged: Sequence[StagedFile], schema: pa.Schema | None, *, again: bool
    ) -> None:
        """Make the ``staged`` files visible. Idempotent. ``work``: the folder of the publication."""
        if not self.path.exists():
            with sink_errors("cannot make the folder", self.path):
                self.path.mkdir()
                sync(self.path.parent)
        if not staged and self.given is not None and self._is_without_columns(context):
            self._publish_empty(work, context, self.given)
            return
        place, names = self.place, [self._name(context, number, file) for number, file in enumerate(staged)]
        root = self.path.relative_to(place.root)
        moves = [(file, (root / name).as_posix()) for file, name in zip(staged, names, strict=True)]
        written = None if schema is None else in_files(schema).serialize().to_pybytes()
        try:
            with sink_errors("cannot commit to", self.path):
                with place.publishing(moves, partial(self._published, context), undo=True):
                    record_output(self.path, context, StepOutput("parquet", names, written))
                place.tidy(staged)
        except Exception as error:
            is_there = [os.path.lexists(self.path / name) for name in names]
            if any(is_there) and not all(map(os.path.lexists, place.paths(staged))):
                raise OutcomeUnknown(public_text(error)) from error
            raise

    def _check_without_rows(self) -> None:
        """Raise `SinkError` if the folder shows rows. Our record of an attempt that failed may be in it."""
        with sink_errors("cannot read", self.path), contextlib.suppress(FileNotFoundError):
            if any(not entry.name.startswith((".", "_")) for entry in self.path.iterdir()):
                raise SinkError(f"{self.path} is not empty, and mode is 'error': remove it, or use another mode")

    def _is_without_columns(self, context: CommitContext) -> bool:
        """Return whether the folder has no Parquet file, or only the empty one of ``context``."""
        return os.path.lexists(self.path / _empty_name(context)) or existing_in(self.path) is None

    def _name(self, context: CommitContext, number: int, file: StagedFile) -> str:
        return f"{file.folder}/{_prefix(context)}-{number:05d}{file.suffix}".lstrip("/")

    def _published(self, context: CommitContext) -> frozenset[str]:
        """Return the paths, from the staging folder's parent, that the record of the job has for its step."""
        known, root = find_record(self.path, context.job), self.path.relative_to(self.staging)
        return frozenset((root / name).as_posix() for name in (() if known is None else known.files_of(context.step)))

    def _publish_empty(self, work: Path, context: CommitContext, given: pa.Schema) -> None:
        """Publish a file without rows, outside of any partition, that has the schema."""
        fresh, visible = work / "empty.parquet", self.path / _empty_name(context)
        with sink_errors("cannot commit to", self.path):
            fresh.unlink(missing_ok=True)
            empty_file(fresh, given)
            fresh.replace(visible)
            try:
                sync(self.path)
                record_output(self.path, context, StepOutput("parquet", [visible.name], given.serialize().to_pybytes()))
            except OSError:
                visible.unlink()
                raise


def _prefix(context: CommitContext) -> str:
    return f"{checked(context.job)}-{checked(context.step)}-{checked(context.snapshot)}"


def _empty_name(context: CommitContext) -> str:
    return f"{_prefix(context)}-00000.parquet"
