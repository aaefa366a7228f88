"""What the coordinator of a job on Ray journal down for the one that follows it, should it die: in Ray's own store.

Rule: a note says what no snapshot tells, and the next coordinator must not get wrong. It belongs to one start of the
job, and goes with its end. It is lost with the head of a cluster that does not keep what it knows; then a coordinator
that is started again goes by its setup and by the snapshots.
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
    """``has_begun``: the job was claimed, and ``began_from``: to go on from this snapshot. ``workers``: how many there
    are to be, 0 if nobody has said otherwise. ``restarts``: how often it went back to a snapshot. ``died_at_s``: when
    coordinators were found dead, in seconds since 1970. ``drain``: how it is to be stopped, if it is. ``stood``: the
    last snapshot that stood.
    """

    has_begun: bool = False
    workers: int = 0
    restarts: int = 0
    died_at_s: Sequence[float] = ()
    drain: bool | None = None
    stood: str | None = None
    began_from: str | None = None


class CoordinatorJournal:
    """The note of the coordinator whose actor is ``actor``. Without ``kept`` nothing is noted: nobody follows it."""

    def __init__(self, actor: str, *, kept: bool) -> None:
        self._key = f"coordinator-{actor}".encode()
        self._kept = kept
        self._lock = threading.Lock()
        self.entry = self._read() if kept else JournalEntry()

    def has_begun(self, began_from: str | None = None) -> None:
        """The job was claimed, to go on from this snapshot. What was noted first stays."""
        if not self.entry.has_begun:
            self._write(has_begun=True, began_from=began_from)

    def wanted(self, workers: int) -> None:
        """So many workers were asked for."""
        self._write(workers=workers)

    def stands(self, snapshot: str) -> None:
        """A snapshot is there that was not."""
        if snapshot != self.entry.stood:
            self._write(stood=snapshot)

    def stopping(self, *, drain: bool) -> None:
        """It is to be stopped."""
        self._write(drain=drain)

    def restarted(self, *, died_at_s: float | None = None) -> None:
        """It goes back to a snapshot, at ``died_at_s`` because its coordinator has died."""
        died = self.entry.died_at_s if died_at_s is None else (*self.entry.died_at_s, died_at_s)
        self._write(restarts=self.entry.restarts + 1, died_at_s=died)

    def forget(self) -> None:
        """The job has ended."""
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
