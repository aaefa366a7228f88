"""Clusters of Ray that tests start: one of `ray start`, and one of two nodes."""

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
    """A cluster of `ray start` with a separate folder, so that no other program finds it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.environment = {"PYTHONPATH": str(ROOT), "RAY_TMPDIR": folder}
        ray = Path(sys.executable).with_name("ray")
        command = [str(ray), "start", "--head", "--port=0", "--num-cpus=2", "--include-dashboard=false"]
        told = subprocess.run(
            command, env=os.environ | self.environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
        address = re.search(r"--address='([^']+)'", told.stdout)
        assert address is not None, told.stdout
        self.address = address[1]

    def processes(self) -> list[int]:
        """Its processes, but workers."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "cmdline").read_text()
                if f"{self.folder}/ray/" in words:
                    found.append(int(entry.name))
        return found

    def kill(self) -> None:
        """End it by SIGKILL."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def by_ray_start() -> Iterator[StartedCluster]:
    """A cluster of `ray start`, killed at the end."""
    with tempfile.TemporaryDirectory(prefix="mr-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        cluster = StartedCluster(folder)
        try:
            yield cluster
        finally:
            cluster.kill()
            until(lambda: not cluster.processes())


@contextmanager
def two_nodes() -> Iterator[Any]:
    """Two nodes, with room for two workers each; this program is on the first, as the head is."""
    # What a separate program does when it starts a Ray: an earlier one may have left settings.
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
    """The processes of a node of `two_nodes`: its raylet, and all that it has started."""
    found = [node.all_processes["raylet"][0].process.pid]
    for pid in found:
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


@contextmanager
def stopped(node: Any) -> Iterator[list[int]]:
    """Stop all processes of ``node``, so that it answers nothing and no loss is reported; at the end they continue."""
    pids = processes_of(node)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield pids
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
