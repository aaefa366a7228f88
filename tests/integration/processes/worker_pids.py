"""The processes of workers that this program has started without Ray."""

from __future__ import annotations

from pathlib import Path

from malstrom_py.workers.processes.worker_process import FORKS


def worker_pids() -> list[int]:
    """Return the processes that live, oldest first."""
    server = FORKS._process
    return [] if server is None else sorted(children_of(server.pid))


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started, and that have not ended."""
    try:
        return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    except FileNotFoundError:
        return []
