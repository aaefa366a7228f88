"""Planned stops of jobs on Ray: by a signal, by a command, and of a detached job."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from time import sleep

import pytest

import malstrom_py as mp
from tests.integration.ray.chaos import chaotic, check
from tests.integration.ray.chaos_ends import rows_in
from tests.integration.ray.clusters import PATIENCE_S, StartedCluster
from tests.integration.ray.leftovers import until
from tests.integration.ray.programs import malstrom, program, said

pytestmark = pytest.mark.long

STOPPED = """
from pathlib import Path
from tests.integration.ray.chaos import chaotic

folder = Path(__file__).parent
job = chaotic("stopped", folder / "out")
"""

RUN = ("run", "program.py", "--runtime", "ray", "-w", "2", "--num-cpus", "0.1", "--snapshots", "kept")


def test_s7_a_sigterm_stops_a_job_of_the_command_line_and_it_resumes(
    tmp_path: Path, started_cluster: StartedCluster
) -> None:
    (tmp_path / "program.py").write_text(STOPPED)
    sizes: list[int] = []
    stopped = ""
    for by in ("SIGTERM", "stop"):
        with malstrom(tmp_path, *RUN, "--interval", "1000", RAY_ADDRESS=started_cluster.address) as process:
            until(lambda: _reads("stopped"))
            if by == "SIGTERM":
                process.send_signal(signal.SIGTERM)
            else:
                with malstrom(tmp_path, "stop", "stopped") as stopping:
                    stopped = said(stopping)
            _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        assert "the job failed" not in err
        *_, line, counts = err.splitlines()
        assert counts.startswith("job stopped: ")
        last = mp.Snapshots(tmp_path / "kept").checkpointer("stopped").list_checkpoints()[-1]
        assert line == f"job stopped has stopped; it can resume from snapshot {last}"
        sizes.append(len(rows_in(tmp_path / "out")))
    assert stopped == f"{line}\n"
    check(rows_in(tmp_path / "out"))
    assert 0 < sizes[0] < sizes[1]


EARLY = """
from pathlib import Path
from tests.integration.ray.chaos import chaotic

folder = Path(__file__).parent

class Packed:
    def __call__(self, row):
        "Do nothing."

    def __getstate__(self):
        (folder / "packed").touch()  # before the job starts
        return {}

def job():
    return chaotic("early", folder / "out", Packed())
"""


def test_s7_a_sigterm_before_the_job_has_been_started_stops_it_then(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(EARLY)
    run = ("run", "program.py:job", *RUN[2:], "--interval", "1000")
    for pause_s in (0.0, 2.0):  # while Ray starts, it handles the signal itself
        with malstrom(tmp_path, *run) as process:
            until((tmp_path / "packed").exists)
            sleep(pause_s)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        last = mp.Snapshots(tmp_path / "kept").checkpointer("early").list_checkpoints()[-1]
        assert f"job early has stopped; it can resume from snapshot {last}" in err.splitlines()
        (tmp_path / "packed").unlink()
    check(rows_in(tmp_path / "out"), all_parts=False)  # it may stop before it has read all of them


SLOW = """
import os, signal, sys, time
from malstrom_py.workers.runtime.interrupts import PlannedStop
from malstrom_py.workers.ray.cluster import join_cluster

def stop():
    global stopped
    stopped = True

def join(signalled):
    global stopped
    stopped = False
    with PlannedStop(stop) as stopping:
        join_cluster(None, on_sigterm=stopping.come_first)
        if signalled == "before":
            os.kill(os.getpid(), signal.SIGTERM)
        stopping.take_back()
        if signalled == "after":
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(4)
        assert stopped

join(sys.argv[1])
"""


def test_s7_a_stop_by_sigterm_may_take_longer_than_ray_gives_a_process_that_fails(tmp_path: Path) -> None:
    for signalled in ("before", "after"):
        with program(tmp_path, SLOW, signalled) as process:
            _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err


def _reads(job: str) -> bool:
    with suppress(mp.MalstromError):
        return mp.JobHandle.attach(job).status().counts.read > 100
    return False


KEPT_DETACHED = """
import sys
from pathlib import Path
import malstrom_py as mp
from tests.integration.ray.chaos import chaotic

folder = Path(sys.argv[1])
kept = mp.Snapshots(folder / "kept", interval_s=1000)
runtime = mp.RayRuntime(2, num_cpus=0.1, address=sys.argv[2], detached=True, snapshots=kept)
handle = runtime.start(chaotic("kept", folder / "out"))
while handle.status().counts.read < 100:
    pass
"""


def test_s7_a_detached_job_is_stopped_and_can_resume(tmp_path: Path, started_cluster: StartedCluster) -> None:
    address = started_cluster.address
    with program(tmp_path, KEPT_DETACHED, tmp_path, address) as process:
        said(process)
    with malstrom(tmp_path, "stop", "kept", "--address", address, **started_cluster.environment) as stopping:
        out = said(stopping)
    kept = mp.Snapshots(tmp_path / "kept")
    [*_, last] = kept.checkpointer("kept").list_checkpoints()
    assert out == f"job kept has stopped; it can resume from snapshot {last}\n"
    before = len(rows_in(tmp_path / "out"))
    handle = mp.InProcess(snapshots=kept).start(chaotic("kept", tmp_path / "out"), control=False)
    until(lambda: handle.status().counts.read > 100)
    handle.stop()
    rows = rows_in(tmp_path / "out")
    check(rows)
    assert 0 < before < len(rows)
