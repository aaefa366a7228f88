"""Replays one seed: prints its trace hash, or fails as it failed before.

``python -m tests.simulation.protocol_model.replay SEED [--log]``
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace

from tests.simulation.protocol_model.runs import STEPS_MAX, Run, sends_ahead
from tests.simulation.protocol_model.setups import draw


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--log", action="store_true", help="print everything that happened, and the setup")
    given = parser.parse_args()
    rng = random.Random(given.seed)
    setup = replace(draw(rng), ahead=sends_ahead(given.seed))
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
