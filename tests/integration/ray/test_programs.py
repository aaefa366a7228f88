"""Programs that run jobs on Ray: with all classes in ``__main__``, interrupted, killed, survived by a detached job, or
resumed by another program."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.integration.ray.chaos import check
from tests.integration.ray.chaos_ends import rows_in
from tests.integration.ray.clusters import PATIENCE_S, StartedCluster
from tests.integration.ray.leftovers import is_alive, until
from tests.integration.ray.programs import program, said

ENDLESS = """
import itertools, os, sys, time
from pathlib import Path
import malstrom_py as mp
from malstrom_py import sinks, sources

readers = Path(sys.argv[1])

def endless(part, start):
    for n in itertools.count(start):
        if n % 1000 == 0:
            (readers / str(os.getpid())).touch()
        yield n

job = mp.Job("program")
numbers = job.source("in", sources.Generator(endless, parts=2))
numbers.key_by("key", lambda n: n % 10).count("count").filter("few", lambda n: n < 10).sink("out", sinks.Memory())
"""

MAIN_CLASSES = """
import itertools, time
from dataclasses import dataclass
from enum import Enum
import malstrom_py as mp
from malstrom_py import sinks, sources

class Kind(Enum):
    EVEN = "even"
    ODD = "odd"

@dataclass(frozen=True)
class Reading:
    kind: Kind
    number: int

class Total:
    def __init__(self, n=0):
        self.n = n

    def plus(self, n):
        return Total(self.n + n)

class Last:
    def __init__(self):
        self.number = None

class Readings:
    "A source at a limited rate."

    def list_parts(self):
        return ["a", "b"]

    def build_part(self, part, state):
        return Part(part, state or 0)

class Part:
    def __init__(self, part, n):
        self.part, self.n, self.due_s = part, n, 0.0

    def poll(self, rows_max):
        if time.monotonic() < self.due_s:
            return None
        self.due_s = time.monotonic() + 0.005
        began, self.n = self.n, self.n + 10
        return [Reading(Kind.ODD if n % 2 else Kind.EVEN, n) for n in range(began, self.n)]

    def is_finished(self):
        return False

    def snapshot(self):
        return self.n

    def close(self):
        pass

def check(key, reading, last):
    last = last or Last()
    assert type(reading) is Reading and (reading.kind is Kind.ODD) == (reading.number % 2 == 1)
    last.number = reading.number
    return reading, last

job, out = mp.Job("main-classes"), sinks.Memory()
readings = job.source("in", Readings()).key_by("number", lambda r: r.number % 500).stateful_map("check", check)
again = readings.key_by("again", lambda r: f"{r.kind.value}-{r.number % 50}")
again.stateful_map("total", lambda k, r, t: ((r, (t or Total()).plus(1)), (t or Total()).plus(1))).sink("out", out)
handle = mp.RayRuntime(1, num_cpus=0.1).start(job)
for size in (2, 3, 1):
    before = handle.status().counts.written
    while handle.status().counts.written < before + 500:
        time.sleep(0.05)
    handle.rescale(size)
handle.stop()
result = handle.wait()
assert result.written == result.read == len(out.items), result
assert {type(r) for r, _ in out.items} == {Reading} and {type(t) for _, t in out.items} == {Total}
for rows in out.by_key.values():
    assert [t.n for _, t in rows] == list(range(1, len(rows) + 1))
print("all there")
"""


@pytest.fixture
def readers(tmp_path: Path) -> Path:
    """Return a folder for one file per process that reads."""
    folder = tmp_path / "readers"
    folder.mkdir()
    return folder


@pytest.mark.long
def test_classes_of_main_travel_through_exchanges_and_rescales(tmp_path: Path, started_cluster: StartedCluster) -> None:
    with program(tmp_path, MAIN_CLASSES, RAY_ADDRESS=started_cluster.address) as process:
        assert "all there" in said(process)


def test_ctrl_c_stops_the_job(tmp_path: Path, readers: Path, started_cluster: StartedCluster) -> None:
    run = ENDLESS + "mp.RayRuntime(2, num_cpus=0.1).run(job)"
    with program(tmp_path, run, readers, RAY_ADDRESS=started_cluster.address) as process:
        until(lambda: len(list(readers.iterdir())) == 2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert "KeyboardInterrupt" in err
    check_gone(readers)


ENDINGS = {
    "exit": "handle = mp.RayRuntime(2, num_cpus=0.1).start(job)\nwait()",
    "error": "handle = mp.RayRuntime(2, num_cpus=0.1).start(job)\nwait()\nraise SystemExit(3)",
    "kill": "handle = mp.RayRuntime(2, num_cpus=0.1).start(job)\nwait()\nos.kill(os.getpid(), 9)",
}
WAIT = """
def wait():
    while len(list(readers.iterdir())) < 2:
        time.sleep(0.05)
"""


@pytest.mark.long(but=("kill",))
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_job_ends_with_the_program_that_started_it(
    ending: str, tmp_path: Path, readers: Path, started_cluster: StartedCluster
) -> None:
    with program(tmp_path, ENDLESS + WAIT + ENDINGS[ending], readers, RAY_ADDRESS=started_cluster.address) as process:
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == {"exit": 0, "error": 3, "kill": -9}[ending]
    check_gone(readers)


STUCK = """
import glob, os, sys, time
from pathlib import Path
import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.workers.ray import ray_job
ray_job._EXIT_S = 0.2
entered = Path(sys.argv[1])

