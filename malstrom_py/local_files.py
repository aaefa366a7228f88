"""Local folders: the path of a user's URI, and the lock on a staging folder of a run.

Rule for URIs: text that begins like a URI is one. ``file:///path``, and ``file:/path`` as Spark writes it, are local.

Rule for locks: a lock shows other runs of the job that this run is active. The writer holds it shared while it is open,
and so does the committer of pre-committed files. Clearing the folder needs the lock exclusively. The folder itself is
locked (``flock``), so no lock file is left over, and the system releases the lock when the process ends. A file system
without such locks excludes no run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from malstrom_py.errors import PlanError

_URI: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]*:/")


def local_path(uri: object, asked_by: str) -> Path:
    """Return the absolute path of ``uri``. Errors name ``asked_by``.

    >>> local_path("file:/data/a%20b", "sinks.Files"), local_path("/data", "sinks.Files")
    (PosixPath('/data/a b'), PosixPath('/data'))

    Raises:
        PlanError: it is neither a path nor a URI of a file on this machine.
    """
    if not isinstance(uri, str | os.PathLike) or not isinstance(os.fspath(uri), str):
        raise PlanError(f"{asked_by} takes a path or a file:// URI, got {type(uri).__name__}")
    if not os.fspath(uri):
        raise PlanError(f"{asked_by} takes a path or a file:// URI, got an empty text")
    text = os.fspath(uri)
    if _URI.match(text):
        parts = urlsplit(text)
        is_local = parts.scheme == "file" and parts.netloc in {"", "localhost"} and parts.path.strip("/")
        if not is_local or parts.query or parts.fragment:
            raise PlanError(
                f"{asked_by} takes a local folder, which has the same path for all processes: give a path or "
                f"file:///path, not {text!r}"
            )
        text = unquote(parts.path)
    if "\0" in text:
        raise PlanError(f"{asked_by} got a path with a NUL character")
    return Path(text).expanduser().absolute()


class RunLock:
    """The lock on ``folder``, which may be removed and recreated during the life of the lock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None
        self._close: Callable[[], object] | None = None

    def hold(self, *, shared: bool) -> None:
        """Lock the present folder. OSError: the folder does not exist; BlockingIOError: another run holds the lock."""
        if self._descriptor is not None and os.path.samestat(os.fstat(self._descriptor), self._folder.stat()):
            return
        self.release()
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        self._descriptor, self._close = descriptor, weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise
        except OSError:
            return  # No locks on this file system.

    def release(self) -> None:
        """Release the lock; safe to call again."""
        if self._close is not None:
            self._close()
        self._descriptor = self._close = None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold ``folder`` exclusively; yield False if another run holds it or it does not exist."""
    lock = RunLock(folder)
    try:
        try:
            lock.hold(shared=False)
        except (BlockingIOError, FileNotFoundError):
            yield False
        else:
            yield True
    finally:
        lock.release()


def sync(path: Path) -> None:
    """Make a file's content, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
