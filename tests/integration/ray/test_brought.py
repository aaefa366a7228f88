"""What Ray sends to workers (``runtime_env``), and the resources they need: in programs and on the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from tests.integration.ray.clusters import StartedCluster
from tests.integration.ray.leftovers import PATIENCE_S
from tests.integration.ray.programs import program, said
from tests.tree import ROOT

BRINGS = """
import os, sys
import malstrom_py as mp
from malstrom_py import sinks, sources

code, besides = sys.argv[1:]
sys.path[:0] = [code, besides]  # for this program alone, not for its workers
import only_besides, only_there

def run(name, seen, env):
    job, out = mp.Job(name), sinks.Memory()
    job.source("in", sources.Memory([1, 2])).map("seen", seen).sink("out", out)
    env = {"working_dir": code, "py_modules": [besides + "/only_besides.py"], **env}
    mp.RayRuntime(1, num_cpus=0.1, runtime_env=env).run(job)
    print(sorted(out.items), flush=True)

run("first", lambda n: (only_there.double(n), only_besides.triple(n)), {})
run("with-variables", lambda n: (only_there.double(n), os.environ["SEEN"]), {"env_vars": {"SEEN": "yes"}})
"""

ENDLESS = """
import itertools, time
import malstrom_py as mp
from malstrom_py import sinks, sources
from only_there import double

def numbers(part, start):
    for n in itertools.count(start):
        time.sleep(0.01)
        yield n

job = mp.Job("brought")
read = job.source("in", sources.Generator(numbers, parts=2))
read.map("double", double).key_by("key", lambda n: n % 10).count("count").sink("out", sinks.Callable(lambda n: None))

in_memory = mp.Job("in-memory")
in_memory.source("in", sources.Memory([1])).sink("out", sinks.Memory())

failing = mp.Job("failing")
failing.source("in", sources.Memory([0])).map("inverse", lambda n: 1 / n).sink("out", sinks.Stdout())
"""


AWAITS = """
import sys
import malstrom_py as mp
handle = mp.JobHandle.attach("brought", address=sys.argv[1])
print("attached", flush=True)
print(handle.wait(timeout_s=120).written)
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Return a folder with a module that exists only there."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "only_there.py").write_text("def double(n):\n    return 2 * n\n")
    return folder


def small(name: str) -> mp.Job:
    job = mp.Job(name)
    job.source("in", sources.Memory([1])).sink("out", sinks.Memory())
    return job


@pytest.mark.long
def test_folders_and_modules_that_only_the_program_has_are_brought_to_workers_and_variables_are_each_jobs_own(
    code: Path, tmp_path: Path, started_cluster: StartedCluster
) -> None:
    (tmp_path / "besides").mkdir()
    (tmp_path / "besides" / "only_besides.py").write_text("def triple(n):\n    return 3 * n\n")
    with program(tmp_path, BRINGS, code, tmp_path / "besides", RAY_ADDRESS=started_cluster.address) as process:
        assert said(process) == "[(2, 3), (4, 6)]\n[(2, 'yes'), (4, 'yes')]\n"


@pytest.mark.parametrize("env", [{"working_dir": "."}, {"py_modules": ["."], "env_vars": {"A": "1"}}])
def test_a_runtime_env_is_refused_where_ray_runs_already(env: dict[str, Any], tidy: None) -> None:
    name = next(iter(env))
    message = rf"{name} can only be set where it is started: .*ray\.init\(runtime_env=.*ray job submit --working-dir"
    with pytest.raises(mp.PlanError, match=message):
        mp.RayRuntime(1, runtime_env=env).start(small("too-late"))


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        ({"num_gpus": 1}, r"2 workers of 0\.1 CPU, 1 GPU each .* room for 0 .*less of GPU"),
        ({"memory": 1 << 50}, r"0\.1 CPU, 1\.1259e\+06 GB memory each .* less of memory"),
        ({"resources": {"gold": 0.5}}, r"0\.5 gold each .* less of gold"),
    ],
)
def test_workers_that_need_more_than_the_cluster_has_are_refused(
    needs: dict[str, Any], message: str, tidy: None
) -> None:
    with pytest.raises(mp.PlanError, match=message):
        mp.RayRuntime(2, num_cpus=0.1, **needs).start(small("impossible"))


