"""The coordinator's shell around its snapshot machine: has barriers go, manifests written, sinks commit.

Rule: what the machine decides is carried out in its order; what takes a store happens in the background, and what it
comes to is looked at in `turn`, by the thread of the run. A snapshot that fails ends the run (S6): what sinks have
pre-committed for it cannot be taken back while the job goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from malstrom_py.clock import Clock
from malstrom_py.errors import DeadlineError, MalstromError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import Checkpointer
from malstrom_py.snapshot.ids import next_snapshot_id
from malstrom_py.snapshot.manifest import Artefact, Manifest, PlanImage, artefact_path
from malstrom_py.snapshot.selection import copy_savepoint
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.snapshot.verification import load_verified
from malstrom_py.state.artefact import merged
from malstrom_py.workers.coordinator import snapshot_machine as machine
from malstrom_py.workers.coordinator.command_queue import SnapshotDone
from malstrom_py.workers.coordinator.machine import BarrierBegun, CutMade, SnapshotWanted
from malstrom_py.workers.coordinator.sink_commits import SinkCommits
from malstrom_py.workers.engine.background import Background
from malstrom_py.workers.engine.snapshot_capture import Cut, persistently, save
from malstrom_py.workers.reports.job_status import SnapshotStatus
from malstrom_py.workers.reports.result import RunResult, as_plain, from_plain
from malstrom_py.workers.transport.messages import Saved

_LOG: Final = logging.getLogger("malstrom_py")

SAVE_DEADLINE_S: Final = 600.0
"""How long a snapshot may take from the barrier that has passed to its manifest."""


@dataclass(frozen=True, slots=True)
class Request:
    """Somebody waits for the next snapshot; ``copy_to``: and for a copy of it there. ``last``: workers are to stop
    behind its barrier.
    """

    done: SnapshotDone
    copy_to: Snapshots | None = None
    last: bool = False


class Snapshotting:
    """Makes the snapshots of one incarnation of ``job`` as ``options`` say. ``pins``: what sources have pinned."""

    def __init__(
        self,
        job: str,
        plan: PlanImage,
        options: Snapshots,
        checkpointer: Checkpointer,
        *,
        incarnation: int,
        sequence: int,
        background: Background,
        commits: SinkCommits,
        clock: Clock,
        pins: Mapping[str, Any],
        count: Callable[[], RunResult],
        begun_from: Manifest | None = None,
    ) -> None:
        self.checkpointer = checkpointer
        self.background = background
        self._job = job
        self._options = options
        self._commits = commits
        self._clock = clock
        self._pins = pins
        self._count = count
        self._machine = machine.SnapshotMachine(
            job, plan, incarnation=incarnation, sequence=sequence, chain_max=options.chain_max
        )
        self._requests: list[Request] = []
        self._answered_by_this: list[Request] = []
        self._now: SnapshotId | None = None
        self._manifest: Manifest | None = None
        self._passed_s: float | None = None
        self._next_s = clock.monotonic_s() + (options.interval_s or 0.0)
        self._compacting: set[tuple[Artefact, ...]] = set()
        self._copying: list[tuple[Artefact, ...]] = []
        self._finishing = False
        self._is_final = False
        self.is_stopping = False
        """Whether workers are to stop behind a last barrier, or have."""
        self.has_stopped = False
        """Whether they have, and that snapshot is committed, which is noted."""
        self._is_last = False
        self._began_at_s = 0.0
        self._paused_s = 0.0
        self.completed = 0
        self._last = begun_from
        self.is_finished = False

    @property
    def status(self) -> SnapshotStatus:
        """How it stands with them. ``last`` is what the job would go on from, also where an earlier run has made it."""
        return SnapshotStatus.of(self._last, self.completed)

    @property
    def result(self) -> RunResult | None:
        """What the job has come to, as its last snapshot says; None before that stands."""
        return None if self._last is None or not self.is_finished else result_in(self._last)

    def due_s(self) -> float | None:
        """When the next one is to be begun, on the clock's monotonic time; None: not of itself, or one is made now."""
        if self._options.interval_s is None or self._machine.phase is not machine.Phase.IDLE:
            return None
        return self._next_s

    @property
    def phase(self) -> machine.Phase:
        """Where the snapshot of now stands."""
        return self._machine.phase

    @property
    def is_due(self) -> bool:
        """Whether a snapshot is to be begun."""
        if self._machine.phase is not machine.Phase.IDLE or self.is_finished or self._is_last:
            return False
        due_s = self.due_s()
        return bool(self._requests) or (due_s is not None and self._clock.monotonic_s() >= due_s)

    def ask(self, done: SnapshotDone, *, copy_to: str | None = None) -> None:
        """Have a snapshot begun that has in it all that has been read by now, and copied to ``copy_to``."""
        self._requests.append(Request(done, None if copy_to is None else self._options.elsewhere(copy_to)))

    def ask_last(self) -> None:
        """Have the workers stop behind the barrier of one more snapshot."""
        self.is_stopping = True
        self._requests.append(Request(lambda ended: None, last=True))

    def finish(self) -> None:
        """All has been read and written: have one more snapshot made, with the result of the job in it."""
        self._finishing = True
        self._requests.append(Request(lambda ended: None))

    def turn(self) -> list[SnapshotWanted]:
        """Take in what has been done in the background; the barrier that is to go, if one is."""
        self.background.turn()
        self._check_deadline()
        return self._begun() if self.is_due else []

    def barrier_begun(self, begun: BarrierBegun) -> None:
        """The barrier goes: what sinks pre-commit from now on outside it belongs to the snapshot behind it."""
        self._passed_s = None
        self._commits.next(next_snapshot_id(self._clock.now_s(), after=self._now))
        self._handle(begun)

    def cut_made(self, made: CutMade) -> None:
        """It has passed all workers."""
        self._passed_s = self._clock.monotonic_s()
        self._paused_s = made.paused_s
        self._handle(made)

    def save(self, cut: Cut) -> None:
        """Have the image of a worker of this process written down."""
        self.background.submit(partial(save, cut, self.checkpointer), self._came_back)

    def saved(self, saved: Saved) -> None:
        """A worker has written down its image."""
        self._commits.add(saved.payloads, SnapshotId(saved.snapshot))
        self._handle(saved)

    def close(self) -> None:
        """The run has ended. Nobody is told of snapshots that do not stand: they are asked of the next run."""
        self.background.close()

    def _begun(self) -> list[SnapshotWanted]:
        self._answered_by_this, self._requests = self._requests, []
        # One that is on its way when the job comes to its end has not seen that end.
        self._is_final = self._finishing
        self._began_at_s = self._clock.monotonic_s()
        self._now = self._commits.snapshot
        if self._options.interval_s is not None:
            self._next_s = self._clock.monotonic_s() + self._options.interval_s
        self._is_last = any(request.last for request in self._answered_by_this)
        effects = self._machine.handle(machine.Wanted(self._now, self._is_last))
        return [effect for effect in effects if isinstance(effect, SnapshotWanted)]

    def _handle(self, event: machine.Event) -> None:
        for effect in self._machine.handle(event):
            match effect:
                case machine.StoreManifest():
                    self._store(effect.manifest)
                case machine.CommitSinks():
                    self._commit_sinks(effect.snapshot)
                case machine.Completed():
                    self._complete(effect)
                case SnapshotWanted():
                    """Carried out by whoever called `turn`."""

    def _came_back(self, result: Saved | BaseException) -> None:
        if isinstance(result, BaseException):
            raise result
        self.saved(result)

    def _store(self, manifest: Manifest) -> None:
        now = datetime.fromtimestamp(self._clock.now_s(), UTC)
        self._manifest = manifest = replace(
            manifest,
            created=now.isoformat(),
            sinks=self._commits.payloads(manifest.id),
            pins=self._pins,
            result=self._result() if self._is_final else None,
        )
        checkpointer = self.checkpointer
        # From here on it may stand, whether this run learns of it or not.
        self._commits.may_stand(manifest.id)

        def store() -> None:
            persistently(lambda: checkpointer.save_manifest(manifest))
            persistently(lambda: checkpointer.update_latest(manifest.id))

        self.background.submit(store, self._stored)

    def _result(self) -> dict[str, Any]:
        """What the job has done, this snapshot among it."""
        return as_plain(replace(self._count(), snapshots=self.completed + 1))

    def _stored(self, result: BaseException | None) -> None:
        if result is not None:
            raise result
        self._handle(machine.ManifestStored())

    def _commit_sinks(self, snapshot: SnapshotId) -> None:
        self._commits.commit(self._count(), snapshot=snapshot, final=self._is_final)
        self._handle(machine.SinksCommitted())

    def _complete(self, completed: machine.Completed) -> None:
        self.completed += 1
        self._last, self._manifest = self._manifest, None
        self._tell()
        answered, self._answered_by_this = self._answered_by_this, []
        for request in answered:
            self._answer(request, completed.snapshot)
        if not self._is_final:
            for chain in completed.long:
                self._compact(chain)
        checkpointer, keep, now_s, spare = self.checkpointer, self._options.keep, self._clock.now_s(), self._in_use()

        def tidy() -> None:
            checkpointer.note_sinks_committed(completed.snapshot)
            # What is older than this snapshot, and belongs to none that stays, is on nobody's way any more.
            checkpointer.prune(keep, 0.0, now_s, spare=spare)

        self.background.submit(tidy, partial(self._tidied, self._is_final, self._is_last))

    def _in_use(self) -> set[str]:
        """Where artefacts lie that are read or written now, or that the next manifest names."""
        read = {artefact.path for chain in (*self._compacting, *self._copying) for artefact in chain}
        return self._machine.paths() | read | {_place_of(chain) for chain in self._compacting}

    def _tidied(self, is_final: bool, is_last: bool, result: object) -> None:
        """What could not be tidied up now is tidied up behind the next snapshot, or by the next start."""
        if isinstance(result, BaseException):
            _LOG.warning("job %s: could not tidy up behind a snapshot: %s", self._job, result)
        self.is_finished = self.is_finished or is_final
        self.has_stopped = self.has_stopped or is_last

    def _tell(self) -> None:
        assert self._last is not None
        took_s = self._clock.monotonic_s() - self._began_at_s
        written = sum(artefact.size for artefact in self._last.artefacts if artefact.snapshot == self._last.id)
        _LOG.info(
            "job %s: snapshot %s stands: workers paused for at most %.4f s, %d bytes written, %.3f s in all",
            *(self._job, self._last.id, self._paused_s, written, took_s),
        )

    def _answer(self, request: Request, snapshot: SnapshotId) -> None:
        if request.copy_to is None:
            request.done(snapshot)
            return
        assert self._last is not None
        copy_to, manifest = request.copy_to, self._last
        self._copying.append(tuple(manifest.artefacts))

        def told(result: SnapshotId | BaseException) -> None:
            self._copying.remove(tuple(manifest.artefacts))
            if isinstance(result, BaseException) and not isinstance(result, MalstromError):
                raise result
            request.done(result)

        self.background.submit(
            lambda: copy_savepoint(manifest, self.checkpointer, copy_to.in_store(self._job), self._clock.now_s()), told
        )

    def _compact(self, chain: tuple[Artefact, ...]) -> None:
        """S2: off the worker. While one of a chain is being compacted, its longer forms wait."""
        if any(chain[: len(other)] == other for other in self._compacting):
            return
        self._compacting.add(chain)
        work = partial(_compacted, chain, self.checkpointer)
        self.background.submit(work, partial(self._was_compacted, chain), urgent=False)

    def _was_compacted(self, chain: tuple[Artefact, ...], result: Artefact | BaseException) -> None:
        """One that failed is begun again behind the next snapshot, by a chain that is longer then."""
        self._compacting.discard(chain)
        if isinstance(result, BaseException):
            _LOG.warning("job %s: a chain of step %s was not compacted: %s", self._job, chain[-1].operator, result)
        else:
            self._handle(machine.Compacted(chain, result))

    def _check_deadline(self) -> None:
        waits = self._machine.phase in {machine.Phase.SAVING, machine.Phase.COMMITTING}
        # How long a barrier may take to pass is `Coordination.check_deadline`'s to say.
        passed_s = self._passed_s if waits else None
        if passed_s is not None and self._clock.monotonic_s() - passed_s > SAVE_DEADLINE_S:
            raise DeadlineError(
                f"job {self._job!r}: snapshot {self._now} has not been written to {self.checkpointer} within "
                f"{SAVE_DEADLINE_S:g} s: see whether the store answers",
                wait=f"snapshot {self._now} to be written",
                deadline_s=SAVE_DEADLINE_S,
            )


def result_in(manifest: Manifest) -> RunResult | None:
    """The result of the job that finished with the snapshot ``manifest``; None: it has not, it can be gone on with."""
    return None if manifest.result is None else replace(from_plain(manifest.result), last_snapshot=manifest.id)


def _compacted(chain: Sequence[Artefact], checkpointer: Checkpointer) -> Artefact:
    """What ``chain`` holds, as one artefact."""
    last = chain[-1]
    data = merged([load_verified(checkpointer, artefact) for artefact in chain])
    sha256 = persistently(lambda: checkpointer.save_compacted(last.snapshot, last.operator, last.partition, data))
    return Artefact(last.operator, last.partition, "full", last.snapshot, _place_of(chain), len(data), sha256)


def _place_of(chain: Sequence[Artefact]) -> str:
    """Where a chain is put that has been made into one."""
    last = chain[-1]
    return artefact_path(last.snapshot, last.operator, last.partition, "full", compacted=True)
