"""Growing folders: watching one without end, and finding the files that are new to a restarted job.

Watching (``follow=True``): a folder is listed by names alone, and its files are read one after the other. The position
holds the names of the files taken and the place in the current one. A file is known by its name: it is not read again
while it exists, and it is forgotten once it is removed.

New files (``new_files=True``): a file is read once. It is known by its path; its size and the content at both ends show
whether it changed. A removed file is forgotten, unless no file exists at all: an unmounted disk looks so. A file that
disappeared while a new one has the same size, time of change and content was renamed: it stays known by its first name,
under which its positions are stored. A link whose file was removed counts as removed.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import has_magic
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, Final

from malstrom_py.errors import MalformedRecord, SourceError, lasting
from malstrom_py.sources.base import BasePart, Part
from malstrom_py.sources.files.listing import (
    Section,
    goes_below,
    is_file,
    leading_parts,
    matches,
    matching_names,
    section_of,
)
from malstrom_py.sources.files.objects import ObjectFolders, ObjectPath
from malstrom_py.sources.files.pin import identity_of
from malstrom_py.sources.files.reading import TYPES_FILES, FileReader, OpeningPart, Types, is_missing, source_errors
from malstrom_py.sources.files.streams import Status, why_unreadable
from malstrom_py.sources.files.tables import refuse_local_tables


@dataclass(frozen=True, slots=True)
class WatchedFolder:
    """A ``folder`` with the patterns of its files; ``part`` is the user's pattern."""

    part: Part
    folder: Path
    patterns: tuple[str, ...]

    def names(self) -> dict[str, str] | None:
        """Return name -> pattern of all current matches, relative to the folder; None while the folder does not exist.

        `SourceError`: the folder cannot be listed, or is one of a table.
        """
        try:
            with os.scandir(self.folder) as entries:
                listed = [entry.name for entry in entries]
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise SourceError(f"{self.folder} is not a folder that can be watched: correct the pattern") from None
        except OSError as error:
            raise SourceError(f"{self.folder} cannot be watched: {why_unreadable(error)}.") from error
        found = {
            name: pattern
            for pattern in self.patterns
            for name in (matching_names(pattern, self.folder) if goes_below(pattern) else listed)
            if goes_below(pattern) or matches([name], [pattern])
        }
        refuse_local_tables((name for name, pattern in found.items() if has_magic(pattern)), self.part, self.folder)
        return found

    def path(self, name: str) -> str:
        """Return the full path of ``name``."""
        return str(self.folder / name)

    def files(self, names: Mapping[str, str]) -> Iterator[str]:
        """Return the ``names`` of files, sorted; `SourceError` for a folder that a pattern takes for a file."""
        return (name for name in sorted(names) if is_file(name, names[name], self.folder))

    def first_files(self, count: int) -> list[str]:
        """Return the full paths of the first ``count`` current files."""
        return [self.path(name) for name in islice(self.files(self.names() or {}), count)]

    def has_gone(self, name: str) -> bool:
        """Return whether the file was certainly removed: an unreachable file was not."""
        try:
            os.lstat(self.folder / name)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
        return False


def watched_folders(patterns: Sequence[str], base: Path) -> list[WatchedFolder]:
    """Return the folders before the wildcards of ``patterns``, relative to ``base``, each once.

    A folder inside another whose patterns reach its files is merged into that one: no file is in two of them.
    """
    found: dict[str, tuple[Path, dict[str, str]]] = {}
    for pattern in patterns:
        leading = leading_parts(pattern)
        folder = base.joinpath(*leading)
        below = str(PurePath(*PurePath(pattern).parts[len(leading) :]))
        found.setdefault(os.path.normpath(folder), (folder, {}))[1].setdefault(below, str(PurePath(pattern)))
    for outer in sorted(found, key=len):
        if outer not in found or not any(map(goes_below, found[outer][1])):
            continue
        for inner in [one for one in found if one != outer and PurePath(one).is_relative_to(outer)]:
            way = PurePath(inner).relative_to(outer)
            for below, pattern in found.pop(inner)[1].items():
                found[outer][1].setdefault(str(way / below), pattern)
    return [
        WatchedFolder(Part("|".join(written.values())), folder, tuple(written)) for folder, written in found.values()
    ]


