"""Checks that a job leaves no actors, processes, listening ports, threads of this program, or files."""

from __future__ import annotations

import importlib
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import ray

from malstrom_py.workers.ray.cluster import NAMESPACE
from malstrom_py.workers.ray.discovery import running_nearby

PATIENCE_S: Final = 120.0
WITHIN_S: Final = 60.0
"""The timeout for the report of a death, and for the clean-up of a job."""
OURS: Final = ("WorkerActor", "CoordinatorActor")


class Things(NamedTuple):
    """The actors, processes, ports, threads and files of jobs at one moment."""

    actors: frozenset[str]
    processes: frozenset[int]
    ports: frozenset[int]
    threads: frozenset[str]
    files: frozenset[str]


def until(holds: Callable[[], bool]) -> None:
    """Wait until ``holds`` returns True; fail after `PATIENCE_S`."""
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def actors(*, alive: bool = True) -> list[dict[str, Any]]:
    """Return the actors of jobs from Ray's actor table, oldest first."""
    private: Any = importlib.import_module(
        "ray._private.state"
    )  # the public list needs the dashboard, which does not run
    table: dict[str, dict[str, Any]] = private.actors()
    found = [actor for actor in table.values() if actor["ActorClassName"] in OURS]
    return sorted((a for a in found if not alive or a["State"] != "DEAD"), key=lambda actor: actor["StartTime"])


def pids(kind: str) -> list[int]:
    """Return the processes of the living actors of a class, oldest first, without those that have not started yet."""
    return [actor["Pid"] for actor in actors() if actor["ActorClassName"] == kind and actor["Pid"]]


def things(*, with_ray: bool = True) -> Things:
    """Return what jobs have in this program and on this machine."""
    table = actors(alive=False) if with_ray else []
    return Things(
        frozenset(actor["ActorID"] for actor in table if actor["State"] != "DEAD"),
        frozenset(actor["Pid"] for actor in table if actor["Pid"] and _is_of_ray(actor["Pid"])),
        frozenset(_listening(os.getpid())),
        frozenset(thread.name for thread in threading.enumerate() if thread.name.startswith("malstrom")),
        frozenset(_files()),
    )


def check_nothing_left(before: Things, *, with_ray: bool = True) -> None:
    """Wait until nothing exists that did not exist ``before``; fail after `WITHIN_S`."""
    until_s = time.monotonic() + WITHIN_S
    while True:
        now: tuple[frozenset[Any], ...] = things(with_ray=with_ray)
        left = {name: there - was for name, there, was in zip(Things._fields, now, before, strict=True) if there - was}
        if not left:
            return
        assert time.monotonic() < until_s, f"left over: {left}"
        time.sleep(0.05)


def kill_jobs() -> None:
    """Kill all jobs, so that the next test starts without any."""
    for job in running_nearby():
        ray.kill(ray.get_actor(job, namespace=NAMESPACE))


def is_alive(pid: int) -> bool:
    """Return whether this process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _is_of_ray(pid: int) -> bool:
    """Return whether a process of Ray has this number: those of actors that ended are given to other processes."""
    try:
        return "ray::" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def _listening(pid: int) -> set[int]:
    """Return the TCP ports that a process listens on."""
    sockets = set[str]()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(str(link.readlink()))
        except OSError:
            continue
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {
        int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets
    }


def _files() -> set[str]:
    """Return the files in the folders for temporary files and sockets."""
    folders = {Path(tempfile.gettempdir()), Path(os.environ["XDG_RUNTIME_DIR"])}
    return {str(path) for folder in folders for path in folder.rglob("*") if not path.is_dir()}
