"""Ray clusters for tests: one of `ray start`, and one of two nodes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import ray
from ray._private.authentication import authentication_token_setup
from ray.cluster_utils import Cluster

from tests.integration.ray.leftovers import until
from tests.tree import ROOT

PATIENCE_S: Final = 240.0


class StartedCluster:
    """A cluster of `ray start`. It records its address in a separate folder, so no other program finds it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.environment = {"PYTHONPATH": str(ROOT), "RAY_TMPDIR": folder}
        ray = Path(sys.executable).with_name("ray")
        command = [str(ray), "start", "--head", "--port=0", "--num-cpus=2", "--include-dashboard=false"]
        started = subprocess.run(
            command, env=os.environ | self.environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
        address = re.search(r"--address='([^']+)'", started.stdout)
        assert address is not None, started.stdout
        self.address = address[1]

    def processes(self) -> list[int]:
        """Return the processes of the cluster, without the workers."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "cmdline").read_text()
                if f"{self.folder}/ray/" in words:
                    found.append(int(entry.name))
        return found

    def kill(self) -> None:
        """Kill the cluster by SIGKILL."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def by_ray_start() -> Iterator[StartedCluster]:
    """Start a cluster with `ray start`, and kill it at the end."""
    with tempfile.TemporaryDirectory(prefix="mr-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        cluster = StartedCluster(folder)
        try:
            yield cluster
        finally:
            cluster.kill()
            until(lambda: not cluster.processes())


@contextmanager
def two_nodes() -> Iterator[Any]:
    """Start two nodes with room for two workers each; this program and the head are on the first."""
    # A new program does this when it starts Ray; an earlier test may have done half of it here.
    authentication_token_setup.enable_token_auth_by_default()
    authentication_token_setup.ensure_token_if_auth_enabled()
    made: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    ray.init(address=made.address, log_to_driver=False)
    made.add_node(num_cpus=2)
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def processes_of(node: Any) -> list[int]:
    """Return the processes of a node of `two_nodes`: the raylet and all its descendants."""
    found = [node.all_processes["raylet"][0].process.pid]
    for pid in found:
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


@contextmanager
def stopped(node: Any) -> Iterator[list[int]]:
    """Stop all processes of ``node`` by SIGSTOP, so that it is silent without being lost; continue them at the end."""
    pids = processes_of(node)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield pids
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