def block(n):
    (entered / str(os.getpid())).touch()
    time.sleep(3600)

job = mp.Job("stuck-on-ray")
job.source("in", sources.Memory([0])).map("block", block).sink("out", sinks.Memory())
mp.RayRuntime(1, num_cpus=0.1).start(job)
while not list(entered.iterdir()):
    time.sleep(0.05)
print(*glob.glob(f"{os.environ['XDG_RUNTIME_DIR']}/**/stuck-on-ray*", recursive=True), sep="\\n")
"""


@pytest.mark.long
def test_a_job_that_does_not_stop_with_its_program_prints_a_notice_and_releases_its_name(
    tmp_path: Path, readers: Path
) -> None:
    with program(tmp_path, STUCK, readers) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "malstrom: job 'stuck-on-ray' did not stop within 0.2 s, and ends with the program\n" in err
    files = out.split()
    assert len(files) == 2
    assert not any(Path(file).exists() for file in files)
    check_gone(readers, 1)


def check_gone(readers: Path, processes: int = 2) -> None:
    """Wait until the processes that have read are gone."""
    pids = [int(file.name) for file in readers.iterdir()]
    assert len(pids) == processes
    until(lambda: not any(map(is_alive, pids)))


KEPT = """
import sys
from pathlib import Path
import malstrom_py as mp
from tests.integration.ray.chaos import chaotic

folder = Path(sys.argv[1])
runtime = mp.RayRuntime(int(sys.argv[2]), num_cpus=0.1, snapshots=mp.Snapshots(folder / "kept", interval_s=0.3))
handle = runtime.start(chaotic("kept", folder / "out"))
handle.snapshot()
print(handle.snapshot(), flush=True)
"""


@pytest.mark.long
def test_s5_a_job_whose_program_is_killed_with_its_ray_resumes_in_the_next_program_at_another_size(
    tmp_path: Path,
) -> None:
    with program(tmp_path, KEPT + "import os; os.kill(os.getpid(), 9)", tmp_path, 2) as process:
        killed, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -9
    last_known = rows_in(tmp_path / "out")
    with program(tmp_path, KEPT + "handle.stop(drain=True); handle.wait()", tmp_path, 3) as process:
        assert said(process) > killed
    rows = rows_in(tmp_path / "out")
    check(rows)
    assert len(rows) > len(last_known) > 0


DETACHED = """
job = mp.Job("program")
numbers = job.source("in", sources.Generator(endless, parts=2))
numbers.key_by("key", lambda n: n % 10).count("count").filter("few", lambda n: n < 10).sink("out", sinks.Stdout())
mp.RayRuntime(2, num_cpus=0.1, address=sys.argv[2], detached=True).start(job)
wait()
"""

ATTACHED = """
import os, sys, time
import malstrom_py as mp
from malstrom_py import sinks, sources
os.environ["RAY_ADDRESS"] = sys.argv[1]
handle = mp.JobHandle.attach("program")
before = handle.status()
assert (before.state, before.workers) == ("running", 2), before
assert handle.rescale(3).members == (0, 1, 2)
while handle.status().counts.read <= before.counts.read:
    time.sleep(0.05)
try:
    mp.RayRuntime(address="127.0.0.1:1").start(mp.Job("elsewhere"))
except mp.MalstromError:
    print("refused")
handle.stop()
assert handle.status().state == "finished"
job = mp.Job("program")
out = sinks.Memory()
job.source("in", sources.Memory([1, 2])).sink("out", out)
mp.RayRuntime(1, num_cpus=0.1).run(job)
print(out.items)
"""


@pytest.mark.long
def test_a_detached_job_outlives_its_program(tmp_path: Path, readers: Path, started_cluster: StartedCluster) -> None:
    with program(tmp_path, ENDLESS + WAIT + DETACHED, readers, started_cluster.address) as process:
        said(process)
    with program(tmp_path, ATTACHED, started_cluster.address) as process:
        assert said(process).splitlines() == ["refused", "[1, 2]"]
    check_gone(readers)


@pytest.mark.long
def test_a_job_cannot_outlive_a_ray_that_ends_with_the_program(tmp_path: Path, readers: Path) -> None:
    job = "job = mp.Job('brief')\njob.source('in', sources.Memory([1])).sink('out', sinks.Stdout())\n"
    refused = "try:\n    mp.RayRuntime(1, detached=True).start(job)\nexcept mp.PlanError as error:\n    print(error)"
    with program(tmp_path, ENDLESS + job + refused, readers) as process:
        assert "start a cluster with `ray start --head`" in said(process)


CLUSTER_GONE = """
handle = mp.RayRuntime(2, num_cpus=0.1, address=sys.argv[2]).start(job)
wait()
print("started", flush=True)
try:
    handle.wait()
except mp.MalstromError as error:
    print(type(error).__name__, error, flush=True)
"""


@pytest.mark.long
def test_a_cluster_that_goes_away(tmp_path: Path, readers: Path, own_cluster: StartedCluster) -> None:
    with program(tmp_path, ENDLESS + WAIT + CLUSTER_GONE, readers, own_cluster.address) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        own_cluster.kill()
        out, err = process.communicate(timeout=PATIENCE_S)
    assert "PeerError the coordinator of job 'program' is gone" in out, err
    check_gone(readers)
