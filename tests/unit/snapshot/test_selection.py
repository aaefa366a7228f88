"""Which snapshot a start resumes from, what pruning removes, and savepoints."""

from __future__ import annotations

import errno
import os

import pytest

from malstrom_py.errors import SnapshotError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.log import path_of
from malstrom_py.snapshot.manifest import Artefact, Manifest, PlanImage
from malstrom_py.snapshot.selection import copy_savepoint, latest_manifest
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.snapshot.verification import verify
from malstrom_py.state.artefact import artefact
from tests.unit.snapshot.taken import JOB, Start


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def checkpointer(store: MemoryStore) -> StoreCheckpointer:
    return StoreCheckpointer(store, JOB)


def test_s4_a_job_that_was_never_started_begins_afresh(checkpointer: StoreCheckpointer) -> None:
    assert latest_manifest(checkpointer, job=JOB) == (None, [])


def test_s4_a_job_that_never_committed_begins_afresh(checkpointer: StoreCheckpointer) -> None:
    start = Start(checkpointer)
    start.save(start.new_id(), [b"half", b"of it"])
    assert latest_manifest(checkpointer, job=JOB) == (None, [])


@pytest.mark.parametrize("damage", ["manifest", "artefact", "artefact gone", "base"])
def test_s4_what_is_damaged_is_skipped_and_told_of(
    store: MemoryStore, checkpointer: StoreCheckpointer, damage: str
) -> None:
    start = Start(checkpointer)
    old = start.take(b"one", b"two")
    new = start.take(b"three", b"four")
    if damage == "manifest":
        store.put(f"{JOB}/log/{new.sequence:012}.json", b"{}")
    elif damage == "artefact gone":
        store.delete(f"{JOB}/{new.artefacts[1].path}")
    elif damage == "artefact":
        store.put(f"{JOB}/{new.artefacts[1].path}", b"4our")
    else:
        last = start.take(b"five", b"six", delta=True)
        store.put(f"{JOB}/{last.artefacts[0].path}", b"3hree")
    found, warnings = latest_manifest(checkpointer, job=JOB)
    assert found == old
    assert len(warnings) == (2 if damage == "base" else 1)


def test_s4_where_all_are_damaged_it_is_an_error(store: MemoryStore, checkpointer: StoreCheckpointer) -> None:
    start = Start(checkpointer)
    for made in (start.take(b"one"), start.take(b"two")):
        store.put(f"{JOB}/{made.artefacts[0].path}", b"???")
    with pytest.raises(SnapshotError, match=r"has 2 snapshots .* none can be used: .* resume=\"none\""):
        latest_manifest(checkpointer, job=JOB)


@pytest.mark.parametrize("lost", ["log", "snapshots"])
def test_s4_a_log_that_was_removed_is_no_fresh_beginning(
    store: MemoryStore, checkpointer: StoreCheckpointer, lost: str
) -> None:
    made = Start(checkpointer).take(b"one")
    for path in store.list(f"{JOB}/log"):
        if lost == "log" or str(made.sequence) in path:
            store.delete(path)
    with pytest.raises(SnapshotError, match="is missing"):
        latest_manifest(checkpointer, job=JOB)


@pytest.mark.parametrize("noted", ["_latest", "commits"])
def test_s4_a_newest_snapshot_that_the_log_has_lost_is_told_of(
    store: MemoryStore, checkpointer: StoreCheckpointer, noted: str
) -> None:
    start = Start(checkpointer)
    old, new = start.take(b"one"), start.take(b"two")
    checkpointer.note_sinks_committed(new.id)
    store.delete(f"{JOB}/log/{new.sequence:012}.json")
    store.delete(f"{JOB}/commits/{new.id}" if noted == "_latest" else f"{JOB}/_latest")
    told = f"{new.id} was the newest snapshot, and its entry in the log is missing"
    assert latest_manifest(checkpointer, job=JOB) == (old, [told])
    later = Start(checkpointer).take(b"three")
    assert later.id > new.id
    assert latest_manifest(checkpointer, job=JOB) == (later, [])


