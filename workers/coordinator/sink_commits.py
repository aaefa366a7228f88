"""What transactional sinks have pre-committed, and its commit: once at the end of a job, or with each of its snapshots.

Rule: nothing is committed before all have pre-committed, so that a failure on the way leaves nothing visible; with
snapshots, nothing before the manifest that names it is durable (S3). Writers pre-commit where they are, on their
workers; one place commits, with the payloads that have come from everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from malstrom_py.errors import SinkError
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.sinks.base import CommitContext, SnapshotId, TransactionalSink
from malstrom_py.sinks.output_record import Target
from malstrom_py.snapshot.ids import fresh_snapshot_id
from malstrom_py.workers.reports.result import RunResult, as_plain

Contexts = Mapping[str, CommitContext]
"""What each step commits under."""


def pre_committed(sinks: Iterable[WriteSink], contexts: Contexts) -> Iterator[tuple[str, bytes]]:
    """Have each of the ``sinks`` of one worker make what it has durable but not visible: its step and its payload, one
    by one, so that what is made before one fails is known.
    """
    for sink in sinks:
        if isinstance(sink.sink, TransactionalSink):
            step = sink.context.step
            yield step, sink.pre_commit(contexts[step])


class SinkCommits:
    """The commits of one run of a job. ``sinks``: its sink steps, one of each, not to be written to.

    ``snapshot``: the id of the next commit, under which is pre-committed; without snapshots there is but one.
    ``deliver``: this is not the program that started the job, so what is to be committed there is kept for it, held,
    and discarded if the job fails.
    """

    def __init__(self, job: str, sinks: Iterable[WriteSink], now_s: float, *, deliver: bool = False) -> None:
        steps = {sink.context.step: sink for sink in sinks if isinstance(sink.sink, TransactionalSink)}
        self._job = job
        self._all = steps
        self._steps = {step: sink for step, sink in steps.items() if not (deliver and commits_in_driver(sink))}
        self.snapshot = fresh_snapshot_id(now_s)
        self.incarnation = 1
        self._payloads: dict[SnapshotId, dict[str, list[bytes]]] = {}
        self._durable: set[SnapshotId] = set()
        self._done: list[tuple[SnapshotId, str]] = []
        self._held: dict[tuple[SnapshotId, str], list[Callable[[], None]]] = {}

    @property
    def any(self) -> bool:
        """Whether there is a sink that commits."""
        return bool(self._all)

    def adding(self) -> list[str]:
        """The steps whose sinks add to a folder or a table that is not known to be empty."""
        targets = {step: getattr(sink.sink, "target", None) for step, sink in self._all.items()}
        return [step for step, target in targets.items() if isinstance(target, Target) and target.may_show_rows()]

    @property
    def contexts(self) -> dict[str, CommitContext]:
        """What each step pre-commits under now."""
        return {step: self._context(step, self.snapshot) for step in self._all}

    def next(self, snapshot: SnapshotId) -> None:
        """From now on it is pre-committed under ``snapshot``: the barrier of the one before has gone (S1)."""
        self.snapshot = snapshot

    def to_deliver(self, snapshot: SnapshotId | None = None) -> list[tuple[str, bytes]]:
        """What is to be committed in the program that started the job: steps and payloads, as `add` takes them."""
        payloads = self._payloads.get(snapshot or self.snapshot, {})
        kept = ((step, some) for step, some in payloads.items() if step not in self._steps)
        return [(step, payload) for step, some in kept for payload in some]

    def add(self, payloads: Iterable[tuple[str, bytes]], snapshot: SnapshotId | None = None) -> None:
        """Count in what a worker has pre-committed under ``snapshot``, before its writers close: at a barrier, at the
        end, or because it leaves (R8).
        """
        snapshot = snapshot or self.snapshot
        for step, payload in payloads:
            self._payloads.setdefault(snapshot, {}).setdefault(step, []).append(payload)
            sink = self._all[step]
            hold = getattr(sink.sink, "hold", None)
            if hold is not None:
                try:
                    let_go = hold(self._context(step, snapshot), [payload])
                except Exception as error:
                    raise sink.error(error, "could not keep what was pre-committed") from error
                self._held.setdefault((snapshot, step), []).append(let_go)

    def payloads(self, snapshot: SnapshotId) -> dict[str, tuple[bytes, ...]]:
        """All that was pre-committed under ``snapshot``, by step: for its manifest."""
        return {step: tuple(some) for step, some in self._payloads.get(snapshot, {}).items()}

    def may_stand(self, snapshot: SnapshotId) -> None:
        """The manifest of ``snapshot`` is being written: what it names is not discarded here any more. If it does not
        come to stand, the next run finds out, and has it discarded by `recover`.
        """
        self._durable.add(snapshot)

    def take_over(self, snapshot: SnapshotId, payloads: Iterable[tuple[str, bytes]], *, stands: bool = False) -> None:
        """Count in what was pre-committed under ``snapshot`` in another process, or for the manifest of one that
        ``stands``: it is to be committed here next, perhaps again. What is of no sink here is left out.
        """
        self.snapshot = snapshot
        self.add((step, payload) for step, payload in payloads if step in self._all)
        if stands:
            self.may_stand(snapshot)

    def recover(self, committed: Sequence[SnapshotId] = ()) -> None:
        """Before anything is opened: have each sink clear what an earlier run left half done. ``committed``: the
        snapshots that stand.
        """
        for step, sink in self._steps.items():
            try:
                _transactional(sink).recover(self._context(step, self.snapshot), committed)
            except Exception as error:
                raise sink.error(error, "could not be made ready") from error

    def commit(
        self, result: RunResult | None = None, *, snapshot: SnapshotId | None = None, final: bool = True
    ) -> None:
        """Make visible what has been pre-committed under ``snapshot`` by a run that has done ``result``. ``final``:
        nothing follows. On a failure `abort` discards what is not committed yet, unless it stands.
        """
        snapshot = snapshot or self.snapshot
        plain = None if result is None else as_plain(result)
        payloads, self._done = self._payloads.get(snapshot, {}), []
        for step, sink in self._steps.items():
            context = replace(self._context(step, snapshot), result=plain, final=final)
            try:
                _transactional(sink).commit(context, payloads.get(step, []))
            except Exception as error:
                done = f"; already visible: {', '.join(self.committed)}" if self._done else ""
                raise sink.error(error, f"could not commit{done}") from error
            self._done.append((snapshot, step))
            self._let_go(snapshot, step)
            payloads.pop(step, None)
        if not payloads:
            self._payloads.pop(snapshot, None)
            self._durable.discard(snapshot)

    @property
    def committed(self) -> list[str]:
        """The sinks that have committed last, by step: what they were given is visible."""
        return [step for _, step in self._done]

    def delivered(self, snapshot: SnapshotId) -> None:
        """The program that started the job has committed what was kept for it."""
        for step in self._payloads.pop(snapshot, {}):
            self._let_go(snapshot, step)

    def abort(self) -> list[SinkError]:
        """Discard what was pre-committed but not committed, and belongs to no snapshot that stands. Returns what went
        wrong, for there is more to close.
        """
        errors: list[SinkError] = []
        open_now = {self.snapshot: self._payloads.get(self.snapshot, {}), **self._payloads}
        for snapshot, payloads in open_now.items():
            for step, sink in self._all.items():
                if snapshot not in self._durable and (snapshot, step) not in self._done:
                    try:
                        _transactional(sink).abort(self._context(step, snapshot), payloads.get(step, []))
                    except Exception as error:
                        errors.append(sink.error(error, "could not discard what was not committed"))
                self._let_go(snapshot, step)
        return errors

    def _context(self, step: str, snapshot: SnapshotId) -> CommitContext:
        return CommitContext(self._job, step, snapshot, self.incarnation)

    def _let_go(self, snapshot: SnapshotId, step: str) -> None:
        for let_go in self._held.pop((snapshot, step), []):
            let_go()


def commits_in_driver(sink: WriteSink) -> bool:
    """Whether a sink shows what it was given in the program that started the job, and nowhere else."""
    return getattr(sink.sink, "commits_in_driver", False) is True


def _transactional(sink: WriteSink) -> TransactionalSink:
    return sink.sink  # type: ignore[return-value]  # only transactional ones were kept