_FILES_PER_POLL: Final = 64


class FollowPart(OpeningPart):
    """A watched folder while it is read. ``types`` are those in ``state``; otherwise ``find_types`` infers them."""

    def __init__(
        self,
        watched: WatchedFolder,
        reading: FileReader,
        *,
        types: Types,
        find_types: Callable[[list[str]], Types],
        state: dict[str, Any] | None,
    ) -> None:
        self._watched = watched
        self._reading = reading
        self._types = self._types_of_file = types
        self._find_types = find_types
        self._taken: dict[str, None] = dict.fromkeys(state["taken"] if state else ())
        self._resume: dict[str, Any] | None = state["current"] if state else None
        self._new: deque[str] = deque()
        self._name = ""

    def poll(self, rows_max: int) -> Any:
        is_listed = False
        # One poll skips a bounded number of empty or removed files.
        for _ in range(_FILES_PER_POLL):
            if self._opened is None and self._resume is None and not self._new:
                if is_listed:
                    return None
                self._list()
                is_listed = True
            opened = self._opened or self._open_next()
            if opened is None:
                continue
            rows = self._poll(opened, rows_max)
            if opened.is_finished():
                self._taken[self._name] = None
                self._opened = None
                opened.close()
            if rows is not None and len(rows):
                return rows
        return None

    def is_finished(self) -> bool:
        return False

    def snapshot(self) -> dict[str, Any]:
        current = self._resume
        if self._opened is not None:
            position = self._opened.snapshot()
            # A file without a row read may be removed, or read again from its start.
            current = {"file": self._name, "position": position} if position["rows"] else None
        return {
            "format": self._reading.options.format,
            "schema": self._types.schema,
            "first": self._types.first,
            "taken": list(self._taken),
            "current": current,
        }

    def _poll(self, opened: BasePart[Any], rows_max: int) -> Any:
        """Poll the current file; after its first record, good or bad, its types apply to all others."""
        try:
            rows = opened.poll(rows_max)
        except MalformedRecord:
            self._types = self._types_of_file
            raise
        if rows is not None:
            self._types = self._types_of_file
        return rows

    def _list(self) -> None:
        names = self._watched.names()
        if not names:
            # An empty folder may be an unmounted disk: forget no file.
            return
        for name in [name for name in self._taken if name not in names]:
            if self._watched.has_gone(name):
                del self._taken[name]
        self._new.extend(self._watched.files({name: names[name] for name in names if name not in self._taken}))

    def _open_next(self) -> BasePart[Any] | None:
        """Open the next file; None if there is none, or it was removed since it was listed."""
        if self._resume is not None:
            return self._open_again(self._resume)
        if not self._new:
            return None
        files = [self._watched.path(name) for name in islice(self._new, TYPES_FILES)]
        name = self._new.popleft()
        try:
            types = self._find_types(files) if self._types.schema is None else self._types
            opened = self._open(name, types, self._reading.start_of(Section(name)))
        except SourceError as error:
            if is_missing(error):
                return None
            raise
        self._name, self._opened, self._types_of_file = name, opened, types
        return opened

    def _open_again(self, current: dict[str, Any]) -> BasePart[Any]:
        """Open the file of the saved position."""
        name = current["file"]
        try:
            opened = self._open(name, self._types, current["position"])
        except SourceError as error:
            if is_missing(error):
                raise SourceError(
                    f"{self._watched.path(name)} was read in part, according to the saved position, and no longer "
                    f"exists: restore it, or start the job without resuming."
                ) from error
            raise
        self._name, self._opened, self._resume = name, opened, None
        return opened

    def _open(self, name: str, types: Types, position: dict[str, Any]) -> BasePart[Any]:
        path = self._watched.path(name)
        with source_errors(path):
            return self._as_chosen(self._reading.open(path, Path(path), Section(path), types, position, {}))