def test_a_newest_snapshot_that_was_deleted_is_not_missed(checkpointer: StoreCheckpointer) -> None:
    start = Start(checkpointer)
    old, new = start.take(b"one"), start.take(b"two")
    checkpointer.note_sinks_committed(new.id)
    Start(checkpointer, resume=old.id)
    checkpointer.delete_checkpoint(new.id)
    assert latest_manifest(checkpointer, job=JOB) == (old, [])


def test_s3_who_commits_while_one_looks_is_seen(checkpointer: StoreCheckpointer) -> None:
    start = Start(checkpointer)

    class Meanwhile(MemoryStore):
        """A start that is not fenced yet commits between the reads of the log and of the files."""

        def list(self, folder: str) -> list[str]:
            paths = checkpointer.store.list(folder)
            if not checkpointer.list_checkpoints():
                checkpointer.update_latest(start.take(b"one", b"two").id)
            return paths

        def get(self, path: str) -> bytes:
            return checkpointer.store.get(path)

    found, _ = latest_manifest(StoreCheckpointer(Meanwhile(), JOB), job=JOB)
    assert found is not None
    assert [found.id] == checkpointer.list_checkpoints()


def test_a_start_that_is_told_to_begin_afresh_leaves_out_what_was_before(checkpointer: StoreCheckpointer) -> None:
    Start(checkpointer).take(b"one")
    afresh = Start(checkpointer, resume="none")
    assert latest_manifest(checkpointer, job=JOB) == (None, [])
    Start(checkpointer)  # the entry was lost, and this one replaces it
    assert latest_manifest(checkpointer, job=JOB) == (None, [])
    new = Start(checkpointer, now_s=afresh.now_s).take(b"two")
    assert latest_manifest(checkpointer, job=JOB) == (new, [])


def test_a_start_that_is_told_where_to_go_on_from_leaves_out_what_lies_between(checkpointer: StoreCheckpointer) -> None:
    start = Start(checkpointer)
    first, _, third = start.take(b"one"), start.take(b"two"), start.take(b"three")
    assert latest_manifest(checkpointer, job=JOB) == (third, [])
    Start(checkpointer, resume=first.id)
    assert latest_manifest(checkpointer, job=JOB) == (first, [])
    Start(checkpointer)
    assert latest_manifest(checkpointer, job=JOB) == (first, [])


def test_what_a_start_went_on_from_and_is_gone_is_no_fresh_beginning(
    store: MemoryStore, checkpointer: StoreCheckpointer
) -> None:
    start = Start(checkpointer)
    first = start.take(b"one")
    start.take(b"two")
    Start(checkpointer, resume=first.id)
    store.delete(f"{JOB}/log/{first.sequence:012}.json")
    with pytest.raises(SnapshotError, match=f"{first.id}, from which the job resumed, does not exist"):
        latest_manifest(checkpointer, job=JOB)


class Failing(MemoryStore):
    """A store that cannot read some paths, with an errno."""

    def __init__(self, fails: int) -> None:
        super().__init__()
        self.fails = fails
        self.unreadable: set[str] = set()

    def get(self, path: str) -> bytes:
        if path in self.unreadable:
            raise SnapshotError(f"{path} cannot be read") from OSError(self.fails, os.strerror(self.fails))
        return super().get(path)


@pytest.mark.parametrize("what", ["entry", "artefact"])
def test_s4_what_a_damaged_medium_has_lost_is_skipped(what: str) -> None:
    store = Failing(errno.EIO)
    start = Start(StoreCheckpointer(store, JOB))
    old, new = start.take(b"one"), start.take(b"two")
    store.unreadable = {f"{JOB}/{path_of(new.sequence) if what == 'entry' else new.artefacts[0].path}"}
    found, warnings = latest_manifest(start.checkpointer, job=JOB)
    assert found == old
    assert "cannot be read" in warnings[0]


