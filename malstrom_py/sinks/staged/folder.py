"""A local folder as a place: files are staged in ``_staging``, which readers skip, and published by renames.

A file is ``<root>/_staging/<job>/<step>/<run>/open-<n>.<ext>`` while it is written, and ``<snapshot>-<n>.<ext>`` in the
same folder after the pre-commit. ``run`` is random, one per writer; its folder is locked while the writer has files.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Final

from malstrom_py.errors import InternalError
from malstrom_py.local_files import RunLock, locked, sync
from malstrom_py.sinks.base import CommitContext, is_left_over
from malstrom_py.sinks.staged import Done, problems
from malstrom_py.sinks.staged.payloads import STAGING, StagedFile, checked
from malstrom_py.sinks.staged.problems import sink_errors
from malstrom_py.sinks.staged.writing import WrittenFile

ATTEMPTS: Final = 20
"""How often to create a folder that another run removes because it is empty."""


def staging_folder(root: Path, job: str, step: str) -> Path:
    """Return the folder of ``step``'s uncommitted files; `SinkError` if a symbolic link leads out of ``root``."""
    folder = root
    for name in (STAGING, checked(job), checked(step)):
        folder = folder / name
        if folder.is_symlink():
            raise problems.link_above(folder)
    return folder


class FolderStage:
    """The staging folder of one writer, locked while it has files; its random name keeps runs and workers apart."""

    def __init__(self, root: Path, job: str, step: str) -> None:
        self._root = root
        self._job = job
        self._step = step
        self._folder = staging_folder(root, job, step) / secrets.token_hex(8)
        self._lock = RunLock(self._folder)
        self._created: list[Path] = []
        with sink_errors("cannot make the folder", root):
            self._make_root()

    def create(self, number: int, extension: str) -> tuple[Path, IO[bytes]]:
        """Create an empty file, and its folder if missing."""
        path = self._folder / f"open-{number}.{extension}"
        staging_folder(self._root, self._job, self._step)
        with sink_errors("cannot create", path):
            for attempts_left in reversed(range(ATTEMPTS)):
                try:
                    self._make_root()
                    make_private(self._folder, self._root)
                    self._lock.hold(shared=True)
                    return path, path.open("xb")
                except (FileNotFoundError, FileExistsError, BlockingIOError):
                    # A commit or another run's recovery may remove the empty folder in between.
                    if not attempts_left:
                        raise
        raise InternalError("every attempt returns or raises")

    def pre_commit(self, written: Sequence[WrittenFile], snapshot: str) -> list[str]:
        """Rename the ``written`` files (closed and synced) for ``snapshot``; return their names."""
        names = []
        if not written:
            self._created = []  # An empty folder is the result of a job without rows, so it stays.
        with sink_errors("cannot pre-commit files in", self._folder):
            for file in written:
                staged = file.path.with_name(file.path.name.replace("open", checked(snapshot), 1))
                file.path.replace(staged)
                names.append(staged.relative_to(self._root).as_posix())
            if written:
                for folder in (self._folder, *list(self._folder.parents)[:3], self._root):
                    sync(folder)
        return names

    def discard(self, paths: Sequence[Path]) -> None:
        """Remove files that were never pre-committed, and the folders created here that are empty."""
        with sink_errors("cannot remove files in", self._folder):
            for path in paths:
                path.unlink(missing_ok=True)
            remove_empty([self._folder], self._root)
            if self._created:
                remove_empty([self._created[0]], self._created[-1].parent)

    def release(self) -> None:
        """Unlock the folder: all files in it are pre-committed, and the committer protects them."""
        self._lock.release()

    def _make_root(self) -> None:
        """Create the root, and remember which folders were missing. Another writer may have removed it again."""
        self._created = self._created or [folder for folder in (self._root, *self._root.parents) if not folder.exists()]
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:
            # Retry: another run may have removed a parent. On /proc, say, each attempt fails in this way.
            try:
                self._root.mkdir(parents=True, exist_ok=True)
            except FileNotFoundError as error:
                raise problems.no_root(self._root) from error


