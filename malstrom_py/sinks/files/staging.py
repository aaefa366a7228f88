"""Staging of files before their commit, in a folder that readers skip because its name begins with ``_``.

A file is ``<root>/_staging/<job>/<step>/<run>/open-<n>.<ext>`` while it is written, and ``<snapshot>-<n>.<ext>`` in the
same folder after the pre-commit. `publishing` moves it at the commit, which also creates the partition folders.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Final

from malstrom_py.errors import InternalError, SinkError
from malstrom_py.local_files import RunLock, locked
from malstrom_py.sinks.base import CommitContext, is_left_over

if TYPE_CHECKING:
    import pyarrow as pa

STAGING: Final = "_staging"
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
STAGED: Final = re.compile(rf"{STAGING}/({_ID.pattern})/({_ID.pattern})/[0-9a-f]{{16}}/{_ID.pattern}-[0-9]+\.[a-z]+")
"""The path of a pre-committed file, relative to the root; its groups are job and step."""

ATTEMPTS: Final = 20
"""How often to create a folder that another run removes because it is empty."""

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextlib.contextmanager
def sink_errors(what: str, path: Path | str) -> Iterator[None]:
    """Turn every OSError inside into a `SinkError` with a remedy."""
    try:
        yield
    except OSError as error:
        raise SinkError(f"{what} {path}: {_why(error)}") from error


def staging_folder(root: Path, job: str, step: str) -> Path:
    """Return the folder of ``step``'s uncommitted files; `SinkError` if a symbolic link leads out of ``root``."""
    folder = root
    for name in (STAGING, checked(job), checked(step)):
        folder = folder / name
        if folder.is_symlink():
            raise SinkError(f"{folder} is a symbolic link: files are not staged through links, remove it")
    return folder


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A finished file, its target folder (relative to the root), and its schema if it has one."""

    path: Path
    folder: str
    schema: pa.Schema | None


class Staging:
    """The staging folder of one writer, locked while it has files; its random name keeps runs and workers apart."""

    def __init__(self, root: Path, job: str, step: str) -> None:
        self._root = root
        self._job = job
        self._step = step
        self._folder = staging_folder(root, job, step) / secrets.token_hex(8)
        self._lock = RunLock(self._folder)
        self._made: list[Path] = []
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

    def pre_commit(self, written: Sequence[WrittenFile], snapshot: str) -> bytes:
        """Rename the ``written`` files (closed and synced) for ``snapshot``; return the payload, which names them."""
        names = []
        if not written:
            self._made = []  # An empty folder is the result of a job without rows, so it stays.
        with sink_errors("cannot pre-commit files in", self._folder):
            for file in written:
                staged = file.path.with_name(file.path.name.replace("open", checked(snapshot), 1))
                file.path.replace(staged)
                names.append(staged.relative_to(self._root).as_posix())
            if written:
                for folder in (self._folder, *list(self._folder.parents)[:3], self._root):
                    sync(folder)
        return json.dumps({"files": names, "folders": [file.folder for file in written]}).encode()

    def discard(self, paths: Sequence[Path]) -> None:
        """Remove files that were never pre-committed, and the folders created here that are empty."""
        with sink_errors("cannot remove files in", self._folder):
            for path in paths:
                path.unlink(missing_ok=True)
            remove_empty(self._folder, self._root)
            if self._made:
                remove_empty(self._made[0], self._made[-1].parent)

    def _make_root(self) -> None:
        """Create the root, and remember which folders were missing. Another writer may have removed it again."""
        self._made = self._made or [folder for folder in (self._root, *self._root.parents) if not folder.exists()]
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:
            # Retry: another run may have removed a parent. On /proc, say, each attempt fails in this way.
            try:
                self._root.mkdir(parents=True, exist_ok=True)
            except FileNotFoundError as error:
                above = next(folder for folder in self._root.parents if folder.exists())
                raise SinkError(
                    f"cannot make the folder {self._root}: no folder can be made in {above}. Write elsewhere."
                ) from error

    def release(self) -> None:
        """Unlock the folder: all files in it are pre-committed, and the committer protects them."""
        self._lock.release()


def remove_leftovers(root: Path, context: CommitContext, committed: Sequence[str]) -> None:
    """Remove the files of earlier runs of this step, except those of ``committed`` snapshots and of active runs.

    Files of later snapshots stay: a later start has staged them, and their manifest may be durable.
    """
    folder = staging_folder(root, context.job, context.step)
    with sink_errors("cannot clear", folder):
        for run in list(folder.iterdir()) if folder.is_dir() else []:
            if run.is_symlink() or not run.is_dir():
                run.unlink()
                continue
            with locked(run) as is_over:
                if is_over:
                    _clear(run, context, committed)
                    remove_empty(run, root)
        remove_empty(folder, root)


def _clear(run: Path, context: CommitContext, committed: Sequence[str]) -> None:
    for path in run.iterdir():
        snapshot, _, _ = path.name.rpartition("-")
        if snapshot in {"", "open"} or is_left_over(snapshot, context, committed):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def remove_empty(*folders: Path) -> None:
    """Remove each of ``folders`` except the last, and its parents below the last, if empty."""
    *folders_to_remove, root = folders
    for start in folders_to_remove:
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


def sync(folder: Path) -> None:
    """Make the entries of ``folder`` durable: their names, not their contents."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checked(name: str) -> str:
    """Return ``name`` if it can be part of a file name; raise `SinkError` if not."""
    if not _ID.fullmatch(name) or PurePosixPath(name).name != name:
        raise SinkError(f"{name!r} cannot be part of a file name: use 1 to 64 letters, digits, '_' or '-'")
    return name


def _why(error: OSError) -> str:
    if error.errno in _FULL:
        return f"{os.strerror(error.errno)}. Free some space, or write elsewhere, and run again."
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return f"{error.strerror}. Give this user the right to write there, or write elsewhere."
    if isinstance(error, FileNotFoundError):
        return f"another program removed a file or folder. Let no program clear {STAGING}, and run the job again."
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "a file is in the place of a folder. Move it away, or write elsewhere."
    return f"{error.strerror or type(error).__name__}. Check the path and its disk."
