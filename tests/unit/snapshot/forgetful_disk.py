"""A disk in memory that can crash: everything that was not synced may then be lost, names and contents alike.

`Survival` decides what a crash leaves of the rest: nothing, the names without the contents (an empty file where one was
renamed before it was synced), everything, or a random part.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from malstrom_py.snapshot.store import Range, ranges_of


class Crash(Exception):
    """The machine has crashed."""


@dataclass
class File:
    content: bytes = b""
    synced: bytes = b""


@dataclass
class Folder:
    entries: dict[str, File | Folder] = field(default_factory=dict)
    synced: dict[str, File | Folder] = field(default_factory=dict)


@dataclass(frozen=True)
class Survival:
    """The data that survive a crash although they were not synced."""

    name: str
    keeps_name: Callable[[], bool]
    keeps_content: Callable[[], bool]

    def __str__(self) -> str:
        return self.name


def by_chance(seed: int) -> Survival:
    chance = random.Random(seed)
    return Survival(f"by chance {seed}", lambda: chance.random() < 0.5, lambda: chance.random() < 0.5)


NOTHING = Survival("nothing", lambda: False, lambda: False)
NAMES = Survival("names", lambda: True, lambda: False)
EVERYTHING = Survival("everything", lambda: True, lambda: True)


class ForgetfulDisk:
    """``crash_at``: the operation before which the machine crashes, counted from 1; ``fails``: the errno that
    operations raise from ``fails_at`` on (only that one unless ``permanently``).
    """

    def __init__(self, root: Folder | None = None) -> None:
        self.root = root or Folder()
        self.journal: list[str] = []
        self.crash_at = 0
        self.fails_at = 0
        self.fails = errno.ENOSPC
        self.permanently = False
        self._down = False

    def go_down(self, keeping: Survival) -> ForgetfulDisk:
        """Return the disk after a crash. The old disk can make several of them."""
        return ForgetfulDisk(_survivor(self.root, keeping))

    def make_folder(self, path: str) -> None:
        self._do("make_folder", path)
        if not path:
            return
        folder, name = self._place(path)
        found = folder.entries.setdefault(name, Folder())
        if not isinstance(found, Folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)

    def new_file(self, path: str) -> OpenFile:
        self._do("new_file", path)
        folder, name = self._place(path)
        if name in folder.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        file = folder.entries[name] = File()
        return OpenFile(self, path, file)

    def rename(self, old: str, new: str) -> None:
        self._do("rename", new)
        source, old_name = self._place(old)
        folder, name = self._place(new)
        folder.entries[name] = _there(source, old_name)
        del source.entries[old_name]

    def link(self, old: str, new: str) -> None:
        self._do("link", new)
        source, old_name = self._place(old)
        folder, name = self._place(new)
        if name in folder.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        folder.entries[name] = _there(source, old_name)

    def unlink(self, path: str) -> None:
        self._do("unlink", path)
        folder, name = self._place(path)
        _there(folder, name)
        del folder.entries[name]

    def remove_folder(self, path: str) -> None:
        self._do("remove_folder", path)
        folder, name = self._place(path)
        found = _there(folder, name)
        if isinstance(found, Folder) and found.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        del folder.entries[name]

    def sync_folder(self, path: str) -> None:
        self._do("sync_folder", path)
        folder = self._folder(path)
        folder.synced = dict(folder.entries)

    def read(self, path: str) -> bytes:
        self._check_up()
        folder, name = self._place(path)
        found = _there(folder, name)
        if isinstance(found, Folder):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return found.content

    def read_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        return ranges_of(self.read(path), ranges)

    def names(self, folder: str) -> tuple[list[str], list[str]]:
        self._check_up()
        entries = self._folder(folder).entries.items()
        folders = [name for name, node in entries if isinstance(node, Folder)]
        return folders, [name for name, node in entries if isinstance(node, File)]

    def _do(self, operation: str, path: str) -> None:
        """Count one operation that changes the disk; crash or fail if it is due."""
        self._check_up()
        self.journal.append(f"{operation} {path}")
        number = len(self.journal)
        if number == self.crash_at:
            self._down = True
            raise Crash
        if self.fails_at and (number == self.fails_at or (self.permanently and number > self.fails_at)):
            raise OSError(self.fails, os.strerror(self.fails), path)

    def _check_up(self) -> None:
        if self._down:
            raise Crash

    def _folder(self, path: str) -> Folder:
        folder = self.root
        for segment in path.split("/") if path else ():
            found = _there(folder, segment)
            if not isinstance(found, Folder):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            folder = found
        return folder

    def _place(self, path: str) -> tuple[Folder, str]:
        above, _, name = path.rpartition("/")
        return self._folder(above), name


class OpenFile:
    """A new file of a `ForgetfulDisk`."""

    def __init__(self, disk: ForgetfulDisk, path: str, file: File) -> None:
        self._disk = disk
        self._path = path
        self._file = file

    def write(self, data: bytes) -> None:
        before = self._file.content
        self._file.content = before + data[: len(data) // 2]  # the part that survives a crash or a full disk
        self._disk._do("write", self._path)
        self._file.content = before + data

    def sync(self) -> None:
        self._disk._do("sync", self._path)
        self._file.synced = self._file.content

    def close(self) -> None:
        """Do nothing: the file holds no resource."""


def _there(folder: Folder, name: str) -> File | Folder:
    if name not in folder.entries:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return folder.entries[name]


def _survivor(folder: Folder, keeping: Survival) -> Folder:
    """Return a folder after a crash: each name created or removed without a sync may or may not exist."""
    left: dict[str, File | Folder] = {}
    for name in folder.entries | folder.synced:
        now, before = folder.entries.get(name), folder.synced.get(name)
        node = now if now is before or keeping.keeps_name() else before
        if isinstance(node, Folder):
            left[name] = _survivor(node, keeping)
        elif node is not None:
            content = node.content if node.content == node.synced or keeping.keeps_content() else node.synced
            left[name] = File(content, content)
    return Folder(left, dict(left))
