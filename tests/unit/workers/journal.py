"""A transactional sink that records every call, and fails where a test wants it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from malstrom_py.data.batch import Batch
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.worker_context import WorkerInfo


class Journal:
    """What happened, as ``"sink: call"``, in one order over all sinks that share it."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.contexts: list[CommitContext] = []

    def calls(self, sink: str) -> list[str]:
        return [call for name, call in (entry.split(": ") for entry in self.entries) if name == sink]


class JournalSink:
    """Shows in ``visible`` what was committed. ``failing`` names the calls that raise ``error``."""

    def __init__(self, name: str, journal: Journal, failing: str = "", error: BaseException | None = None) -> None:
        self.name = name
        self.journal = journal
        self.failing = failing.split()
        self.error = error or OSError(28, "No space left on device")
        self.staged: dict[bytes, list[Any]] = {}
        self.visible: list[Any] = []

    def note(self, call: str) -> None:
        self.journal.entries.append(f"{self.name}: {call}")
        if call in self.failing:
            raise self.error

    def open(self, worker: WorkerInfo) -> JournalWriter:
        self.note("open")
        return JournalWriter(self)

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        self.journal.contexts.append(context)
        self.note("commit")
        for payload in payloads:
            self.visible += self.staged.pop(payload)

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        self.note("abort")
        for payload in payloads:
            self.staged.pop(payload, None)

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        self.note("recover")


class JournalWriter:
    def __init__(self, sink: JournalSink) -> None:
        self._sink = sink
        self._written: list[Any] = []

    def write(self, batch: Batch) -> None:
        self._sink.note("write")
        self._written += batch.values

    def pre_commit(self, context: CommitContext) -> bytes:
        self._sink.journal.contexts.append(context)
        self._sink.note("pre_commit")
        self._sink.staged[b"payload"], self._written = self._written, []
        return b"payload"

    def close(self) -> None:
        self._sink.note("close")


class PlainSink:
    """A sink without transactions over the same journal: its output is visible immediately."""

    def __init__(self, name: str, journal: Journal, failing: str = "") -> None:
        self.name = name
        self.journal = journal
        self.failing = failing
        self.visible: list[Any] = []

    def build(self, worker: WorkerInfo) -> PlainSink:
        self._note("build")
        return self

    def write(self, batch: Batch) -> None:
        self._note("write")
        self.visible += batch.values

    def close(self) -> None:
        self._note("close")

    def _note(self, call: str) -> None:
        self.journal.entries.append(f"{self.name}: {call}")
        if call == self.failing:
            raise OSError(28, "No space left on device")
