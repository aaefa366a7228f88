"""The contract of checkpointers: committed snapshots are kept whole, and a fenced start cannot commit."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from malstrom_py.errors import FencedError, MalstromError, SnapshotError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import Checkpointer
from malstrom_py.snapshot.log import JobStart
from malstrom_py.snapshot.manifest import Artefact, Kind, Manifest, PartImage, PlanImage, StepImage, artefact_path
from malstrom_py.snapshot.selection import latest_manifest
from malstrom_py.snapshot.user_checkpointer import methods
from malstrom_py.snapshot.verification import faults_of
from malstrom_py.testing.contracts.clauses import copied, require
from malstrom_py.testing.law_error import LawError

WHOLE: Final = "all methods are there"
KEPT: Final = "artefacts come back"
LISTED: Final = "committed snapshots are listed"
ONCE: Final = "one snapshot per number"
FENCED: Final = "older starts are fenced"
NEWEST: Final = "the newest is found"
GROWING: Final = "ids grow"
NEEDED: Final = "nothing needed is removed"
PRUNED: Final = "pruning removes the rest"
NOTED: Final = "commits of sinks are noted"
ELSEWHERE: Final = "another process continues"
THREADS: Final = "threads do not mix"

_UNKNOWN: Final = SnapshotId("19991122T042242123456Z-1a2b3c4d")
_STEP: Final = "totals"
_PLAN: Final = PlanImage(64, {"read": StepImage("source"), _STEP: StepImage("sum", keyed=True, stateful=True)})
_THREADS: Final = 6
_PATIENCE_S: Final = 60.0


def check_checkpointer(
    make: Callable[[], Checkpointer],
    *,
    job: str = "contract",
    again: Callable[[Checkpointer], Checkpointer] | None = None,
) -> None:
    """Check the contract of `malstrom_py.Checkpointer` for the checkpointers of ``make``.

    ``make`` is called repeatedly, each time for an empty checkpointer of ``job``. ``again(checkpointer)`` returns
    another object with the same storage, as in another process: by default a copy by cloudpickle.

    >>> from malstrom_py.snapshot.checkpointer import StoreCheckpointer
    >>> from malstrom_py.snapshot.store import MemoryStore
    >>> check_checkpointer(
    ...     lambda: StoreCheckpointer(MemoryStore(), "contract"),
    ...     again=lambda checkpointer: StoreCheckpointer(checkpointer.store, "contract"),
    ... )

    Raises:
        LawError: a clause is broken: "all methods are there", "artefacts come back", "committed snapshots are listed",
            "one snapshot per number", "older starts are fenced", "the newest is found", "ids grow", "nothing needed is
            removed", "pruning removes the rest", "commits of sinks are noted", "another process continues" or "threads
            do not mix".
    """
    missing = [name for name in methods() if not callable(getattr(make(), name, None))]
    require(not missing, WHOLE, "a checkpointer has every method of mp.Checkpointer", f"missing: {', '.join(missing)}")
    _ContractCheck(make, job, again or copied).check()


class _Start:
    """One start of the job: records the start, then takes snapshots as workers and coordinator do."""

    def __init__(self, checkpointer: Checkpointer, job: str, *, now_s: float = 1e9, resume: str = "latest") -> None:
        self.checkpointer = checkpointer
        self.job = job
        self.now_s = now_s
        self.claim: JobStart = checkpointer.claim(now_s, resume=resume)
        require(isinstance(self.claim, JobStart), FENCED, "claim returns a JobStart", repr(self.claim))
        self.sequence = self.claim.sequence
        self.last: Manifest | None = None

    def new_id(self) -> SnapshotId:
        self.now_s += 10.0
        return self.checkpointer.next_id(self.now_s)

    def save(self, id: SnapshotId, contents: Sequence[bytes], *, delta: bool = False) -> list[Artefact]:
        listed = list(self.last.artefacts) if delta and self.last is not None else []
        save = self.checkpointer.save_delta if delta else self.checkpointer.save_snapshot
        for worker, data in enumerate(contents):
            kind: Kind = "delta" if delta else "full"
            made = _artefact(id, worker, kind, data)
            require(save(id, _STEP, worker, data) == made.sha256, KEPT, "saving returns the SHA-256 in hex", made.path)
            listed.append(made)
        return listed

    def manifest(self, id: SnapshotId, artefacts: Sequence[Artefact] = ()) -> Manifest:
        return Manifest(
            job=self.job,
            id=id,
            sequence=self.sequence + 1,
            incarnation=self.claim.incarnation,
            created="2026-11-22T04:22:42+00:00",
            workers=2,
            plan=_PLAN,
            artefacts=tuple(artefacts),
            sources={"read": {"a": PartImage(7), "b": PartImage({"row": 3}, finished=True)}},
            frontiers={_STEP: 1_000},
            sinks={"out": (b"rows-of-0", b"rows-of-1")},
        )

    def commit(self, made: Manifest) -> Manifest:
        self.checkpointer.save_manifest(made)
        self.checkpointer.update_latest(made.id)
        self.checkpointer.note_sinks_committed(made.id)
        self.sequence, self.last = made.sequence, made
        return made

    def take(self, *contents: bytes, delta: bool = False) -> Manifest:
        id = self.new_id()
        return self.commit(self.manifest(id, self.save(id, contents, delta=delta)))


@dataclass(frozen=True, slots=True)
class _ContractCheck:
    make: Callable[[], Checkpointer]
    job: str
    again: Callable[[Checkpointer], Checkpointer]

    def check(self) -> None:
        """Check all clauses. `LawError` names the first broken one."""
        self._check_artefacts()
        self._check_manifests()
        self._check_numbers()
        self._check_fences()
        self._check_newest()
        self._check_ids()
        self._check_removing()
        self._check_pruning()
        self._check_orphans()
        self._check_notes()
        self._check_elsewhere()
        self._check_threads()

    def _start(self) -> _Start:
        return _Start(self.make(), self.job)

    def _check_artefacts(self) -> None:
        start = self._start()
        keeps, id = start.checkpointer, start.new_id()
        for worker, data in enumerate((b"", b"all", bytes(range(256)) * 1_000)):
            start.save(id, [data] * (worker + 1))
            _require_artefact(keeps, artefact_path(id, _STEP, worker, "full"), data)
        keeps.save_delta(id, _STEP, 0, b"changed")
        keeps.save_compacted(id, _STEP, 0, b"one")
        _require_artefact(keeps, artefact_path(id, _STEP, 0, "delta"), b"changed")
        _require_artefact(keeps, artefact_path(id, _STEP, 0, "full", compacted=True), b"one")
        files = keeps.files()
        require(files == sorted(files), KEPT, "files are sorted", f"{files}")
        for path in (artefact_path(_UNKNOWN, _STEP, 0, "full"), "", "_latest"):
            _refused(partial(keeps.load_artifact, path), KEPT, f"artefact {path!r} does not exist")

    def _check_manifests(self) -> None:
        start = self._start()
        keeps = start.checkpointer
        start.save(start.new_id(), [b"never committed"])
        require(keeps.list_checkpoints() == [], LISTED, "an uncommitted snapshot is not listed")
        require(keeps.read_latest() is None, LISTED, "read_latest is None without a committed snapshot")
        made = [start.take(b"one", b"two"), start.take(b"three", delta=True), start.take()]
        ids = [one.id for one in made]
        require(keeps.list_checkpoints() == ids, LISTED, "oldest first", f"{keeps.list_checkpoints()}, not {ids}")
        for one in made:
            require(keeps.load_manifest(one.id) == one, LISTED, "a loaded manifest equals the saved one", one.id)
        contents = [entry.content for entry in keeps.entries()]
        require(contents == [start.claim, *made], LISTED, "entries are the start, then the snapshots", f"{contents}")
        require([entry.sequence for entry in keeps.entries()] == [1, 2, 3, 4], LISTED, "entries have their numbers")
        _refused(lambda: keeps.load_manifest(_UNKNOWN), LISTED, "the snapshot does not exist")

    def _check_numbers(self) -> None:
        start = self._start()
        keeps = start.checkpointer
        made = start.take(b"one")
        keeps.save_manifest(made)
        require(keeps.list_checkpoints() == [made.id], ONCE, "the same manifest again changes nothing")
        other = start.new_id()
        error = _refused(lambda: keeps.save_manifest(replace(made, id=other)), ONCE, "another has that number")
        require(not isinstance(error, FencedError), ONCE, "FencedError is for a number that a newer start has taken")
        gap = replace(start.manifest(start.new_id()), sequence=start.sequence + 2)
        _refused(lambda: keeps.save_manifest(gap), ONCE, "a number is left out")
        _refused(lambda: keeps.save_manifest(start.manifest(_UNKNOWN)), ONCE, "its id is not the largest")
        id = start.new_id()
        missing = start.manifest(id, [_artefact(id, 0, "full", b"never saved")])
        _refused(lambda: keeps.save_manifest(missing), ONCE, "an artefact that it lists is missing")
        require(keeps.list_checkpoints() == [made.id], ONCE, "a rejected snapshot is not listed")

    def _check_fences(self) -> None:
        start = self._start()
        keeps = start.checkpointer
        first = start.take(b"one")
        newer = _Start(keeps, self.job, now_s=start.now_s, resume=first.id)
        numbers = (start.claim.incarnation, newer.claim.incarnation, start.claim.sequence, newer.claim.sequence)
        require(numbers == (1, 2, 1, 3), FENCED, "a claim takes the next incarnation and the next number", f"{numbers}")
        claims = [entry.content for entry in keeps.entries() if isinstance(entry.content, JobStart)]
        require([one.resume for one in claims] == ["latest", first.id], FENCED, "claims keep what they resume from")
        id = start.new_id()
        late = start.manifest(id, start.save(id, [b"late"]))
        error = _refused(lambda: keeps.save_manifest(late), FENCED, "an older start commits")
        require(isinstance(error, FencedError), FENCED, "an older start gets a FencedError", repr(error))
        made = newer.take(b"two")
        require(keeps.list_checkpoints() == [first.id, made.id], FENCED, "the newer start commits")

    def _check_newest(self) -> None:
        start = self._start()
        keeps = start.checkpointer
        first, made = start.take(b"one"), start.take(b"two")
        require(keeps.read_latest() == made.id == keeps.latest_hint(), NEWEST, "update_latest notes the newest")
        keeps.update_latest(_UNKNOWN)
        require(keeps.latest_hint() == _UNKNOWN, NEWEST, "latest_hint is the last recorded id")
        require(keeps.read_latest() == made.id, NEWEST, "an invalid hint is replaced by the newest of the list")
        found, warnings = latest_manifest(keeps, job=self.job)
        require((found, warnings) == (made, []), NEWEST, "a start resumes from the newest", f"{first.id}: {warnings}")

    def _check_ids(self) -> None:
        start = self._start()
        keeps = start.checkpointer
        lost = keeps.next_id(2e9)
        start.save(lost, [b"never committed"])
        later = keeps.next_id(1e9)
        require(later > lost, GROWING, "an id is larger than all saved ones", f"{later} after {lost}")
        start.commit(start.manifest(later, start.save(later, [b"one"])))
        require(keeps.next_id(0.0) > later, GROWING, "an id is larger than all others, for any time of the clock")

    def _check_removing(self) -> None:
        start = self._start()
        keeps = start.checkpointer
        base, delta = start.take(b"one", b"two"), start.take(b"three", delta=True)
        _refused(lambda: keeps.delete_checkpoint(delta.id), NEEDED, "the log ends with it")
        last = start.take(b"four")
        _refused(lambda: keeps.delete_checkpoint(base.id), NEEDED, "a delta needs it")
        _require_whole(keeps, [base, delta, last])
        keeps.delete_checkpoint(delta.id)
        keeps.delete_checkpoint(base.id)
        left = [path for path in keeps.files() if path.startswith("artefacts/")]
        require(
            left == [one.path for one in last.artefacts], PRUNED, "files of one snapshot only are removed", f"{left}"
        )
        _require_whole(keeps, [last])
        _refused(lambda: keeps.delete_checkpoint(base.id), NEEDED, "the snapshot is removed already")

    def _check_pruning(self) -> None:
        start = self._start()
        keeps = start.checkpointer
        id = start.new_id()
        saved = start.commit(replace(start.manifest(id, start.save(id, [b"saved"])), savepoint=True))
        old = [start.take(b"base"), start.take(b"delta", delta=True)]
        kept = [start.take(b"new"), start.take(b"newer", delta=True)]
        pruned = keeps.prune(2, 0.0, start.now_s)
        there = [one.id for one in (saved, *kept)]
        require(
            keeps.list_checkpoints() == there, PRUNED, "savepoints and the newest stay", f"{keeps.list_checkpoints()}"
        )
        require(pruned.snapshots == tuple(one.id for one in old), PRUNED, "prune returns the removed", f"{pruned}")
        _require_whole(keeps, [saved, *kept])
        gone = {one.path for two in old for one in two.artefacts}.intersection(keeps.files())
        require(not gone, PRUNED, "artefacts of removed snapshots are removed", f"{sorted(gone)}")
        keeps.prune(1, 0.0, start.now_s)
        _require_whole(keeps, [saved, kept[1]])
        claims = sum(isinstance(entry.content, JobStart) for entry in keeps.entries())
        require(claims == 1, NEEDED, "starts stay in the log", f"{claims}")
        start.take(b"more", delta=True)
        _require_whole(keeps, [kept[1]])

    def _check_orphans(self) -> None:
        start = self._start()
        keeps = start.checkpointer
        lost = start.new_id()
        path = start.save(lost, [b"never committed"])[0].path
        start.take(b"one")
        keeps.prune(3, 3600.0, start.now_s + 60.0)
        require(path in keeps.files(), NEEDED, "a file younger than the grace stays")
        keeps.prune(3, 3600.0, start.now_s + 7200.0, spare=[path])
        require(path in keeps.files(), NEEDED, "a spared file stays")
        pruned = keeps.prune(3, 3600.0, start.now_s + 7200.0)
        require(pruned.files == (path,), PRUNED, "prune returns the files that went", f"{pruned.files}")
        require(path not in keeps.files(), PRUNED, "what belongs to no snapshot goes after the grace")

    def _check_notes(self) -> None:
        keeps = self.make()
        require(not keeps.sinks_committed(_UNKNOWN), NOTED, "no commit is recorded at first")
        for _ in range(2):
            keeps.note_sinks_committed(_UNKNOWN)
        require(keeps.sinks_committed(_UNKNOWN), NOTED, "a recorded commit stays recorded")
        require(f"commits/{_UNKNOWN}" in keeps.files(), NOTED, "files has commits/<id> for it", f"{keeps.files()}")

    def _check_elsewhere(self) -> None:
        start = self._start()
        made = start.take(b"one", b"two")
        other = self.again(start.checkpointer)
        require(other.list_checkpoints() == [made.id], ELSEWHERE, "another process sees committed snapshots")
        _require_whole(other, [made])
        require(other.sinks_committed(made.id), ELSEWHERE, "another process sees the commits of sinks")
        id = start.new_id()
        worker = self.again(start.checkpointer)
        worker.save_snapshot(id, _STEP, 0, b"from a worker")
        start.commit(start.manifest(id, [_artefact(id, 0, "full", b"from a worker")]))
        newer = _Start(other, self.job, now_s=start.now_s)
        error = _refused(lambda: start.take(b"late"), ELSEWHERE, "another process has taken over")
        require(isinstance(error, FencedError), ELSEWHERE, "another process fences the start off", repr(error))
        newer.take(b"newer")
        require(newer.claim.incarnation == 2, ELSEWHERE, "another process has the next incarnation")

    def _check_threads(self) -> None:
        keeps = self.make()
        id, got, failed = keeps.next_id(1e9), list[JobStart](), list[BaseException]()

        def work(worker: int) -> None:
            data = bytes([worker]) * 10_000
            try:
                keeps.save_snapshot(id, _STEP, worker, data)
                _require_artefact(keeps, artefact_path(id, _STEP, worker, "full"), data)
                got.append(keeps.claim(1e9))
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in range(_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_PATIENCE_S)
        if failed:
            raise LawError(THREADS, "several threads may call it", case=f"  {failed[0]!r}") from failed[0]
        numbers = sorted((claim.incarnation, claim.sequence) for claim in got)
        expected = [(number, number) for number in range(1, _THREADS + 1)]
        require(numbers == expected, THREADS, "each start has different numbers", f"{numbers}")


def _artefact(id: SnapshotId, worker: int, kind: Kind, data: bytes) -> Artefact:
    path = artefact_path(id, _STEP, worker, kind)
    return Artefact(_STEP, worker, kind, id, path, len(data), hashlib.sha256(data).hexdigest())


def _require_artefact(keeps: Checkpointer, path: str, data: bytes) -> None:
    try:
        loaded = keeps.load_artifact(path)
    except MalstromError as error:
        raise LawError(KEPT, "a saved artefact can be loaded", case=f"  {path}: {error}") from error
    require(loaded == data, KEPT, "a loaded artefact equals the saved one", path)
    require(path in keeps.files(), KEPT, "files lists saved artefacts", path)
    load_ranges = getattr(keeps, "load_ranges", None)
    if load_ranges is not None:
        end = len(data)
        ranges = [(end // 2, end), (0, 0), (0, min(1, end))]
        parts = [data[start:end] for start, end in ranges]
        require(load_ranges(path, ranges) == parts, KEPT, "load_ranges returns the bytes of each range, in order", path)


def _require_whole(keeps: Checkpointer, manifests: Sequence[Manifest]) -> None:
    for manifest in manifests:
        require(manifest.id in keeps.list_checkpoints(), NEEDED, "a kept snapshot is listed", manifest.id)
        faults = list(faults_of(keeps, manifest))
        require(not faults, NEEDED, "a kept snapshot is whole", f"{manifest.id}: {faults}")


def _refused(work: Callable[[], Any], clause: str, why: str) -> SnapshotError:
    """Return the `SnapshotError` of ``work``; raise `LawError` if ``work`` does not fail with one."""
    try:
        work()
    except SnapshotError as error:
        return error
    except Exception as error:
        raise LawError(clause, f"a SnapshotError because {why}", case=f"  it raised {error!r}") from error
    raise LawError(clause, f"a SnapshotError because {why}", case="  nothing was raised")
