"""Messages about snapshots name the place as the user wrote it: no reprs of our objects, and no file twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.snapshot.object_store import ObjectStore
from malstrom_py.snapshot.store import place_of
from malstrom_py.testing import VirtualClock


def run(folder: Path, *, resume: str = "latest") -> None:
    job = mp.Job("orders")
    job.source("in", sources.Memory([1, 2])).key_by("k", str).count("n").sink("out", sinks.Memory())
    mp.run(job, clock=VirtualClock(), snapshots=mp.Snapshots(folder), resume=resume)


def damage(folder: Path, below: str, *, remove: bool) -> None:
    for path in [path for path in (folder / "orders" / below).rglob("*") if path.is_file()]:
        if remove:
            path.unlink()
        else:
            path.write_bytes(b"?" + path.read_bytes()[1:])


@pytest.mark.parametrize("remove", [False, True])
@pytest.mark.parametrize("below", ["log", "artefacts"])
def test_what_cannot_be_gone_on_from_is_told_once_and_by_its_folder(below: str, remove: bool, tmp_path: Path) -> None:
    run(tmp_path)
    damage(tmp_path, below, remove=remove)
    with pytest.raises(mp.SnapshotError) as raised:
        run(tmp_path)
    message = str(raised.value)
    assert f" in {tmp_path}" in message
    assert not re.search(r"Store|Posix|[A-Z]\w+\(", message)
    ids = re.findall(r"\d{8}T\d{12}Z-[0-9a-f]{8}", message)
    assert len(ids) == len(set(ids)) <= 1


def test_a_snapshot_that_is_not_there_is_told_by_the_folder(tmp_path: Path) -> None:
    run(tmp_path)
    missing = "20261122T042242123456Z-1a2b3c4d"
    with pytest.raises(mp.SnapshotError, match=f"has no snapshot {missing} in {tmp_path}; its snapshots are: "):
        run(tmp_path, resume=missing)


def test_a_path_that_was_given_as_a_path_is_shown_as_one(tmp_path: Path) -> None:
    with pytest.raises(mp.PlanError, match=f"options are for object stores, and '{tmp_path}' is a folder"):
        mp.Snapshots(tmp_path, options={"region": "x"}).store()


def test_a_place_says_no_more_than_where_it_is() -> None:
    class Own:
        pass

    assert place_of(ObjectStore("s3://bucket/x", options={"aws_secret_access_key": "hush"})) == "s3://bucket/x"
    assert place_of(Own()) == "Own"
