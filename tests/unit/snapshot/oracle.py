"""The invariants of snapshots: scenarios that fail for every wrong order or omission.

They use the real store, log and checkpointer on a `ForgetfulDisk`; test_checkpointer_mutants.py checks that they catch
wrong ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from malstrom_py.errors import FencedError, SnapshotError
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.local_store import LocalStore
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.snapshot.selection import latest_manifest
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.snapshot.verification import verify
from tests.unit.snapshot.forgetful_disk import EVERYTHING, NAMES, NOTHING, Crash, ForgetfulDisk, by_chance
from tests.unit.snapshot.taken import JOB, Start, manifest, restored

KEEPINGS: Final = (NOTHING, NAMES, EVERYTHING, *map(by_chance, range(2)))
GRACE_S: Final = 3600.0

OLD: Final = {("totals", 0): [b"old base 0", b"old delta 0"], ("totals", 1): [b"old base 1", b"old delta 1"]}
NEW: Final = {("totals", 0): [b"new 0"], ("totals", 1): [b"new 1"]}
NEXT: Final = {("totals", 0): [b"next"]}


def on(disk: ForgetfulDisk) -> StoreCheckpointer:
    return StoreCheckpointer(LocalStore("/snapshots", disk=disk), JOB)


def loaded(checkpointer: StoreCheckpointer) -> Manifest | None:
    """Return the snapshot from which the next start resumes, or None after an error."""
    return latest_manifest(checkpointer, job=JOB)[0]


def with_two(checkpointer: StoreCheckpointer) -> Start:
    """Make a job that has committed a snapshot and a delta."""
    start = Start(checkpointer)
    start.take(b"old base 0", b"old base 1")
    start.take(b"old delta 0", b"old delta 1", delta=True)
    return start


@dataclass
class Attempt:
    """The actions until the crash."""

    disk: ForgetfulDisk = field(default_factory=ForgetfulDisk)
    given: int = 0
    old: Manifest | None = None
    new: Manifest | None = None
    committed: bool = False
    now_s: float = 1e9
    done: int = 0
    """How many operations of the disk there were before what is to be crashed."""


def crash_at_each_operation_of_a_commit() -> None:
    """After a crash the old or the new snapshot exists, whole; the new one if its commit had succeeded (S3)."""

    def commit(crash_at: int) -> Attempt:
        attempt = Attempt()
        start = with_two(on(attempt.disk))
        attempt.old, attempt.given, attempt.now_s = start.last, start.claim.incarnation, start.now_s
        attempt.done = len(attempt.disk.journal)
        attempt.disk.crash_at = attempt.done + crash_at if crash_at else 0
        with contextlib.suppress(Crash):
            id = start.new_id()
            attempt.new = manifest(id, start.claim, start.sequence + 1, start.save(id, [b"new 0", b"new 1"]))
            start.checkpointer.save_manifest(attempt.new)
            attempt.committed = True
            start.commit(attempt.new)
            start.checkpointer.prune(1, GRACE_S, start.now_s)
        return attempt

    for attempt in _crashed_everywhere(commit):
        for again, where in _survivors(attempt):
            found = _loaded_or_fault(again, where)
            assert found == attempt.new or (found == attempt.old and not attempt.committed), where
            assert found is not None, where
            assert restored(again, found) == (NEW if found == attempt.new else OLD), where
            _check_listed(again, where)
            _check_goes_on(again, attempt, where)


def crash_at_each_operation_of_the_first_start() -> None:
    """A claim is never given twice, and a job that never committed starts empty, without an error."""

    def begin(crash_at: int) -> Attempt:
        attempt = Attempt()
        attempt.disk.crash_at = crash_at
        with contextlib.suppress(Crash):
            start = Start(on(attempt.disk))
            attempt.given = start.claim.incarnation
            start.take(b"next")
            attempt.committed = True
        return attempt

    for attempt in _crashed_everywhere(begin):
        for again, where in _survivors(attempt):
            found = _loaded_or_fault(again, where)
            assert found is not None or not attempt.committed, where
            assert found is None or restored(again, found) == NEXT, where
            _check_goes_on(again, attempt, where)


def a_crash_while_a_damaged_one_is_skipped_goes_further_back() -> None:
    """A snapshot whose names survive a crash, but not its contents, is skipped for the one before it."""
    disk = ForgetfulDisk()
    start = with_two(on(disk))
    old = start.last
    new = start.take(b"new 0", b"new 1")
    start.checkpointer.store.put(f"{JOB}/{new.artefacts[1].path}", b"")
    assert loaded(on(disk)) == old


def a_zombie_cannot_commit() -> None:
    """S3: a stale start is fenced, immediately and permanently; its commits before the claim are kept."""
    for commits, keep in ((0, 0), (1, 0), (3, 1)):
        checkpointer = StoreCheckpointer(MemoryStore(), JOB)
        zombie = with_two(checkpointer)
        last = zombie.last
        newer = Start(checkpointer, now_s=zombie.now_s)
        assert newer.claim.incarnation == zombie.claim.incarnation + 1
        assert loaded(checkpointer) == last
        for _ in range(commits):
            last = newer.take(b"newer")
        if keep:
            checkpointer.prune(keep, 0.0, newer.now_s + 1e6)
        for _ in range(2):
            id = zombie.new_id()
            made = manifest(id, zombie.claim, zombie.sequence + 1, zombie.save(id, [b"late"]))
            assert _fenced(zombie, made), f"it committed after {commits} snapshots of the other"
        assert loaded(checkpointer) == last
        newer.now_s = zombie.now_s
        last = newer.take(b"newest")
        assert loaded(checkpointer) == last


def starts_that_come_at_once_are_told_apart() -> None:
    """If starts claim between another's read of the log and its claim, each has its own number and incarnation."""
    store = Interrupted(MemoryStore())
    checkpointer = StoreCheckpointer(store, JOB)
    between = StoreCheckpointer(store.inner, JOB)
    got = []
    store.before_create = lambda: got.append(between.claim(0.0))
    got.append(checkpointer.claim(0.0))
    assert sorted(claim.incarnation for claim in got) == [1, 2]
    assert sorted(claim.sequence for claim in got) == [1, 2]
    start = Start(checkpointer)
    id = start.new_id()
    made = manifest(id, start.claim, start.sequence + 1, start.save(id, [b"late"]))
    store.before_create = lambda: got.append(between.claim(0.0))
    assert _fenced(start, made), "it committed though another start claimed just before"


