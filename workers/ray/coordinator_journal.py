"""The journal of a coordinator on Ray, in Ray's key-value store: facts for the coordinator that replaces it.

Rule: the journal holds only facts that no snapshot holds. It belongs to one start of the job and is deleted at its end.
It is lost with the head of a cluster that does not persist its store; a restarted coordinator then uses its setup and
the snapshots.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

_NAMESPACE: Final = b"malstrom"


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """The facts. ``has_begun``: the job was claimed, to resume from the snapshot ``began_from``. ``workers``: the last
    requested number of workers, 0 without a request. ``restarts``: the number of restarts. ``died_at_s``: when dead
    coordinators were replaced, in seconds since 1970. ``drain``: how the job is being stopped, if it is.
    ``last_known``: the last complete snapshot.
    """

    has_begun: bool = False
    workers: int = 0
    restarts: int = 0
    died_at_s: Sequence[float] = ()
    drain: bool | None = None
    last_known: str | None = None
    began_from: str | None = None


class CoordinatorJournal:
    """The journal of the coordinator in ``actor``. Without ``kept`` nothing is stored: no coordinator replaces it."""

    def __init__(self, actor: str, *, kept: bool) -> None:
        self._key = f"coordinator-{actor}".encode()
        self._kept = kept
        self._lock = threading.Lock()
        self.entry = self._read() if kept else JournalEntry()

    def has_begun(self, began_from: str | None = None) -> None:
        """Record that the job was claimed, to resume from this snapshot. The first call counts."""
        if not self.entry.has_begun:
            self._write(has_begun=True, began_from=began_from)

    def wanted(self, workers: int) -> None:
        """Record the requested number of workers."""
        self._write(workers=workers)

    def completed(self, snapshot: str) -> None:
        """Record the last complete snapshot."""
        if snapshot != self.entry.last_known:
            self._write(last_known=snapshot)

    def stopping(self, *, drain: bool) -> None:
        """Record that the job is being stopped."""
        self._write(drain=drain)

    def restarted(self, *, died_at_s: float | None = None) -> None:
        """Record a restart; ``died_at_s``: because the coordinator was found dead then."""
        died = self.entry.died_at_s if died_at_s is None else (*self.entry.died_at_s, died_at_s)
        self._write(restarts=self.entry.restarts + 1, died_at_s=died)

    def forget(self) -> None:
        """Delete the journal: the job has ended."""
        if self._kept:
            _store()._internal_kv_del(self._key, namespace=_NAMESPACE)

    def _write(self, **changes: Any) -> None:
        with self._lock:
            self.entry = replace(self.entry, **changes)
            if self._kept:
                _store()._internal_kv_put(self._key, json.dumps(asdict(self.entry)), namespace=_NAMESPACE)

    def _read(self) -> JournalEntry:
        data = _store()._internal_kv_get(self._key, namespace=_NAMESPACE)
        return JournalEntry() if data is None else JournalEntry(**json.loads(data))


def _store() -> Any:
    from ray.experimental import internal_kv

    return internal_kv
