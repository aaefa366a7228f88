"""Publishing Parquet files into a folder without Spark: appended by renames, or swapped in whole.

Overwriting a folder: the new one is filled beside it, then the two are swapped by two renames.

What stands in the folder of the publication tells how far it is, wherever it was interrupted: nothing, or ``building``
(being filled), ``new`` (filled), ``new`` and ``old`` (the target is away), ``old`` alone (swapped). Where there was no
target, an empty ``old`` stands for it. ``target`` says whose folder it is.

Rule: as long as ``new`` is there, ``old`` is the only copy of what was in the target, and nobody removes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from malstrom_py.errors import SinkError, SourceError
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.files.publishing import StagedFile, publish, visible_names
from malstrom_py.sinks.files.staging import checked, sink_errors, sync
from malstrom_py.sinks.output_record import StepOutput, find_record, read_output, record_output, write_durably
from malstrom_py.sinks.spark.schema import (
    appended_schema,
    bring_to,
    check_partitions,
    empty_file,
    existing_in,
    schema_of_payloads,
    without,
    without_nulls,
)

if TYPE_CHECKING:
    import pyarrow as pa


class OutcomeUnknown(Exception):
    """Nobody can tell what of a publication is visible: it is kept, to be finished by the next start of its job."""


def swap(work: Path, target: Path, fill: Callable[[Path], None], *, replace: bool) -> None:
    """Put a folder that ``fill`` fills in the place of ``target``; call it again to finish what was interrupted.

    ``work``: the folder of the publication, on the file system of ``target``. ``replace``: whether a target that holds
    something is replaced, else a `SinkError`.

    Raises:
        SinkError: it cannot be, and ``target`` is as it was.
        OutcomeUnknown: the target could neither be replaced nor put back.
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
    """Put back what a swap that is not to be finished had put away; what then is in ``work`` nobody needs.

    Raises:
        SinkError: the target is there again, so that nobody knows which of the two is to stay.
    """
    old = work / "old"
    if not (work / "new").exists() or not holds_something(old):
        return
    target = swapped_target(work)
    if target is None:
        raise SinkError(
            f"{old} holds all that was in a folder before an overwrite that was interrupted: move it back to where it "
            f"was, remove {work}, and start again"
        )
    if target.is_symlink() or target.is_file() or holds_something(target):
        raise SinkError(
            f"{old} holds all that was in {target} before an overwrite that was interrupted, and {target} is there "
            f"again: keep what you need of the two elsewhere, remove {work}, and start again"
        )
    old.rename(target)
    sync(target.parent)
    sync(work)


def swapped_target(work: Path) -> Path | None:
    """What a swap in ``work`` puts away; None if none has come so far."""
    try:
        return Path(os.fsdecode((work / "target").read_bytes()))
    except FileNotFoundError:
        return None


def holds_something(folder: Path) -> bool:
    """Whether ``folder`` is one, and not empty."""
    return folder.is_dir() and any(folder.iterdir())


def check_folder(target: Path, *, replace: bool) -> None:
    """`SinkError` if ``target`` is no folder of its own, or is not to be replaced and holds something."""
    if target.is_symlink():
        raise SinkError(f"{target} is a symbolic link, which cannot be swapped for a folder: give the folder it names")
    if not replace and holds_something(target):
        raise SinkError(f"{target} holds something already, and mode is 'error': remove it, or use another mode")
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(target)
    if os.path.ismount(target):
        raise SinkError(f"a file system is mounted at {target}, so it cannot be swapped: give a folder in it")


def _put_away(target: Path, old: Path, *, replace: bool) -> None:
    check_folder(target, replace=replace)
    if not target.exists():
        old.mkdir()
    elif replace:
        target.rename(old)
    else:
        target.rmdir()  # it is empty, or this fails
        old.mkdir()


