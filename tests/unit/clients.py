"""Clients that write down what happens to them, and a job whose function uses one: for tests of ``per_worker``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.worker_context import PerWorker, per_worker


class Client:
    """Writes down what happens to it."""

    def __init__(self, journal: list[str], name: str = "client") -> None:
        self.journal, self.name = journal, name
        journal.append(f"{name} made")

    def close(self) -> None:
        self.journal.append(f"{self.name} closed")


class AsyncClient(Client):
    """The same, closed asynchronously."""

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.journal.append(f"{self.name} closed in {threading.current_thread().name}")


def client(journal: list[str], name: str = "client") -> PerWorker[Client]:
    return per_worker(lambda: Client(journal, name))


def run(function: Callable[[int], Any], numbers: int = 3, **options: Any) -> list[Any]:
    job, out = mp.Job("resources"), sinks.Memory()
    stream = job.source("in", sources.Memory(range(numbers), parts=2)).key_by("key", lambda number: number)
    stream.map("map", function, on_error=options.pop("on_error", "fail")).sink("out", out)
    mp.run(job, progress=False, **options)
    return out.items
