"""The state of a job is gone once the job has ended: no cycle keeps it until the next collection of garbage."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.operators.base import Operator
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.runtime.shadow_plan import with_shadow
from tests.laws.test_forms import CASES

ROWS = [{"n": i % 5, "m": i, "big": i, "x": i / 2, "odd": i / 4, "s": "ab"[i % 2], "b": not i % 3} for i in range(60)]
HELD_BY_THE_JOB = (ReadSource, WriteSink)
"""The coordinator has its own of these, which have no state of keys."""


def job_of(name: str, *, columns: bool) -> mp.Job:
    """Return a job of the case ``name`` of `CASES`, on rows or on columns."""
    step, options = CASES[name]
    job, streams = mp.Job("ended"), list[Any]()
    for number in range(options.get("inputs", 1)):
        stream: Any = job.source(f"in-{number}", sources.Memory(ROWS))
        if columns:
            stream = stream.select(f"columns-{number}", *ROWS[0])
        if options.get("timed"):
            stream = stream.assign_timestamps(f"at-{number}", "m")
            if "untimed" not in name:
                stream, _ = stream.generate_epochs(f"epochs-{number}", mp.limit_out_of_orderness(9))
        if options.get("keyed", True):
            stream = stream.key_by(f"key-{number}", "s")
        streams.append(stream)
    made = step(*streams)
    for number, output in enumerate(made if isinstance(made, list | tuple) else [made]):
        output.sink(f"out-{number}", sinks.Memory())
    return job


def left_of_jobs() -> list[object]:
    """Return the workers, operators and structures of state that exist."""
    return [
        thing
        for thing in gc.get_objects()
        if (isinstance(thing, Worker | Operator) and not isinstance(thing, HELD_BY_THE_JOB))
        or str(type(thing).__module__).startswith("malstrom_py.state.")
    ]


def left_by(make: Callable[[], mp.Job]) -> list[str]:
    """Run such a job, and return what it leaves without a run of the garbage collector."""
    mp.run(make())  # what is kept for all jobs is made now
    gc.collect()
    before = {id(thing) for thing in left_of_jobs()}
    gc.disable()
    try:
        mp.run(make(), workers=2)
        return [type(thing).__qualname__ for thing in left_of_jobs() if id(thing) not in before]
    finally:
        gc.enable()


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("name", CASES)
def test_an_ended_job_leaves_no_state(name: str, columns: bool) -> None:
    assert left_by(lambda: job_of(name, columns=columns)) == []


def test_an_ended_job_with_a_shadow_leaves_no_state() -> None:
    def shadowed() -> mp.Job:
        job = mp.Job("shadowed")
        keyed = job.source("in", sources.Memory([1, 2, 3])).key_by("key", lambda number: number % 2)
        keyed.stateful_map("step", lambda key, number, total: (total, total + number), default=int).sink(
            "out", sinks.Memory()
        )
        plan = with_shadow(job.plan(), job.plan(), "step")
        job.plan = lambda: plan  # type: ignore[method-assign]
        return job

    assert left_by(shadowed) == []