def _put_in_place(new: Path, target: Path, old: Path) -> None:
    if holds_something(old) and holds_something(target):
        raise OutcomeUnknown(
            f"another program has made {target} again, while what it held was put away to be overwritten: that is in "
            f"{old}, and what is to come in {new}. Move {target} elsewhere"
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
            raise OutcomeUnknown(f"{target} could be neither overwritten nor put back ({error.strerror})") from error
        raise


def _make_durable(work: Path, target: Path) -> None:
    try:
        sync(target.parent)
        sync(work)
    except OSError as error:
        raise OutcomeUnknown(f"{target} is overwritten, but perhaps not durably ({error.strerror})") from error


def remove_work(work: Path) -> None:
    """Remove what is left of a publication that is over, or that was given up."""
    restore_target(work)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(work)


@dataclass(frozen=True, slots=True)
class ParquetFolder:
    """The folder ``path``. ``given``: the schema that was given, with the columns of ``partition_by``."""

    path: Path
    mode: str
    partition_by: tuple[str, ...]
    given: pa.Schema | None

    @property
    def described(self) -> Mapping[str, Any]:
        """Where and how, in plain types."""
        return {"path": str(self.path), "mode": self.mode, "format": "parquet", "partition_by": list(self.partition_by)}

    @property
    def staging(self) -> Path:
        """What `_staging` stands in: beside a folder that is swapped, for all that is in that one goes."""
        return self.path if self.mode == "append" else self.path.parent

    @property
    def encoded_by(self) -> tuple[str, ...]:
        """What the writers partition by."""
        return self.partition_by

    def start(self) -> None:
        """At the start of a run: Spark is not needed here."""

    def check(self) -> None:
        """At the start of the job: `SinkError` for what is known to be impossible."""
        with sink_errors("cannot look into", self.path):
            if self.mode != "append":
                check_folder(self.path, replace=self.mode == "overwrite")
            elif (there := existing_in(self.path)) is not None:
                check_partitions(self.partition_by, there, self.path)
                if self.given is not None:
                    appended_schema(without(self.given, self.partition_by), self.partition_by, there, self.path)

    def is_done(self, context: CommitContext, staged: Sequence[StagedFile]) -> bool:
        """Whether it is published already. Renames can be done again, a swap cannot."""
        if self.mode == "append" or any(file.path.exists() for file in staged):
            return False
        try:
            known = read_output(self.path, context.job)
        except SourceError:
            return False
        return known.snapshot == context.snapshot and context.step in known.outputs

    def prepare(self, staged: Sequence[StagedFile], payloads: Sequence[bytes]) -> pa.Schema | None:
        """Bring all to one schema, which is returned; `SinkError` if there is none."""
        schema = schema_of_payloads(payloads)
        if self.mode != "append":
            check_folder(self.path, replace=self.mode == "overwrite")
        elif schema is not None and (there := existing_in(self.path)) is not None:
            schema = appended_schema(schema, self.partition_by, there, self.path)
        if schema is not None:
            bring_to(schema, staged)
        return schema

    def publish(
        self, work: Path, context: CommitContext, staged: Sequence[StagedFile], schema: pa.Schema | None, *, again: bool
    ) -> None:
        """Make ``staged`` visible; ``work`` is the folder of the publication. Can be called again at any point."""
        if self.mode != "append":
            try:
                swap(
                    work,
                    self.path,
                    lambda folder: self._fill(work, folder, context, staged, schema),
                    replace=self._replaces,
                )
            except SinkError:
                _take_back(work, context, staged)
                raise
            return
        if not staged and self._is_without_columns(context):
            self._fill(work, self.path, context, staged, schema)
            return
        try:
            self._publish_in(self.path, context, staged, schema)
        except SinkError as error:
            names = visible_names(_prefix(context), staged)
            targets = [self.path / file.folder / name for file, name in zip(staged, names, strict=True)]
            if any(map(os.path.lexists, targets)) and not all(os.path.lexists(file.path) for file in staged):
                raise OutcomeUnknown(str(error)) from error
            raise

    @property
    def _replaces(self) -> bool:
        return self.mode == "overwrite"

    def _is_without_columns(self, context: CommitContext) -> bool:
        """Whether nothing tells the columns of what is there, or it was ``context`` that told them."""
        return os.path.lexists(self.path / _empty_name(context)) or existing_in(self.path) is None

    def _publish_in(
        self, folder: Path, context: CommitContext, staged: Sequence[StagedFile], schema: pa.Schema | None
    ) -> None:
        def record(files: list[str]) -> None:
            written = None if schema is None else _in_files(schema).serialize().to_pybytes()
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
        """Make a file without rows, in no partition, that tells all columns."""
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


def _take_back(work: Path, context: CommitContext, staged: Sequence[StagedFile]) -> None:
    """What a swap that could not be had been given stands staged again: it may be tried once more.

    OutcomeUnknown: that cannot be either, so that the next start is to finish what was begun.
    """
    names = visible_names(_prefix(context), staged)
    try:
        for folder in (work / "building", work / "new"):
            for file, name in zip(staged, names, strict=True):
                if (filled := folder / file.folder / name).exists():
                    file.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    filled.replace(file.path)
    except OSError as error:
        raise OutcomeUnknown(f"what was to come in a folder could not be put back ({error.strerror})") from error


def _prefix(context: CommitContext) -> str:
    return f"{checked(context.job)}-{checked(context.step)}-{checked(context.snapshot)}"


def _empty_name(context: CommitContext) -> str:
    return f"{_prefix(context)}-00000.parquet"


def _in_files(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(field.name, without_nulls(field.type)) for field in schema])
