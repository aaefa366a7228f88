"""The program of a job, in the namespace of Ray's head. A test in another process has it do one thing after the other:
``python -m tests.integration.netns.driver DESCRIPTOR``, of a connection that it inherits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import malstrom_py as mp
from tests.integration.ray.chaos import chaotic
from tests.integration.ray.chaos_ends import Row


@dataclass(frozen=True)
class Noted:
    """Notes each row in a file of the process that handled it, whether it is committed later or not."""

    folder: Path

    def __call__(self, row: Row) -> None:
        with (self.folder / str(os.getpid())).open("a") as file:
            file.write(f"{row['part']} {row['number']}\n")


class Program:
    """What the test may ask for: each method is called by its name."""

    def __init__(self) -> None:
        self._started: mp.JobHandle | None = None

    @property
    def _handle(self) -> mp.JobHandle:
        assert self._started is not None
        return self._started

    def connect(self, address: str) -> bool:
        """Connect to Ray; return False while its head does not answer."""
        import ray

        try:
            ray.init(address=address, namespace="malstrom", log_to_driver=False)
        except (ConnectionError, RuntimeError):
            return False
        return True

    def nodes(self) -> list[str]:
        """Return the addresses of the nodes that Ray believes to be alive."""
        import ray

        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        return [str(node["NodeManagerAddress"]) for node in nodes if node["Alive"]]

    def start(self, folder: Path, workers: int) -> None:
        """Start the job of `tests.integration.ray.chaos`."""
        (folder / "noted").mkdir()
        snapshots = mp.Snapshots(folder / "kept", interval_s=0.5)
        job = chaotic(folder.name, folder / "out", Noted(folder / "noted"))
        self._started = mp.RayRuntime(workers, num_cpus=1, snapshots=snapshots).start(job)

    def status(self) -> Any:
        """Return the status of the job."""
        return self._handle.status()

    def rescale(self, workers: int, timeout_s: float) -> None:
        """Rescale the job, and wait for it."""
        self._handle.rescale(workers, timeout_s=timeout_s)

    def workers(self) -> dict[int, str]:
        """Return the processes of the living workers, and the address of the node of each."""
        from tests.integration.ray.leftovers import actors

        found = [actor for actor in actors() if actor["ActorClassName"] == "WorkerActor" and actor["Pid"]]
        return {actor["Pid"]: str(actor["Address"]["IPAddress"]) for actor in found}

    def stop(self, timeout_s: float) -> None:
        """Stop the job, and wait for its end."""
        self._handle.stop(timeout_s=timeout_s)


def answer(program: Program) -> None:
    """Answer until the connection ends."""
    pipe = Connection(int(sys.argv[1]))
    with suppress(EOFError):
        while True:
            name, arguments = pipe.recv()
            call: Callable[..., Any] = getattr(program, name)
            try:
                pipe.send((call(*arguments), ""))
            except Exception as error:
                pipe.send((None, f"{type(error).__name__}: {error}"))
    os._exit(0)  # Ray may be out of reach


if __name__ == "__main__":
    answer(Program())