def a_lost_answer_of_the_store_does_no_harm() -> None:
    """A file that a store reports as existing may be the one just written; then the write succeeded."""
    store = Interrupted(MemoryStore())
    checkpointer = StoreCheckpointer(store, JOB)
    store.loses_answers = True
    start = with_two(checkpointer)
    assert start.claim.sequence == 1
    assert loaded(checkpointer) == start.last
    checkpointer.save_manifest(start.last)  # type: ignore[arg-type]  # again
    assert len(checkpointer.list_checkpoints()) == 2


def what_was_flipped_or_cut_is_never_loaded() -> None:
    """P6: each byte of a snapshot flipped, and each of its files cut at each length: the previous one is used."""
    store = MemoryStore()
    checkpointer = StoreCheckpointer(store, JOB)
    start = with_two(checkpointer)
    old = start.last
    new = start.take(b"new 0", b"new 1")
    assert loaded(checkpointer) == new
    for path in [*(f"{JOB}/{one.path}" for one in new.artefacts), f"{JOB}/log/{new.sequence:012}.json"]:
        good = store.get(path)
        for wrong in _damaged(good):
            store.put(path, wrong)
            assert loaded(checkpointer) == old, f"{path} is {wrong!r}"
        store.put(path, good)
    assert loaded(checkpointer) == new


def all_damaged_is_an_error_and_no_fresh_beginning() -> None:
    """S4: if all snapshots are damaged, the start fails; it does not begin empty."""
    store = MemoryStore()
    checkpointer = StoreCheckpointer(store, JOB)
    with_two(checkpointer)
    for path in store.list(f"{JOB}/artefacts"):
        store.put(path, b"")
    try:
        found = loaded(checkpointer)
    except SnapshotError:
        return
    raise AssertionError(f"it resumes from {found}")


def ids_are_never_used_again() -> None:
    """Ids grow also if the clock goes back, and after uncommitted data, which stays unchanged."""
    checkpointer = StoreCheckpointer(MemoryStore(), JOB)
    start = with_two(checkpointer)
    lost = start.new_id()
    start.save(lost, [b"never committed"])
    later = Start(checkpointer, now_s=0.0)
    fresh = [later.take(b"one").id, later.take(b"two").id]
    assert sorted({*start.ids, lost, *fresh}) == [*start.ids, lost, *fresh]
    assert checkpointer.load_artifact(f"artefacts/{lost}/totals-0.full") == b"never committed"
    assert loaded(checkpointer) == later.last


def a_partial_snapshot_is_no_parent() -> None:
    """A delta on a missing snapshot is not committed, and neither is a chain without a beginning."""
    store = MemoryStore()
    checkpointer = StoreCheckpointer(store, JOB)
    start = with_two(checkpointer)
    good = start.last
    assert good is not None
    id = start.new_id()
    chains = start.save(id, [b"delta 0", b"delta 1"], delta=True)
    store.delete(f"{JOB}/{chains[0].path}")
    for listed in (chains, chains[1:], [*chains[1:], chains[0]]):
        try:
            checkpointer.save_manifest(manifest(id, start.claim, start.sequence + 1, listed))
        except SnapshotError:
            continue
        raise AssertionError("a snapshot was committed that cannot be restored")


