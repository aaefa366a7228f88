"""The pin of `Files`: which files a job reads, in which partitions and types, and what shows that a file is the same.

Rule: a file is the same if its size and the content of both ends are, of an object the tag. The time of its last change
is not compared: a copy on another host has another. Files are checked when they are opened: one that was read to its
end may change or go.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from malstrom_py.errors import SourceError, lasting
from malstrom_py.sources.base import Part
from malstrom_py.sources.files.listing import FileFormat
from malstrom_py.sources.files.objects import ObjectFolders, ObjectPath
from malstrom_py.sources.pinned.source import packed_bytes, packed_text

_END_BYTES: Final = 1 << 16
_THREADS: Final = 8


@dataclass(frozen=True)
class InputFiles:
    """What a job reads: ``parts`` of ``files``, each with size and digest or tag, None for one that could not be read.

    ``schema``, packed, and ``first`` are those of `Types`; None if no types are known.
    """

    format: FileFormat
    files: Mapping[str, list[Any] | None]
    parts: tuple[Part, ...]
    schema: bytes | None
    first: str

    @property
    def staged(self) -> None:
        """The files are the user's: nothing was written for the job."""

    def record(self) -> dict[str, Any]:
        """Return the pin as plain JSON, for `input_files_of`."""
        schema = None if self.schema is None else packed_text(self.schema)
        return {**asdict(self), "parts": list(self.parts), "schema": schema}


def input_files_of(record: Mapping[str, Any]) -> InputFiles:
    """Return the pin of an `InputFiles.record`. KeyError, TypeError or ValueError: it is damaged."""
    packed = record["schema"]
    schema = None if packed is None else packed_bytes(packed)
    return InputFiles(record["format"], dict(record["files"]), tuple(record["parts"]), schema, record["first"])


def identity_of(path: Path | ObjectPath) -> list[Any]:
    """Return the identity of ``path``: size in bytes, time of change in nanoseconds, digest of both ends or tag.

    OSError: the file cannot be read.
    """
    if isinstance(path, ObjectPath):
        return [path.stat().st_size, path.stat().st_mtime_ns, path.stat().etag]
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        digest = hashlib.blake2b(file.read(_END_BYTES), digest_size=8)
        if status.st_size > _END_BYTES:
            file.seek(max(_END_BYTES, status.st_size - _END_BYTES))
            digest.update(file.read(_END_BYTES))
    return [status.st_size, status.st_mtime_ns, digest.hexdigest()]


def identities_of(files: Iterable[str], base: Path | ObjectFolders) -> dict[str, list[Any] | None]:
    """Return size and digest or tag of each of ``files``; None for one that cannot be read, which is reported later."""

    def found(file: str) -> list[Any] | None:
        try:
            return identity_of(base / file)[::2]
        except OSError:
            return None

    names = list(files)
    with ThreadPoolExecutor(_THREADS) as pool:  # a shared disk answers many at the same time
        return dict(zip(names, pool.map(found, names), strict=True))


def check_same(part: str, before: Sequence[Any], now: Sequence[Any]) -> None:
    """Raise `SourceError` if the file of a partition has another size, digest or tag than ``before``, at the start."""
    if list(before) != list(now):
        raise lasting(
            SourceError(
                f"{part}: the file changed since the job started ({before[0]} bytes then, {now[0]} now). Restore it, "
                f"or start the job from the beginning without resuming; do not change files while a job may resume"
            )
        )
