"""Snapshots in a folder: permissions, links, full disks, and the rest of interrupted writes."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from malstrom_py.errors import SnapshotError
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.local_store import LocalStore, SystemDisk
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.snapshot.selection import latest_manifest
from tests.unit.snapshot.forgetful_disk import EVERYTHING, NOTHING, ForgetfulDisk
from tests.unit.snapshot.oracle import NEW, OLD, on, with_two
from tests.unit.snapshot.taken import JOB, Start, manifest, restored


def rights(path: Path) -> str:
    return f"{path.stat().st_mode & 0o777:o}"


def test_folders_and_files_are_for_this_user_alone(tmp_path: Path) -> None:
    LocalStore(tmp_path / "made" / "store").put("orders/log/1.json", b"one")
    assert rights(tmp_path / "made") == rights(tmp_path / "made/store") == "700"
    assert rights(tmp_path / "made/store/orders/log") == "700"
    assert rights(tmp_path / "made/store/orders/log/1.json") == "600"


@pytest.mark.parametrize("linked", ["orders", "orders/log"])
def test_no_link_to_a_folder_is_followed(tmp_path: Path, linked: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "log").mkdir(parents=True)
    (elsewhere / "1.json").write_bytes(b"secret")
    (elsewhere / "log/1.json").write_bytes(b"secret")
    link = tmp_path / "store" / linked
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    store = LocalStore(tmp_path / "store")
    for tried in (
        lambda: store.put("orders/log/2.json", b"x"),
        lambda: store.create("orders/log/2.json", b"x"),
        lambda: store.delete("orders/log/1.json"),
    ):
        with pytest.raises(SnapshotError, match=r"cannot be (written|removed)"):
            tried()
    with pytest.raises((SnapshotError, FileNotFoundError)):
        store.get("orders/log/1.json")
    assert store.list("") == []
    assert sorted(path.name for path in elsewhere.rglob("*")) == ["1.json", "1.json", "log"]


def test_no_link_to_a_file_is_read_and_one_is_replaced_itself(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    store = LocalStore(tmp_path / "store")
    store.put("orders/other", b"one")
    (tmp_path / "store/orders/_latest").symlink_to(secret)
    with pytest.raises(SnapshotError, match="cannot be read"):
        store.get("orders/_latest")
    assert not store.create("orders/_latest", b"two")
    store.put("orders/_latest", b"two")
    assert (secret.read_bytes(), store.get("orders/_latest")) == (b"secret", b"two")


def test_a_root_that_is_a_file_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(
        SnapshotError, match=r"/proc/nope/orders/_latest cannot be written: its folder cannot be made\. Give"
    ):
        LocalStore("/proc/nope").put("orders/_latest", b"one")
    for root in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(SnapshotError, match=r"_latest cannot be written: there is a file where a folder is needed"):
            LocalStore(root).put("orders/_latest", b"one")
        with pytest.raises(SnapshotError, match=r"_latest cannot be read: there is a file where a folder is needed"):
            LocalStore(root).get("orders/_latest")


def test_a_folder_that_another_process_removed_is_made_again(tmp_path: Path) -> None:
    store, other = LocalStore(tmp_path), LocalStore(tmp_path)
    store.put("orders/commits/a", b"")
    other.delete("orders/commits/a")
    store.put("orders/commits/b", b"")
    assert store.list("") == ["orders/commits/b"]


def attempted(start: Start) -> tuple[Manifest | None, SnapshotError | None]:
    """Try to commit a snapshot; return the manifest, if it exists, and the error."""
    made = None
    try:
        id = start.new_id()
        made = manifest(id, start.claim, start.sequence + 1, start.save(id, [b"new 0", b"new 1"]))
        start.checkpointer.save_manifest(made)
    except SnapshotError as error:
        return made, error
    return made, None


@pytest.mark.parametrize("permanently", [False, True], ids=["once", "permanently"])
@pytest.mark.parametrize("fails", [errno.ENOSPC, errno.EROFS, errno.EIO], ids=errno.errorcode.get)
def test_s3_a_disk_that_fails_at_any_operation_is_an_error_and_the_old_snapshot_stays(
    fails: int, permanently: bool
) -> None:
    operations = 0
    while True:
        disk = ForgetfulDisk()
        start = with_two(on(disk))
        old = start.last
        disk.fails, disk.permanently, operations = fails, permanently, operations + 1
        disk.fails_at = len(disk.journal) + operations
        new, error = attempted(start)
        if len(disk.journal) < disk.fails_at:
            break
        disk.fails_at = 0
        assert error is None or "cannot be written" in str(error)
        for again in (on(disk), on(disk.go_down(NOTHING)), on(disk.go_down(EVERYTHING))):
            found, _ = latest_manifest(again, job=JOB)
            # If the disk fails permanently, the entry to be removed may still exist.
            assert found == new if error is None else (found == old or permanently)
            assert found is not None
            assert restored(again, found) == (OLD if found == old else NEW)
        if error is not None:
            if new is not None:
                start.commit(new)
            start.take(b"once there is room")
            assert latest_manifest(start.checkpointer, job=JOB) == (start.last, [])
            assert latest_manifest(on(disk.go_down(NOTHING)), job=JOB) == (start.last, [])
    assert operations > 15


def test_what_was_left_half_written_is_not_read_and_goes_when_it_is_old() -> None:
    disk = ForgetfulDisk()
    start = with_two(on(disk))
    id = start.new_id()
    disk.fails_at, disk.permanently = len(disk.journal) + 4, True
    with pytest.raises(SnapshotError):
        start.save(id, [b"half"])
    disk.fails_at = 0
    left = [path for path in start.checkpointer.files() if path.endswith(".part")]
    assert len(left) == 1
    newest = start.take(b"whole")
    assert latest_manifest(start.checkpointer, job=JOB) == (newest, [])
    start.checkpointer.prune(3, 3600.0, start.now_s + 1.0)
    assert set(left) <= set(start.checkpointer.files())
    start.checkpointer.prune(3, 3600.0, start.now_s + 7200.0)
    assert not set(left) & set(start.checkpointer.files())


def test_a_start_on_the_disk_of_this_machine(tmp_path: Path) -> None:
    disk = SystemDisk(str(tmp_path / "store"))
    checkpointer = StoreCheckpointer(LocalStore(tmp_path / "store", disk=disk), JOB)
    start = with_two(checkpointer)
    start.take(b"third")
    checkpointer.prune(1, 0.0, start.now_s + 1e6)
    again = Start(StoreCheckpointer(LocalStore(tmp_path / "store"), JOB))
    assert latest_manifest(again.checkpointer, job=JOB) == (start.last, [])
    kept = sorted(path.name for path in (tmp_path / "store" / JOB / "artefacts").iterdir())
    assert kept == start.ids[-1:]
