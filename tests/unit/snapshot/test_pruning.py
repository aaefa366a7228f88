"""The selection of the snapshots and files to remove."""

from __future__ import annotations

import pytest

from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.log import path_of
from malstrom_py.snapshot.selection import latest_manifest
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.snapshot.verification import verify
from tests.unit.snapshot.taken import JOB, Start


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


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
