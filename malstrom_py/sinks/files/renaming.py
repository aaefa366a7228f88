"""The commit of `sinks.Files`: files get names ``<partition>/…/<step>-<snapshot>-<n>.<ext>``, and a record of them.

Rules:
- In a folder, the output record of the job names the files of all its commits (`sinks.output_record`).
- In an object store, each commit creates an object ``_malstrom/<job>/<step>/<snapshot>.json``, if there is none, with
  the names and the schema of Parquet files. From then on the commit is done, for any process.
- The store must create an object only if it is absent. A start tries it, and refuses a store that does not.
"""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.sinks.files.schemas import Visible, agreed_schema, bring_to, packed, schema_in, unpacked, unserialized
from malstrom_py.sinks.output_record import RECORDS, JobOutput, StepOutput, begin_record, find_record, record_output
from malstrom_py.sinks.staged import Committer
from malstrom_py.sinks.staged.folder import FolderPlace
from malstrom_py.sinks.staged.objects import ObjectPlace
from malstrom_py.sinks.staged.payloads import StagedFile, checked
from malstrom_py.sinks.staged.problems import sink_errors

if TYPE_CHECKING:
    import pyarrow as pa


Records: TypeAlias = "FolderRecords | ObjectRecords"
"""What notes the published files of a sink in its place."""


class RenameCommitter(Committer):
    """One commit of a step that writes files of ``format``. ``given``: the columns of ``schema=`` in files."""

    def __init__(self, records: Records, context: CommitContext, format: str, given: pa.Schema | None) -> None:
        super().__init__(records.place, context)
        self._records = records
        self._format = format
        self._given = given
        self._schema: pa.Schema | None = None

    def path_of(self, number: int, file: StagedFile) -> str:
        prefix = f"{checked(self.context.step)}-{checked(self.context.snapshot)}"
        return f"{file.folder}/{prefix}-{number:05d}{file.suffix}".lstrip("/")

    def is_done(self, files: Sequence[StagedFile]) -> bool:
        return self._records.is_done(self.context, [path for _, path in self.moves(files)])

    def prepare(self, files: Sequence[StagedFile]) -> None:
        """Bring Parquet files to the one schema of the sink, if any is to be published still."""
        if self._format != "parquet" or not self.place.has_staged(files):
            return
        visible = self._records.visible(self.context.job, self.context.step)
        self._schema = agreed_schema(files, given=self._given, visible=visible)
        if self._schema is not None:
            bring_to(self.place, self._schema, files)

    def published(self) -> Container[str]:
        return self._records.published(self.context)

    def note(self, files: Sequence[StagedFile], paths: Sequence[str]) -> None:
        self._records.note(self.context, self._format, paths, self._schema)

    def withdraw(self) -> None:
        self._records.withdraw(self.context)

    def begin(self, committed: Sequence[SnapshotId]) -> None:
        self._records.begin(self.context, committed)


class FolderRecords:
    """The output record of a job in ``root``. ``notes_all``: whether commits that are made by hand are noted too."""

    def __init__(self, root: Path, *, notes_all: bool) -> None:
        self.place = FolderPlace(root)
        self._root = root
        self._notes_all = notes_all

    def begin(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        """Prepare the record for a start of the job."""
        with sink_errors("cannot write to", self._root):
            begin_record(self._root, context.job, committed, before=context.snapshot)

    def visible(self, job: str, step: str) -> Visible | None:
        """Return the schema that the visible files of ``step`` have; None if it is unknown, or there is no file."""
        known = self._known(job)
        output = None if known is None else known.outputs.get(step)
        if output is None or output.schema is None or output.format != "parquet":
            return None
        file = next((name for name in output.files if (self._root / name).exists()), None)
        return None if file is None else Visible(unserialized(output.schema), file)

    def is_done(self, context: CommitContext, paths: Sequence[str]) -> bool:
        """Return whether the commit of files at ``paths`` is noted, and needs nothing more."""
        return False  # the record may lack what another process has added at the same time

    def published(self, context: CommitContext) -> Container[str]:
        """Return the paths of noted commits of the step."""
        known = self._known(context.job)
        return frozenset[str]() if known is None else known.files_of(context.step)

    def note(self, context: CommitContext, format: str, paths: Sequence[str], schema: pa.Schema | None) -> None:
        """Note a commit. Idempotent."""
        known = self._known(context.job)
        # A single commit without a result, made by hand, gets no record.
        if context.result is None and context.final and (known is None or known.final) and not self._notes_all:
            return
        if schema is None and format == "parquet":
            # A commit that is repeated, or one of files that an earlier version has staged.
            file = next((path for name in paths if (path := self._root / name).exists()), None)
            schema = None if file is None else schema_in(file)
        written = None if schema is None else schema.serialize().to_pybytes()
        record_output(self._root, context, StepOutput(format, list(paths), written))

    def withdraw(self, context: CommitContext) -> None:
        """Do nothing: the record is written when all files are published, and those stay."""

    def _known(self, job: str) -> JobOutput | None:
        with sink_errors("cannot read the output record in", self._root):
            return find_record(self._root, job)


class ObjectRecords:
    """An object for each commit, in the place itself."""

    def __init__(self, place: ObjectPlace) -> None:
        self.place = place
        self._visible: dict[tuple[str, str], Visible] = {}

    def begin(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        self.place.check(context.job)

    def visible(self, job: str, step: str) -> Visible | None:
        place = self.place
        if (job, step) not in self._visible:
            with place.errors("cannot look into"):
                prefix = place.key(f"{RECORDS}/{checked(job)}/{checked(step)}/")
                for key, _ in reversed(place.bucket.list(prefix)):
                    last = _listed(place.bucket.get(key))
                    if "schema" not in last:
                        return None
                    file = next((name for name in last["files"] if place.bucket.exists(place.key(name))), None)
                    if file is not None:
                        self._visible[job, step] = Visible(unpacked(last["schema"]), file)
                        break
        return self._visible.get((job, step))

    def is_done(self, context: CommitContext, paths: Sequence[str]) -> bool:
        if not paths:
            return True
        known = self._known(context)
        if known is not None and known != list(paths):
            raise self._of_another(context)
        return known is not None

    def published(self, context: CommitContext) -> Container[str]:
        return self._known(context) or ()

    def note(self, context: CommitContext, format: str, paths: Sequence[str], schema: pa.Schema | None) -> None:
        content: dict[str, Any] = {"format": 1, "job": context.job, "step": context.step, "files": list(paths)}
        content |= {} if schema is None else {"schema": packed(schema)}
        key = self._key(context)
        if not self.place.bucket.create(key, json.dumps(content, indent=1).encode()) and self._known(context) != paths:
            raise self._of_another(context)

    def withdraw(self, context: CommitContext) -> None:
        self.place.bucket.delete([self._key(context)])

    def _key(self, context: CommitContext) -> str:
        job, step, snapshot = (checked(name) for name in (context.job, context.step, context.snapshot))
        return self.place.key(f"{RECORDS}/{job}/{step}/{snapshot}.json")

    def _known(self, context: CommitContext) -> list[str] | None:
        """Return the paths that the object of a commit lists; None without one."""
        try:
            return list(_listed(self.place.bucket.get(self._key(context))).get("files", ()))
        except FileNotFoundError:
            return None

    def _of_another(self, context: CommitContext) -> SinkError:
        where = f"{self.place.bucket.root}/{self._key(context)}"
        return SinkError(f"{where} lists other files: another program has written it")


def _listed(content: bytes) -> dict[str, Any]:
    """Return what the object of a commit holds; nothing if another program has written it."""
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
