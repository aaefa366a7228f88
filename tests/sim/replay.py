"""Replays one seed: ``python -m tests.sim.replay SEED [--log]`` prints its trace hash, or fails as it failed before."""

from __future__ import annotations

import argparse
import random

from tests.sim.runs import STEPS_MAX, Run
from tests.sim.setups import draw


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--log", action="store_true", help="print everything that happened, and the setup")
    given = parser.parse_args()
    rng = random.Random(given.seed)
    setup = draw(rng)
    run = Run(setup, rng, None, steps_max=STEPS_MAX, logged=given.log)
    try:
        run.play()
    finally:
        if given.log:
            print(setup)
            print("\n".join(run.outcome.log))
    print(f"seed {given.seed}: {run.outcome.steps} steps, trace {run.outcome.trace}")


if __name__ == "__main__":
    main()
