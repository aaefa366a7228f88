"""Checkpointers over every store: artefacts, manifests, the hint, removal and pruning, claims."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import replace
from pathlib import Path

import cloudpickle
import pytest

from malstrom_py.errors import CodecError, FencedError, PlanError, SnapshotError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import Checkpointer, StoreCheckpointer
from malstrom_py.snapshot.manifest import Artefact, PartImage
from malstrom_py.snapshot.selection import latest_manifest
from malstrom_py.snapshot.verification import verify
from tests.unit.snapshot.stores import STORES
from tests.unit.snapshot.taken import JOB, Start, artefact, manifest, restored

ID = SnapshotId("20261122T042242123456Z-1a2b3c4d")


@pytest.fixture(params=sorted(STORES))
def checkpointer(request: pytest.FixtureRequest, tmp_path: Path) -> StoreCheckpointer:
    return StoreCheckpointer(STORES[request.param](tmp_path / "store"), JOB)


@pytest.fixture
def start(checkpointer: StoreCheckpointer) -> Start:
    return Start(checkpointer)


def test_it_is_a_checkpointer(checkpointer: Checkpointer) -> None:
    assert checkpointer.list_checkpoints() == []


def test_artefacts_come_back_and_their_digests_are_told(checkpointer: StoreCheckpointer) -> None:
    digests = [
        checkpointer.save_snapshot(ID, "totals", 0, b"all"),
        checkpointer.save_delta(ID, "totals", 1, b"changed"),
        checkpointer.save_compacted(ID, "totals", 0, b"made into one"),
    ]
    assert digests == [hashlib.sha256(data).hexdigest() for data in (b"all", b"changed", b"made into one")]
    assert checkpointer.load_artifact(checkpointer.artefact_path(ID, "totals", 0, "full")) == b"all"
    assert checkpointer.load_artifact(checkpointer.artefact_path(ID, "totals", 1, "delta")) == b"changed"
    assert checkpointer.load_artifact(f"artefacts/{ID}/totals-0.compacted.full") == b"made into one"


@pytest.mark.parametrize("path", ["_latest", "log/000000000001.json", "artefacts/../log/000000000001.json", ""])
def test_nothing_but_artefacts_is_loaded_as_one(start: Start, path: str) -> None:
    start.take(b"one")
    with pytest.raises(SnapshotError):
        start.checkpointer.load_artifact(path)


def test_an_artefact_that_is_missing_is_named(checkpointer: StoreCheckpointer) -> None:
    with pytest.raises(SnapshotError, match=f"artefacts/{ID}/totals-0.full is missing"):
        checkpointer.load_artifact(f"artefacts/{ID}/totals-0.full")


def test_manifests_come_back_and_are_listed_oldest_first(start: Start) -> None:
    made = [start.take(b"one"), start.take(b"two", delta=True), start.take(b"three")]
    assert start.checkpointer.list_checkpoints() == [one.id for one in made]
    assert [start.checkpointer.load_manifest(one.id) for one in made] == made
    assert [one.sequence for one in made] == [2, 3, 4]


def test_what_was_saved_and_not_committed_is_not_listed(start: Start) -> None:
    start.save(start.new_id(), [b"one"])
    assert start.checkpointer.list_checkpoints() == []
    assert start.checkpointer.read_latest() is None


def test_a_snapshot_that_there_is_not_is_told_with_those_that_there_are(start: Start) -> None:
    made = start.take(b"one")
    with pytest.raises(SnapshotError, match=rf"has no snapshot {ID} in .*; its snapshots are: {made.id}$"):
        start.checkpointer.load_manifest(ID)


@pytest.mark.parametrize("hint", ["missing", b"", b"20", f"{ID}\n".encode(), b"\xff" * 40], ids=repr)
def test_s3_a_hint_that_is_missing_empty_or_dangling_is_derived(start: Start, hint: str | bytes) -> None:
    start.take(b"one")
    newest = start.take(b"two")
    store = start.checkpointer.store
    assert store.get(f"{JOB}/_latest") == f"{newest.id}\n".encode()
    assert start.checkpointer.read_latest() == newest.id
    if isinstance(hint, bytes):
        store.put(f"{JOB}/_latest", hint)
    else:
        store.delete(f"{JOB}/_latest")
    assert start.checkpointer.read_latest() == newest.id
    told = [f"{ID} was the newest snapshot, and its entry in the log is missing"] if hint == f"{ID}\n".encode() else []
    assert latest_manifest(start.checkpointer, job=JOB) == (newest, told)


def test_jobs_do_not_see_each_other(checkpointer: StoreCheckpointer) -> None:
    mine, other = Start(checkpointer), StoreCheckpointer(checkpointer.store, "orders-2")
    made = mine.take(b"one")
    assert other.claim(0.0).incarnation == 1
    assert other.list_checkpoints() == []
    with pytest.raises(SnapshotError, match="is of job 'orders', and cannot be committed here"):
        other.save_manifest(made)


def test_s3_what_was_committed_can_be_committed_again(start: Start) -> None:
    made = start.take(b"one")
    start.checkpointer.save_manifest(made)
    StoreCheckpointer(start.checkpointer.store, JOB).save_manifest(made)
    assert start.checkpointer.list_checkpoints() == [made.id]


def test_s3_another_under_the_same_number_is_refused(start: Start) -> None:
    made = start.take(b"one")
    with pytest.raises(SnapshotError, match="was taken after this start of the job had read the log") as raised:
        start.checkpointer.save_manifest(replace(made, id=start.new_id()))
    assert not isinstance(raised.value, FencedError)


def test_s3_an_id_that_is_not_the_largest_is_refused(start: Start) -> None:
    made = start.take(b"one")
    for id in (made.id, ID.replace("2026", "1999")):
        late = manifest(SnapshotId(id), start.claim, start.sequence + 1)
        with pytest.raises(SnapshotError, match=f"its id is not after {made.id}"):
            start.checkpointer.save_manifest(late)


def test_s3_the_number_after_a_gap_is_refused(start: Start) -> None:
    with pytest.raises(SnapshotError, match="its log does not end with entry 7"):
        start.checkpointer.save_manifest(manifest(start.new_id(), start.claim, 8))


def test_s3_a_stale_start_is_fenced_and_told_by_whom(start: Start) -> None:
    start.take(b"one")
    Start(start.checkpointer)
    with pytest.raises(
        FencedError, match=r"incarnation 1 cannot commit snapshot .*, because incarnation 2 has taken over"
    ):
        start.take(b"two")


def test_a_manifest_that_cannot_be_is_not_committed(start: Start) -> None:
    made = manifest(start.new_id(), start.claim, start.sequence + 1, start.save(ID, [b"one"]))
    with pytest.raises(SnapshotError, match=r"is not committed: .* is of a later snapshot"):
        start.checkpointer.save_manifest(made)
    with pytest.raises(CodecError, match="step 'read'"):
        start.checkpointer.save_manifest(replace(made, artefacts=(), sources={"read": {"a": PartImage(object())}}))
    assert start.checkpointer.list_checkpoints() == []


def test_a_snapshot_is_removed_with_what_it_alone_needs(start: Start) -> None:
    first, second = start.take(b"one", b"two"), start.take(b"three")
    start.checkpointer.delete_checkpoint(first.id)
    assert start.checkpointer.list_checkpoints() == [second.id]
    assert [path for path in start.checkpointer.files() if first.id in path] == []
    assert verify(start.checkpointer, second.id) == []
    with pytest.raises(SnapshotError, match="has no snapshot"):
        start.checkpointer.delete_checkpoint(first.id)


def test_a_snapshot_is_not_removed_while_a_delta_depends_on_it(start: Start) -> None:
    base, delta = start.take(b"one"), start.take(b"two", delta=True)
    start.take(b"three")
    with pytest.raises(SnapshotError, match=f"snapshot {delta.id} needs artefacts of {base.id}"):
        start.checkpointer.delete_checkpoint(base.id)
    assert verify(start.checkpointer, delta.id) == []
    start.checkpointer.delete_checkpoint(delta.id)
    start.checkpointer.delete_checkpoint(base.id)
    assert start.checkpointer.list_checkpoints() == start.ids[2:]


def test_the_last_snapshot_is_not_removed(start: Start) -> None:
    made = start.take(b"one")
    with pytest.raises(SnapshotError, match="is the newest, from which the job would resume"):
        start.checkpointer.delete_checkpoint(made.id)


def test_the_hint_goes_with_its_snapshot(start: Start) -> None:
    made = start.take(b"one")
    afresh = Start(start.checkpointer, resume="none")
    start.checkpointer.delete_checkpoint(made.id)
    assert start.checkpointer.latest_hint() is None
    assert latest_manifest(afresh.checkpointer, job=JOB) == (None, [])


def test_it_is_noted_that_sinks_have_committed(start: Start) -> None:
    assert not start.checkpointer.sinks_committed(ID)
    start.checkpointer.note_sinks_committed(ID)
    start.checkpointer.note_sinks_committed(ID)
    assert start.checkpointer.sinks_committed(ID)


def test_pruning_keeps_the_newest_and_the_chains_they_need(start: Start) -> None:
    for number in range(3):
        start.take(b"base %d" % number)
        start.take(b"delta %d" % number, delta=True)
    pruned = start.checkpointer.prune(1, 0.0, start.now_s)
    newest = start.last
    assert newest is not None
    assert pruned.snapshots == tuple(start.ids[:-1])
    assert start.checkpointer.list_checkpoints() == [newest.id]
    assert restored(start.checkpointer, newest) == {("totals", 0): [b"base 2", b"delta 2"]}
    left = [path for path in start.checkpointer.files() if path.startswith(("artefacts", "commits"))]
    assert sorted(left) == sorted([*(one.path for one in newest.artefacts), f"commits/{newest.id}"])
    assert start.checkpointer.prune(1, 0.0, start.now_s).snapshots == ()


def test_pruning_keeps_savepoints_until_they_are_removed(start: Start) -> None:
    id = start.new_id()
    saved = manifest(id, start.claim, start.sequence + 1, start.save(id, [b"saved"]))
    start.commit(replace(saved, savepoint=True))
    start.take(b"one")
    start.take(b"two")
    start.checkpointer.prune(1, 0.0, start.now_s + 1e6)
    assert start.checkpointer.list_checkpoints() == [id, start.ids[-1]]
    assert verify(start.checkpointer, id) == []
    start.checkpointer.delete_checkpoint(id)
    assert start.checkpointer.list_checkpoints() == start.ids[-1:]


def test_pruning_takes_what_was_never_committed_only_when_it_is_old(start: Start) -> None:
    lost = start.new_id()
    start.save(lost, [b"never committed"])
    start.take(b"one")
    lost_file = f"artefacts/{lost}/totals-0.full"
    start.checkpointer.prune(3, 3600.0, start.now_s + 60)
    assert lost_file in start.checkpointer.files()
    start.checkpointer.prune(3, 3600.0, start.now_s + 7200, spare=[lost_file])
    assert lost_file in start.checkpointer.files()
    assert start.checkpointer.prune(3, 3600.0, start.now_s + 7200).files == (lost_file,)
    assert lost_file not in start.checkpointer.files()


def test_pruning_goes_on_after_a_start_and_keeps_claims(start: Start) -> None:
    start.take(b"one")
    second = Start(start.checkpointer, now_s=start.now_s)
    second.take(b"two")
    second.checkpointer.prune(1, 0.0, second.now_s)
    kinds = [type(entry.content).__name__ for entry in start.checkpointer.entries()]
    assert kinds == ["JobStart", "JobStart", "Manifest"]


def test_a_chain_made_into_one_is_the_head_of_the_next(start: Start) -> None:
    start.take(b"base")
    second = start.take(b"delta", delta=True)
    merged = b"base and delta"
    digest = start.checkpointer.save_compacted(second.id, "totals", 0, merged)
    path = f"artefacts/{second.id}/totals-0.compacted.full"
    head = Artefact("totals", 0, "full", second.id, path, len(merged), digest)
    id = start.new_id()
    start.checkpointer.save_delta(id, "totals", 0, b"more")
    made = start.commit(manifest(id, start.claim, start.sequence + 1, [head, artefact(id, b"more", kind="delta")]))
    start.checkpointer.prune(1, 0.0, start.now_s + 1e6)
    assert restored(start.checkpointer, made) == {("totals", 0): [merged, b"more"]}
    assert sorted(path for path in start.checkpointer.files() if path.startswith("artefacts")) == sorted(
        one.path for one in made.artefacts
    )


def test_many_threads_save_and_load(checkpointer: StoreCheckpointer) -> None:
    digests: dict[int, str] = {}

    def work(worker: int) -> None:
        data = bytes([worker]) * 50_000
        digests[worker] = checkpointer.save_snapshot(ID, "totals", worker, data)
        assert checkpointer.load_artifact(checkpointer.artefact_path(ID, "totals", worker, "full")) == data

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert digests == {worker: hashlib.sha256(bytes([worker]) * 50_000).hexdigest() for worker in range(8)}
    assert len(checkpointer.files()) == 8


def test_many_starts_at_once_get_incarnations_of_their_own(checkpointer: StoreCheckpointer) -> None:
    got: list[int] = []
    threads = [threading.Thread(target=lambda: got.append(checkpointer.claim(0.0).incarnation)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("kind", ["local", "objects in files"])
def test_it_reaches_other_processes(kind: str, tmp_path: Path) -> None:
    start = Start(StoreCheckpointer(STORES[kind](tmp_path / "store"), JOB))
    made = start.take(b"one")
    other: StoreCheckpointer = cloudpickle.loads(cloudpickle.dumps(start.checkpointer))
    assert restored(other, other.load_manifest(made.id)) == {("totals", 0): [b"one"]}


def test_a_job_whose_name_is_none_is_refused(checkpointer: StoreCheckpointer) -> None:
    with pytest.raises(PlanError, match="job name"):
        StoreCheckpointer(checkpointer.store, "../orders")
