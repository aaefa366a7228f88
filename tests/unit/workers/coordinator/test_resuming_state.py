"""A job that resumes: each worker reads the state that it owns, and continues its chain if that is all of it (S2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.local_store import LocalStore
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.snapshot.store import Range

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
