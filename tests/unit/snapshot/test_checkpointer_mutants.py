"""Wrong orders and omissions in the storage of snapshots; a scenario of the oracle catches each."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from malstrom_py.errors import SnapshotError
from malstrom_py.snapshot import log
from malstrom_py.snapshot import retention as pruning
from malstrom_py.snapshot import selection as choosing
from malstrom_py.snapshot import verification as verifying
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.ids import fresh_snapshot_id, next_snapshot_id
from malstrom_py.snapshot.local_store import LocalStore
from malstrom_py.snapshot.log import JobStart, Log
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.snapshot.store import PART
from tests.unit.snapshot import forgetful_disk, oracle
from tests.unit.snapshot.oracle import SCENARIOS

Wrong = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, tuple[Wrong, Callable[[], None]]] = {}


def caught_by(scenario: Callable[[], None]) -> Callable[[Wrong], Wrong]:
    def listed(wrong: Wrong) -> Wrong:
        MUTANTS[wrong.__name__] = (wrong, scenario)
        return wrong

    return listed


@caught_by(oracle.crash_at_each_operation_of_a_commit)
def contents_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forgetful_disk.OpenFile, "sync", lambda self: None)


@caught_by(oracle.crash_at_each_operation_of_a_commit)
def names_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forgetful_disk.ForgetfulDisk, "sync_folder", lambda self, path: None)


@caught_by(oracle.crash_at_each_operation_of_a_commit)
def the_names_of_new_folders_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    def make(self: LocalStore, path: str) -> None:
        if path:
            make(self, path.rpartition("/")[0])
        self._disk.make_folder(path)

    patch.setattr(LocalStore, "_make_folders", make)


@caught_by(oracle.crash_at_each_operation_of_a_commit)
def a_name_is_given_before_the_contents_are_synced(patch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def written(self: LocalStore, path: str, pieces: Sequence[bytes]) -> Iterator[str]:
        self._make_folders(path.rpartition("/")[0])
        fresh = f"{path}.{secrets.token_hex(8)}{PART}"
        file = self._disk.new_file(fresh)
        file.write(b"".join(pieces))
        yield fresh

    patch.setattr(LocalStore, "_written", written)


@caught_by(oracle.crash_at_each_operation_of_a_commit)
def the_manifest_comes_before_its_artefacts(patch: pytest.MonkeyPatch) -> None:
    right_manifest, right_save = StoreCheckpointer.save_manifest, StoreCheckpointer._save
    later: list[tuple[StoreCheckpointer, str, list[bytes]]] = []

    def save(self: StoreCheckpointer, path: str, pieces: Iterable[bytes]) -> str:
        later.append((self, path, list(pieces)))
        return hashlib.sha256(b"".join(later[-1][2])).hexdigest()

    def save_manifest(self: StoreCheckpointer, manifest: Manifest) -> None:
        right_manifest(self, manifest)
        held = [one for one in later if one[0] is self]
        later.clear()
        for one in held:
            right_save(*one)

    patch.setattr(StoreCheckpointer, "_check_place", lambda self, what, manifest: None)
    patch.setattr(StoreCheckpointer, "_save", save)
    patch.setattr(StoreCheckpointer, "save_manifest", save_manifest)


@caught_by(oracle.crash_at_each_operation_of_the_first_start)
def the_hint_comes_before_the_manifest(patch: pytest.MonkeyPatch) -> None:
    right = StoreCheckpointer.save_manifest

    def save_manifest(self: StoreCheckpointer, manifest: Manifest) -> None:
        self.update_latest(manifest.id)
        right(self, manifest)

    patch.setattr(StoreCheckpointer, "save_manifest", save_manifest)


@caught_by(oracle.crash_at_each_operation_of_a_commit)
def pruning_removes_artefacts_before_entries(patch: pytest.MonkeyPatch) -> None:
    right = StoreCheckpointer._remove

    def remove(self: StoreCheckpointer, snapshots: Any, files: Any) -> None:
        right(self, [], files)
        right(self, snapshots, [])

    patch.setattr(StoreCheckpointer, "_remove", remove)


@caught_by(oracle.a_zombie_cannot_commit)
def an_entry_replaces_another(patch: pytest.MonkeyPatch) -> None:
    def append(self: Log, sequence: int, data: bytes) -> bool:
        self._store.put(f"{self._job}/{log.path_of(sequence)}", data)
        return True

    patch.setattr(Log, "append", append)


@caught_by(oracle.crash_at_each_operation_of_a_commit)
def create_replaces_what_is_there(patch: pytest.MonkeyPatch) -> None:
    def create(self: LocalStore, path: str, data: bytes) -> bool:
        self.put(path, data)
        return True

    def claim_where_it_stands(entries: Any) -> int:
        return len(entries)

    patch.setattr(LocalStore, "create", create)
    patch.setattr(log, "next_incarnation", claim_where_it_stands)


@caught_by(oracle.a_zombie_cannot_commit)
def a_claim_takes_no_number(patch: pytest.MonkeyPatch) -> None:
    def claim(self: StoreCheckpointer, now_s: float, *, resume: str = "latest") -> JobStart:
        entries = self.entries()
        return JobStart(log.next_incarnation(entries) + 1, entries[-1].sequence if entries else 0)

    patch.setattr(StoreCheckpointer, "claim", claim)


@caught_by(oracle.a_zombie_cannot_commit)
def incarnations_do_not_grow(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log, "next_incarnation", lambda entries: 1)


@caught_by(oracle.a_zombie_cannot_commit)
def claims_are_pruned(patch: pytest.MonkeyPatch) -> None:
    right = StoreCheckpointer.prune

    def prune(self: StoreCheckpointer, keep: int, grace_s: float, now_s: float) -> pruning.Pruned:
        pruned = right(self, keep, grace_s, now_s)
        for entry in self.entries()[:-1]:
            if isinstance(entry.content, JobStart):
                self._log.remove(entry.sequence)
        return pruned

    patch.setattr(StoreCheckpointer, "prune", prune)


@caught_by(oracle.starts_that_come_at_once_are_told_apart)
def a_claim_does_not_look_whether_it_came_first(patch: pytest.MonkeyPatch) -> None:
    right = Log.append

    def append(self: Log, sequence: int, data: bytes) -> bool:
        right(self, sequence, data)
        return True

    patch.setattr(Log, "append", append)


@caught_by(oracle.a_lost_answer_of_the_store_does_no_harm)
def what_is_there_already_is_never_ones_own(patch: pytest.MonkeyPatch) -> None:
    def append(self: Log, sequence: int, data: bytes) -> bool:
        return self._store.create(f"{self._job}/{log.path_of(sequence)}", data)

    patch.setattr(Log, "append", append)


@caught_by(oracle.what_was_flipped_or_cut_is_never_loaded)
def the_digest_of_a_manifest_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log, "open_seal", lambda data: json.loads(data.partition(b"\n")[0]))


@caught_by(oracle.what_was_flipped_or_cut_is_never_loaded)
def the_digest_of_an_artefact_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    def only_size(artefact: Any, size: int, sha256: str) -> str:
        return "" if size == artefact.size else "too short"

    patch.setattr(verifying, "_compared", only_size)


@caught_by(oracle.what_was_flipped_or_cut_is_never_loaded)
def artefacts_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(choosing, "faults_of", lambda checkpointer, manifest: iter(()))


@caught_by(oracle.a_crash_while_a_damaged_one_is_skipped_goes_further_back)
def the_newest_or_none(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(choosing, "history", lambda entries: iter([next(log.history(entries))]))


@caught_by(oracle.all_damaged_is_an_error_and_no_fresh_beginning)
def all_damaged_begins_afresh(patch: pytest.MonkeyPatch) -> None:
    def latest(checkpointer: StoreCheckpointer, *, job: str) -> Any:
        try:
            return choosing.latest_manifest(checkpointer, job=job)
        except SnapshotError as error:
            return None, [str(error)]

    patch.setattr(oracle, "latest_manifest", latest)


@caught_by(oracle.ids_are_never_used_again)
def ids_follow_the_clock_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoreCheckpointer, "next_id", lambda self, now_s: fresh_snapshot_id(now_s))


@caught_by(oracle.ids_are_never_used_again)
def ids_know_of_committed_snapshots_only(patch: pytest.MonkeyPatch) -> None:
    def next_id(self: StoreCheckpointer, now_s: float) -> str:
        return next_snapshot_id(now_s, max(self.list_checkpoints(), default=None))

    patch.setattr(StoreCheckpointer, "next_id", next_id)


@caught_by(oracle.ids_are_never_used_again)
def an_id_is_used_again(patch: pytest.MonkeyPatch) -> None:
    right = StoreCheckpointer.next_id

    def next_id(self: StoreCheckpointer, now_s: float) -> str:
        saved = [path.split("/")[1] for path in self.files() if path.startswith("artefacts/")]
        return max(saved, default=None) or right(self, now_s)

    patch.setattr(StoreCheckpointer, "next_id", next_id)


@caught_by(oracle.a_partial_snapshot_is_no_parent)
def nobody_looks_whether_artefacts_are_there(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoreCheckpointer, "_check_place", lambda self, what, manifest: None)


@caught_by(oracle.a_partial_snapshot_is_no_parent)
def chains_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Manifest, "check", lambda self: None)


@caught_by(oracle.pruning_leaves_what_is_needed)
def pruning_ignores_what_others_need(patch: pytest.MonkeyPatch) -> None:
    right = pruning.Pruning.files

    def files(self: pruning.Pruning, dropped: Any, *, made_before_s: float) -> list[str]:
        gone = {manifest.id for manifest in dropped}
        theirs = [path for path in self._files if path.startswith("artefacts/") and path.split("/")[1] in gone]
        return sorted({*right(self, dropped, made_before_s=made_before_s), *theirs})

    patch.setattr(pruning.Pruning, "files", files)


@caught_by(oracle.pruning_leaves_what_is_needed)
def pruning_takes_what_is_on_its_way(patch: pytest.MonkeyPatch) -> None:
    right = pruning.Pruning.files

    def files(self: pruning.Pruning, dropped: Any, *, made_before_s: float) -> list[str]:
        gone = {manifest.id for manifest in dropped}
        needed = {
            a.path for e in self._entries if e.manifest and e.manifest.id not in gone for a in e.manifest.artefacts
        }
        orphans = [path for path in self._files if path.startswith("artefacts/") and path not in needed]
        return sorted({*right(self, dropped, made_before_s=made_before_s), *orphans})

    patch.setattr(pruning.Pruning, "files", files)


@caught_by(oracle.pruning_leaves_what_is_needed)
def pruning_counts_what_is_damaged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoreCheckpointer, "_is_whole", lambda self, manifest: True)


def test_every_mutant_has_a_scenario_of_the_oracle() -> None:
    assert len(MUTANTS) >= 20
    assert {scenario for _, scenario in MUTANTS.values()} <= set(oracle.SCENARIOS)


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_mutant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, scenario = MUTANTS[name]
    wrong(monkeypatch)
    with pytest.raises((AssertionError, SnapshotError)):
        scenario()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_s3_snapshots_hold(scenario: Callable[[], None]) -> None:
    scenario()
