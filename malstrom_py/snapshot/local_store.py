"""Snapshots in a folder of a local disk, or of one that several machines share.

Rule: contents are synced before they have their name, and the folder once they have it. A folder's own name is synced
before anything in it is said to be durable (S3).
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

from malstrom_py.errors import SnapshotError
from malstrom_py.snapshot.disk import Disk, SystemDisk
from malstrom_py.snapshot.store import PART, check_path


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
