"""A job on Ray resumes from its last snapshot after any death (S6), and in other programs (S5, S7)."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any, Final

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import PeerError, SnapshotError
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.store import MemoryStore
from tests.integration.ray.chaos import KEYS, PATIENCE_S, chaotic, check, ravage, until
from tests.integration.ray.chaos_ends import Row, rows_in
from tests.integration.ray.leftovers import pids
from tests.unit.snapshot.in_sqlite import SqliteCheckpointer

SEED: Final = 8


def test_s6_state_files_queries_taps_and_shadows_are_exact_after_kills(tidy: None, tmp_path: Path) -> None:
    hits = ravage(tmp_path, kills=4, seed=SEED, say=print, watched=True)
    assert set(hits) == {"WorkerActor", "WorkerActor in a rescale", "CoordinatorActor in a rescale"}
    assert sum(hits.values()) == 4


def restarted(handle: mp.JobHandle, restarts: int) -> None:
    """Wait until the job has restarted so often, and reads again."""
    until(lambda: handle.status().restarts == restarts and handle.status().phase == "steady", handle.status)
    handle.snapshot()


@pytest.mark.long
def test_s6_a_worker_that_fails_gets_a_new_process_and_one_without_a_place_is_gone(tidy: None, tmp_path: Path) -> None:
    failed = tmp_path / "failed"

    def fails_once(row: Row) -> None:
        if row["seen"] == 50 and not failed.exists():
            failed.write_text(str(os.getpid()))
            raise LookupError("once")

    handle = runtime(3, tmp_path / "kept").start(chaotic("fails", tmp_path / "out", fails_once))
    until(lambda: len(pids("WorkerActor")) == 3, handle.status)
    before = set(pids("WorkerActor"))
    restarted(handle, 1)
    assert before - set(pids("WorkerActor")) == {int(failed.read_text())}
    assert len(pids("WorkerActor")) == 3

    handle.rescale(1, wait=False)  # a run of one worker follows, whether or not the rescale has ended
    os.kill(pids("WorkerActor")[0], signal.SIGKILL)
    restarted(handle, 2)
    assert len(pids("WorkerActor")) == handle.status().workers == 1
    handle.stop(drain=True, timeout_s=PATIENCE_S)
    check(rows_in(tmp_path / "out"))


@pytest.mark.long
def test_s6_a_survivor_that_does_not_stop_in_time_gets_a_new_process(tidy: None, tmp_path: Path) -> None:
    stuck = tmp_path / "stuck"

    def sticks_once(row: Row) -> None:
        if row["seen"] == 50 and not stuck.exists():
            stuck.write_text(str(os.getpid()))
            time.sleep(PATIENCE_S)

    handle = runtime(3, tmp_path / "kept").start(chaotic("sticks", tmp_path / "out", sticks_once))
    until(lambda: stuck.exists() and stuck.read_text() != "", handle.status)
    before = pids("WorkerActor")
    stays, killed = [pid for pid in before if pid != int(stuck.read_text())]
    os.kill(killed, signal.SIGKILL)
    restarted(handle, 1)
    assert set(before) & set(pids("WorkerActor")) == {stays}
    handle.stop(drain=True, timeout_s=PATIENCE_S)
    check(rows_in(tmp_path / "out"))


def runtime(workers: int, folder: Path, **options: Any) -> mp.RayRuntime:
    return mp.RayRuntime(workers, num_cpus=0.2, snapshots=mp.Snapshots(folder, interval_s=0.5), **options)


@pytest.mark.long
def test_s5_a_stopped_job_resumes_at_another_size(tidy: None, tmp_path: Path) -> None:
    kept, calls = tmp_path / "kept", tmp_path / "calls"
    calls.mkdir()

    def note(row: Row) -> None:
        with (calls / str(os.getpid())).open("a") as file:
            file.write(json.dumps(row) + "\n")

    handle = runtime(2, kept).start(chaotic("goes-on", tmp_path / "out", note))
    until(lambda: handle.status().counts.read > 100 * KEYS, handle.status)
    first = handle.snapshot()  # after records of each key
    last = mp.JobHandle.attach("goes-on").stop(timeout_s=PATIENCE_S)
    assert last is not None
    assert last > first
    assert handle.stop(timeout_s=PATIENCE_S) == last, "a second stop of a stopped job is allowed"
    with pytest.raises(mp.JobEnded, match=f"can resume from snapshot {last}") as raised:
        handle.wait()
    assert raised.value.snapshot == last
    assert handle.status().restarts == 0
    stopped = rows_in(tmp_path / "out")
    check(stopped)

    handle = runtime(3, kept).start(chaotic("goes-on", tmp_path / "out", note))
    until(lambda: handle.status().counts.read > 100, handle.status)
    assert handle.status().workers == 3
    final = handle.stop(drain=True, timeout_s=PATIENCE_S)
    assert final == handle.wait().last_snapshot
    rows = rows_in(tmp_path / "out")
    check(rows)
    assert len(rows) > len(stopped)
    check(rows_in(calls))  # although calls cannot be undone

    again = runtime(1, kept).run(chaotic("goes-on", tmp_path / "out"))
    assert (again.read, len(rows_in(tmp_path / "out"))) == (handle.wait().read, len(rows))
    assert (again.resumed_finished, handle.wait().resumed_finished) == (True, False)
    assert again.last_snapshot == final


@pytest.mark.long
def test_s5_a_job_resumes_from_a_savepoint(tidy: None, tmp_path: Path) -> None:
    kept, copied = tmp_path / "kept", tmp_path / "copied"
    handle = runtime(2, kept).start(chaotic("goes-on", tmp_path / "out"))
    until(lambda: handle.status().counts.read > 100 * KEYS, handle.status)  # records of each key
    savepoint = handle.savepoint(str(copied))
    handle.stop(timeout_s=PATIENCE_S)

    handle = runtime(2, copied).start(chaotic("goes-on", tmp_path / "other"))
    until(lambda: handle.status().counts.read > 100, handle.status)
    assert handle.snapshot() > savepoint
    handle.stop(drain=True, timeout_s=PATIENCE_S)
    other = rows_in(tmp_path / "other")
    assert other
    assert min(row["seen"] for row in other) > 1  # with the state of the first run


@pytest.mark.long
@pytest.mark.timeout(400)
def test_s5_a_users_checkpointer_is_sent_to_workers_and_the_job_resumes_at_another_size(
    tidy: None, tmp_path: Path
) -> None:
    out, kept = tmp_path / "out", mp.Snapshots(checkpointer=SqliteCheckpointer(tmp_path, "goes-on"), interval_s=0.5)
    handle = mp.RayRuntime(2, num_cpus=0.2, snapshots=kept).start(chaotic("goes-on", out))
    first = handle.snapshot()
    handle.stop(drain=False, timeout_s=PATIENCE_S)
    stopped = rows_in(out)
    check(stopped)
    assert kept.checkpointer("goes-on").list_checkpoints()[-1] >= first

    handle = mp.RayRuntime(3, num_cpus=0.2, snapshots=kept).start(chaotic("goes-on", out))
    until(lambda: handle.status().counts.read > 100, handle.status)
    handle.stop(timeout_s=PATIENCE_S)
    rows = rows_in(out)
    check(rows)
    assert len(rows) > len(stopped)


def test_a_checkpointer_that_cannot_be_sent_to_workers_is_refused() -> None:
    kept = mp.Snapshots(checkpointer=StoreCheckpointer(MemoryStore(), "goes-on"))
    with pytest.raises(
        mp.PlanError, match=r"RayRuntime: the checkpointer cannot be sent .*a MemoryStore is in the mem"
    ):
        mp.RayRuntime(2, snapshots=kept)


def test_s7_rows_in_this_programs_memory_are_there_once_although_a_function_fails(
    out: sinks.Memory, tmp_path: Path
) -> None:
    failed = tmp_path / "failed"

    def fails_once(number: int) -> int:
        if number == 2_500 and not failed.exists():
            failed.touch()
            raise LookupError("once")
        return number

    job = mp.Job("once")
    read = job.source("in", sources.Memory(range(5_000), parts=3)).map("fails", fails_once)
    read.key_by("by-key", lambda n: n % 7).count("count").sink("out", out)
    handle = runtime(2, tmp_path / "kept").start(job)
    result = handle.wait(timeout_s=PATIENCE_S)
    assert failed.exists()
    status = handle.status()
    assert (status.state, status.restarts) == ("finished", 1)
    assert status.snapshots is not None
    assert status.snapshots.last is not None
    assert {key: sorted(counts) for key, counts in out.by_key.items()} == {
        key: list(range(1, len(range(key, 5_000, 7)) + 1)) for key in range(7)
    }
    assert result.read == result.written == 5_000


@pytest.mark.long
def test_s4_a_restarted_coordinator_reports_that_its_snapshot_is_gone(tidy: None, tmp_path: Path) -> None:
    runtime = mp.RayRuntime(1, num_cpus=0.2, snapshots=mp.Snapshots(tmp_path / "kept", interval_s=None))
    handle = runtime.start(chaotic("robbed", tmp_path / "out"))
    until(lambda: handle.status().counts.read > 100, handle.status)
    last_known = handle.snapshot()
    (tmp_path / "kept" / "robbed").rename(tmp_path / "taken-away")
    os.kill(pids("CoordinatorActor")[0], signal.SIGKILL)
    with pytest.raises(SnapshotError, match=f"snapshot {last_known} is no longer in"):
        handle.wait(timeout_s=PATIENCE_S)
    check(rows_in(tmp_path / "out"))


def test_s6_the_error_names_step_part_and_position_of_a_record_that_kills_its_worker(
    out: sinks.Memory, tmp_path: Path
) -> None:
    def poisoned(number: int) -> int:
        if number == 777:
            os._exit(9)
        return number

    job = mp.Job("poisoned")
    job.source("in", sources.Memory(range(1_000))).map("parse", poisoned).sink("out", out)
    handle = runtime(1, tmp_path / "kept", restart=mp.Restart(max_restarts=1, backoff_s=0.0)).start(job)
    with pytest.raises(PeerError, match="worker 0 died") as caught:
        handle.wait(timeout_s=PATIENCE_S)
    said = str(caught.value)
    assert "step 'parse' was at work on" in said
    assert "partition '0' of source 'in', which ended at position" in said
    assert any("restarted 1 time" in note for note in caught.value.__notes__)
