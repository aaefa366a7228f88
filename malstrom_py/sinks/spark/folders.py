"""Publication of Parquet files into a folder, without Spark: by renames of files, or by swapping the whole folder.

To overwrite a folder, a new one is filled next to it, and the two are swapped with two renames. The entries in the
folder of the publication record the progress of a swap: nothing; ``building`` (being filled); ``new`` (filled); ``new``
and ``old`` (the target is moved away); ``old`` (swapped). An empty ``old`` represents a target that did not exist. The
file ``target`` has the path of the target.

Rule: while ``new`` exists, ``old`` is the only copy of the target's contents, and no program removes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from malstrom_py.errors import SinkError, SourceError
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.files.publishing import StagedFile, publish, visible_names
from malstrom_py.sinks.files.schemas import bring_to, in_files
from malstrom_py.sinks.files.staging import checked, sink_errors, sync
from malstrom_py.sinks.output_record import StepOutput, find_record, read_output, record_output, write_durably
from malstrom_py.sinks.spark.schema import (
    appended_schema,
    check_partitions,
    empty_file,
    existing_in,
    schema_of_payloads,
    without,
)

if TYPE_CHECKING:
    import pyarrow as pa


class OutcomeUnknown(Exception):
    """It is unknown which rows of a publication are visible: its record is kept, and the next start finishes it."""


def swap(work: Path, target: Path, fill: Callable[[Path], None], *, replace: bool) -> None:
    """Replace ``target`` by a folder that ``fill`` fills; a second call finishes an interrupted swap.

    ``work``: the folder of the publication, on the file system of ``target``. ``replace``: whether a target that is not
    empty is replaced; otherwise it is a `SinkError`.

    Raises:
        SinkError: the swap is impossible, and ``target`` is unchanged.
        OutcomeUnknown: the target could neither be replaced nor restored.
    """
    building, new, old = work / "building", work / "new", work / "old"
    with sink_errors("cannot overwrite", target):
        if not new.exists() and not old.exists():
            check_folder(target, replace=replace)
            building.mkdir(exist_ok=True)
            if target.exists():
                shutil.copymode(target, building)
            fill(building)
            write_durably(work / "target", os.fsencode(target))
            building.rename(new)
            sync(work)
        if not old.exists():
            _put_away(target, old, replace=replace)
        if new.exists():
            _put_in_place(new, target, old)
    _make_durable(work, target)


def restore_target(work: Path) -> None:
    """Move the target of an abandoned swap back to its place.

    Raises:
        SinkError: a new target exists, so only the user can decide which of the two to keep.
    """
    old = work / "old"
    if not (work / "new").exists() or not holds_something(old):
        return
    target = swapped_target(work)
    if target is None:
        raise SinkError(
            f"{old} has the contents of a folder from before an interrupted overwrite: move it back to its place, "
            f"remove {work}, and start again"
        )
    if target.is_symlink() or target.is_file() or holds_something(target):
        raise SinkError(
            f"{old} has the contents of {target} from before an interrupted overwrite, and {target} exists again: "
            f"save what you need of the two, remove {work}, and start again"
        )
    old.rename(target)
    sync(target.parent)
    sync(work)


def swapped_target(work: Path) -> Path | None:
    """Return the target of the swap in ``work``; None if the swap has not begun."""
    try:
        return Path(os.fsdecode((work / "target").read_bytes()))
    except FileNotFoundError:
        return None


def holds_something(folder: Path) -> bool:
    """Return whether ``folder`` is a folder that is not empty."""
    return folder.is_dir() and any(folder.iterdir())


def check_folder(target: Path, *, replace: bool) -> None:
    """Raise `SinkError` if ``target`` cannot be swapped, or is not empty although ``replace`` is false."""
    if target.is_symlink():
        raise SinkError(f"{target} is a symbolic link, which cannot be swapped: give the folder that it points to")
    if not replace and holds_something(target):
        raise SinkError(f"{target} is not empty, and mode is 'error': remove it, or use another mode")
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(target)
    if os.path.ismount(target):
        raise SinkError(f"{target} is a mount point, which cannot be swapped: give a folder in it")


def _put_away(target: Path, old: Path, *, replace: bool) -> None:
    check_folder(target, replace=replace)
    if not target.exists():
        old.mkdir()
    elif replace:
        target.rename(old)
    else:
        target.rmdir()  # It fails if the folder is not empty.
        old.mkdir()


def _put_in_place(new: Path, target: Path, old: Path) -> None:
    if holds_something(old) and holds_something(target):
        raise OutcomeUnknown(
            f"another program has created {target} during the overwrite: its old contents are in {old}, the new ones "
            f"in {new}. Move {target} elsewhere"
        )
    try:
        sync(old.parent)
        new.rename(target)
    except OSError:
        try:
            if holds_something(old):
                old.rename(target)
            else:
                old.rmdir()
        except OSError as error:
            raise OutcomeUnknown(f"{target} could be neither overwritten nor restored ({error.strerror})") from error
        raise


def _make_durable(work: Path, target: Path) -> None:
    try:
        sync(target.parent)
        sync(work)
    except OSError as error:
        raise OutcomeUnknown(f"{target} is overwritten, but may not be durable ({error.strerror})") from error


def remove_work(work: Path) -> None:
    """Remove the folder of a publication that is finished or abandoned."""
    restore_target(work)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(work)


@dataclass(frozen=True, slots=True)
class ParquetFolder:
    """Publishes into the folder ``path``. ``given``: the user's schema, including the columns of ``partition_by``."""

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
        """The folder that contains ``_staging``: the target, or its parent if the target is swapped as a whole."""
        return self.path if self.mode == "append" else self.path.parent

    @property
    def writer_partition_by(self) -> tuple[str, ...]:
        """The columns by which the writers partition."""
        return self.partition_by

    def start(self) -> None:
        """Prepare a run: nothing to do without Spark."""

    def names_there(self) -> Sequence[str] | None:
        """Return the columns of the files that are appended to; None if there are none, or they are replaced."""
        existing = existing_in(self.path) if self.mode == "append" else None
        return None if existing is None else existing.schema.names

    def check(self) -> None:
        """Raise `SinkError` at the start of the job if the target cannot take the rows."""
        with sink_errors("cannot read", self.path):
            if self.mode != "append":
                check_folder(self.path, replace=self.mode == "overwrite")
            elif (existing := existing_in(self.path)) is not None:
                check_partitions(self.partition_by, existing, self.path)
                if self.given is not None:
                    appended_schema(without(self.given, self.partition_by), self.partition_by, existing, self.path)

    def is_done(self, context: CommitContext, staged: Sequence[StagedFile]) -> bool:
        """Return whether the commit is published already. Renames can be repeated, a swap cannot."""
        if self.mode == "append" or any(file.path.exists() for file in staged):
            return False
        try:
            known = read_output(self.path, context.job)
        except SourceError:
            return False
        return known.snapshot == context.snapshot and context.step in known.outputs

    def prepare(self, staged: Sequence[StagedFile], payloads: Sequence[bytes]) -> pa.Schema | None:
        """Convert the staged files to one schema and return it; `SinkError` if no schema fits all."""
        schema = schema_of_payloads(payloads)
        if self.mode != "append":
            check_folder(self.path, replace=self.mode == "overwrite")
        elif schema is not None and (existing := existing_in(self.path)) is not None:
            schema = appended_schema(schema, self.partition_by, existing, self.path)
        if schema is not None:
            bring_to(schema, staged)
        return schema

    def publish(
        self, work: Path, context: CommitContext, staged: Sequence[StagedFile], schema: pa.Schema | None, *, again: bool
    ) -> None:
        """Make the ``staged`` files visible. Idempotent. ``work``: the folder of the publication."""
        if self.mode != "append":
            try:
                fill = partial(self._fill, work, context=context, staged=staged, schema=schema)
                swap(work, self.path, fill, replace=self.mode == "overwrite")
            except OutcomeUnknown:
                raise
            except Exception:
                _take_back(work, self.path, context, staged)
                raise
            return
        if not staged and self._is_without_columns(context):
            self._fill(work, self.path, context, staged, schema)
            return
        try:
            self._publish_in(self.path, context, staged, schema)
        except Exception as error:
            names = visible_names(_prefix(context), staged)
            targets = [self.path / file.folder / name for file, name in zip(staged, names, strict=True)]
            if any(map(os.path.lexists, targets)) and not all(os.path.lexists(file.path) for file in staged):
                raise OutcomeUnknown(str(error)) from error
            raise

    def _is_without_columns(self, context: CommitContext) -> bool:
        """Return whether the folder has no Parquet file, or only the empty one of ``context``."""
        return os.path.lexists(self.path / _empty_name(context)) or existing_in(self.path) is None

    def _publish_in(
        self, folder: Path, context: CommitContext, staged: Sequence[StagedFile], schema: pa.Schema | None
    ) -> None:
        def record(files: list[str]) -> None:
            written = None if schema is None else in_files(schema).serialize().to_pybytes()
            record_output(folder, context, StepOutput("parquet", files, written))

        known = find_record(folder, context.job)
        done = frozenset[str]() if known is None else known.files_of(context.step)
        publish(folder, context, staged, prefix=_prefix(context), record=record, done=done)

    def _fill(
        self, work: Path, folder: Path, context: CommitContext, staged: Sequence[StagedFile], schema: pa.Schema | None
    ) -> None:
        if staged or self.given is None:
            self._publish_in(folder, context, staged, schema)
        else:
            self._publish_empty(work, folder, context, self.given)

    def _publish_empty(self, work: Path, folder: Path, context: CommitContext, given: pa.Schema) -> None:
        """Publish a file without rows, outside of any partition, that has the schema."""
        fresh, visible = work / "empty.parquet", folder / _empty_name(context)
        with sink_errors("cannot commit to", folder):
            fresh.unlink(missing_ok=True)
            empty_file(fresh, given)
            fresh.replace(visible)
            try:
                sync(folder)
                record_output(folder, context, StepOutput("parquet", [visible.name], given.serialize().to_pybytes()))
            except OSError:
                visible.unlink()
                raise


def _take_back(work: Path, target: Path, context: CommitContext, staged: Sequence[StagedFile]) -> None:
    """Move the files of a failed swap back to staging, and the old contents to the target, so that the commit can be
    retried. Each step leaves a state that a swap continues.

    OutcomeUnknown: that failed, so the next start must finish the swap.
    """
    building, new, old = work / "building", work / "new", work / "old"
    names = visible_names(_prefix(context), staged)
    try:
        if new.exists():
            if holds_something(old):
                old.rename(target)
            elif old.exists():
                old.rmdir()
            new.rename(building)
        for file, name in zip(staged, names, strict=True):
            if (filled := building / file.folder / name).exists():
                file.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                filled.replace(file.path)
    except OSError as error:
        raise OutcomeUnknown(f"the files of the new folder could not be staged again ({error.strerror})") from error


def _prefix(context: CommitContext) -> str:
    return f"{checked(context.job)}-{checked(context.step)}-{checked(context.snapshot)}"


def _empty_name(context: CommitContext) -> str:
    return f"{_prefix(context)}-00000.parquet"