@pytest.mark.long
def test_a_resource_that_an_autoscaling_cluster_never_gets_ends_in_a_deadline_error(tidy: None) -> None:
    runtime = mp.RayRuntime(1, num_cpus=0.1, resources={"gold": 1}, autoscaling=True, start_timeout_s=5)
    with pytest.raises(
        mp.DeadlineError,
        match=r"worker 0 .* not start within 5 s: .* room for 0 of 1 .* lack gold \(each needs 0\.1 CPU, 1 gold\)",
    ):
        runtime.run(small("never-there"))


def malstrom(folder: Path, cluster: StartedCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, on the machine of a cluster."""
    return subprocess.run(
        [sys.executable, "-m", "malstrom_py.cli", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_LOG_TO_DRIVER": "0", "RAY_TMPDIR": cluster.folder},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


@pytest.mark.long
def test_a_detached_job_is_started_watched_rescaled_and_ended_by_commands(
    code: Path, started_cluster: StartedCluster
) -> None:
    (code / "jobs.py").write_text(ENDLESS)
    (code / "env.yaml").write_text("working_dir: .\nexcludes: [env.yaml]\n")
    at = ("--address", started_cluster.address)
    run = ("run", "jobs:job", "--runtime", "ray", *at, "-w", "2", "--num-cpus", "0.1", "--detached")
    needs = (
        "--runtime-env",
        "env.yaml",
        "--resources",
        json.dumps({f"node:{started_cluster.address.split(':')[0]}": 0.01}),
    )
    done = malstrom(code, started_cluster, *run, *needs)
    assert done.returncode == 0, done.stderr
    assert re.search(r"job brought runs on 2 workers and continues without this program", done.stderr), done.stderr
    status = f"malstrom status brought --address {started_cluster.address}"
    assert status in done.stderr

    elsewhere = code.parent  # without the module
    # A worker that joins has its code from Ray, although the program that sent it has ended.
    more = malstrom(elsewhere, started_cluster, "rescale", "brought", "3", *at)
    assert more.returncode == 0, more.stderr
    waiting = subprocess.Popen(
        [
            sys.executable,
            "-c",
            AWAITS,
            started_cluster.address,
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_TMPDIR": started_cluster.folder},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "attached\n"
    ended = malstrom(elsewhere, started_cluster, "stop", "brought", *at)
    assert ended.returncode == 0, ended.stderr
    written, _ = waiting.communicate(timeout=PATIENCE_S)
    assert int(written) > 0
    after = malstrom(elsewhere, started_cluster, *status.split()[1:], "--json")
    assert json.loads(after.stdout)["state"] == "finished", "the coordinator still answers for a while"


@pytest.mark.long
def test_the_command_refuses_a_detached_job_with_a_memory_sink_and_shows_why_one_failed(
    code: Path, started_cluster: StartedCluster
) -> None:
    (code / "jobs.py").write_text(ENDLESS)
    run = ("--runtime", "ray", "--address", started_cluster.address, "--num-cpus", "0.1", "--detached")
    done = malstrom(code, started_cluster, "run", "jobs:in_memory", *run)
    assert (done.returncode, "into its memory, and a detached job continues without it" in done.stderr) == (1, True)
    done = malstrom(code, started_cluster, "run", "jobs:failing", *run)
    until_s = monotonic() + PATIENCE_S
    # It has failed before the command ends, or after: then its status says why.
    while "step 'inverse'" not in done.stdout + done.stderr and monotonic() < until_s:
        done = malstrom(code, started_cluster, "status", "failing", "--address", started_cluster.address)
    assert "step 'inverse'" in done.stdout + done.stderr


@pytest.mark.long
def test_the_command_refuses_resources_that_no_node_has(code: Path, started_cluster: StartedCluster) -> None:
    (code / "jobs.py").write_text(ENDLESS)
    run = ("run", "jobs:job", "--runtime", "ray", "--address", started_cluster.address, "--num-cpus", "0.1")
    done = malstrom(code, started_cluster, *run, "--resources", "gold=1")
    assert done.returncode == 1
    assert "1 worker of 0.1 CPU, 1 gold each are more than the Ray cluster can place" in done.stderr
