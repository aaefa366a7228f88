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
    """The commit at the end of one run of a job, over the sink steps of all its workers."""

    def __init__(self, job: str, sinks: Sequence[WriteSink], now_s: float) -> None:
        self._steps: dict[str, list[WriteSink]] = {}
        self.join(sinks)
        snapshot = fresh_snapshot_id(now_s)
        self._contexts = {step: CommitContext(job, step, snapshot, incarnation=1) for step in self._steps}
        self._payloads: dict[str, list[bytes]] = {step: [] for step in self._steps}
        self._committed: list[str] = []

    def join(self, sinks: Sequence[WriteSink]) -> None:
        """Count in the ``sinks`` of a worker that has come."""
        for sink in sinks:
            if isinstance(sink.sink, TransactionalSink):
                self._steps.setdefault(sink.context.step, []).append(sink)

    def leave(self, sinks: Sequence[WriteSink]) -> None:
        """R8: pre-commit what the ``sinks`` of a worker that leaves have; it is made visible with all the rest."""
        for sink in sinks:
            if isinstance(sink.sink, TransactionalSink):
                self._pre_commit(sink)
                self._steps[sink.context.step].remove(sink)

    def recover(self) -> None:
        """Before anything is opened: have each sink clear what an earlier run left half done."""
        for step, writers in self._steps.items():
            try:
                _sink_of(writers).recover(self._contexts[step], [])
            except Exception as error:
                raise writers[0].error(error, "could not clear what an earlier run left") from error

    def pre_commit(self) -> None:
        """Have every writer make what it has durable but not visible. `abort` discards it."""
        for writers in self._steps.values():
            for writer in writers:
                self._pre_commit(writer)

    def commit(self) -> None:
        """Make visible what has been pre-committed. On a failure `abort` discards what is not committed yet."""
        for step, writers in self._steps.items():
            try:
                _sink_of(writers).commit(self._contexts[step], self._payloads[step])
            except Exception as error:
                done = f"; already visible: {', '.join(self._committed)}" if self._committed else ""
                raise writers[0].error(error, f"could not commit{done}") from error
            self._committed.append(step)

    @property
    def committed(self) -> Sequence[str]:
        """The sinks that have committed, by step: what they were given is visible."""
        return self._committed

    def abort(self) -> list[SinkError]:
        """Discard what was pre-committed but not committed. Returns what went wrong, for there is more to close."""
        errors: list[SinkError] = []
        for step, writers in self._steps.items():
            if step not in self._committed:
                try:
                    _sink_of(writers).abort(self._contexts[step], self._payloads[step])
                except Exception as error:
                    errors.append(writers[0].error(error, "could not discard what was not committed"))
        return errors

    def _pre_commit(self, sink: WriteSink) -> None:
        step = sink.context.step
        try:
            payload = sink.writer.pre_commit(self._contexts[step])  # type: ignore[union-attr]
        except Exception as error:
            raise sink.error(error, "could not pre-commit") from error
        self._payloads[step].append(payload)


def _sink_of(writers: list[WriteSink]) -> TransactionalSink:
    return writers[0].sink  # type: ignore[return-value]  # only transactional ones were kept
