"""Snapshots in an object store that is reached over HTTP: the suite of all stores, and answers that get lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from malstrom_py.errors import FencedError, SnapshotError
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.object_store import ObjectStore
from malstrom_py.snapshot.selection import latest_manifest
from malstrom_py.snapshot.snapshots import Snapshots
from tests.integration.small_s3 import SmallS3, small_s3
from tests.unit.snapshot.taken import JOB, Start
from tests.unit.snapshot.test_store_contract import (
    test_no_path_leads_out,
    test_paths_are_listed_below_a_folder_sorted,
    test_put_replaces,
    test_s3_of_many_who_create_one_succeeds,
    test_s3_what_is_there_is_not_created,
    test_what_is_not_there_is_not_found,
    test_what_was_deleted_is_gone_and_may_be_so_already,
    test_what_was_put_is_got,
    test_who_reads_sees_the_old_or_the_new,
)

OF_ALL_STORES = (
    test_what_was_put_is_got,
    test_put_replaces,
    test_s3_what_is_there_is_not_created,
    test_s3_of_many_who_create_one_succeeds,
    test_who_reads_sees_the_old_or_the_new,
    test_what_is_not_there_is_not_found,
    test_paths_are_listed_below_a_folder_sorted,
    test_what_was_deleted_is_gone_and_may_be_so_already,
    test_no_path_leads_out,
)
"""They run here on the `store` below."""


@pytest.fixture
def server() -> Iterator[SmallS3]:
    with small_s3() as server:
        yield server


@pytest.fixture
def store(server: SmallS3) -> ObjectStore:
    return ObjectStore("s3://bucket/some/folder", options=server.options)


def test_s3_snapshots_are_committed_by_writes_that_fail_where_something_is(server: SmallS3) -> None:
    snapshots = Snapshots("s3://bucket/snapshots", options=server.options)
    start = Start(snapshots.in_store(JOB))
    start.take(b"one", b"two")
    made = start.take(b"three", delta=True)
    assert latest_manifest(snapshots.in_store(JOB), job=JOB) == (made, [])
    to_log = {only_if_absent for method, path, only_if_absent in server.seen if method == "PUT" and "/log/" in path}
    assert to_log == {True}
    Start(snapshots.in_store(JOB))
    with pytest.raises(FencedError):
        start.take(b"four")
    assert latest_manifest(snapshots.checkpointer(JOB), job=JOB) == (made, [])


def test_s3_a_write_whose_answer_is_lost_is_not_taken_for_that_of_another(server: SmallS3, store: ObjectStore) -> None:
    server.drops = 1
    start = Start(StoreCheckpointer(store, JOB))
    assert (start.claim.incarnation, start.claim.sequence) == (1, 1)
    id = start.new_id()
    saved = start.save(id, [b"one"])
    server.drops = 1
    made = start.take(b"one")
    assert server.drops == 0
    assert saved
    assert latest_manifest(start.checkpointer, job=JOB) == (made, [])


def test_s3_a_store_without_conditional_writes_is_refused(server: SmallS3, store: ObjectStore) -> None:
    server.heeds_conditions = False
    with pytest.raises(SnapshotError, match="s3://bucket/some/folder replaced a file"):
        StoreCheckpointer(store, JOB).claim(0.0)


def test_a_store_whose_address_makes_no_sense_is_told_of(server: SmallS3) -> None:
    """It makes obstore panic."""
    lost = ObjectStore("s3://bucket/folder", options={**server.options, "endpoint": "http://no where"})
    with pytest.raises(SnapshotError, match="s3://bucket/folder/orders/_latest cannot be read"):
        lost.get("orders/_latest")
