"""A job that resumes: each worker reads the state that it owns, and continues its chain if that is all of it (S2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.clock import VirtualClock
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.ids import id_of_start, number_of
from malstrom_py.snapshot.local_store import LocalStore
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.snapshot.store import MemoryStore, Range

KEYS = 5_000


class Counting(StoreCheckpointer):
    """Counts the bytes of artefacts that are read, by all objects of this class."""

    read: ClassVar[Counter[str]] = Counter()

    def load_artifact(self, path: str) -> bytes:
        data = super().load_artifact(path)
        self.read[path] += len(data)
        return data

    def load_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        found = super().load_ranges(path, ranges)
        self.read[path] += sum(map(len, found))
        return found


def wrote(folder: Path, day: int, keys: range) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"day-{day:02}.csv").write_text("\n".join(["key", *map(str, keys)]) + "\n")


def counts(folder: Path, name: str = "count", **upgrade: Any) -> mp.Job:
    """Counts each key of the files."""
    job = mp.Job("counts")
    keyed = job.source("in", sources.Files(folder / "in" / "*.csv", new_files=True)).key_by("key", "key")

    def add(key: int, row: dict[str, Any], total: int) -> tuple[tuple[int, int], int]:
        return (key, total + 1), total + 1

    keyed.stateful_map(name, add, default=int, **upgrade).sink("out", sinks.Callable(OUT.append))
    return job


OUT: list[tuple[int, int]] = []


def run(folder: Path, workers: int, job: mp.Job | None = None, **options: Any) -> Manifest:
    """Read the new files, and return the snapshot of the end."""
    kept = mp.Snapshots(
        checkpointer=lambda job: Counting(LocalStore(str(folder / "kept")), job), interval_s=None, **options
    )
    OUT.clear()
    mp.InProcess(workers, snapshots=kept).run(job or counts(folder))
    manifest = kept.checkpointer("counts").entries()[-1].manifest
    assert manifest is not None
    return manifest


def kinds(manifest: Manifest) -> dict[int, str]:
    """The chain of each worker: F for a full artefact, d for a delta."""
    return {
        worker: "".join("F" if artefact.kind == "full" else "d" for artefact in chain)
        for (_, worker), chain in sorted(manifest.chains().items())
    }


def test_the_first_snapshot_after_a_resume_is_a_delta_where_the_slots_are_the_same(tmp_path: Path) -> None:
    wrote(tmp_path / "in", 1, range(KEYS))
    first = run(tmp_path, 2)
    wrote(tmp_path / "in", 2, range(0, KEYS, 50))
    second = run(tmp_path, 2)
    assert kinds(first) == {0: "F", 1: "F"}
    assert kinds(second) == {0: "Fd", 1: "Fd"}
    assert second.parent == first.id
    written = sum(artefact.size for artefact in second.artefacts if artefact.snapshot == second.id)
    assert written < sum(artefact.size for artefact in first.artefacts) / 4
    wrote(tmp_path / "in", 3, range(KEYS))
    run(tmp_path, 3)
    assert sorted(OUT) == [(key, 3 if key % 50 == 0 else 2) for key in range(KEYS)]


def test_a_worker_that_gains_or_loses_slots_begins_a_new_chain(tmp_path: Path) -> None:
    for day, (workers, chains) in enumerate(
        ((3, {0: "F", 1: "F", 2: "F"}), (2, {0: "F", 1: "F"}), (2, {0: "Fd", 1: "Fd"}), (3, {0: "F", 1: "F", 2: "F"}))
    ):
        wrote(tmp_path / "in", day, range(KEYS))
        assert kinds(run(tmp_path, workers)) == chains
        assert sorted(OUT) == [(key, day + 1) for key in range(KEYS)]


def test_migrated_and_renamed_state_begins_a_new_chain(tmp_path: Path) -> None:
    wrote(tmp_path / "in", 1, range(10))
    run(tmp_path, 1)
    wrote(tmp_path / "in", 2, range(10))
    renamed = {"name": "counted", "renamed_from": "count"}
    assert kinds(run(tmp_path, 1, counts(tmp_path, **renamed))) == {0: "F"}
    wrote(tmp_path / "in", 3, range(10))

    def plus_hundred(key: int, total: int) -> int:
        return total + 100

    migrated = counts(tmp_path, **renamed, migrate=plus_hundred)
    assert kinds(run(tmp_path, 1, migrated)) == {0: "F"}
    assert sorted(OUT) == [(key, 103) for key in range(10)]


def test_chains_of_many_runs_are_no_longer_than_those_of_one(tmp_path: Path) -> None:
    lengths = []
    for day in range(1, 7):
        wrote(tmp_path / "in", day, range(10))
        lengths.append(kinds(run(tmp_path, 1, chain_max=2))[0])
    assert lengths == ["F", "Fd", "Fdd", "F", "Fd", "Fdd"]


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (3, 5), (4, 4)])
def test_each_byte_of_state_is_read_once_to_verify_it_and_once_by_the_worker_that_owns_it(
    tmp_path: Path, before: int, after: int
) -> None:
    wrote(tmp_path / "in", 1, range(KEYS))
    made = run(tmp_path, before)
    wrote(tmp_path / "in", 2, range(3))
    Counting.read.clear()
    run(tmp_path, after)
    size = sum(artefact.size for artefact in made.artefacts)
    read = sum(Counting.read[artefact.path] for artefact in made.artefacts)
    index = 24 * 1024  # of all artefacts: 24 bytes for each slot; each worker reads it
    assert 2 * size <= read <= 2 * size + after * (index + 32 * before)


class Whole(Counting):
    """One that cannot read ranges."""

    load_ranges = None  # type: ignore[assignment]


def test_a_checkpointer_that_cannot_read_ranges_is_read_whole(tmp_path: Path) -> None:
    wrote(tmp_path / "in", 1, range(100))
    run(tmp_path, 2)
    wrote(tmp_path / "in", 2, range(100))
    kept = mp.Snapshots(checkpointer=lambda job: Whole(LocalStore(str(tmp_path / "kept")), job), interval_s=None)
    OUT.clear()
    mp.InProcess(3, snapshots=kept).run(counts(tmp_path))
    assert sorted(OUT) == [(key, 2) for key in range(100)]


# The ids with which starts recover their sinks.


class Stopped(VirtualClock):
    """A clock that does not run: all that is done in one start is done in the same microsecond."""

    def sleep_s(self, duration_s: float) -> None:
        """Let no time pass."""


class Noting(sinks.Memory):
    """Notes the ids of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[tuple[str, SnapshotId]] = []

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        self.ids.append(("recover", context.snapshot))
        super().recover(context, committed)

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        self.ids.append(("commit", context.snapshot))
        super().commit(context, payloads)


