"""The processes of workers that this program has started without Ray."""

from __future__ import annotations

from pathlib import Path

from malstrom_py.workers.processes.worker_process import FORKS


def worker_pids() -> list[int]:
    """Return the processes that live, oldest first."""
    server = FORKS._process
    if server is None:
        return []
    try:
        return sorted(map(int, Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()))
    except FileNotFoundError:
        return []
