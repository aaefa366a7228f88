"""Where files stand before and after their commit, and what moves them. Names that begin with ``_`` are hidden.

``<root>/_staging/<job>/<step>/<run>/open-<n>.<ext>`` while it is written, ``<snapshot>-<n>.<ext>`` in that folder once
pre-committed; `publishing` says where once committed. The folders of partitions are made by the commit alone.
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
from malstrom_py.sinks.base import CommitContext

if TYPE_CHECKING:
    import pyarrow as pa

STAGING: Final = "_staging"
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
STAGED: Final = re.compile(rf"{STAGING}/({_ID.pattern})/({_ID.pattern})/[0-9a-f]{{16}}/{_ID.pattern}-[0-9]+\.[a-z]+")
"""The path of a pre-committed file in the root, with its job and step."""

ATTEMPTS: Final = 20
"""How often a folder is made again that another run removed because it was empty."""

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextlib.contextmanager
def sink_errors(what: str, path: Path | str) -> Iterator[None]:
    """Errors of the disk inside become a `SinkError` that says what to do."""
    try:
        yield
    except OSError as error:
        raise SinkError(f"{what} {path}: {_why(error)}") from error


def staging_folder(root: Path, job: str, step: str) -> Path:
    """The folder of ``step``'s uncommitted files; `SinkError` if a link would lead out of ``root``."""
    folder = root
    for name in (STAGING, checked(job), checked(step)):
        folder = folder / name
        if folder.is_symlink():
            raise SinkError(f"{folder} is a symbolic link: files are not staged through links, remove it")
    return folder


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A finished file, the folder (relative to the root) that it goes to, and its schema if it has one."""

    path: Path
    folder: str
    schema: pa.Schema | None


class Staging:
    """One writer's folder, locked while it holds files. Its name is random: no two runs or workers ever share one."""

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
        """A new empty file to write; its folder is made if it is not there (any more)."""
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
        """Put ``written`` (closed and synced) under ``snapshot``: the payload that names them, in order."""
        names = []
        if not written:
            self._made = []  # The folder of a job without rows stays, as its result.
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
        """Remove files that were never pre-committed, and what folders were made if nothing is left in them."""
        with sink_errors("cannot remove files in", self._folder):
            for path in paths:
                path.unlink(missing_ok=True)
            remove_empty(self._folder, self._root)
            if self._made:
                remove_empty(self._made[0], self._made[-1].parent)

    def _make_root(self) -> None:
        """Make the folder, and remember what of its path was missing. Another writer may have removed it again."""
        self._made = self._made or [folder for folder in (self._root, *self._root.parents) if not folder.exists()]
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:
            # Once more, for another run may have removed what is above it; such as /proc says so of any new name.
            try:
                self._root.mkdir(parents=True, exist_ok=True)
            except FileNotFoundError as error:
                above = next(folder for folder in self._root.parents if folder.exists())
                raise SinkError(
                    f"cannot make the folder {self._root}: no folder can be made in {above}. Write elsewhere."
                ) from error

    def release(self) -> None:
        """Unlock the folder: what is left in it is pre-committed, and held by whoever commits it."""
        self._lock.release()


def remove_leftovers(root: Path, context: CommitContext, committed: Sequence[str]) -> None:
    """Remove what earlier runs of this step left, but nothing of a ``committed`` snapshot or of a run under way."""
    folder = staging_folder(root, context.job, context.step)
    with sink_errors("cannot clear", folder):
        for run in list(folder.iterdir()) if folder.is_dir() else []:
            if run.is_symlink() or not run.is_dir():
                run.unlink()
                continue
            with locked(run) as is_over:
                if is_over:
                    _clear(run, committed)
                    remove_empty(run, root)
        remove_empty(folder, root)


def _clear(run: Path, committed: Sequence[str]) -> None:
    for path in run.iterdir():
        if path.name.rpartition("-")[0] not in committed:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def remove_empty(*folders: Path) -> None:
    """Remove each of ``folders`` but the last, and what is above it, up to the last, as far as it is empty."""
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
    """Make ``folder`` and what is missing between it and ``root``, for this user alone."""
    for part in [*reversed([parent for parent in folder.parents if root in parent.parents]), folder]:
        part.mkdir(mode=0o700, exist_ok=True)


def sync(folder: Path) -> None:
    """Make durable what stands in ``folder``: names, not contents."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checked(name: str) -> str:
    """``name``, if it can be part of a file name; `SinkError` if not."""
    if not _ID.fullmatch(name) or PurePosixPath(name).name != name:
        raise SinkError(f"{name!r} cannot be part of a file name: use 1 to 64 letters, digits, '_' or '-'")
    return name


def _why(error: OSError) -> str:
    if error.errno in _FULL:
        return f"{os.strerror(error.errno)}. Nothing of it is visible. Make room, or write elsewhere, and run again."
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return f"{error.strerror}. Give this user the right to write there, or write elsewhere."
    if isinstance(error, FileNotFoundError):
        return f"what was there is gone, another program removed it. Let none clear {STAGING}, and run the job again."
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "a file stands where a folder is needed. Move it away, or write elsewhere."
    return f"{error.strerror or type(error).__name__}. Check the path and its disk."
