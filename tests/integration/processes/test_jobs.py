"""Jobs on worker processes of this machine: rescales, recovery, and their ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import OperatorError, PeerError, PlanError
from malstrom_py.workers.remote import remote_workers
from tests.integration.processes.worker_pids import children_of, worker_pids
from tests.integration.ray.chaos import chaotic, check, ravage
from tests.integration.ray.chaos_ends import rows_in
from tests.integration.ray.leftovers import is_alive, until
from tests.integration.ray.traffic import (
    KEYS,
    PATIENCE_S,
    Attendance,
    Tour,
    check_counts,
    check_order,
    check_rows,
    memory_rows,
    moved_keys,
    traffic,
)
from tests.tree import ROOT


def test_a_job_goes_from_1_to_2_to_4_to_3_to_1(out: sinks.Memory, attendance: Attendance) -> None:
    handle = mp.Processes(1).start(traffic("tour-of-processes", out, attendance))
    Tour(handle, attendance).go(1, 2, 4, 3, 1)
    assert len(worker_pids()) == 1
    handle.stop()
    result, rows = handle.wait(timeout_s=PATIENCE_S), memory_rows(out)
    check_rows(rows, result)
    check_order(out.by_key)
    check_counts(result)
    assert moved_keys(rows) > KEYS / 2


def test_s6_state_files_queries_taps_and_shadows_are_exact_after_kills(tidy: None, tmp_path: Path) -> None:
    hits = ravage(tmp_path, kills=4, seed=3, say=print, runtime="processes", watched=True)
    assert set(hits) - {"a worker that was leaving"} == {"WorkerActor", "WorkerActor in a rescale"}


def test_s6_workers_that_survive_keep_their_processes(
    tidy: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_workers, "GO_BACK_S", PATIENCE_S)  # a worker that takes longer is replaced
    job, out = mp.Job("surviving-processes"), sinks.Memory()
    source = sources.Generator(lambda part, start: iter(range(start, 1 << 60)), parts=3)
    job.source("in", source).key_by("key", lambda n: n % 7).count("n").filter("few", lambda n: n < 0).sink("out", out)
    handle = mp.Processes(3, snapshots=mp.Snapshots(tmp_path / "kept")).start(job)
    handle.snapshot()
    before = set(worker_pids())
    killed = min(before)
    os.kill(killed, signal.SIGKILL)
    until(lambda: handle.status().restarts == 1 and handle.status().phase == "steady")
    assert before - set(worker_pids()) == {killed}
    assert len(worker_pids()) == 3
    handle.stop()


def counted_with_ballast(key: int, n: int, state: tuple[int, str]) -> tuple[tuple[int, int], tuple[int, str]]:
    return (key, state[0] + 1), (state[0] + 1, "x" * 500)


def paced(part: int, start: int) -> Iterator[int]:
    for n in range(start, 1 << 60):
        if n % 100 == 0:
            sleep(0.02)
        yield n


def grouped(rows: list[list[int]]) -> dict[int, list[int]]:
    counts: dict[int, list[int]] = {}
    for key, count in rows:
        counts.setdefault(key, []).append(count)
    return counts


def test_state_on_disk_is_exact_after_a_rescale_and_a_kill(tidy: None, tmp_path: Path) -> None:
    job, out = mp.Job("on-disk-of-processes"), tmp_path / "out"
    source = sources.Generator(paced, parts=4)
    keys = job.source("in", source).key_by("key", lambda n: n % 5_000)
    counted = keys.stateful_map("count", counted_with_ballast, default=lambda: (0, ""))
    counted.sink("out", sinks.Files(out, format="json"))
    disk = tmp_path / "disk"
    runtime = mp.Processes(2, state=mp.State("1MB", disk), snapshots=mp.Snapshots(tmp_path / "kept", interval_s=0.2))
    handle = runtime.start(job)
    until(lambda: any(worker.state_on_disk for worker in handle.metrics().workers))
    handle.rescale(3)
    handle.snapshot()
    os.kill(max(worker_pids()), signal.SIGKILL)
    until(lambda: handle.status().restarts == 1 and handle.status().phase == "steady")
    until(lambda: any(worker.state_on_disk for worker in handle.metrics().workers))
    handle.stop()
    rows = [json.loads(line)["value"] for file in out.glob("*.json") for line in file.read_text().splitlines()]
    assert len(rows) == len(set(map(tuple, rows))), "a row is there twice"
    by_key = Counter(key for key, _ in rows)
    assert {key: max(counts) for key, counts in grouped(rows).items()} == by_key, "a row is missing"
    assert len(by_key) == 5_000
    assert list(disk.iterdir()) == []


def test_without_snapshots_a_death_ends_the_job(tidy: None) -> None:
    job = mp.Job("dying-processes")
    source = sources.Generator(lambda part, start: iter(range(start, 1 << 60)))
    job.source("in", source).filter("none", lambda n: n < 0).sink("out", sinks.Memory())
    handle = mp.Processes(2).start(job)
    until(lambda: handle.status().phase == "steady")
    killed = max(worker_pids())
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(PeerError, match=rf"worker [01] died: its process \(pid: {killed}\) was ended by SIGKILL"):
        handle.wait(timeout_s=PATIENCE_S)


def test_a_snapshot_of_processes_resumes_in_this_process_and_back(tidy: None, tmp_path: Path) -> None:
    kept = mp.Snapshots(tmp_path / "kept")
    for runtime in (mp.Processes(3, snapshots=kept), mp.InProcess(2, snapshots=kept), mp.Processes(1, snapshots=kept)):
        handle = runtime.start(chaotic("resuming-processes", tmp_path / "out"))
        until(lambda: handle.status().counts.read > 500)  # noqa: B023  called here
        handle.stop()
    rows = rows_in(tmp_path / "out")
    check(rows)
    assert len(rows) > 1500


def test_an_error_of_a_function_names_its_step_and_leaves_nothing(out: sinks.Memory) -> None:
    job = mp.Job("failing-processes")
    job.source("in", sources.Memory(range(100), parts=2)).map("divide", lambda n: 1 // (n - 70)).sink("out", out)
    with pytest.raises(OperatorError, match="step 'divide' failed: ZeroDivisionError"):
        mp.Processes(2, progress=False).run(job)
    assert out.items == []


def test_workers_that_fail_in_the_same_way_are_one_failure(
    out: sinks.Memory, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(n: int) -> int:
        raise ValueError("always")

    job = mp.Job("failing-alike")
    job.source("in", sources.Memory(range(100), parts=2)).map("fail", fail).sink("out", out)
    with pytest.raises(OperatorError, match="step 'fail' failed") as caught:
        mp.Processes(2, progress=False).run(job)
    assert not [note for note in caught.value.__notes__ if "step 'fail'" in note]
    assert capfd.readouterr().err == ""  # a worker does not log what the program raises


def test_a_lambda_is_reloaded_on_all_workers(tidy: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "of_processes.py"
    module.write_text("def mark(n):\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import of_processes  # type: ignore[import-not-found]

    job = mp.Job("reloaded-processes")
    source = sources.Generator(lambda part, start: iter(range(start, 1 << 60)), parts=2)
    marks = job.source("in", source).map("mark", of_processes.mark).key_by("by", lambda mark: mark)
    marks.count("n").filter("none", lambda n: n < 0).sink("out", sinks.Memory())
    handle = mp.Processes(2, snapshots=mp.Snapshots(tmp_path / "kept")).start(job)
    handle.snapshot()
    module.write_text("def mark(n):\n    return 2\n")
    handle.reload("mark", probation_s=0.1)
    until(lambda: handle.status().phase == "steady")
    assert handle.metrics() is not None
    handle.stop()


PROGRAM = """
import sys, time
import malstrom_py as mp
from malstrom_py import sinks, sources

