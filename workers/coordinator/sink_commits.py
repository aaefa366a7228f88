"""The two-phase commit of transactional sinks: once at the end of a job, or with each of its snapshots.

Rule: nothing is committed before all sinks have pre-committed, so that a failure before leaves nothing visible; with
snapshots, nothing is committed before the manifest that names it is durable (S3). Writers pre-commit on their workers;
one place commits, with the payloads of all workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from malstrom_py.errors import SinkError
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.sinks.base import BaseTransactionalSink, CommitContext, SnapshotId, target_of
from malstrom_py.snapshot.ids import fresh_snapshot_id
from malstrom_py.workers.reports.result import RunResult, as_plain

Contexts = Mapping[str, CommitContext]
"""The commit context of each step."""


def pre_committed(sinks: Iterable[WriteSink], contexts: Contexts) -> Iterator[tuple[str, bytes]]:
    """Pre-commit the ``sinks`` of one worker, which makes their output durable but not visible.

    Yields the step and the payload of each sink, one by one: the payloads before a failure are known.
    """
    for sink in sinks:
        if sink.transactional is not None:
            step = sink.context.step
            yield step, sink.pre_commit(contexts[step])


class _Committed(NamedTuple):
    step: WriteSink
    sink: BaseTransactionalSink


class SinkCommits:
    """The commits of one run of a job. ``sinks``: one instance of each sink step, used for commits only.

    ``snapshot``: the id of the next commit; without snapshots there is only one commit. ``deliver``: this is not the
    program that started the job; payloads for that program are kept until it commits them, and discarded if the job
    fails. ``stored``: payloads may be in a store, or come from one.
    """

    def __init__(
        self, job: str, sinks: Iterable[WriteSink], now_s: float, *, deliver: bool = False, stored: bool = True
    ) -> None:
        given = [(sink, sink.transactional) for sink in sinks]
        self._job = job
        self._stored = stored
        self._all = {step.context.step: _Committed(step, sink) for step, sink in given if sink is not None}
        self._steps = {name: one for name, one in self._all.items() if not (deliver and one.sink.commits_in_driver)}
        self.snapshot = fresh_snapshot_id(now_s)
        self._incarnation = 1
        self._payloads: dict[SnapshotId, dict[str, list[bytes]]] = {}
        self._durable: set[SnapshotId] = set()
        self._done: list[tuple[SnapshotId, str]] = []
        self._held: dict[tuple[SnapshotId, str], list[Callable[[], None]]] = {}

    @property
    def any(self) -> bool:
        """Whether the job has a transactional sink."""
        return bool(self._all)

    def adding(self) -> list[str]:
        """Return the steps whose sinks append to a folder or a table that may have rows."""
        targets = {step: target_of(one.sink) for step, one in self._all.items()}
        return [step for step, target in targets.items() if target is not None and target.may_show_rows()]

    @property
    def contexts(self) -> dict[str, CommitContext]:
        """The context under which each step pre-commits now."""
        return {step: self._context(step, self.snapshot) for step in self._all}

    def claimed(self, incarnation: int) -> None:
        """Commit as ``incarnation`` of the job, which has claimed it."""
        self._incarnation = incarnation

    def next(self, snapshot: SnapshotId) -> None:
        """Pre-commit under ``snapshot`` from now on: the barrier of the snapshot before it has been injected (S1)."""
        self.snapshot = snapshot

    def to_deliver(self, snapshot: SnapshotId | None = None) -> list[tuple[str, bytes]]:
        """Return the steps and payloads to commit in the program that started the job, as `add` takes them."""
        payloads = self._payloads.get(snapshot or self.snapshot, {})
        kept = ((step, some) for step, some in payloads.items() if step not in self._steps)
        return [(step, payload) for step, some in kept for payload in some]

    def add(self, payloads: Iterable[tuple[str, bytes]], snapshot: SnapshotId | None = None) -> None:
        """Add the payloads that a worker has pre-committed under ``snapshot``: at a barrier, at the end, or on leaving
        (R8).
        """
        snapshot = snapshot or self.snapshot
        for step, payload in payloads:
            self._payloads.setdefault(snapshot, {}).setdefault(step, []).append(payload)
            one = self._all[step]
            try:
                release = one.sink.hold(self._context(step, snapshot), [payload])
            except Exception as error:
                raise one.step.error(error, "could not keep its pre-committed output") from error
            self._held.setdefault((snapshot, step), []).append(release)

    def payloads(self, snapshot: SnapshotId) -> dict[str, tuple[bytes, ...]]:
        """Return all payloads under ``snapshot``, by step, for its manifest."""
        return {step: tuple(some) for step, some in self._payloads.get(snapshot, {}).items()}

    def may_be_durable(self, snapshot: SnapshotId) -> None:
        """Keep the payloads of ``snapshot`` from now on, because its manifest is being written.

        If the manifest does not become durable, `recover` of the next run discards them.
        """
        self._durable.add(snapshot)

    def take_over(self, snapshot: SnapshotId, payloads: Iterable[tuple[str, bytes]], *, durable: bool = False) -> None:
        """Add payloads of ``snapshot`` from another process, or from its manifest if the snapshot is ``durable``.

        They are committed next, perhaps again. Payloads of unknown steps are left out.
        """
        self.snapshot = snapshot
        self.add((step, payload) for step, payload in payloads if step in self._all)
        if durable:
            self.may_be_durable(snapshot)

    def recover(self, committed: Sequence[SnapshotId] = ()) -> None:
        """Remove the unfinished output of earlier runs, before any sink opens. ``committed``: the durable snapshots."""
        for step, one in self._steps.items():
            try:
                one.sink.recover(self._context(step, self.snapshot), committed)
            except Exception as error:
                raise one.step.error(error, "could not be prepared") from error

    def commit(
        self, result: RunResult | None = None, *, snapshot: SnapshotId | None = None, final: bool = True
    ) -> None:
        """Make the output under ``snapshot`` visible. ``result``: the counts of the run; ``final``: the last commit.

        After a failure `abort` discards the output that is not committed, unless its snapshot is durable.
        """
        snapshot = snapshot or self.snapshot
        plain = None if result is None else as_plain(result)
        payloads, self._done = self._payloads.get(snapshot, {}), []
        for step, one in self._steps.items():
            context = replace(self._context(step, snapshot), result=plain, final=final)
            try:
                one.sink.commit(context, payloads.get(step, []))
            except Exception as error:
                done = f"; already visible: {', '.join(self.committed)}" if self._done else ""
                raise one.step.error(error, f"could not commit{done}") from error
            self._done.append((snapshot, step))
            self._release(snapshot, step)
            payloads.pop(step, None)
        if not payloads:
            self._payloads.pop(snapshot, None)
            self._durable.discard(snapshot)

    @property
    def committed(self) -> list[str]:
        """The steps of the last commit: their output is visible."""
        return [step for _, step in self._done]

    def delivered(self, snapshot: SnapshotId) -> None:
        """Release the payloads that the program that started the job has committed."""
        for step in self._payloads.pop(snapshot, {}):
            self._release(snapshot, step)

    def abort(self) -> list[SinkError]:
        """Discard the uncommitted output that belongs to no durable snapshot. Return the errors."""
        errors: list[SinkError] = []
        open_now = {self.snapshot: self._payloads.get(self.snapshot, {}), **self._payloads}
        for snapshot, payloads in open_now.items():
            for step, one in self._all.items():
                if snapshot not in self._durable and (snapshot, step) not in self._done:
                    try:
                        one.sink.abort(self._context(step, snapshot), payloads.get(step, []))
                    except Exception as error:
                        errors.append(one.step.error(error, "could not discard its uncommitted output"))
                self._release(snapshot, step)
        return errors

    def _context(self, step: str, snapshot: SnapshotId) -> CommitContext:
        stored = self._stored or snapshot in self._durable
        return CommitContext(self._job, step, snapshot, self._incarnation, stored=stored)

    def _release(self, snapshot: SnapshotId, step: str) -> None:
        for release in self._held.pop((snapshot, step), []):
            release()