@pytest.mark.parametrize("second_s", [1e9, 1e9 + 60.0, 1e9 - 60.0], ids=["the same", "later", "set back"])
@pytest.mark.parametrize("resume", ["latest", "none"])
def test_s3_what_a_start_writes_is_later_than_all_recoveries_before(second_s: float, resume: str) -> None:
    store, out = MemoryStore(), Noting()

    def start(clock_s: float, **options: Any) -> None:
        job = mp.Job("ids")
        job.source("in", sources.Memory(range(4))).sink("out", out)
        snapshots = mp.Snapshots(store, interval_s=None)
        mp.InProcess(snapshots=snapshots, clock=Stopped(clock_s), **options).run(job)

    start(1e9)
    start(second_s, resume=resume)
    starts = [index for index, (what, _) in enumerate(out.ids) if what == "recover"]
    assert len(starts) == 2
    for index in starts:
        recovered = number_of(out.ids[index][1])
        before = [number_of(snapshot) for _, snapshot in out.ids[:index]]
        after = [number_of(snapshot) for what, snapshot in out.ids[index:] if what == "commit"]
        assert all(number < recovered for number in before)
        assert all(number > recovered for number in after)


def test_s3_an_id_is_later_than_a_start_that_has_written_nothing() -> None:
    checkpointer = mp.Snapshots(MemoryStore()).checkpointer("ids")
    claim = checkpointer.claim(1e9 + 5.0)
    assert checkpointer.next_id(1e9) > id_of_start(claim.created)


@pytest.mark.parametrize("created", ["", "yesterday", "2026-13-01"])
def test_a_start_of_an_unknown_time_does_not_matter(created: str) -> None:
    assert id_of_start(created) == ""
    assert id_of_start("2026-11-22T05:22:42.123456+01:00") == id_of_start("2026-11-22T04:22:42.123456")
