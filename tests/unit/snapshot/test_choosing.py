"""The snapshot from which a job resumes: the newest whole one; a job never starts empty by accident."""

from __future__ import annotations

import errno
import os

import pytest

from malstrom_py.errors import SnapshotError
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.log import path_of
from malstrom_py.snapshot.selection import latest_manifest
from malstrom_py.snapshot.store import MemoryStore
from tests.unit.snapshot.taken import JOB, Start, restored


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


def test_s4_the_newest_is_taken_with_its_whole_chain(checkpointer: StoreCheckpointer) -> None:
    start = Start(checkpointer)
    start.take(b"base 0", b"base 1")
    newest = start.take(b"more 0", b"more 1", delta=True)
    found, warnings = latest_manifest(checkpointer, job=JOB)
    assert (found, warnings) == (newest, [])
    assert restored(checkpointer, newest) == {
        ("totals", 0): [b"base 0", b"more 0"],
        ("totals", 1): [b"base 1", b"more 1"],
    }


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
