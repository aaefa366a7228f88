"""Files that are staged by writers and published by a commit: `StagedSink`, for any `Place` and any `Committer`.

A writer (`writing`) stages files in a place: a local folder (`folder`) or an object store (`objects`). The payload of
its pre-commit names them (`payloads`). What is alike is here once: the order of the steps of a commit, an abort and a
recovery. A place knows how files are staged, moved, protected and cleared. A committer knows the names of the files,
whether their commit is done, and where that is noted. See ``docs/design/0048-one-stage.md``.

Rules:
- A commit moves all files, then notes that it is done. It can be repeated by any process, also while another one is in
  the same commit: a file that is missing in the staging folder was moved by one of them.
- A commit only goes forwards. A process that was paused in its commit cannot know whether another one has finished
  that commit, so after an error it leaves what it has moved. `abort` takes it back, if the committer allows that: no
  other process can be committing then.
- A recovery removes what earlier starts have staged. Files of ``committed`` snapshots, of later ones and of active
  writers stay.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, TypeAlias

from malstrom_py.sinks.base import BaseTransactionalSink, CommitContext, SnapshotId
from malstrom_py.sinks.staged import problems
from malstrom_py.sinks.staged.payloads import StagedFile, unpack

if TYPE_CHECKING:
    from malstrom_py.sinks.staged.folder import FolderPlace, FolderStage
    from malstrom_py.sinks.staged.objects import ObjectPlace, ObjectStage

Done = Callable[[], Container[str]]
"""Returns the published paths of commits that are done: their files may have been removed since."""


Stage: TypeAlias = "FolderStage | ObjectStage"
"""Where the files of one writer are while they are written, and until their commit."""

Place: TypeAlias = "FolderPlace | ObjectPlace"
"""The folder in which files are staged and published; as text its path or URL. `FolderPlace` has what methods do."""


class Committer:
    """One commit of one step: what differs between targets. Each method has the default of a target without records."""

    takes_back = True
    """Whether `abort` removes published files: not where a table refers to them."""

    folders_are_values = True
    """Whether readers take values from the names of folders: not where a table has the values."""

    def __init__(self, place: Place, context: CommitContext) -> None:
        self.place = place
        self.context = context

    def path_of(self, number: int, file: StagedFile) -> str:
        """Return the path of the published ``file``, the ``number``-th of its commit."""
        raise NotImplementedError

    def moves(self, files: Sequence[StagedFile]) -> list[tuple[StagedFile, str]]:
        """Return the ``files`` of the commit with their paths."""
        return [(file, self.path_of(number, file)) for number, file in enumerate(files)]

    def is_done(self, files: Sequence[StagedFile]) -> bool:
        """Return whether this commit is noted already; `SinkError` if ``files`` can never be committed."""
        return False

    def prepare(self, files: Sequence[StagedFile]) -> None:
        """Bring staged ``files`` into the form that they are published in."""

    def published(self) -> Container[str]:
        """Return the paths that are noted as published."""
        return ()

    def note(self, files: Sequence[StagedFile], paths: Sequence[str]) -> None:
        """Note durably that ``files`` are committed. Idempotent."""

    def withdraw(self) -> None:
        """Remove the note of a commit that is aborted."""

    def begin(self, committed: Sequence[SnapshotId]) -> None:
        """Prepare the target for a start of the job."""


class StagedSink(BaseTransactionalSink):
    """The commits of a transactional sink whose rows are files. Arguments: see `TransactionalSink`."""

    notes_nothing = False
    """Whether a commit without files is noted too."""

    publishes_together = False
    """Whether files of earlier snapshots are published with those of the last one."""

    def committer(self, context: CommitContext) -> Committer | None:
        """Return the committer of ``context``; None if there is no target."""
        raise NotImplementedError

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        files = unpack(context, payloads, together=self.publishes_together)
        if not files and not self.notes_nothing:
            return
        committer = self.committer(context)
        if committer is None:
            raise problems.no_target(self)
        with committer.place.errors("cannot commit to"):
            publish(committer, files)

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        files = unpack(context, payloads, together=self.publishes_together)
        committer = self.committer(context) if files else None
        if committer is None:
            return
        with committer.place.errors("cannot remove uncommitted files in"):
            committer.withdraw()
            if committer.takes_back:
                committer.place.take_back(committer.moves(files), committer.published)
            committer.place.discard(files)

    def hold(self, context: CommitContext, payloads: Sequence[bytes]) -> Callable[[], None]:
        """Protect the staged files from other runs of this job, until the returned function is called."""
        files = unpack(context, payloads, together=self.publishes_together)
        committer = self.committer(context) if files else None
        return (lambda: None) if committer is None else committer.place.hold(files)

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        committer = self.committer(context)
        if committer is not None:
            committer.place.clear(context, committed)
            committer.begin(committed)


def publish(committer: Committer, files: Sequence[StagedFile]) -> None:
    """Publish ``files`` by ``committer``. Idempotent, also while another process commits the same snapshot."""
    place = committer.place
    if committer.is_done(files):
        place.discard(files)  # a process that died after its note has left them
        return
    committer.prepare(files)
    moves = committer.moves(files)
    place.publish(moves, committer.published, folders_are_values=committer.folders_are_values)
    committer.note(files, [path for _, path in moves])
    place.tidy(files)