def pruning_leaves_what_is_needed() -> None:
    """Kept are the chains of kept snapshots, snapshots in progress and the newest whole ones; the rest is removed."""
    store = MemoryStore()
    checkpointer = StoreCheckpointer(store, JOB)
    start = with_two(checkpointer)
    newest = start.take(b"third 0", b"third 1", delta=True)
    id = start.new_id()
    on_its_way = start.save(id, [b"fourth 0", b"fourth 1"], delta=True)
    pruned = checkpointer.prune(1, GRACE_S, start.now_s + 1.0)
    assert pruned.snapshots == tuple(start.ids[:2])
    assert checkpointer.list_checkpoints() == [newest.id]
    assert verify(checkpointer, newest.id) == []
    try:
        start.commit(manifest(id, start.claim, start.sequence + 1, on_its_way))
    except SnapshotError as error:
        raise AssertionError("a snapshot in progress was pruned") from error
    full = start.take(b"full 0", b"full 1")
    store.put(f"{JOB}/{start.take(b'bad').artefacts[0].path}", b"???")
    fresh = StoreCheckpointer(store, JOB)
    fresh.prune(1, GRACE_S, start.now_s + 1e6)
    assert loaded(fresh) == full
    assert not [path for path in fresh.files() if path.startswith(f"artefacts/{start.ids[0]}")]


class Interrupted:
    """A store that runs a function just before the next `create`, or loses the answers to it."""

    def __init__(self, inner: MemoryStore) -> None:
        self.inner = inner
        self.before_create: Callable[[], object] | None = None
        self.loses_answers = False
        self.put, self.get, self.list, self.delete = inner.put, inner.get, inner.list, inner.delete

    def create(self, path: str, data: bytes) -> bool:
        happens, self.before_create = self.before_create, None
        if happens is not None:
            happens()
        return self.inner.create(path, data) and not self.loses_answers


SCENARIOS: Final = (
    crash_at_each_operation_of_a_commit,
    crash_at_each_operation_of_the_first_start,
    a_crash_while_a_damaged_one_is_skipped_goes_further_back,
    a_zombie_cannot_commit,
    starts_that_come_at_once_are_told_apart,
    a_lost_answer_of_the_store_does_no_harm,
    what_was_flipped_or_cut_is_never_loaded,
    all_damaged_is_an_error_and_no_fresh_beginning,
    ids_are_never_used_again,
    a_partial_snapshot_is_no_parent,
    pruning_leaves_what_is_needed,
)


def _crashed_everywhere(run: Callable[[int], Attempt]) -> Iterator[Attempt]:
    """Run ``run(n)`` on a machine that crashes before the n-th operation; 0: no crash, to count the operations."""
    whole = run(0)
    operations = len(whole.disk.journal) - whole.done
    assert operations > 5
    for number in range(1, operations + 1):
        yield run(number)
    yield whole


def _survivors(attempt: Attempt) -> Iterator[tuple[StoreCheckpointer, str]]:
    for keeping in KEEPINGS:
        where = f"a crash before {attempt.disk.journal[-1]}, which leaves {keeping}"
        yield on(attempt.disk.go_down(keeping)), where


def _loaded_or_fault(checkpointer: StoreCheckpointer, where: str) -> Manifest | None:
    try:
        return loaded(checkpointer)
    except SnapshotError as error:
        raise AssertionError(f"{where}: {error}") from error


def _check_listed(checkpointer: StoreCheckpointer, where: str) -> None:
    """Check that every listed snapshot is whole."""
    for id in checkpointer.list_checkpoints():
        assert verify(checkpointer, id) == [], where


def _check_goes_on(checkpointer: StoreCheckpointer, before: Attempt, where: str) -> None:
    """Check that a start after the crash takes over, commits and finds its commit."""
    start = Start(checkpointer, now_s=before.now_s)
    assert start.claim.incarnation > before.given, where
    made = start.take(b"next")
    assert loaded(checkpointer) == made, where
    assert restored(checkpointer, made) == NEXT, where


def _fenced(start: Start, made: Manifest) -> bool:
    try:
        start.checkpointer.save_manifest(made)
    except FencedError:
        return True
    except SnapshotError as error:
        raise AssertionError("it was stopped by chance") from error
    return False


def _damaged(good: bytes) -> Iterator[bytes]:
    for at in range(len(good)):
        yield bytes([*good[:at], good[at] ^ (1 << at % 8), *good[at + 1 :]])
        yield good[:at]
    yield good + b"\n"
