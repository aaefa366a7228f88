"""Replays one seed: ``python -m tests.simulation.jobs.replay SEED [--log]`` prints the job and its outcome.

It ends as the seed ended before: well, or with the same error.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator

from tests.simulation.jobs.jobs import SHAPES, Case, draw
from tests.simulation.jobs.runs import Ran, run_case


def described(case: Case) -> Iterator[str]:
    """The job, and what its sources have."""
    yield f"{case.shape}, {case.slots} slots"
    yield from (
        f"  {step}" for step in (*case.layout.heads, *case.layout.stages, *case.layout.tails, *case.layout.ends)
    )
    for name, given in case.inputs.items():
        yield f"  source {name}: {given.kind}, {len(given.all_records())} records in {len(given.parts)} parts"


def logged(case: Case, ran: Ran) -> Iterator[str]:
    """Everything: the input, and the rows of all sinks."""
    for name, given in case.inputs.items():
        for part, entries in given.parts.items():
            yield f"source {name}, part {part}, silences of {given.silence_s} s a poll"
            yield from (f"  {entry}" for entry in entries)
    for name, rows in ran.outcome.rows.items():
        yield f"sink {name}"
        yield from (f"  {row}" for row in rows)
    for (step, worker), epochs in sorted(ran.outcome.frontiers.items()):
        yield f"epochs at {step} on worker {worker}: {epochs}"


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--shape", choices=SHAPES, help="draw a job of this shape")
    parser.add_argument("--log", action="store_true", help="print the input, and all that came out")
    given = parser.parse_args()
    case = draw(random.Random(given.seed), shape=given.shape)
    print("\n".join(described(case)), flush=True)
    ran = run_case(case, given.seed)
    print(ran.result)
    if given.log:
        print("\n".join(logged(case, ran)))
    case.check(ran.outcome, result=ran.result)
    print(f"seed {given.seed}: no violation, trace {ran.trace}")


if __name__ == "__main__":
    main()
