"""``python -m bench.macro.reloading``: how long a job is silent while the code of a step is reloaded.

The job keeps a number for each key, and its source gives rows at a pace. Several reloads follow one another. The pause
is what `ReloadReport` says: from the end of the snapshot that is the cut to the first step of the next run.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from time import sleep
from typing import Any, Final

import malstrom_py as mp
from bench.macro.keeping import has_all
from bench.macro.on_ray import ray_here, runtime, verdict, wait_for
from bench.micro import machine
from bench.micro.timing import spread

BUDGET_S: Final = 0.2
NAME: Final = "reloaded_in_bench"
MODULE: Final = "def keep(key, number, seen):\n    return number, (seen or 0) + 1\n"


def numbers(part: int, start: int) -> Iterator[int]:
    """Yield numbers, at most about 10,000 a second and part."""
    for number in count(start):
        yield 2 * number + part
        if number % 100 == 0:
            sleep(0.01)


def reload(name: str, running: Any, job: mp.Job, *, keys: int, reloads: int, path: Path) -> str:
    """Reload the step of ``job`` so many times, and describe the pauses."""
    handle = running.start(job, control=False)
    wait_for(handle, lambda status: has_all(keys, status))
    handle.snapshot()
    pauses_s: list[float] = []
    for number in range(reloads):
        path.write_text(f"{MODULE}\n# {number}\n")
        pauses_s.append(handle.reload("keep", probation_s=0.5).pause_s)
        sleep(0.2)
    handle.stop(drain=False)
    kept, budget = spread(pauses_s).show(3), verdict(max(pauses_s), BUDGET_S, at_least=False)
    return f"{name}: pause of {kept} s beyond the snapshot in {reloads} reloads with {keys:,} keys ({budget})"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.macro.reloading", description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--reloads", type=int, default=5)
    parser.add_argument("--in-process", action="store_true", help="without Ray")
    options = parser.parse_args(arguments)
    print(machine.describe())
    with tempfile.TemporaryDirectory() as top:
        path = Path(top) / f"{NAME}.py"
        path.write_text(MODULE)
        sys.path.insert(0, top)
        keep = importlib.import_module(NAME).keep

        def job(name: str) -> mp.Job:
            made = mp.Job(name)
            keyed = made.source("in", mp.sources.Generator(numbers, parts=2)).key_by("key", key_of)
            keyed.stateful_map("keep", keep).sink("out", mp.sinks.Callable(_nothing))
            return made

        def key_of(number: int) -> str:
            return f"key-{number % options.keys}"

        def snapshots(name: str) -> mp.Snapshots:
            return mp.Snapshots(Path(top) / name, interval_s=2.0)

        here = mp.InProcess(options.workers, snapshots=snapshots("here"))
        sizes = {"keys": options.keys, "reloads": options.reloads, "path": path}
        print(reload("in process", here, job("reloading-here"), **sizes))
        if options.in_process:
            return
        with ray_here() as version:
            print(f"Ray {version}")
            path.write_text(MODULE)
            there = runtime(options.workers, snapshots=snapshots("ray"))
            print(reload("on Ray", there, job("reloading-on-ray"), **sizes))


def _nothing(row: object) -> None:
    """A sink that costs little."""


if __name__ == "__main__":
    main()
