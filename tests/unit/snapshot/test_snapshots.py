"""The settings of snapshots: their place, their interval, their number."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from malstrom_py.errors import PlanError, SnapshotError
from malstrom_py.snapshot import summary
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.local_store import LocalStore
from malstrom_py.snapshot.manifest import PartImage
from malstrom_py.snapshot.object_store import ObjectStore
from malstrom_py.snapshot.selection import latest_manifest
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.snapshot.store import MemoryStore
from tests.unit.snapshot.taken import JOB, Start


@pytest.mark.parametrize("write", [str, Path, lambda path: path.as_uri(), lambda path: f"file:{path}"])
def test_a_folder_is_named_by_path_or_uri(tmp_path: Path, write: Any) -> None:
    snapshots = Snapshots(write(tmp_path / "a b"))
    assert isinstance(snapshots.store(), LocalStore)
    made = Start(snapshots.in_store(JOB)).take(b"one")
    assert (tmp_path / "a b" / JOB / "_latest").read_text().strip() == made.id


def test_a_relative_folder_is_the_same_after_the_process_has_gone_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpointer = Snapshots("kept").checkpointer(JOB)
    monkeypatch.chdir(os.sep)
    checkpointer.claim(0.0)
    assert (tmp_path / "kept" / JOB / "log").is_dir()


@pytest.mark.parametrize("uri", ["s3://bucket/folder", "S3://bucket", "gs://bucket/folder", "az://container/folder"])
def test_an_object_store_is_named_by_its_uri_and_not_opened_yet(uri: str) -> None:
    snapshots = Snapshots(uri, options={"secret_access_key": "hush"})
    assert isinstance(snapshots.store(), ObjectStore)
    assert "hush" not in repr(snapshots) + repr(snapshots.checkpointer(JOB))
    assert "hush" not in repr(cloudpickle.loads(cloudpickle.dumps(snapshots)))


def test_a_store_is_taken_as_it_is() -> None:
    store = MemoryStore()
    made = Start(Snapshots(store).in_store(JOB)).take(b"one")
    assert latest_manifest(Snapshots(store, keep=1).checkpointer(JOB), job=JOB) == (made, [])


@pytest.mark.parametrize(
    "uri",
    ["", "ftp://host/folder", "http://host/folder", "file://host/folder", "memory://", "file://", "s3://", "gs:///"],
)
def test_what_is_no_place_is_told_at_once(uri: str) -> None:
    with pytest.raises(PlanError, match="snapshots"):
        Snapshots(uri)


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval_s": 0}, {"interval_s": -1.0}, {"interval_s": "10"}, {"interval_s": True},
        {"interval_s": float("nan")},
        {"keep": 0}, {"keep": 2.0}, {"chain_max": 0}, {"chain_max": 10**6}, {"options": {"region": "eu"}},
    ],
    ids=repr,
)  # fmt: skip
def test_what_makes_no_sense_is_told_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=f"snapshots: {next(iter(wrong))}"):
        Snapshots("/data/snapshots", **wrong)


def test_without_an_interval_snapshots_are_made_when_asked_for() -> None:
    assert Snapshots("/data/snapshots", interval_s=None).interval_s is None


def test_a_savepoint_has_the_options_of_stores_of_its_kind_alone() -> None:
    options = {"region": "eu-central-1"}
    kept = Snapshots("S3://here/snapshots", options=options)
    assert kept.elsewhere("s3://there/saved").options == options
    for uri in ("gs://there/saved", "/there/saved", "file:///there/saved"):
        assert kept.elsewhere(uri).options == {}
    assert Snapshots(MemoryStore()).elsewhere("s3://there/saved").options == {}
    assert Snapshots("/here").elsewhere("/there/saved").uri == "/there/saved"


@pytest.fixture
def start() -> Start:
    start = Start(StoreCheckpointer(MemoryStore(), JOB))
    start.take(b"aaaa", b"bb")
    start.take(b"c", b"ddd", delta=True)
    return start


def test_the_state_of_a_step_is_summed_over_its_chains(start: Start) -> None:
    assert start.last is not None
    assert summary.state_of(start.last) == [
        summary.StateSummary("totals", workers=2, artefacts=4, chain=2, full=6, delta=4)
    ]
    assert summary.size_of(start.last) == 10


def test_a_job_is_found_by_its_log(start: Start) -> None:
    store = start.checkpointer.store
    store.put("notes/readme.txt", b"no job")
    assert summary.jobs_in(store) == [JOB]
    assert summary.find_job(store, None) == JOB
    with pytest.raises(SnapshotError, match="has no snapshot of job 'notes'; it has snapshots of orders"):
        summary.find_job(store, "notes")
    with pytest.raises(SnapshotError, match="has no snapshot; it has no snapshots"):
        summary.find_job(MemoryStore(), None)


def test_positions_are_told_in_json_whatever_they_are_of(start: Start) -> None:
    assert start.last is not None
    made = replace(start.last, sources={"read": {"a": PartImage((1, 2)), "b": PartImage([1], finished=True)}})
    (first, second) = summary.positions_of(made)
    assert first[:2] == ("read", "a")
    assert set(first[2]) == {"$"}, "a tuple is not a list"
    assert second == ("read", "b", [1], True)


def test_what_sets_a_snapshot_apart_is_noted(start: Start) -> None:
    assert start.last is not None
    assert summary.notes_on(start.last) == []
    marked = replace(start.last, savepoint=True, result={})
    assert summary.notes_on(marked) == ["savepoint", "the job has finished"]
    assert summary.as_plain(marked)["finished"] is True
