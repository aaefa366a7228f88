"""Which files are new to a job that goes on, and whether those that it has read are as they were then.

Rule: a file is read once. It is known by its path; size and content at both ends tell whether it was changed since.
A file that has gone is forgotten, unless there is none at all: a disk that is not there for a while looks so. It has
not gone if there is a new one of the same size, time of change and content: that is its other name, and it stays known
by the first, under which its positions are. A link whose file has gone has gone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from malstrom_py.errors import SourceError, lasting
from malstrom_py.sources.base import Part
from malstrom_py.sources.files.sections import section_of

_END_BYTES: Final = 1 << 16


def identity_of(path: Path) -> list[Any]:
    """What ``path`` is known by: its size in bytes, its time of change in nanoseconds, a digest of both of its ends.

    OSError: it cannot be read.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        digest = hashlib.blake2b(file.read(_END_BYTES), digest_size=8)
        if status.st_size > _END_BYTES:
            file.seek(max(_END_BYTES, status.st_size - _END_BYTES))
            digest.update(file.read(_END_BYTES))
    return [status.st_size, status.st_mtime_ns, digest.hexdigest()]


class KnownFiles:
    """The files of a snapshot, by ``known``: its parts and their positions. Names are seen from ``base``."""

    def __init__(self, known: Mapping[Part, Any], base: Path) -> None:
        self._known = known
        self._base = base
        self._parts: dict[str, list[Part]] = {}
        for part in known:
            self._parts.setdefault(section_of(part).file, []).append(part)
        self._renamed: set[str] = set()
        self._names = {os.path.realpath(base / file): file for file in self._parts}

    @property
    def names(self) -> Sequence[str]:
        """The names of the files."""
        return list(self._parts)

    def new(self, files: Sequence[str]) -> list[str]:
        """Those of ``files`` that are not known, under whichever name."""
        gone = {file: read for file in self._parts if not self._is_there(file) and (read := self._read_whole(file))}
        new = []
        for file in files:
            if os.path.realpath(self._base / file) in self._names:
                continue
            former = self._former(file, gone)
            if former is None:
                new.append(file)
            else:
                del gone[former]
                self._renamed.add(former)
        return new

    def remembered(self, *, any_there: bool) -> list[Part]:
        """The known parts of the files that are there, and of all that were read where none is (``any_there``). To be
        called after `new`, which sees which were renamed.

        `SourceError`: a file was changed since it was read.
        """
        there = {file: self._is_there(file) for file in self._parts}
        forgets = any_there or any(there.values())
        parts: list[Part] = []
        for file, its_parts in self._parts.items():
            if file in self._renamed:
                parts += its_parts
            elif there[file]:
                self._check(file, its_parts)
                parts += its_parts
            elif not forgets:
                parts += [part for part in its_parts if self._known[part]["finished"]]
        return parts

    def _is_there(self, file: str) -> bool:
        """False if it has certainly gone: what cannot be asked for a while has not."""
        try:
            (self._base / file).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return True

    def _read_whole(self, file: str) -> list[Any] | None:
        """What ``file`` was known by when it was read to its end, if it was, and was one and the same all the time."""
        identities = [self._identity(part) for part in self._parts[file]]
        return identities[0] if all(identity == identities[0] for identity in identities) else None

    def _former(self, file: str, gone: Mapping[str, list[Any]]) -> str | None:
        """Which of the files that have ``gone`` is ``file`` now, if any."""
        path = self._base / file
        try:
            status = path.stat()
            alike = [one for one in gone if gone[one][:2] == [status.st_size, status.st_mtime_ns]]
            now = identity_of(path) if alike else None
        except OSError:  # told when it is read
            return None
        return next((one for one in alike if gone[one] == now), None)

    def _check(self, file: str, parts: Sequence[Part]) -> None:
        read = [identity for part in parts if (identity := self._identity(part)) is not None]
        if not read:
            return
        path = self._base / file
        try:
            status = path.stat()
            if all(identity[:2] == [status.st_size, status.st_mtime_ns] for identity in read):
                return
            now = identity_of(path)
        except OSError as error:
            raise SourceError(f"{file} cannot be compared with what was read of it: {error.strerror}") from error
        if any([identity[0], identity[2]] != [now[0], now[2]] for identity in read):
            raise lasting(
                SourceError(
                    f"{file} was changed after an earlier run had read it ({read[0][0]} bytes then, {now[0]} now): a "
                    f"file is read once. Put it back as it was, and what is new into a file of another name; or start "
                    f'the job afresh with resume="none"'
                )
            )

    def _identity(self, part: Part) -> list[Any] | None:
        """What the file was known by when ``part`` was read to its end; None if it was not, or if that is not known."""
        position = self._known[part]
        identity: list[Any] | None = position.get("file") if position["finished"] else None
        return None if identity is None else list(identity)
