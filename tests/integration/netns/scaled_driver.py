"""The program of a job whose cluster grows and shrinks: it starts Ray, and a job whose load the test sets.

``python -m tests.integration.netns.scaled_driver DESCRIPTOR``, as `tests.integration.netns.driver`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

import malstrom_py as mp
from malstrom_py import events, sinks
from malstrom_py.clock import SystemClock
from tests.arriving import KEYS, Arriving
from tests.integration.netns.driver import Program, answer

ROW_S: Final = 0.004
"""How long a row takes a worker: 250 rows a second."""

_SOON_S: Final = 0.5
"""How long before a load begins all readers can see it."""

_RAY: Final = (
    *("-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=1", "--object-store-memory=80000000"),
    *(
        "--include-dashboard=false",
        "--include-log-monitor=false",
        "--disable-usage-stats",
        "--node-ip-address=127.0.0.1",
    ),
    *("--ray-client-server-port=7007", "--min-worker-port=20000", "--max-worker-port=20999"),
)


@dataclass(frozen=True)
class Load:
    """How many rows have arrived: ``file`` has a line for each load, since when there is how many rows a second."""

    file: Path

    def __call__(self, at_s: float) -> float:
        rows = since_s = per_s = 0.0
        for line in self.file.read_text().splitlines():
            next_s, next_per_s = map(float, line.split())
            if next_s >= at_s:
                break
            rows, since_s, per_s = rows + per_s * (next_s - since_s), next_s, next_per_s
        return rows + per_s * (at_s - since_s)


def worked(number: int) -> int:
    time.sleep(ROW_S)
    return number


class ScaledProgram(Program):
    """What the test may ask for."""

    def __init__(self) -> None:
        super().__init__()
        self._out = sinks.Memory()
        self._began_s = 0.0
        self._load = Path()

    def start_ray(self, configuration: Path, address: str, version: int) -> None:
        """Start the head, with the autoscaler of this version."""
        from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

        theirs = {
            "RAY_FAKE_CLUSTER": "1",
            "RAY_enable_autoscaler_v2": str(version - 1),
            "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        }
        port = address.rpartition(":")[2]
        command = [sys.executable, *_RAY, f"--port={port}", f"--autoscaling-config={configuration}"]
        subprocess.Popen(command, env=os.environ | theirs)

    def run(self, name: str, folder: Path, load: float, most: int, start_timeout_s: float) -> None:
        """Start a job of one worker with this load, which may have ``most`` workers."""
        self._load = folder / f"{name}-load"
        self._load.write_text(f"0 {load}\n")
        source = Arriving(Load(self._load), inf, SystemClock)
        self._began_s = SystemClock().monotonic_s()
        self._out = sinks.Memory()
        job = mp.Job(name)
        numbers = job.source("in", source).map("work", worked).key_by("key", lambda number: number % KEYS)
        counted = numbers.stateful_map("seen", lambda _, number, seen: ((number, seen + 1), seen + 1), default=int)
        counted.sink("out", self._out)
        scale = mp.Autoscale(max=most, interval_s=0.5, up_after_s=2.0, cool_down_s=3.0, catch_up_s=5.0)
        runtime = mp.RayRuntime(
            1,
            num_cpus=1,
            autoscaling=True,
            autoscale=scale,
            start_timeout_s=start_timeout_s,
            batch=mp.Batching(rows_max=32),
        )
        self._started = runtime.start(job)

    def load(self, per_s: float) -> None:
        """Have so many rows arrive a second from now on."""
        at_s = SystemClock().monotonic_s() - self._began_s + _SOON_S
        with self._load.open("a") as file:
            file.write(f"{at_s} {per_s}\n")

    def decisions(self) -> list[events.Autoscaled]:
        """Return the decisions of the autoscaler so far."""
        return [event for event in self._handle.events(follow=False) if isinstance(event, events.Autoscaled)]

    def ended(self, timeout_s: float) -> Any:
        """Stop the job, and return how many rows were read and written, and the output."""
        self._handle.stop(timeout_s=timeout_s)
        result = self._handle.wait(timeout_s=timeout_s)
        return result.read, result.written, self._out.items

    def worker_nodes(self) -> list[tuple[str, str]]:
        """Return the state and the node of each worker that exists or waits for room."""
        from tests.integration.ray.leftovers import actors

        found = [actor for actor in actors() if actor["ActorClassName"] == "WorkerActor"]
        return [(str(actor["State"]), str(actor["Address"]["NodeID"])) for actor in found]

    def node_ids(self) -> list[str]:
        """Return the nodes that are alive."""
        import ray

        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        return [str(node["NodeID"]) for node in nodes if node["Alive"]]


if __name__ == "__main__":
    answer(ScaledProgram())