class KnownFiles:
    """The files of a snapshot; ``known`` holds its partitions and their positions. Names are relative to ``base``."""

    def __init__(self, known: Mapping[Part, Any], base: Path | ObjectFolders) -> None:
        self._known = known
        self._base = base
        self._parts: dict[str, list[Part]] = {}
        self._read: dict[str, list[list[Any]]] = {}
        """The identities of a file when partitions of it were read to their ends, where they are known."""
        for part, position in known.items():
            file = section_of(part).file
            self._parts.setdefault(file, []).append(part)
            read = self._read.setdefault(file, [])
            if position["finished"] and position.get("file") is not None:
                read.append(list(position["file"]))
        self._renamed: set[str] = set()
        self._names = {self._real(file): file for file in self._parts}

    @property
    def names(self) -> Sequence[str]:
        """The names of the files."""
        return list(self._parts)

    def new(self, files: Sequence[str]) -> list[str]:
        """Return the ``files`` that are not known under any name. Objects are never renamed: a copy is a new one."""
        gone = {
            file: read[0]
            for file, read in self._read.items()
            if read.count(read[0] if read else []) == len(self._parts[file]) and not self._is_there(file)
        }
        gone = {} if isinstance(self._base, ObjectFolders) else gone
        new = []
        for file in files:
            if self._real(file) in self._names:
                continue
            former = self._former(file, gone)
            if former is None:
                new.append(file)
            else:
                del gone[former]
                self._renamed.add(former)
        return new

    def remembered(self, *, any_there: bool) -> list[Part]:
        """Return the known partitions of existing files; if none exists (``any_there``), of all files that were read.

        Call `new` first: it finds renamed files. `SourceError`: a file was changed since it was read.
        """
        there = {file: self._is_there(file) for file in self._parts}
        forgets = any_there or any(there.values())
        parts: list[Part] = []
        for file, its_parts in self._parts.items():
            if file in self._renamed:
                parts += its_parts
            elif there[file]:
                self._check(file)
                parts += its_parts
            elif not forgets:
                parts += [part for part in its_parts if self._known[part]["finished"]]
        return parts

    def _real(self, file: str) -> str:
        return file if isinstance(self._base, ObjectFolders) else os.path.realpath(self._base / file)

    def _stat(self, file: str) -> Status:
        return self._base.listed(file) if isinstance(self._base, ObjectFolders) else (self._base / file).stat()

    def _is_there(self, file: str) -> bool:
        """Return False if ``file`` was certainly removed: an unreachable file was not."""
        try:
            self._stat(file)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return True

    def _former(self, file: str, gone: Mapping[str, list[Any]]) -> str | None:
        """Return the file among ``gone`` that was renamed to ``file``; None if there is none."""
        path = self._base / file
        try:
            status = self._stat(file)
            alike = [one for one in gone if gone[one][:2] == [status.st_size, status.st_mtime_ns]]
            now = identity_of(path) if alike else None
        except OSError:  # reported when it is read
            return None
        return next((one for one in alike if gone[one] == now), None)

    def _check(self, file: str) -> None:
        read, path = self._read[file], self._base / file
        if not read:
            return
        try:
            status = self._stat(file)
            is_alike = all(identity[:2] == [status.st_size, status.st_mtime_ns] for identity in read)
            if is_alike and not isinstance(path, ObjectPath):  # whose tag is known without reading it
                return
            now = identity_of(path)
        except OSError as error:
            raise SourceError(f"{file} cannot be checked for changes since it was read: {error.strerror}") from error
        if any([identity[0], identity[2]] != [now[0], now[2]] for identity in read):
            raise lasting(
                SourceError(
                    f"{file} was changed after an earlier run had read it ({read[0][0]} bytes then, {now[0]} now): "
                    f"each file is read once. Restore it and write new rows to another file, or start the job from the "
                    f'beginning with resume="none"'
                )
            )