class Own:
    def __init__(self, n):
        self.n = n

def slow(n):
    time.sleep(0.01)
    return Own(n)

job = mp.Job(sys.argv[1])
out = sinks.Memory()
numbers = job.source("in", sources.Memory(range(int(sys.argv[2])), parts=2)).map("own", slow)
numbers.map("n", lambda own: own.n).sink("out", out)
print(mp.Processes(2, progress=False).run(job).read, sorted(out.items) == list(range(int(sys.argv[2]))), flush=True)
"""


def program(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    file = folder / "program.py"
    file.write_text(PROGRAM)
    command = [sys.executable, str(file), *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )


def test_a_program_without_a_guard_sends_its_own_functions_and_classes(tmp_path: Path) -> None:
    with program(tmp_path, "unguarded-processes", "40") as started:
        said, complained = started.communicate(timeout=PATIENCE_S)
    assert (said, complained) == ("40 True\n", "")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_their_program(tmp_path: Path, number: signal.Signals) -> None:
    with program(tmp_path, f"ending-processes-{number}", "100000") as started:
        until(lambda: any(len(children_of(server)) == 2 for server in children_of(started.pid)))
        (server,) = children_of(started.pid)
        processes = [server, *children_of(server)]
        started.send_signal(number)
        started.communicate(timeout=PATIENCE_S)
        until(lambda: not any(map(is_alive, processes)))


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"start_timeout_s": 0}, {"snapshots": 1}])
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        mp.Processes(**wrong)