class FolderPlace:
    """The folder ``root``, which all workers share."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __str__(self) -> str:
        return str(self.root)

    def stage(self, job: str, step: str) -> FolderStage:
        """Return the stage of a new writer."""
        return FolderStage(self.root, job, step)

    def folder(self, name: str) -> str:
        """Return what the folder of a partition ``name`` is called here."""
        return name

    def errors(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Turn each OSError inside into a `SinkError` that begins with ``what`` and this place."""
        return sink_errors(what, self.root)

    def paths(self, files: Sequence[StagedFile]) -> list[Path]:
        """Return the paths of staged ``files``; `SinkError` if a symbolic link is above one."""
        for job, step in {tuple(file.name.split("/")[1:3]) for file in files}:
            staging_folder(self.root, job, step)
        return [self.root / file.name for file in files]

    def has_staged(self, files: Sequence[StagedFile]) -> bool:
        """Return whether any of ``files`` is staged still."""
        return any(path.exists() for path in self.paths(files))

    def read(self, file: StagedFile) -> bytes:
        """Return the content of a staged file. FileNotFoundError: it is not there."""
        (path,) = self.paths([file])
        return path.read_bytes()

    def rewrite(self, files: Sequence[StagedFile], convert: Callable[[Path, Path], bool]) -> None:
        """Replace staged ``files`` by what ``convert`` makes of each: a new file, or False to keep it."""
        # Without the lock, a file could be put back that another process has moved in the meantime. What is written
        # would be a leftover to the recovery of another start, so the folders are held.
        release = self.hold(files)
        try:
            for folder in sorted({path.parent.parent for path in self.paths(files) if path.exists()}):
                with locked(folder) as is_alone:
                    if not is_alone:
                        raise problems.committed_elsewhere(folder.name, self.root)
                    for path in self.paths(files):
                        with sink_errors("cannot write again", path):
                            _rewrite(path, convert)
        finally:
            release()

    def publish(self, moves: Sequence[tuple[StagedFile, str]], done: Done, *, folders_are_values: bool) -> None:
        """Move staged files to their paths, durably. Files that were moved before, or are ``done``, stay.

        ``folders_are_values``: whether readers take values from the names of folders.
        """
        self.paths([file for file, _ in moves])
        # All are looked at before any is moved.
        missing = [(self.root / file.name, path) for file, path in moves if self._is_to_move(file, path, done)]
        renames = _Renames(self.root, folders_are_values=folders_are_values)
        for staged, path in missing:
            renames.move(staged, path)
        for folder in _with_parents(self.root, {(self.root / path).parent for _, path in moves}):
            sync(folder)

    def take_back(self, moves: Sequence[tuple[StagedFile, str]], done: Done) -> None:
        """Remove what an interrupted commit has published, but for what is ``done``."""
        published = done()
        for staged, (_, path) in zip(self.paths([file for file, _ in moves]), moves, strict=True):
            # A file of that name that this commit has not moved belongs to someone else.
            if not os.path.lexists(staged) and path not in published:
                (self.root / path).unlink(missing_ok=True)
            remove_empty([(self.root / path).parent], self.root)

    def hold(self, files: Sequence[StagedFile]) -> Callable[[], None]:
        """Protect staged ``files`` from `clear` in other processes, until the returned function is called."""
        locks = contextlib.ExitStack()
        for folder in sorted({path.parent for path in self.paths(files)}):
            lock = RunLock(folder)
            locks.callback(lock.release)
            with contextlib.suppress(OSError):  # The folder is missing: the commit reports it.
                lock.hold(shared=True)
        return locks.close

    def discard(self, files: Sequence[StagedFile]) -> None:
        """Remove staged ``files``, and folders that are empty then."""
        with self.errors("cannot remove uncommitted files in"):
            for path in self.paths(files):
                path.unlink(missing_ok=True)
            self.tidy(files)

    def tidy(self, files: Sequence[StagedFile]) -> None:
        """Remove the staging folders of ``files`` that are empty."""
        remove_empty(sorted({(self.root / file.name).parent for file in files}), self.root)

    def clear(self, context: CommitContext, committed: Sequence[str]) -> None:
        """Remove the staged files of earlier starts, except those of ``committed`` snapshots and of active writers."""
        folder = staging_folder(self.root, context.job, context.step)
        with sink_errors("cannot clear", folder):
            for run in list(folder.iterdir()) if folder.is_dir() else []:
                if run.is_symlink() or not run.is_dir():
                    run.unlink()
                    continue
                with locked(run) as is_over:
                    if is_over:
                        _clear(run, context, committed)
                        remove_empty([run], self.root)
            remove_empty([folder], self.root)

    def _is_to_move(self, file: StagedFile, path: str, done: Done) -> bool:
        """Return whether ``file`` is staged still; `SinkError` if it cannot be moved to ``path``."""
        staged, target = self.root / file.name, self.root / path
        # In this order: another process may move the file in between.
        is_there, is_staged = os.path.lexists(target), os.path.lexists(staged)
        if is_staged and is_there:
            raise problems.unknown_file(target, self.root)
        if not is_staged and not os.path.lexists(target) and path not in done():
            raise problems.removed(staged)
        return is_staged


