"""Replays one seed: ``python -m tests.simulation.commits.replay SEED [--target NAME]``; it ends as it ended before."""

from __future__ import annotations

import argparse

from tests.simulation.commits.runs import run
from tests.simulation.commits.targets import TARGETS


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--target", choices=TARGETS, help="by default the one that the seed draws")
    given = parser.parse_args()
    ran = run(given.seed, target=given.target)
    print("\n".join(f"{count:>4}  {hit}" for hit, count in sorted(ran.hits.items()) if count))
    print(f"seed {given.seed}: {ran.lives} lives, no violation, trace {ran.trace}")


if __name__ == "__main__":
    main()
