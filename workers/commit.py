"""The end of a job without snapshots: every transactional writer pre-commits, then every sink commits.

Rule: nothing is committed before all have pre-committed, so that a failure on the way leaves nothing visible. Writers
pre-commit where they are, on their workers; one place commits, with the payloads that have come from everywhere.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from malstrom_py.errors import SinkError
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.sinks.base import CommitContext, SnapshotId, TransactionalSink
from malstrom_py.workers.result import RunResult, as_plain

Contexts = Mapping[str, CommitContext]
"""What each step commits under."""


def fresh_snapshot_id(now_s: float) -> SnapshotId:
    """A time-sortable id that is never given twice.

    >>> fresh_snapshot_id(0.0)[:22]
    '19700101T000000000000Z'
    """
    return SnapshotId(f"{datetime.fromtimestamp(now_s, UTC):%Y%m%dT%H%M%S%fZ}-{secrets.token_hex(4)}")


def pre_committed(sinks: Iterable[WriteSink], contexts: Contexts) -> Iterator[tuple[str, bytes]]:
    """Have each of the ``sinks`` of one worker make what it has durable but not visible: its step and its payload, one
    by one, so that what is made before one fails is known.
    """
    for sink in sinks:
        if isinstance(sink.sink, TransactionalSink):
            step = sink.context.step
            try:
                payload = sink.writer.pre_commit(contexts[step])  # type: ignore[union-attr]
            except Exception as error:
                raise sink.error(error, "could not pre-commit") from error
            yield step, payload


class FinalCommit:
    """The commit at the end of one run of a job. ``sinks``: its sink steps, one of each, not to be written to.

    ``deliver``: this is not the program that started the job, so what is to be committed there is kept for it, held,
    and discarded if the job fails.
    """

    def __init__(self, job: str, sinks: Iterable[WriteSink], now_s: float, *, deliver: bool = False) -> None:
        steps = {sink.context.step: sink for sink in sinks if isinstance(sink.sink, TransactionalSink)}
        self._all = steps
        self._steps = {step: sink for step, sink in steps.items() if not (deliver and commits_in_driver(sink))}
        self.snapshot = fresh_snapshot_id(now_s)
        self.contexts = {step: CommitContext(job, step, self.snapshot, incarnation=1) for step in steps}
        self._payloads: dict[str, list[bytes]] = {step: [] for step in steps}
        self._committed: list[str] = []
        self._held: dict[str, list[Callable[[], None]]] = {step: [] for step in steps}

    def to_deliver(self) -> list[tuple[str, bytes]]:
        """What is to be committed in the program that started the job: steps and payloads, as `add` takes them."""
        kept = ((step, payloads) for step, payloads in self._payloads.items() if step not in self._steps)
        return [(step, payload) for step, payloads in kept for payload in payloads]

    def take_over(self, snapshot: SnapshotId, payloads: Iterable[tuple[str, bytes]]) -> None:
        """Count in what another committer of this run has to deliver, to be committed under its ``snapshot``."""
        self.snapshot = snapshot
        self.contexts = {step: replace(context, snapshot=snapshot) for step, context in self.contexts.items()}
        self.add(payloads)

    def add(self, payloads: Iterable[tuple[str, bytes]]) -> None:
        """Count in what a worker has pre-committed, at the end or because it leaves (R8), before its writers close."""
        for step, payload in payloads:
            self._payloads[step].append(payload)
            sink = self._all[step]
            hold = getattr(sink.sink, "hold", None)
            if hold is not None:
                try:
                    self._held[step].append(hold(self.contexts[step], [payload]))
                except Exception as error:
                    raise sink.error(error, "could not keep what was pre-committed") from error

    def recover(self) -> None:
        """Before anything is opened: have each sink clear what an earlier run left half done."""
        for step, sink in self._steps.items():
            try:
                _transactional(sink).recover(self.contexts[step], [])
            except Exception as error:
                raise sink.error(error, "could not be made ready") from error

    def commit(self, result: RunResult | None = None) -> None:
        """Make visible what has been pre-committed by a run that has done ``result``. On a failure `abort` discards
        what is not committed yet."""
        plain = None if result is None else as_plain(result)
        for step, sink in self._steps.items():
            try:
                _transactional(sink).commit(replace(self.contexts[step], result=plain), self._payloads[step])
            except Exception as error:
                done = f"; already visible: {', '.join(self._committed)}" if self._committed else ""
                raise sink.error(error, f"could not commit{done}") from error
            self._committed.append(step)
            self._let_go(step)

    @property
    def committed(self) -> list[str]:
        """The sinks that have committed, by step: what they were given is visible."""
        return self._committed

    def abort(self) -> list[SinkError]:
        """Discard what was pre-committed but not committed. Returns what went wrong, for there is more to close."""
        errors: list[SinkError] = []
        for step, sink in self._all.items():
            if step not in self._committed:
                try:
                    _transactional(sink).abort(self.contexts[step], self._payloads[step])
                except Exception as error:
                    errors.append(sink.error(error, "could not discard what was not committed"))
                self._let_go(step)
        return errors

    def _let_go(self, step: str) -> None:
        while self._held[step]:
            self._held[step].pop()()


def commits_in_driver(sink: WriteSink) -> bool:
    """Whether a sink shows what it was given in the program that started the job, and nowhere else."""
    return getattr(sink.sink, "commits_in_driver", False) is True


def _transactional(sink: WriteSink) -> TransactionalSink:
    return sink.sink  # type: ignore[return-value]  # only transactional ones were kept
