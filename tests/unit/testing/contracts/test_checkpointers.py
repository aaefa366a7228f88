"""The contract of checkpointers: ours keep it, and so does a user's; each clause catches a fault."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from malstrom_py.errors import SnapshotError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import Checkpointer, StoreCheckpointer
from malstrom_py.snapshot.ids import fresh_snapshot_id
from malstrom_py.snapshot.log import JobStart, LogEntry
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.snapshot.retention import Pruned
from malstrom_py.snapshot.store import MemoryStore, Range
from malstrom_py.testing import LawError
from malstrom_py.testing.contracts import check_checkpointer
from tests.unit.snapshot.in_sqlite import SqliteCheckpointer
from tests.unit.snapshot.stores import STORES

JOB = "contract"


def here(checkpointer: Checkpointer) -> Checkpointer:
    """Return another checkpointer on the same memory."""
    assert isinstance(checkpointer, StoreCheckpointer)
    return type(checkpointer)(checkpointer.store, JOB)


@pytest.mark.parametrize("kind", sorted(STORES))
def test_ours_keep_the_contract_over_every_store(kind: str, tmp_path: Path) -> None:
    numbers = count()
    again = here if kind not in {"local", "objects in files"} else None
    check_checkpointer(lambda: StoreCheckpointer(STORES[kind](tmp_path / f"{next(numbers)}"), JOB), again=again)


def test_one_of_a_users_own_keeps_the_contract(tmp_path: Path) -> None:
    check_checkpointer(lambda: SqliteCheckpointer(Path(tempfile.mkdtemp(dir=tmp_path)), JOB))


class OtherDigests(StoreCheckpointer):
    def save_delta(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        super().save_delta(id, operator, partition, data)
        return hashlib.sha1(data).hexdigest()


class LosesWhatIsCompacted(StoreCheckpointer):
    def save_compacted(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()


class AnswersWithNothing(StoreCheckpointer):
    def load_artifact(self, path: str) -> bytes:
        try:
            return super().load_artifact(path)
        except SnapshotError:
            return b""


class SortsRanges(StoreCheckpointer):
    def load_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        return super().load_ranges(path, sorted(ranges))


class RaisesKeyErrors(StoreCheckpointer):
    def load_manifest(self, id: SnapshotId) -> Manifest:
        try:
            return super().load_manifest(id)
        except SnapshotError:
            raise KeyError(id) from None


class NewestFirst(StoreCheckpointer):
    def list_checkpoints(self) -> list[SnapshotId]:
        return super().list_checkpoints()[::-1]


class NoFences(StoreCheckpointer):
    def claim(self, now_s: float, *, resume: str = "latest") -> JobStart:
        return replace(super().claim(now_s, resume=resume), incarnation=1)


class TakesAnyNumber(StoreCheckpointer):
    def save_manifest(self, manifest: Manifest) -> None:
        try:
            super().save_manifest(manifest)
        except SnapshotError:
            super().save_manifest(replace(manifest, sequence=self.entries()[-1].sequence + 1))


class ForgetsClaims(StoreCheckpointer):
    def entries(self) -> list[LogEntry]:
        return [entry for entry in super().entries() if entry.manifest is not None]


class BelievesTheHint(StoreCheckpointer):
    def read_latest(self) -> SnapshotId | None:
        return self.latest_hint()


class IdsByTheClock(StoreCheckpointer):
    def next_id(self, now_s: float) -> SnapshotId:
        return fresh_snapshot_id(now_s)


class RemovesWhatIsNeeded(StoreCheckpointer):
    def delete_checkpoint(self, id: SnapshotId) -> None:
        self._remove([self.load_manifest(id)], [path for path in self.files() if id in path])


class NeverPrunes(StoreCheckpointer):
    def prune(self, keep: int, grace_s: float, now_s: float, *, spare: Collection[str] = ()) -> Pruned:
        return Pruned((), ())


class SparesNothing(StoreCheckpointer):
    def prune(self, keep: int, grace_s: float, now_s: float, *, spare: Collection[str] = ()) -> Pruned:
        return super().prune(keep, grace_s, now_s)


class NoGrace(StoreCheckpointer):
    def prune(self, keep: int, grace_s: float, now_s: float, *, spare: Collection[str] = ()) -> Pruned:
        return super().prune(keep, 0.0, now_s, spare=spare)


class NotesNothing(StoreCheckpointer):
    def note_sinks_committed(self, id: SnapshotId) -> None:
        """Record nothing."""


WRONG: list[tuple[Callable[..., StoreCheckpointer], str]] = [
    (OtherDigests, "artefacts come back"),
    (LosesWhatIsCompacted, "artefacts come back"),
    (AnswersWithNothing, "artefacts come back"),
    (SortsRanges, "artefacts come back"),
    (RaisesKeyErrors, "committed snapshots are listed"),
    (NewestFirst, "committed snapshots are listed"),
    (ForgetsClaims, "committed snapshots are listed"),
    (TakesAnyNumber, "one snapshot per number"),
    (NoFences, "older starts are fenced"),
    (BelievesTheHint, "the newest is found"),
    (IdsByTheClock, "ids grow"),
    (RemovesWhatIsNeeded, "nothing needed is removed"),
    (SparesNothing, "nothing needed is removed"),
    (NoGrace, "nothing needed is removed"),
    (NeverPrunes, "pruning removes the rest"),
    (NotesNothing, "commits of sinks are noted"),
]


@pytest.mark.parametrize(("wrong", "clause"), WRONG, ids=[wrong.__name__ for wrong, _ in WRONG])
def test_a_wrong_one_breaks_a_clause(wrong: Callable[..., StoreCheckpointer], clause: str) -> None:
    with pytest.raises(LawError, match=f"law '{clause}' is broken"):
        check_checkpointer(lambda: wrong(MemoryStore(), JOB), again=here)


def test_one_that_another_process_does_not_see_breaks_a_clause() -> None:
    with pytest.raises(LawError, match="'another process continues'"):
        check_checkpointer(
            lambda: StoreCheckpointer(MemoryStore(), JOB), again=lambda _: StoreCheckpointer(MemoryStore(), JOB)
        )


class OneClaimAtATime(StoreCheckpointer):
    """Reads the log, and then writes an entry with the number read: two threads get one number."""

    def claim(self, now_s: float, *, resume: str = "latest") -> JobStart:
        if now_s == 1e9 and self.files() and not self.entries():
            raise RuntimeError("database is locked")
        return super().claim(now_s, resume=resume)


def test_one_that_does_not_take_threads_breaks_a_clause() -> None:
    with pytest.raises(LawError, match=r"'threads do not mix' is broken.*\n.*database is locked"):
        check_checkpointer(lambda: OneClaimAtATime(MemoryStore(), JOB), again=here)


def test_one_without_all_methods_is_told_which_are_missing() -> None:
    class Half:
        def claim(self, now_s: float, *, resume: str = "latest") -> JobStart:
            return JobStart(1, 1)

    half: Any = Half
    with pytest.raises(LawError, match="missing: delete_checkpoint, entries, files"):
        check_checkpointer(half)
