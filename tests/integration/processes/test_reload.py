"""A reload in processes: code that cannot be copied is refused, and after one that failed all workers, also later
ones, have the former code and do not read the file.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path

import cloudpickle
import pytest

import malstrom_py as mp
from tests.integration.job_module import MakeModule

MODULE = """
import functools
import threading
import time

import malstrom_py as mp
from malstrom_py import sinks, sources

LOCK = threading.Lock()
out = sinks.Memory()


def numbers(part, start):
    for number in range(start, 1 << 60):
        yield number
        if number % 20 == 0:
            time.sleep(0.002)


@functools.cache
def twice(number):
    return 2 * number


def total(key, number, state):
    return {"key": key, "n": number, "twice": twice(number)}, state + 1


def key_of(number):
    return number % 20


def make():
    job = mp.Job("copied")
    keyed = job.source("in", sources.Generator(numbers)).key_by("key", key_of)
    keyed.stateful_map("total", total, default=int).sink("out", out)
    return job
"""


def test_all_workers_go_back_to_the_former_code_or_none_has_left_it(job_module: MakeModule, tmp_path: Path) -> None:
    module, registered = job_module(MODULE), set(cloudpickle.list_registry_pickle_by_value())
    runtime = mp.Processes(2, snapshots=mp.Snapshots(tmp_path / "kept", interval_s=0.2))
    handle = runtime.start(module.module.make(), control=False)
    handle.snapshot()
    module.write(("    return {", "    with LOCK:\n        return {"))
    for shadow in (False, True):
        with pytest.raises(mp.ReloadError, match=f"because of {module.name}.LOCK.* The job continues unchanged"):
            handle.reload("total", shadow=shadow)
    module.write(
        ("return 2 *", "return 3 *"), ("    return {", "    if state:\n        raise ValueError\n    return {")
    )
    with pytest.raises(mp.ReloadError, match="its new code has failed"):
        handle.reload("total", probation_s=30)
    module.path.write_text("(")  # no process reads the file from now on
    handle.rescale(3)
    handle.snapshot()
    read = handle.status().counts.read
    while handle.status().counts.read < read + 500:
        time.sleep(0.01)
    assert handle.status().restarts == 0
    handle.stop(drain=True, timeout_s=60)
    assert set(cloudpickle.list_registry_pickle_by_value()) == registered
    rows = defaultdict[int, list[int]](list)
    for row in module.items:
        assert row["twice"] == 2 * row["n"]
        rows[row["key"]].append(row["n"])
    assert all(found == list(range(key, found[-1] + 1, 20)) for key, found in rows.items())
