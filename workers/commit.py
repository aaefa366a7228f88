"""The end of a job without snapshots: every transactional sink pre-commits, then every one commits.

Rule: nothing is committed before all have pre-committed, so that a failure on the way leaves nothing visible.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

from malstrom_py.errors import SinkError
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.sinks.base import CommitContext, SnapshotId, TransactionalSink


def fresh_snapshot_id(now_s: float) -> SnapshotId:
    """A time-sortable id that is never given twice.

    >>> fresh_snapshot_id(0.0)[:22]
    '19700101T000000000000Z'
    """
    return SnapshotId(f"{datetime.fromtimestamp(now_s, UTC):%Y%m%dT%H%M%S%fZ}-{secrets.token_hex(4)}")


class FinalCommit:
    """The commit at the end of one run of a job, over the sinks of its worker."""

    def __init__(self, job: str, sinks: Sequence[WriteSink], now_s: float) -> None:
        self._sinks = sinks
        snapshot = fresh_snapshot_id(now_s)
        self._contexts = {
            sink.context.step: CommitContext(job, sink.context.step, snapshot, incarnation=1) for sink in sinks
        }
        self._payloads: dict[str, list[bytes]] = {}
        self._committed: list[str] = []

    def recover(self) -> None:
        """Before anything is opened: have each sink clear what an earlier run left half done."""
        for step in self._sinks:
            if isinstance(step.sink, TransactionalSink):
                try:
                    step.sink.recover(self._contexts[step.context.step], [])
                except Exception as error:
                    raise step.error(error, "could not clear what an earlier run left") from error

    def commit(self) -> None:
        """Pre-commit all, then commit all. On a failure `abort` discards what is not committed yet."""
        for step in self._sinks:
            name, writer = step.context.step, step.writer
            if isinstance(step.sink, TransactionalSink):
                try:
                    self._payloads[name] = [writer.pre_commit(self._contexts[name])]  # type: ignore[union-attr]
                except Exception as error:
                    raise step.error(error, "could not pre-commit") from error
        for step in self._sinks:
            name = step.context.step
            if isinstance(step.sink, TransactionalSink):
                try:
                    step.sink.commit(self._contexts[name], self._payloads[name])
                except Exception as error:
                    done = f"; already visible: {', '.join(self._committed)}" if self._committed else ""
                    raise step.error(error, f"could not commit{done}") from error
                self._committed.append(name)

    @property
    def committed(self) -> Sequence[str]:
        """The sinks that have committed, by step: what they were given is visible."""
        return self._committed

    def abort(self) -> list[SinkError]:
        """Discard what was pre-committed but not committed. Returns what went wrong, for there is more to close."""
        errors: list[SinkError] = []
        for step in self._sinks:
            name = step.context.step
            if isinstance(step.sink, TransactionalSink) and name not in self._committed:
                try:
                    step.sink.abort(self._contexts[name], self._payloads.get(name, []))
                except Exception as error:
                    errors.append(step.error(error, "could not discard what was not committed"))
        return errors
