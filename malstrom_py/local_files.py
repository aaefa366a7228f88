"""Local folders: the path that a user's URI names, and the lock on a staging folder of a run.

The folder that a path or a ``file:`` URI means, wherever a user may name one.

Rule: what begins like a URI is one. ``file:///path``, and ``file:/path`` as Spark writes it, are local; others are not.

The lock on a staging folder of a run: it tells another run of the job that this one is under way.

Those who have files in it share it: the writer while it is open, and whoever will commit what it has pre-committed.
Who clears the folder away wants it alone.

The folder itself is locked (``flock``), so that nothing is left to remove, and the system lets go of it when the
process ends, however it ends. On a file system without such locks nothing is held, and nobody is kept out.
"""

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

NO_OBJECT_STORES: Final = " (files in object stores are not there yet, see docs/not-yet.md#files-in-object-stores)"
"""What a message about a URI of another place ends with."""


def local_path(uri: object, asked_by: str) -> Path:
    """The path that ``uri`` means, absolute. ``asked_by`` is named in errors.

    >>> local_path("file:/data/a%20b", "sinks.Files"), local_path("/data", "sinks.Files")
    (PosixPath('/data/a b'), PosixPath('/data'))

    Raises:
        PlanError: it is no path and no URI of a file on this machine.
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
                f"{asked_by} takes a local folder, which all who need it see under one path: give a path or "
                f"file:///path, not {text!r}{'' if parts.scheme == 'file' else NO_OBJECT_STORES}"
            )
        text = unquote(parts.path)
    if "\0" in text:
        raise PlanError(f"{asked_by} got a path with a NUL character")
    return Path(text).expanduser().absolute()


class RunLock:
    """The lock on ``folder``, which may be removed and made again while the lock lives."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None
        self._close: Callable[[], object] | None = None

    def hold(self, *, shared: bool) -> None:
        """Lock the folder as it is there now. OSError: there is none; BlockingIOError: another is in the way."""
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
        """Let go of the folder; again at will."""
        if self._close is not None:
            self._close()
        self._descriptor = self._close = None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold ``folder`` alone inside; False if another holds it, or it is gone."""
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
