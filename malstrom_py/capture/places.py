"""The places of recordings: a folder, the memory of this process, or an object store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from malstrom_py.errors import CaptureError, PlanError, SnapshotError
from malstrom_py.local_files import local_path, sync
from malstrom_py.snapshot.object_store import ObjectStore as Objects


class Place(Protocol):
    """Where segments are kept."""

    def names(self) -> list[str]:
        """Return the names of all segments, sorted."""
        ...

    def create(self, name: str) -> SegmentFile:
        """Create a segment, which must not exist."""
        ...

    def read(self, name: str) -> BinaryIO:
        """Open a segment. FileNotFoundError if there is none."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a segment; nothing happens if that was done already."""
        ...

    def delete(self, name: str) -> None:
        """Delete a segment, if it is there."""
        ...


class SegmentFile(Protocol):
    """A segment that is being written: what was written is there for readers, also if the process dies."""

    def write(self, data: bytes, /) -> object:
        """Append ``data``."""
        ...

    def sync(self) -> None:
        """Make what was written durable."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class Folder:
    """Segments as files in a local folder, which all workers share."""

    def __init__(self, uri: str | os.PathLike[str]) -> None:
        self.path = local_path(uri, "a capture")

    def __repr__(self) -> str:
        return f"Folder({str(self.path)!r})"

    def __str__(self) -> str:
        return str(self.path)

    def names(self) -> list[str]:
        try:
            return sorted(entry.name for entry in self.path.iterdir())
        except FileNotFoundError:
            return []

    def create(self, name: str) -> SegmentFile:
        self.path.mkdir(parents=True, exist_ok=True)
        return _File(self.path / name)

    def read(self, name: str) -> BinaryIO:
        return (self.path / name).open("rb")

    def rename(self, old: str, new: str) -> None:
        try:
            (self.path / old).rename(self.path / new)
        except FileNotFoundError:
            if not (self.path / new).exists():
                raise
        sync(self.path)

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)


class _File:
    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)

    def write(self, data: bytes, /) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class InMemory:
    """Segments in the memory of this process: for tests and notebooks, with runtimes that run in this process.

    >>> InMemory().names()
    []
    """

    def __init__(self) -> None:
        self.segments: dict[str, bytearray] = {}

    def __repr__(self) -> str:
        return f"InMemory({len(self.segments)} segments)"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise CaptureError(
            "a capture in memory cannot go to another process: capture into a folder that all workers share"
        )

    def names(self) -> list[str]:
        return sorted(self.segments)

    def create(self, name: str) -> SegmentFile:
        if name in self.segments:
            raise FileExistsError(name)
        return _Buffer(self.segments.setdefault(name, bytearray()))

    def read(self, name: str) -> BinaryIO:
        try:
            return BytesIO(self.segments[name])
        except KeyError:
            raise FileNotFoundError(name) from None

    def rename(self, old: str, new: str) -> None:
        if old in self.segments:
            self.segments[new] = self.segments.pop(old)

    def delete(self, name: str) -> None:
        self.segments.pop(name, None)


class _Buffer:
    def __init__(self, data: bytearray) -> None:
        self._data = data

    def write(self, data: bytes, /) -> None:
        self._data += data

    def sync(self) -> None:
        """Memory needs none."""

    def close(self) -> None:
        """Memory needs none."""


class ObjectStore:
    """Segments as objects below ``url``, such as ``s3://bucket/folder``; ``options``: as of `Snapshots`.

    Objects cannot grow. So a segment is there once it has ended: at a barrier, at 64 MB, or where its worker ends; what
    a worker that dies had captured since then is lost for readers. The job captures it again.

    >>> place = ObjectStore("memory:///seen")
    >>> place.names()
    []
    """

    def __init__(self, url: str, *, options: Mapping[str, str] | None = None) -> None:
        self._store = Objects(url, options=options)

    def __repr__(self) -> str:
        return f"ObjectStore({str(self._store)!r})"

    def __str__(self) -> str:
        return str(self._store)

    def names(self) -> list[str]:
        with _as_capture_error():
            return self._store.list("")

    def create(self, name: str) -> SegmentFile:
        return _Object(self._store, name)

    def read(self, name: str) -> BinaryIO:
        with _as_capture_error():
            return BytesIO(self._store.get(name))

    def rename(self, old: str, new: str) -> None:
        with _as_capture_error():
            try:
                self._store.rename(old, new)
            except FileNotFoundError:
                self._store.get(new)

    def delete(self, name: str) -> None:
        with _as_capture_error():
            self._store.delete(name)


class _Object:
    def __init__(self, store: Objects, name: str) -> None:
        self._store = store
        self._name = name
        self._data: bytearray | None = bytearray()

    def write(self, data: bytes, /) -> None:
        assert self._data is not None
        self._data += data

    def sync(self) -> None:
        """An object is durable once it is there: see `close`."""

    def close(self) -> None:
        data, self._data = self._data, None
        if data is not None:
            with _as_capture_error():
                self._store.put(self._name, bytes(data))


@contextmanager
def _as_capture_error() -> Iterator[None]:
    """Raise errors of the store as those of a capture."""
    try:
        yield
    except SnapshotError as error:
        raise CaptureError(str(error)) from error.__cause__


def place_of(target: object) -> Place:
    """Return the place ``target``, or that of a folder or URI; `PlanError` for anything else."""
    if isinstance(target, str) and "://" in target and not target.startswith("file:"):
        return ObjectStore(target)
    if isinstance(target, str | os.PathLike):
        return Folder(target)
    if missing := [name for name in ("names", "create", "read", "rename", "delete") if not hasattr(target, name)]:
        raise PlanError(
            f"a capture takes a folder, or an object with the methods of capture.Place; "
            f"{type(target).__name__} has no {missing[0]}"
        )
    place: Place = target  # type: ignore[assignment]  # it has the methods
    return place
