"""A cluster whose nodes Ray's own autoscaler adds and removes, apart from all else on the machine.

Its processes have namespaces of processes, of the network and of mounts: what Ray kills by name is theirs, and all of
them end with the first. Rule: nodes are Ray's fake ones, processes on this machine; the autoscaler is the real one.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Final

from tests.integration.netns.nodes import PATIENCE_S, Driven, environment_in
from tests.tree import ROOT

NODES: Final = 2
"""How many nodes the autoscaler may add. Each has room for one worker, and so has the head."""

IDLE_S: Final = 4.0
"""After how long without work the autoscaler removes a node."""

_ADDRESS: Final = "127.0.0.1:6379"
_COMMANDS: Final = (
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
    "cluster_synced_files",
)
_UNSHARE: Final = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--ipc")

# The shell is the first process: it reaps those that have lost their parent, and all end with it.
_FIRST: Final = 'ip link set lo up && mount -t tmpfs -o size=500m tmpfs /dev/shm && "$@"; exit'


@contextmanager
def scaled_cluster(logs: Path, version: int) -> Iterator[Driven]:
    """Start a head with the autoscaler of this ``version``, and the program. At the end nothing is left."""
    # Paths of sockets are short.
    short = tempfile.TemporaryDirectory(prefix="mr-", dir="/tmp", ignore_cleanup_errors=True)
    mine, others = Pipe()
    with short as name, mine, (logs / "driver.log").open("wb") as out:
        folder = Path(name)
        (folder / "tmp").mkdir()
        (folder / "token").touch(mode=0o600)
        (folder / "token").write_text(secrets.token_hex(32))
        (folder / "cluster.yaml").write_text(json.dumps(_configuration()))
        program = [sys.executable, "-m", "tests.integration.netns.scaled_driver", str(others.fileno())]
        with others:
            unshared = subprocess.Popen(
                [*_UNSHARE, "sh", "-c", _FIRST, "sh", *program],
                cwd=ROOT,
                env=environment_in(folder),
                pass_fds=[others.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            driven = Driven(mine)
            driven.ask("start_ray", folder / "cluster.yaml", _ADDRESS, version)
            until_s = time.monotonic() + PATIENCE_S
            while not driven.ask("connect", _ADDRESS):
                assert time.monotonic() < until_s, f"Ray does not start, see {logs}"
                time.sleep(0.1)
            yield driven
        finally:
            _end(unshared)


def _end(unshared: subprocess.Popen[bytes]) -> None:
    """Kill the first process of the namespaces, and with it all others. `unshare` ends once there are none."""
    with suppress(FileNotFoundError):
        for first in Path(f"/proc/{unshared.pid}/task/{unshared.pid}/children").read_text().split():
            os.kill(int(first), signal.SIGKILL)
    unshared.wait(PATIENCE_S)


def _configuration() -> dict[str, Any]:
    """Return the configuration of the cluster.

    The provider has another name than ``fake_multinode``, whose defaults are a file that Ray's wheel does not have.
    """
    from ray.autoscaler._private.fake_multi_node import node_provider as fake

    return {
        "cluster_name": "scaled",
        "max_workers": NODES,
        "idle_timeout_minutes": IDLE_S / 60,
        "provider": {
            "type": "external",
            "module": f"{fake.__name__}.{fake.FakeMultiNodeProvider.__name__}",
            "gcs_address": _ADDRESS,
            "head_node_id": fake.FAKE_HEAD_NODE_ID,
            "launch_multiple": True,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
        },
        "auth": {},
        "file_mounts": {},
        "head_node_type": fake.FAKE_HEAD_NODE_TYPE,
        "available_node_types": {
            fake.FAKE_HEAD_NODE_TYPE: _nodes(0),
            "small": _nodes(NODES),
        },
        **{name: [] for name in _COMMANDS},
    }


def _nodes(most: int) -> dict[str, Any]:
    """Return a type of nodes, of which there may be so many beside the head."""
    resources = {"CPU": 1, "object_store_memory": 80_000_000}
    return {"resources": resources, "node_config": {}, "min_workers": 0, "max_workers": most}
