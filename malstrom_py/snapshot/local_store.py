"""Snapshots in a folder of a local disk, or of one that several machines share.

What `LocalStore` asks of a disk, one system call at a time, and the disk of this machine.

Rule: a crash may come between any two of these, and then all that was not synced may be gone: names as well as
contents. Nothing here follows a symbolic link, and no path leads out of the root.

Rule: contents are synced before they have their name, and the folder once they have it. A folder's own name is synced
before anything in it is said to be durable (S3).
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from malstrom_py.errors import SnapshotError
from malstrom_py.snapshot.store import PART, check_path

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BITE: Final = 8 << 20  # bytes of one write: the system takes more only in part


class DiskFile(Protocol):
    """A new file that is being written."""

    def write(self, data: bytes) -> None:
        """Write all of ``data``."""
        ...

    def sync(self) -> None:
        """Have what was written outlast a crash; its name need not."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Disk(Protocol):
    """A tree of folders and files below one root. Paths are relative to it, ``"/"``-separated; "" is the root.

    OSError where the system has one to tell.
    """

    def make_folder(self, path: str) -> None:
        """Make one folder, for this user alone (0700); it may be there already. Its name is not durable by that."""
        ...

    def new_file(self, path: str) -> DiskFile:
        """A file that was not there. FileExistsError; FileNotFoundError if its folder is not there."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, in the place of what may have had it."""
        ...

    def link(self, old: str, new: str) -> None:
        """Give a file a second name. FileExistsError if there is something of that name."""
        ...

    def unlink(self, path: str) -> None:
        """Take a name away. FileNotFoundError if it is not there."""
        ...

    def remove_folder(self, path: str) -> None:
        """Take an empty folder away. OSError if it is not empty, or not there."""
        ...

    def sync_folder(self, path: str) -> None:
        """Have the names in a folder outlast a crash."""
        ...

    def read(self, path: str) -> bytes:
        """All of a file. FileNotFoundError."""
        ...

    def names(self, folder: str) -> tuple[list[str], list[str]]:
        """The names of the folders and of the files in a folder. FileNotFoundError, NotADirectoryError."""
        ...