@pytest.mark.parametrize("fails", [errno.EACCES, errno.ETIMEDOUT, errno.EMFILE], ids=errno.errorcode.get)
@pytest.mark.parametrize("what", ["entry", "artefact"])
def test_s4_a_store_that_does_not_answer_is_no_reason_to_go_further_back(what: str, fails: int) -> None:
    store = Failing(fails)
    start = Start(StoreCheckpointer(store, JOB))
    start.take(b"one")
    new = start.take(b"two")
    store.unreadable = {f"{JOB}/{path_of(new.sequence) if what == 'entry' else new.artefacts[0].path}"}
    with pytest.raises(SnapshotError, match="cannot be read"):
        latest_manifest(start.checkpointer, job=JOB)


@pytest.fixture
def start(store: MemoryStore) -> Start:
    return Start(StoreCheckpointer(store, JOB))


def fresh(store: MemoryStore) -> StoreCheckpointer:
    """A checkpointer that did not write the snapshots, and so has verified none."""
    return StoreCheckpointer(store, JOB)


@pytest.mark.parametrize("keep", [1, 2, 3, 5])
def test_the_newest_stay(store: MemoryStore, start: Start, keep: int) -> None:
    for number in range(4):
        start.take(b"%d" % number)
    fresh(store).prune(keep, 0.0, start.now_s + 1e6)
    assert fresh(store).list_checkpoints() == start.ids[-keep:]


def test_where_fewer_are_whole_nothing_goes(store: MemoryStore, start: Start) -> None:
    for number in range(3):
        made = start.take(b"%d" % number)
        if number:
            store.put(f"{JOB}/{made.artefacts[0].path}", b"?")
    before = store.list("")
    assert fresh(store).prune(2, 0.0, start.now_s + 1e6).snapshots == ()
    assert store.list("") == before


def test_nothing_goes_while_a_newer_entry_cannot_be_read(store: MemoryStore, start: Start) -> None:
    made = [start.take(b"%d" % number) for number in range(3)]
    store.put(f"{JOB}/{path_of(made[1].sequence)}", b"?")
    before = store.list("")
    assert fresh(store).prune(2, 0.0, start.now_s + 1e6) == type(fresh(store).prune(2, 0.0, 0.0))((), ())
    assert store.list("") == before
    last = [start.take(b"4"), start.take(b"5")]
    fresh(store).prune(2, 0.0, start.now_s + 1e6)
    assert fresh(store).list_checkpoints() == [one.id for one in last]


def test_an_entry_that_cannot_be_read_stays_for_it_may_be_a_claim(store: MemoryStore, start: Start) -> None:
    first = start.take(b"one")
    start.take(b"two")
    store.put(f"{JOB}/{path_of(first.sequence)}", b"?")
    fresh(store).prune(1, 0.0, start.now_s + 1e6)
    assert f"{JOB}/{path_of(first.sequence)}" in store.list("")


def test_what_a_start_went_back_to_stays_with_the_newest(store: MemoryStore, start: Start) -> None:
    first, _, third = start.take(b"one"), start.take(b"two"), start.take(b"three")
    back = Start(fresh(store), now_s=start.now_s, resume=first.id)
    newest = back.take(b"four")
    fresh(store).prune(2, 0.0, back.now_s + 1e6)
    assert {first.id, third.id, newest.id} <= set(fresh(store).list_checkpoints())
    store.put(f"{JOB}/{newest.artefacts[0].path}", b"?")
    assert latest_manifest(fresh(store), job=JOB)[0] == first


def test_after_a_fresh_beginning_the_old_ones_go_when_there_are_enough_new(store: MemoryStore, start: Start) -> None:
    start.take(b"one")
    afresh = Start(fresh(store), now_s=start.now_s, resume="none")
    assert fresh(store).prune(1, 0.0, afresh.now_s + 1e6).snapshots == ()
    made = afresh.take(b"two")
    assert fresh(store).prune(1, 0.0, afresh.now_s + 1e6).snapshots == tuple(start.ids)
    assert fresh(store).list_checkpoints() == [made.id]


