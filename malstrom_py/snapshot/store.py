"""Where snapshots are kept: bytes under paths. What every store does, and one that keeps all in memory.

Rule: what a store has said is written is durable, and whole: nobody ever reads half of it. `Store.create` never
replaces anything, also where two try at once: on that hangs that one start of a job commits, and no other (S3).
"""

from __future__ import annotations

import errno
import re
import threading
from typing import Final, NoReturn, Protocol, runtime_checkable

from malstrom_py.errors import PlanError, SnapshotError

PART: Final = ".part"
"""The end of a name under which something is still being written. `Store.list` may show it; nothing reads it."""

_SEGMENT: Final = r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}"
_LEGAL = re.compile(rf"{_SEGMENT}(/{_SEGMENT})*", re.ASCII)


@runtime_checkable
class Store(Protocol):
    """Bytes under paths, ``"/"`` between segments of ASCII letters, digits, ``_``, ``.`` and ``-``, no dot in front.

    For any number of threads and processes. What fails for another reason than those below is a `SnapshotError` that
    names the path.
    """

    def put(self, path: str, data: bytes) -> None:
        """Have ``path`` hold ``data``, and nothing else; durable when it returns. Who reads sees the old or the new."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """The same, if nothing is there; else False, and nothing has changed. Of several who try, one succeeds."""
        ...

    def get(self, path: str) -> bytes:
        """What ``path`` holds. FileNotFoundError: nothing."""
        ...

    def list(self, folder: str) -> list[str]:
        """The paths below ``folder`` ("": all), at any depth, sorted; none if there is no such folder."""
        ...

    def delete(self, path: str) -> None:
        """Have ``path`` hold nothing, durably; it may be so already."""
        ...


def check_path(path: str) -> str:
    """``path`` if it is one of a store, else `SnapshotError`: nothing leads out of the store's folder.

    >>> check_path("log/000000000012.json")
    'log/000000000012.json'
    """
    if not _LEGAL.fullmatch(path):
        raise SnapshotError(
            f"{path!r} is no path in a store of snapshots: segments of letters, digits, '_', '-' and '.', none of "
            f"which begins with a dot"
        )
    return path


def place_of(store: object) -> str:
    """Where ``store`` is, as a message names it: what it says of itself, or its type if it says nothing.

    >>> place_of(MemoryStore()), place_of(object())
    ('the memory of this process', 'object')
    """
    kind = type(store)
    has_words = kind.__str__ is not object.__str__ or kind.__repr__ is not object.__repr__
    return str(store) if has_words else kind.__name__


def is_below(path: str, folder: str) -> bool:
    """Whether ``path`` lies below ``folder``, at any depth; everything lies below "".

    >>> is_below("log/1.json", "log"), is_below("logs/1.json", "log")
    (True, False)
    """
    return not folder or path.startswith(f"{folder}/")


def is_lost(error: SnapshotError) -> bool:
    """Whether a store could not read what is there because its medium is damaged, and not because of anything that
    passes, such as a network that is down.
    """
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EIO


class MemoryStore:
    """A store in the memory of this process, for tests and the simulator: it ends with the process.

    >>> store = MemoryStore()
    >>> store.create("log/1.json", b"one"), store.create("log/1.json", b"two"), store.get("log/1.json")
    (True, False, b'one')
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, bytes] = {}

    def put(self, path: str, data: bytes) -> None:
        """Have ``path`` hold ``data``."""
        with self._lock:
            self._held[check_path(path)] = bytes(data)

    def create(self, path: str, data: bytes) -> bool:
        """The same, if nothing is there."""
        with self._lock:
            if check_path(path) in self._held:
                return False
            self._held[path] = bytes(data)
            return True

    def get(self, path: str) -> bytes:
        """What ``path`` holds."""
        with self._lock:
            try:
                return self._held[check_path(path)]
            except KeyError:
                raise FileNotFoundError(f"there is no {path} in this store") from None

    def list(self, folder: str) -> list[str]:
        """The paths below ``folder``."""
        if folder:
            check_path(folder)
        with self._lock:
            return sorted(path for path in self._held if is_below(path, folder))

    def delete(self, path: str) -> None:
        """Have ``path`` hold nothing."""
        with self._lock:
            self._held.pop(check_path(path), None)

    def __getstate__(self) -> NoReturn:
        raise PlanError(
            "a MemoryStore is in the memory of one process, and cannot be sent to others: keep snapshots in a folder "
            "or in an object store"
        )

    def __repr__(self) -> str:
        return "MemoryStore()"

    def __str__(self) -> str:
        return "the memory of this process"