def remove_empty(folders: Iterable[Path], root: Path) -> None:
    """Remove each of ``folders``, and its parents below ``root``, if empty."""
    for start in folders:
        folder = start
        while folder not in {root, folder.parent}:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                break
            folder = folder.parent


def make_private(folder: Path, root: Path) -> None:
    """Create ``folder`` and its missing parents below ``root``, accessible to this user only."""
    for part in [*reversed([parent for parent in folder.parents if root in parent.parents]), folder]:
        part.mkdir(mode=0o700, exist_ok=True)


class _Renames:
    """The renames of one commit, and the names of folders that it has met."""

    def __init__(self, root: Path, *, folders_are_values: bool) -> None:
        self._root = root
        self._folders_are_values = folders_are_values
        self._names: dict[Path, set[str]] = {}

    def move(self, staged: Path, path: str) -> None:
        """Rename one file; create its folder if missing."""
        target = self._root / path
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                self._make_folder(target.parent)
                staged.replace(target)
            except FileNotFoundError:
                if not os.path.lexists(staged) and os.path.lexists(target):
                    return  # Another process has moved it.
                # Another commit that is undone may remove the empty folder in between.
                if not attempts_left or not staged.exists():
                    raise
            else:
                return
        raise InternalError("every attempt returns or raises")

    def _make_folder(self, wanted: Path) -> None:
        for folder in reversed([wanted, *wanted.parents]):
            if self._root not in folder.parents:
                continue
            try:
                folder.mkdir()
                self._names.setdefault(folder.parent, set()).add(folder.name)
            except FileExistsError:
                if folder.is_symlink():
                    raise problems.link_of_partition(self._root) from None
                if not folder.is_dir():
                    raise
                if self._folders_are_values:
                    self._check_name(folder)

    def _check_name(self, folder: Path) -> None:
        """Raise `SinkError` if ``folder`` was found by a name that differs in case."""
        known = self._names.setdefault(folder.parent, set())
        if folder.name not in known:
            known.update(path.name for path in folder.parent.iterdir())
        if folder.name not in known:
            raise problems.partitions_alike(self._root)


def _rewrite(path: Path, convert: Callable[[Path, Path], bool]) -> None:
    """Let what ``convert`` writes take the place of ``path``, durably."""
    fresh = path.with_name(f"open-{secrets.token_hex(4)}{path.suffix}")
    try:
        if path.exists() and convert(path, fresh):  # else another process has moved it
            fresh.replace(path)
            sync(path.parent)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _with_parents(root: Path, folders: set[Path]) -> list[Path]:
    """Return ``folders`` below ``root`` with their parents up to ``root``, each once, inner ones first."""
    found = set(folders)
    for folder in folders:
        found.update(parent for parent in folder.parents if root in (parent, *parent.parents))
    return sorted(found, key=lambda folder: len(folder.parts), reverse=True)


def _clear(run: Path, context: CommitContext, committed: Sequence[str]) -> None:
    for path in run.iterdir():
        snapshot, _, _ = path.name.rpartition("-")
        if snapshot in {"", "open"} or is_left_over(snapshot, context, committed):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