def test_files_that_are_no_part_of_snapshots_are_left_alone(store: MemoryStore, start: Start) -> None:
    for path in ("notes.txt", "artefacts/notes.txt", "commits/notes.txt", "log/notes.txt"):
        store.put(f"{JOB}/{path}", b"mine")
    start.take(b"one")
    start.take(b"two")
    fresh(store).prune(1, 0.0, start.now_s + 1e6)
    assert [path for path in store.list(JOB) if path.endswith("notes.txt")] == [
        f"{JOB}/{path}" for path in ("artefacts/notes.txt", "commits/notes.txt", "log/notes.txt", "notes.txt")
    ]


def test_every_fault_of_a_snapshot_is_told(store: MemoryStore, start: Start) -> None:
    made = start.take(b"one", b"two", b"three", b"four")
    paths = [one.path for one in made.artefacts]
    assert verify(fresh(store), made.id) == []
    store.delete(f"{JOB}/{paths[0]}")
    store.put(f"{JOB}/{paths[1]}", b"2wo")
    store.put(f"{JOB}/{paths[2]}", b"thre")
    assert verify(fresh(store), made.id) == [
        f"{paths[0]} is missing",
        f"{paths[1]} is damaged: its digest does not match",
        f"{paths[2]} has 4 bytes, where 5 were written",
    ]
    store.put(f"{JOB}/{path_of(made.sequence)}", b"?")
    (fault,) = verify(fresh(store), made.id)
    assert "has no snapshot" in fault
    assert "its digest does not match" in fault


def kept(checkpointer: StoreCheckpointer) -> Manifest:
    """Commit a snapshot with one artefact."""
    claim = checkpointer.claim(0.0)
    snapshot = checkpointer.next_id(0.0)
    data = artefact({3: ([b"key"], [b"\x10\x01"])}, delta=False)
    sha256 = checkpointer.save_snapshot(snapshot, "sum", 0, data)
    path = checkpointer.artefact_path(snapshot, "sum", 0, "full")
    manifest = Manifest(
        job=JOB,
        id=snapshot,
        sequence=claim.sequence + 1,
        incarnation=claim.incarnation,
        created="2026-11-22T04:22:42+00:00",
        workers=1,
        plan=PlanImage(64),
        artefacts=(Artefact("sum", 0, "full", snapshot, path, len(data), sha256),),
    )
    checkpointer.save_manifest(manifest)
    return manifest


def test_a_copy_is_whole_and_is_what_a_job_would_go_on_from() -> None:
    source, target = (StoreCheckpointer(MemoryStore(), JOB) for _ in range(2))
    manifest = kept(source)
    assert copy_savepoint(manifest, source, target, 1.0) == manifest.id
    found, warnings = latest_manifest(target, job=JOB)
    assert found is not None
    assert (found.id, found.artefacts, found.savepoint, warnings) == (manifest.id, manifest.artefacts, True, [])
    assert target.sinks_committed(manifest.id)


def test_s3_it_is_refused_where_a_job_keeps_its_snapshots_and_fences_nobody_off() -> None:
    source, other = (StoreCheckpointer(MemoryStore(), JOB) for _ in range(2))
    manifest, theirs = kept(source), kept(other)
    entries = len(other.entries())
    for target in (source, StoreCheckpointer(source.store, JOB), other):
        with pytest.raises(SnapshotError, match="name another place"):
            copy_savepoint(manifest, source, target, 1.0)
    assert len(other.entries()) == entries
    assert other.load_manifest(theirs.id) == theirs


def test_what_cannot_be_read_leaves_no_claim_behind() -> None:
    source, target = (StoreCheckpointer(MemoryStore(), JOB) for _ in range(2))
    manifest = kept(source)
    source.store.delete(f"{JOB}/{manifest.artefacts[0].path}")
    with pytest.raises(SnapshotError, match="is missing"):
        copy_savepoint(manifest, source, target, 1.0)
    assert target.entries() == []


def test_savepoints_stand_beside_each_other() -> None:
    source, target = (StoreCheckpointer(MemoryStore(), JOB) for _ in range(2))
    manifest = kept(source)
    copy_savepoint(manifest, source, target, 1.0)
    assert target.list_checkpoints() == [SnapshotId(manifest.id)]
