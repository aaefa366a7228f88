"""Files in object stores: which objects a pattern names, and an object as a file that is read by ranges.

Rules:
- An object is opened once per partition, and every range is read on the condition that its tag is still the same: an
  object that is replaced while it is read is a `SourceError`.
- A store blocks, so a partition reads ahead in a thread (`ahead`).
- Sequential reads fetch blocks that grow; a read at another place fetches what it asks for.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from glob import has_magic
from pathlib import PurePosixPath
from typing import IO, Any, Final, Literal

from malstrom_py.errors import PlanError, SourceError
from malstrom_py.object_stores import Bucket, ObjectChanged, ObjectStat, is_object_url, object_url
from malstrom_py.sources.files.listing import matches
from malstrom_py.sources.files.streams import file_replaced
from malstrom_py.sources.files.tables import HasLog, refuse_tables

_BLOCK_BYTES: Final = 1 << 16
_BLOCK_BYTES_MAX: Final = 8 << 20


class ObjectPath:
    """One object, with the methods of a `Path` that readers use. What the store says of it is asked once."""

    def __init__(self, bucket: Bucket, name: str, known: ObjectStat | None = None) -> None:
        self.bucket = bucket
        self.name = name
        self.key = object_url(name).key
        self._known = known
        self._head = b""

    def __str__(self) -> str:
        return self.name

    @property
    def suffix(self) -> str:
        """The suffix of the key, with its dot."""
        return PurePosixPath(self.key).suffix

    def stat(self) -> ObjectStat:
        """Return size, time of change and tag. FileNotFoundError: there is no such object."""
        if self._known is None:
            self._known = self.bucket.stat(self.key)
        return self._known

    def open(self, mode: Literal["rb"] = "rb") -> IO[bytes]:
        """Open it for reading."""
        return ObjectFile(self)  # type: ignore[return-value]  # a raw file, which reads all that is asked for

    def range(self, start: int, stop: int) -> bytes:
        """Return bytes of the object; its beginning is kept. `SourceError`: it is another object now."""
        if stop <= len(self._head):
            return self._head[start:stop]
        try:
            data = self.bucket.read(self.key, start, stop, etag=self.stat().etag)
        except (ObjectChanged, FileNotFoundError) as error:
            raise file_replaced(self.name) from error
        if not start:
            self._head = data[:_BLOCK_BYTES]
        return data


class ObjectFile(io.RawIOBase):
    """An object as a file. A read returns all that is asked for, up to the end of the object."""

    def __init__(self, path: ObjectPath) -> None:
        super().__init__()
        self.path = path
        self._size = path.stat().st_size
        self._at = 0
        self._start = 0
        self._block = b""
        self._block_bytes = _BLOCK_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        stop = self._size if size is None or size < 0 else min(self._size, self._at + size)
        parts: list[bytes] = []
        while self._at < stop:
            if not self._start <= self._at < self._start + len(self._block):
                self._fetch(stop)
            part = self._block[self._at - self._start : stop - self._start]
            parts.append(part)
            self._at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read1(self, size: int = -1) -> bytes:
        """Return as much as one block holds, as a buffered file does."""
        return self.read(size)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self.read()

    def _fetch(self, stop: int) -> None:
        is_next = self._at == self._start + len(self._block)
        self._block_bytes = min(2 * self._block_bytes, _BLOCK_BYTES_MAX) if is_next and self._at else _BLOCK_BYTES
        end = min(self._size, max(stop, self._at + self._block_bytes))
        self._start, self._block = self._at, self.path.range(self._at, end)


class ObjectFolders:
    """The objects that ``patterns`` name, URLs of one kind or several, in the place of the working directory."""

    def __init__(self, patterns: Sequence[str], options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._buckets: dict[str, Bucket] = {}
        for pattern in patterns:
            url = object_url(pattern)
            if not url.key:
                raise PlanError(f"sources.Files: {pattern!r} names no object: write {pattern.rstrip('/')}/*")
            self._buckets.setdefault(url.bucket, Bucket(url.bucket, options)).require_extra()
        self._patterns = list(patterns)
        self._listed: dict[str, ObjectStat] = {}

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(self._bucket(name), name, self._listed.get(name))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_listed": {}}

    def present(self, name: str) -> ObjectPath:
        """Return the object ``name``, whose status is that of its first use, not that of the listing."""
        return ObjectPath(self._bucket(name), name)

    def list_files(self, *, known: Sequence[str] | None = None) -> list[str]:
        """Return the objects that the patterns match, sorted. `SourceError`: a pattern matches none.

        ``known``: objects listed before: then a pattern may match none.
        """
        self._listed = {}
        for pattern in self._patterns:
            url = object_url(pattern)
            try:
                found = self._match(self._buckets[url.bucket], url.key)
            except OSError as error:
                raise SourceError(f"{pattern} cannot be listed: {error.strerror}") from error
            if not found and known is None:
                raise SourceError(f"no object matches {pattern!r}: check the bucket and the pattern")
            self._listed.update({f"{url.bucket}/{key}": stat for key, stat in found.items()})
        return sorted(self._listed)

    def listed(self, name: str) -> ObjectStat:
        """Return what the last listing says of an object. FileNotFoundError: it is not there."""
        if name not in self._listed:
            raise FileNotFoundError(name)
        return self._listed[name]

    def _bucket(self, name: str) -> Bucket:
        root = object_url(name).bucket
        return self._buckets.setdefault(root, Bucket(root, self._options))

    @staticmethod
    def _match(bucket: Bucket, pattern: str) -> dict[str, ObjectStat]:
        if not has_magic(pattern):
            try:
                return {pattern: bucket.stat(pattern)}
            except FileNotFoundError:
                return {}
        parts = pattern.split("/")
        first = next(index for index, part in enumerate(parts) if has_magic(part))
        prefix = "".join(f"{part}/" for part in parts[:first])
        listed = bucket.list(prefix)
        found = {key: stat for key, stat in listed if matches(key.split("/"), parts)}
        refuse_tables(
            (f"/{key}" for key in found),
            pattern,
            _has_log(bucket, prefix, [key for key, _ in listed]),
            root=bucket.root,
        )
        # Programs that show folders make empty objects "in/", which are listed as "in": there is no object of that key.
        found = {key: stat for key, stat in found.items() if stat.st_size or bucket.exists(key)}
        with_name = [key for key in (pattern,) if key in found]  # an object may be named "a[1].csv"
        return {key: found[key] for key in with_name} or found


def _has_log(bucket: Bucket, prefix: str, listed: Sequence[str]) -> HasLog:
    """Return what asks the keys ``listed`` below ``prefix``, and the store about folders above it."""
    names: dict[str, list[str]] = {}
    for key in listed:
        folder, _, name = key.rpartition("/")
        names.setdefault(folder, []).append(name)

    def has_log(folder: str, suffix: str) -> bool:
        folder = folder.strip("/")
        if not f"{folder}/".startswith(prefix):
            names.setdefault(folder, list(bucket.first_names(folder)))
        return any(name.endswith(suffix) for name in names.get(folder, ()))

    return has_log


def all_or_none_objects(patterns: Iterable[str]) -> bool:
    """Return whether all ``patterns`` are URLs of object stores; `PlanError` if only some are."""
    kinds = {is_object_url(pattern) for pattern in patterns}
    if len(kinds) > 1:
        raise PlanError("sources.Files reads local files or objects of stores, not both: make one source for each")
    return kinds == {True}