class SystemDisk:
    """The tree below ``root`` on this machine. The folder itself is made when something is first written."""

    def __init__(self, root: str) -> None:
        self.root = root

    def make_folder(self, path: str) -> None:
        """Make one folder."""
        if not path:
            _make_root(Path(self.root))
            return
        with self._within(path) as (folder, name):
            try:
                os.mkdir(name, 0o700, dir_fd=folder)
            except FileExistsError:
                os.close(os.open(name, _FOLDER, dir_fd=folder))  # NotADirectoryError: a link or a file

    def new_file(self, path: str) -> SystemFile:
        """A file that was not there."""
        with self._within(path) as (folder, name):
            return SystemFile(os.open(name, _NEW, 0o600, dir_fd=folder))

    def rename(self, old: str, new: str) -> None:
        """Give a file another name."""
        with self._within(old) as (from_folder, from_name), self._within(new) as (folder, name):
            os.rename(from_name, name, src_dir_fd=from_folder, dst_dir_fd=folder)

    def link(self, old: str, new: str) -> None:
        """Give a file a second name."""
        with self._within(old) as (from_folder, from_name), self._within(new) as (folder, name):
            os.link(from_name, name, src_dir_fd=from_folder, dst_dir_fd=folder, follow_symlinks=False)

    def unlink(self, path: str) -> None:
        """Take a name away."""
        with self._within(path) as (folder, name):
            os.unlink(name, dir_fd=folder)

    def remove_folder(self, path: str) -> None:
        """Take an empty folder away."""
        with self._within(path) as (folder, name):
            os.rmdir(name, dir_fd=folder)

    def sync_folder(self, path: str) -> None:
        """Have the names in a folder outlast a crash."""
        with self._opened(path) as folder:
            os.fsync(folder)

    def read(self, path: str) -> bytes:
        """All of a file."""
        with self._within(path) as (folder, name):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            return file.read()

    def names(self, folder: str) -> tuple[list[str], list[str]]:
        """The names of the folders and of the files in a folder; what is neither, such as a link, is left out."""
        with self._opened(folder) as descriptor, os.scandir(descriptor) as entries:
            found = list(entries)
            folders = [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
            return folders, [entry.name for entry in found if entry.is_file(follow_symlinks=False)]

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        """A descriptor of the folder at ``path``, reached segment by segment, so that no link is followed."""
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for segment in path.split("/") if path else ():
                below = os.open(segment, _FOLDER, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _within(self, path: str) -> Iterator[tuple[int, str]]:
        """A descriptor of the folder that ``path`` is in, and the last segment."""
        folder, _, name = path.rpartition("/")
        with self._opened(folder) as descriptor:
            yield descriptor, name


class SystemFile:
    """A file of this machine that is being written."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        """Write all of ``data``."""
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left[:_BITE]) :]

    def sync(self) -> None:
        """Have what was written outlast a crash."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)


def _make_root(root: Path) -> None:
    """Make the folder ``root`` and those above it that are missing, and sync the names of those that were made."""
    if not root.is_dir():
        _make_root(root.parent)
        with contextlib.suppress(FileExistsError):  # another process was faster, or it is no folder, which shows
            root.mkdir(mode=0o700)
        descriptor = os.open(root.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class LocalStore:
    """A `Store` in the folder ``root``, which is made when it is first written to, for this user alone.

    ``disk``: for tests, another one than that of this machine.

    >>> import tempfile
    >>> store = LocalStore(tempfile.mkdtemp())
    >>> store.put("orders/_latest", b"one")
    >>> store.list("orders"), store.get("orders/_latest")
    (['orders/_latest'], b'one')
    """

    def __init__(self, root: str | Path, *, disk: Disk | None = None) -> None:
        self._root = str(Path(root).absolute())
        self._disk = disk or SystemDisk(self._root)
        self._durable: set[str] = set()
        """Folders whose names, up to the root, this object has synced."""

    @property
    def is_there(self) -> bool:
        """Whether its folder has been made."""
        return Path(self._root).is_dir()

    def put(self, path: str, data: bytes) -> None:
        """Have ``path`` hold ``data``: a synced file takes its name."""
        with self._telling(check_path(path), "written"), self._written(path, data) as fresh:
            self._disk.rename(fresh, path)
            self._disk.sync_folder(_folder_of(path))

    def create(self, path: str, data: bytes) -> bool:
        """The same by a link, which fails if there is something of that name."""
        with self._telling(check_path(path), "written"), self._written(path, data) as fresh:
            try:
                self._disk.link(fresh, path)
            except FileExistsError:
                self._disk.unlink(fresh)
                self._disk.sync_folder(_folder_of(path))  # who made it may not have come to that
                return False
            try:
                self._disk.sync_folder(_folder_of(path))
            except OSError:
                self._disk.unlink(path)  # it is not sure to be there after a crash, so it shall not be there now
                raise
            with contextlib.suppress(OSError):
                self._disk.unlink(fresh)
            return True

    def get(self, path: str) -> bytes:
        """What ``path`` holds."""
        with self._telling(check_path(path), "read"):
            return self._disk.read(path)

    def list(self, folder: str) -> list[str]:
        """The paths below ``folder``."""
        if folder:
            check_path(folder)
        with self._telling(folder, "listed"):
            return sorted(self._below(folder))

    def delete(self, path: str) -> None:
        """Have ``path`` hold nothing. Its folder goes as well if it is empty then."""
        folder = _folder_of(check_path(path))
        with self._telling(path, "removed"), contextlib.suppress(FileNotFoundError):
            self._disk.unlink(path)
            self._disk.sync_folder(folder)
        if folder:
            with contextlib.suppress(OSError):  # most are not empty
                self._disk.remove_folder(folder)
                self._durable.discard(folder)

    @contextlib.contextmanager
    def _written(self, path: str, data: bytes) -> Iterator[str]:
        """A new file next to ``path`` that holds ``data``, synced; it is gone afterwards if anything fails."""
        fresh = f"{path}.{secrets.token_hex(8)}{PART}"
        try:
            self._make_folders(_folder_of(path))
            file = self._disk.new_file(fresh)
        except FileNotFoundError:  # another process has removed a folder that was empty
            self._durable.clear()
            self._make_folders(_folder_of(path))
            file = self._disk.new_file(fresh)
        try:
            try:
                file.write(data)
                file.sync()
            finally:
                file.close()
            yield fresh
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.unlink(fresh)
            raise

    def _make_folders(self, path: str) -> None:
        """Have the folder ``path`` there, durably. Another process may have made it, and not synced its name yet."""
        if path in self._durable:
            return
        if path:
            self._make_folders(_folder_of(path))
        self._disk.make_folder(path)
        if path:
            self._disk.sync_folder(_folder_of(path))
        self._durable.add(path)

    def _below(self, folder: str) -> Iterator[str]:
        try:
            folders, files = self._disk.names(folder)
        except FileNotFoundError:
            return
        except NotADirectoryError:
            if folder:
                return
            raise
        inside = f"{folder}/" if folder else ""
        yield from (inside + name for name in files)
        for name in folders:
            yield from self._below(inside + name)

    @contextlib.contextmanager
    def _telling(self, path: str, what: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            if what == "read":
                raise
            gone = "its folder cannot be made. Give mp.Snapshots another one"
            if Path(self._root).is_dir():
                gone = "its folder is gone, another program removes it again and again. Let none clear it"
            raise SnapshotError(f"{self._shown(path)} cannot be {what}: {gone}") from None
        except (NotADirectoryError, FileExistsError) as error:
            raise SnapshotError(
                f"{self._shown(path)} cannot be {what}: there is a file where a folder is needed. Move it away, or "
                f"give mp.Snapshots another folder"
            ) from error
        except OSError as error:
            raise SnapshotError(
                f"{self._shown(path)} cannot be {what}: {error.strerror or type(error).__name__}. Snapshots that were "
                f"complete are as they were; see that there is room, and that this user may write there"
            ) from error

    def _shown(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def __repr__(self) -> str:
        return f"LocalStore({self._root!r})"

    def __str__(self) -> str:
        return self._root


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0]
