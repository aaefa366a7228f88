"""Where the data files of a table are, a folder or an object store, and their way from the staging folder into it.

Rules:
- A file is staged in the hidden folder ``_staging`` of the table, where readers and clean-ups of tables do not look. It
  is moved next to the table's other files right before the commit that adds it to the table.
- A store has no moves: a staged object is copied, then removed. A process that finds the copy but not the staged
  object knows that another one has moved it.
- A move is never taken back: another process may be committing the same files. A moved file that is in no commit is
  invisible, and the table's own clean-up (vacuum, removal of orphan files) deletes it.
- Clearing looks at the staging folder alone, so it cannot delete a file that the table refers to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

from malstrom_py.connectors.lake.files import LakeFile
from malstrom_py.errors import SinkError
from malstrom_py.local_files import locked
from malstrom_py.sinks.base import CommitContext, is_left_over
from malstrom_py.sinks.files.objects import ObjectFolder, ObjectStaging, each
from malstrom_py.sinks.files.publishing import StagedFile, hold
from malstrom_py.sinks.files.staging import Staging, remove_empty, sink_errors, staging_folder, sync
from malstrom_py.sinks.files.writer import Stages

_OPEN: Final = re.compile(r"open-[0-9]+")


class Place(Protocol):
    """The folder of a table's data files; as text its path or URL."""

    def folder(self, name: str) -> str:
        """Return what the folder of a partition, called ``name`` by `sinks.Files`, is called here."""
        ...

    def stages(self, job: str, step: str) -> Stages:
        """Return the staging of a new writer."""
        ...

    def has_staged(self, files: Sequence[LakeFile]) -> bool:
        """Return whether any of ``files`` is staged still."""
        ...

    def move(self, files: Sequence[LakeFile]) -> None:
        """Move staged ``files`` to their paths in the table, durably. Files that were moved before stay."""
        ...

    def hold(self, files: Sequence[LakeFile]) -> Callable[[], None]:
        """Protect staged ``files`` from `clear` in other processes, until the returned function is called."""
        ...

    def discard(self, files: Sequence[LakeFile]) -> None:
        """Remove staged ``files``."""
        ...

    def tidy(self, files: Sequence[LakeFile]) -> None:
        """Remove the staging folders of ``files`` that are empty."""
        ...

    def clear(self, context: CommitContext, committed: Sequence[str]) -> None:
        """Remove the staged files of earlier starts, except those of ``committed`` snapshots and of active writers."""
        ...


class FolderPlace:
    """The folder ``root``, which all workers share."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __str__(self) -> str:
        return str(self._root)

    def folder(self, name: str) -> str:
        return name

    def stages(self, job: str, step: str) -> Stages:
        return Staging(self._root, job, step)

    def has_staged(self, files: Sequence[LakeFile]) -> bool:
        return any((self._root / file.staged).exists() for file in files)

    def move(self, files: Sequence[LakeFile]) -> None:
        root = self._root
        with sink_errors("cannot commit to", root):
            for file in files:
                self._move(root / file.staged, root / file.path)
            folders = {(root / file.path).parent for file in files}
            folders |= {parent for folder in folders for parent in folder.parents if root in (parent, *parent.parents)}
            for folder in sorted(folders, key=lambda one: len(one.parts), reverse=True):
                sync(folder)

    def hold(self, files: Sequence[LakeFile]) -> Callable[[], None]:
        return hold([StagedFile(self._root / file.staged, file.folder) for file in files])

    def discard(self, files: Sequence[LakeFile]) -> None:
        with sink_errors("cannot remove uncommitted files in", self._root):
            for file in files:
                (self._root / file.staged).unlink(missing_ok=True)
        self.tidy(files)

    def tidy(self, files: Sequence[LakeFile]) -> None:
        remove_empty(*{(self._root / file.staged).parent for file in files}, self._root)

    def clear(self, context: CommitContext, committed: Sequence[str]) -> None:
        folder = staging_folder(self._root, context.job, context.step)
        with sink_errors("cannot clear", folder):
            for run in list(folder.iterdir()) if folder.is_dir() else []:
                with locked(run) as is_over:
                    if is_over:
                        _clear(run, context, committed)
                        remove_empty(run, self._root)
            remove_empty(folder, self._root)

    def _move(self, staged: Path, target: Path) -> None:
        for folder in target.parents:
            if folder == self._root:
                break
            if folder.is_symlink():
                raise SinkError(f"a partition folder in {self} is a symbolic link: remove it, or write elsewhere")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            staged.replace(target)
        except FileNotFoundError:
            if not target.exists():
                raise _removed(str(staged)) from None


class ObjectPlace:
    """The folder ``url`` of an object store. ``options``: of the store, as `sinks.Files` takes them."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._folder = ObjectFolder(url, dict(options))

    def __str__(self) -> str:
        return self._folder.url

    def check(self, job: str) -> None:
        """Raise `SinkError` unless obstore can be used, and the store creates an object only if there is none."""
        self._folder.check(job)

    def folder(self, name: str) -> str:
        return quote(name, safe="/=%")  # readers disagree on whether a space in a URL is one in the key

    def stages(self, job: str, step: str) -> Stages:
        return ObjectStaging(self._folder, job, step)

    def has_staged(self, files: Sequence[LakeFile]) -> bool:
        with self._folder.errors("cannot commit to"):
            return any(self._folder.bucket.exists(self._folder.key(file.staged)) for file in files)

    def move(self, files: Sequence[LakeFile]) -> None:
        with self._folder.errors("cannot commit to"):
            each(self._move, files)

    def hold(self, files: Sequence[LakeFile]) -> Callable[[], None]:
        return lambda: None  # A store has no locks: a start discards what is staged under earlier snapshots only.

    def discard(self, files: Sequence[LakeFile]) -> None:
        with self._folder.errors("cannot remove uncommitted files in"):
            each(lambda file: self._folder.bucket.delete([self._folder.key(file.staged)]), files)

    def tidy(self, files: Sequence[LakeFile]) -> None:
        """Do nothing: a store has no folders."""

    def clear(self, context: CommitContext, committed: Sequence[str]) -> None:
        self._folder.clear(context, committed)

    def _move(self, file: LakeFile) -> None:
        bucket, staged, target = self._folder.bucket, self._folder.key(file.staged), self._folder.key(file.path)
        try:
            bucket.copy(staged, target)
        except FileNotFoundError:
            if not bucket.exists(target):
                raise _removed(f"{bucket.root}/{staged}") from None
        else:
            bucket.delete([staged])


def _removed(staged: str) -> SinkError:
    return SinkError(
        f"{staged} was removed before its commit: let no program clear _staging. Resume from an older snapshot"
    )


def _clear(run: Path, context: CommitContext, committed: Sequence[str]) -> None:
    for path in run.iterdir():
        if _OPEN.fullmatch(path.stem) or is_left_over(path.stem.rpartition("-")[0], context, committed):
            path.unlink()
