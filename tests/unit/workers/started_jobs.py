"""Jobs for handles: one without an end, one whose source has nothing, and one that waits to be let through."""

from __future__ import annotations

import threading
from itertools import count
from typing import Any

import malstrom_py as mp
from malstrom_py import sinks, sources
from tests.unit.operators.scripted import Scripted

PATIENCE_S = 60.0


class Gate:
    """A function of a job that waits until it is let through."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, value: int) -> int:
        self.entered.set()
        assert self.opened.wait(PATIENCE_S)
        return value


def endless(name: str = "endless", *, parts: int = 4) -> tuple[mp.Job, sinks.Memory]:
    """Counts by key for ever: the outputs of each key are 1, 2, 3 and so on."""
    job, out = mp.Job(name), sinks.Memory()
    numbers = job.source("numbers", sources.Generator(lambda part, start: count(start), parts=parts))
    numbers.key_by("key", lambda n: n % 20).count("seen").sink("out", out)
    return job, out


def idle(name: str = "idle") -> mp.Job:
    """A job whose source never has anything, so that its thread sleeps most of the time."""
    job = mp.Job(name)
    job.source("in", Scripted({"a": [None] * 1_000_000})).sink("out", sinks.Memory())
    return job


def start(job: mp.Job, workers: int = 1, **options: Any) -> mp.JobHandle:
    return mp.InProcess(workers, batch=mp.Batching(rows_max=50), **options).start(job, control=False)


def is_complete(out: sinks.Memory) -> bool:
    return all(values == list(range(1, len(values) + 1)) for values in out.by_key.values())


def idle_free() -> mp.Job:
    job = mp.Job("once")
    job.source("in", sources.Memory([1])).sink("out", sinks.Memory())
    return job
