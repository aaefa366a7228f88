"""The storage of snapshots: the `Store` protocol (bytes under paths), and a store in memory.

Rule: a write is durable when the method returns, and readers never see half of it. `Store.create` never replaces
anything, also when two processes try at the same time: so only one start of a job can commit (S3).
"""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Iterable, Sequence
from typing import Final, NoReturn, Protocol, runtime_checkable

from malstrom_py.errors import PlanError, SnapshotError

PART: Final = ".part"
"""The suffix of a file that is still being written. `Store.list` may show such a file; no code reads it."""

_SEGMENT: Final = r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}"
_LEGAL = re.compile(rf"{_SEGMENT}(/{_SEGMENT})*", re.ASCII)


@runtime_checkable
class Store(Protocol):
    """Storage of bytes under paths: segments of ASCII letters, digits, ``_``, ``.`` and ``-``, separated by ``"/"``.

    No segment begins with a dot. Safe for any number of threads and processes. A failure that the method does not list
    is a `SnapshotError` that names the path.

    Optional: ``get_ranges(path, ranges)`` returns the bytes from ``start`` to ``end`` of each range, in order, as a
    list. Each worker of a job that resumes then reads only the state that it owns. ``put_pieces(path, pieces)`` does as
    ``put`` of all the pieces, which an iterator yields, without joining them.
    """

    def put(self, path: str, data: bytes) -> None:
        """Write ``data`` to ``path``, durably, replacing the old contents. Readers see all of the old or the new."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Write ``data`` to ``path`` if it does not exist; else return False. Of several callers, one succeeds."""
        ...

    def get(self, path: str) -> bytes:
        """Return the contents of ``path``. FileNotFoundError: it does not exist."""
        ...

    def list(self, folder: str) -> list[str]:
        """Return the sorted paths below ``folder`` ("": all), at any depth; none if the folder does not exist."""
        ...

    def delete(self, path: str) -> None:
        """Remove ``path``, durably; it need not exist."""
        ...


Range = tuple[int, int]
"""The start of a range of bytes, and its end, which is not in it."""


def read_ranges(store: Store, path: str, ranges: Sequence[Range]) -> list[bytes]:
    """Return ``ranges`` of the contents of ``path``; those of a store without ``get_ranges`` are cut from all of it."""
    get = getattr(store, "get_ranges", None)
    found: list[bytes] = ranges_of(store.get(path), ranges) if get is None else get(path, ranges)
    return found


def put_pieces(store: Store, path: str, pieces: Iterable[bytes]) -> None:
    """Write ``pieces``, one after the other, to ``path``; joined for a store without ``put_pieces``."""
    put = getattr(store, "put_pieces", None)
    if put is None:
        store.put(path, joined(pieces))
    else:
        put(path, pieces)


def joined(pieces: Iterable[bytes]) -> bytes:
    """Return all ``pieces`` as one; a single one is not copied."""
    found = list(pieces)
    return found[0] if len(found) == 1 else b"".join(found)


def ranges_of(data: bytes, ranges: Sequence[Range]) -> list[bytes]:
    """Return ``ranges`` of ``data``.

    >>> ranges_of(b"abcdef", [(0, 2), (4, 9)])
    [b'ab', b'ef']
    """
    return [data[start:end] for start, end in ranges]


def check_path(path: str) -> str:
    """Return ``path`` if it is legal, else raise `SnapshotError`: no path leads out of the store's folder.

    >>> check_path("log/000000000012.json")
    'log/000000000012.json'
    """
    if not _LEGAL.fullmatch(path):
        raise SnapshotError(
            f"{path!r} is not a path in a store of snapshots: use segments of letters, digits, '_', '-' and '.' that "
            f"do not begin with a dot"
        )
    return path


def place_of(store: object) -> str:
    """Return the name of ``store`` for messages: its text if its class defines one, else its type.

    >>> place_of(MemoryStore()), place_of(object())
    ('the memory of this process', 'object')
    """
    kind = type(store)
    has_words = kind.__str__ is not object.__str__ or kind.__repr__ is not object.__repr__
    return str(store) if has_words else kind.__name__


def is_below(path: str, folder: str) -> bool:
    """Return whether ``path`` is below ``folder``, at any depth; every path is below "".

    >>> is_below("log/1.json", "log"), is_below("logs/1.json", "log")
    (True, False)
    """
    return not folder or path.startswith(f"{folder}/")


def is_lost(error: SnapshotError) -> bool:
    """Return whether a read failed because the medium is damaged, and not because of a temporary failure such as a
    network that is down.
    """
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EIO


class MemoryStore(Store):
    """A store in the memory of this process, for tests and the simulator.

    >>> store = MemoryStore()
    >>> store.create("log/1.json", b"one"), store.create("log/1.json", b"two"), store.get("log/1.json")
    (True, False, b'one')
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contents: dict[str, bytes] = {}

    def put(self, path: str, data: bytes) -> None:
        with self._lock:
            self._contents[check_path(path)] = bytes(data)

    def create(self, path: str, data: bytes) -> bool:
        with self._lock:
            if check_path(path) in self._contents:
                return False
            self._contents[path] = bytes(data)
            return True

    def get(self, path: str) -> bytes:
        with self._lock:
            try:
                return self._contents[check_path(path)]
            except KeyError:
                raise FileNotFoundError(f"there is no {path} in this store") from None

    def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        """Return ranges of the contents of ``path``."""
        return ranges_of(self.get(path), ranges)

    def list(self, folder: str) -> list[str]:
        if folder:
            check_path(folder)
        with self._lock:
            return sorted(path for path in self._contents if is_below(path, folder))

    def delete(self, path: str) -> None:
        with self._lock:
            self._contents.pop(check_path(path), None)

    def __getstate__(self) -> NoReturn:
        raise PlanError(
            "a MemoryStore is in the memory of one process and cannot be sent to others: keep snapshots in a folder "
            "or in an object store"
        )

    def __repr__(self) -> str:
        return "MemoryStore()"

    def __str__(self) -> str:
        return "the memory of this process"
