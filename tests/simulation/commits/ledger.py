"""A target in memory whose sink keeps its contract, and sinks on it that are wrong: each must be seen by its rows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from malstrom_py.data.batch import Batch
from malstrom_py.sinks.base import CommitContext, SnapshotId, is_left_over
from malstrom_py.worker_context import WorkerInfo
from tests.simulation.commits.hooks import Row, row_of
from tests.simulation.commits.lives import at, on_disk


class Ledger:
    """The target: ``pages`` holds the rows of each pre-commit, ``shown`` the numbers of the visible ones."""

    def __init__(self) -> None:
        self.pages: dict[int, tuple[str, list[Row]]] = {}
        self.shown: list[int] = []
        self.marks: set[str] = set()
        self.numbers = itertools.count()

    def rows(self) -> list[Row]:
        """Return the visible rows."""
        return [row for number in self.shown if number in self.pages for row in self.pages[number][1]]

    def step(self, change: Any, *arguments: Any) -> None:
        """Change something, with a point before and after."""
        on_disk(change)(*arguments)

    def show(self, number: int) -> None:
        """Make a page visible."""
        if number not in self.shown:
            self.shown.append(number)

    def discard(self, number: int) -> None:
        """Remove a page that is not visible."""
        if number not in self.shown:
            self.pages.pop(number, None)


class Entries:
    """The sink of a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def open(self, worker: WorkerInfo) -> EntriesWriter:
        return EntriesWriter(self)

    def payload(self, context: CommitContext, number: int) -> bytes:
        """Return what names a page."""
        return json.dumps(number).encode()

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self.ledger.step(self.ledger.show, json.loads(payload))

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self.ledger.step(self.ledger.discard, json.loads(payload))

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        for number, (snapshot, _) in list(self.ledger.pages.items()):
            if is_left_over(snapshot, context, committed):
                self.ledger.step(self.ledger.discard, number)


class EntriesWriter:
    def __init__(self, sink: Entries) -> None:
        self.sink = sink
        self.written: list[Row] = []

    def write(self, batch: Batch) -> None:
        self.written += map(row_of, batch.values)

    def pre_commit(self, context: CommitContext) -> bytes:
        ledger, number = self.sink.ledger, next(self.sink.ledger.numbers)
        ledger.pages[number] = (context.snapshot, self.written)
        self.written = []
        return self.sink.payload(context, number)

    def close(self) -> None:
        self.written = []


class CommitsTwice(Entries):
    """Adds the rows with each call."""

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self.ledger.shown.append(json.loads(payload))


class PublishesEarly(Entries):
    """Shows rows at their pre-commit."""

    def payload(self, context: CommitContext, number: int) -> bytes:
        self.ledger.show(number)
        return super().payload(context, number)


class RecoverDeletesCommitted(Entries):
    """Discards all rows that wait, also those of durable manifests."""

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        super().recover(context, [])


class RecoverDeletesNewer(Entries):
    """Discards rows of a later start."""

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        for number, (snapshot, _) in list(self.ledger.pages.items()):
            if snapshot not in committed:
                self.ledger.discard(number)


class AbortDeletesOthers(Entries):
    """Discards all rows that wait."""

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        for number in list(self.ledger.pages):
            self.ledger.discard(number)


class MarksFirst(Entries):
    """Notes that a snapshot is committed before its rows are visible."""

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        if context.snapshot in self.ledger.marks:
            return
        self.ledger.marks.add(context.snapshot)
        super().commit(context, payloads)


class ForgetsAPayload(Entries):
    """Commits all payloads but the last of several."""

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        super().commit(context, payloads[:-1] or payloads)


class MarksLast(Entries):
    """Repeats rows after a commit that was interrupted: it knows only commits that are complete."""

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        if context.snapshot in self.ledger.marks:
            return
        for payload in payloads:
            self.ledger.step(self.ledger.shown.append, json.loads(payload))
        self.ledger.marks.add(context.snapshot)


class TakesBack(Entries):
    """Undoes its commit if the snapshot of a later start is there: a zombie takes back what others have committed."""

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        numbers = [json.loads(payload) for payload in payloads]
        at("a step of commit", "before")
        if any(snapshot > context.snapshot for snapshot, _ in self.ledger.pages.values()):
            self.ledger.shown[:] = [number for number in self.ledger.shown if number not in numbers]
            return
        super().commit(context, payloads)


WRONG: tuple[type[Entries], ...] = (
    CommitsTwice,
    PublishesEarly,
    RecoverDeletesCommitted,
    RecoverDeletesNewer,
    AbortDeletesOthers,
    MarksFirst,
    ForgetsAPayload,
    MarksLast,
    TakesBack,
)
