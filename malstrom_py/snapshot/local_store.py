"""Snapshots in a folder of a local disk, or of a disk that several machines share.

`LocalStore` makes one system call at a time through `Disk`, so that tests can crash between any two calls. A crash may
lose everything that was not synced, names as well as contents.

Rule: a file is synced before it gets its name, and its folder is synced afterwards. The name of a folder is synced
before a file in it counts as durable (S3). No path leads out of the root, and symbolic links are not followed.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from malstrom_py.errors import SnapshotError
from malstrom_py.snapshot.store import PART, Range, Store, check_path

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE_BYTES: Final = 8 << 20  # of one system call: the system writes more than this only in part


class DiskFile(Protocol):
    """A new file that is being written."""

    def write(self, data: bytes) -> None:
        """Write all of ``data``."""
        ...

    def sync(self) -> None:
        """Make the contents durable, but not the name."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class Disk(Protocol):
    """A tree of folders and files below one root. Paths are relative to the root, with ``"/"``; "" is the root.

    A method raises the OSError of the system.
    """

    def make_folder(self, path: str) -> None:
        """Make one folder for this user alone (0700), if it does not exist. Its name is not yet durable."""
        ...

    def new_file(self, path: str) -> DiskFile:
        """Create a file. FileExistsError; FileNotFoundError if its folder does not exist."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing an existing one."""
        ...

    def link(self, old: str, new: str) -> None:
        """Give a file a second name. FileExistsError if the name exists."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a name. FileNotFoundError if it does not exist."""
        ...

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder. OSError if it is not empty or does not exist."""
        ...

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""
        ...

    def read(self, path: str) -> bytes:
        """Return the contents of a file. FileNotFoundError."""
        ...

    def read_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        """Return ranges of the contents of a file. FileNotFoundError."""
        ...

    def names(self, folder: str) -> tuple[list[str], list[str]]:
        """Return the names of the folders and of the files in a folder. FileNotFoundError, NotADirectoryError."""
        ...


class SystemDisk(Disk):
    """The tree below ``root`` on this machine. The first write makes the root folder."""

    def __init__(self, root: str) -> None:
        self.root = root

    def make_folder(self, path: str) -> None:
        if not path:
            _make_root(Path(self.root))
            return
        with self._within(path) as (folder, name):
            try:
                os.mkdir(name, 0o700, dir_fd=folder)
            except FileExistsError:
                os.close(os.open(name, _FOLDER, dir_fd=folder))  # NotADirectoryError: a link or a file

    def new_file(self, path: str) -> SystemFile:
        with self._within(path) as (folder, name):
            return SystemFile(os.open(name, _NEW, 0o600, dir_fd=folder))

    def rename(self, old: str, new: str) -> None:
        with self._within(old) as (from_folder, from_name), self._within(new) as (folder, name):
            os.rename(from_name, name, src_dir_fd=from_folder, dst_dir_fd=folder)

    def link(self, old: str, new: str) -> None:
        with self._within(old) as (from_folder, from_name), self._within(new) as (folder, name):
            os.link(from_name, name, src_dir_fd=from_folder, dst_dir_fd=folder, follow_symlinks=False)

    def unlink(self, path: str) -> None:
        with self._within(path) as (folder, name):
            os.unlink(name, dir_fd=folder)

    def remove_folder(self, path: str) -> None:
        with self._within(path) as (folder, name):
            os.rmdir(name, dir_fd=folder)

    def sync_folder(self, path: str) -> None:
        with self._opened(path) as folder:
            os.fsync(folder)

    def read(self, path: str) -> bytes:
        with self._reading(path) as file:
            return file.read()

    def read_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        found: list[bytes] = []
        with self._reading(path) as file:
            for start, end in ranges:
                file.seek(start)
                found.append(file.read(end - start))
        return found

    @contextlib.contextmanager
    def _reading(self, path: str) -> Iterator[io.BufferedReader]:
        with self._within(path) as (folder, name):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        with os.fdopen(descriptor, "rb") as file:
            yield file

    def names(self, folder: str) -> tuple[list[str], list[str]]:
        """Return the names of the folders and of the files in a folder, without links and other entries."""
        with self._opened(folder) as descriptor, os.scandir(descriptor) as entries:
            found = list(entries)
            folders = [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
            return folders, [entry.name for entry in found if entry.is_file(follow_symlinks=False)]

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        """Open the folder at ``path`` segment by segment, so that no link is followed; yield its descriptor."""
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
        """Open the folder of ``path``; yield its descriptor and the last segment."""
        folder, _, name = path.rpartition("/")
        with self._opened(folder) as descriptor:
            yield descriptor, name


class SystemFile(DiskFile):
    """A file of this machine that is being written."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left[:_WRITE_BYTES]) :]

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def _make_root(root: Path) -> None:
    """Make the folder ``root`` and its missing parents, and sync their names."""
    if not root.is_dir():
        _make_root(root.parent)
        with contextlib.suppress(FileExistsError):  # by another process; a file fails at the next call
            root.mkdir(mode=0o700)
        descriptor = os.open(root.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class LocalStore(Store):
    """A `Store` in the folder ``root``. The first write makes the folder, for this user alone.

    ``disk``: a fake disk for tests.

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
        """Folders whose names this object has synced, with those of their parents."""

    @property
    def is_there(self) -> bool:
        """Whether the folder exists."""
        return Path(self._root).is_dir()

    def put(self, path: str, data: bytes) -> None:
        """Write ``data`` to a new file, sync it and rename it to ``path``."""
        self.put_pieces(path, [data])

    def put_pieces(self, path: str, pieces: Iterable[bytes]) -> None:
        """Do as `put`, of all ``pieces``; by the `put` of a subclass that has its own."""
        if type(self).put is not LocalStore.put:
            pieces = list(pieces)
            if len(pieces) > 1:
                self.put(path, b"".join(pieces))
                return
        with self._naming_path(check_path(path), "written"), self._written(path, pieces) as fresh:
            self._disk.rename(fresh, path)
            self._disk.sync_folder(_folder_of(path))

    def create(self, path: str, data: bytes) -> bool:
        """Write ``data`` to a new file, sync it and link it as ``path``, which fails if ``path`` exists."""
        with self._naming_path(check_path(path), "written"), self._written(path, [data]) as fresh:
            try:
                self._disk.link(fresh, path)
            except FileExistsError:
                self._disk.unlink(fresh)
                self._disk.sync_folder(_folder_of(path))  # the process that made it may not have synced it yet
                return False
            try:
                self._disk.sync_folder(_folder_of(path))
            except OSError:
                self._disk.unlink(path)  # a crash could remove it later, so it must not be visible now
                raise
            with contextlib.suppress(OSError):
                self._disk.unlink(fresh)
            return True

    def get(self, path: str) -> bytes:
        with self._naming_path(check_path(path), "read"):
            return self._disk.read(path)

    def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        """Return ranges of the contents of ``path``."""
        with self._naming_path(check_path(path), "read"):
            return self._disk.read_ranges(path, ranges)

    def list(self, folder: str) -> list[str]:
        if folder:
            check_path(folder)
        with self._naming_path(folder, "listed"):
            return sorted(self._below(folder))

    def delete(self, path: str) -> None:
        """Remove ``path``, and its folder if that is empty."""
        folder = _folder_of(check_path(path))
        with self._naming_path(path, "removed"), contextlib.suppress(FileNotFoundError):
            self._disk.unlink(path)
            self._disk.sync_folder(folder)
        if folder:
            with contextlib.suppress(OSError):  # most are not empty
                self._disk.remove_folder(folder)
                self._durable.discard(folder)

    @contextlib.contextmanager
    def _written(self, path: str, pieces: Iterable[bytes]) -> Iterator[str]:
        """Write ``pieces`` to a new synced file next to ``path``; yield its name, and remove it after a failure."""
        fresh = f"{path}.{secrets.token_hex(8)}{PART}"
        try:
            self._make_folders(_folder_of(path))
            file = self._disk.new_file(fresh)
        except FileNotFoundError:  # another process has removed an empty folder
            self._durable.clear()
            self._make_folders(_folder_of(path))
            file = self._disk.new_file(fresh)
        try:
            try:
                for piece in pieces:
                    file.write(piece)
                file.sync()
            finally:
                file.close()
            yield fresh
        except (OSError, SnapshotError):  # the latter of what yields the pieces
            with contextlib.suppress(OSError):
                self._disk.unlink(fresh)
            raise

    def _make_folders(self, path: str) -> None:
        """Make the folder ``path`` durably. If another process has made it, its name may not be synced yet."""
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
    def _naming_path(self, path: str, what: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            if what == "read":
                raise
            gone = "its folder cannot be made. Give mp.Snapshots another folder"
            if Path(self._root).is_dir():
                gone = "its folder is removed repeatedly by another program. Stop that program"
            raise SnapshotError(f"{self._shown(path)} cannot be {what}: {gone}") from None
        except (NotADirectoryError, FileExistsError) as error:
            raise SnapshotError(
                f"{self._shown(path)} cannot be {what}: there is a file where a folder is needed. Move it away, or "
                f"give mp.Snapshots another folder"
            ) from error
        except OSError as error:
            raise SnapshotError(
                f"{self._shown(path)} cannot be {what}: {error.strerror or type(error).__name__}. Complete snapshots "
                f"are unchanged. Check the free space and this user's permission to write there"
            ) from error

    def _shown(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def __repr__(self) -> str:
        return f"LocalStore({self._root!r})"

    def __str__(self) -> str:
        return self._root


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0]
