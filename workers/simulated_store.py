"""The store of a simulated job as one run of it sees it: before each operation something else may happen.

Rule: one operation is done, or not; between two of them a run can die, or one that is dead already write.
"""

from __future__ import annotations

from collections.abc import Callable

from malstrom_py.snapshot.store import Store


class SimulatedStore:
    """``store``; ``before`` is called before each operation.

    >>> from malstrom_py.snapshot.store import MemoryStore
    >>> calls = []
    >>> store = SimulatedStore(MemoryStore(), lambda: calls.append("operation"))
    >>> store.put("log/1.json", b"one")
    >>> store.get("log/1.json"), calls
    (b'one', ['operation', 'operation'])
    """

    def __init__(self, store: Store, before: Callable[[], None]) -> None:
        self._store = store
        self._before = before

    def put(self, path: str, data: bytes) -> None:
        """Have ``path`` hold ``data``."""
        self._before()
        self._store.put(path, data)

    def create(self, path: str, data: bytes) -> bool:
        """The same, if nothing is there."""
        self._before()
        return self._store.create(path, data)

    def get(self, path: str) -> bytes:
        """What ``path`` holds."""
        self._before()
        return self._store.get(path)

    def list(self, folder: str) -> list[str]:
        """The paths below ``folder``."""
        self._before()
        return self._store.list(folder)

    def delete(self, path: str) -> None:
        """Have ``path`` hold nothing."""
        self._before()
        self._store.delete(path)

    def __repr__(self) -> str:
        return repr(self._store)
