"""``python -m bench.macro.autoscaling_noise``: how often the autoscaler changes its mind under noise and after steps.

A decision is needless if the mean load is what it was and 15 minutes have passed since the start. Counted are those of
the worst hour, which may begin at any time.
"""

from __future__ import annotations

import argparse
from collections import Counter
from itertools import product
from typing import Final

from bench.macro.load_curves import HOUR_S, Curve, Noise, OurRule, Outcome, Workers, constant, simulate, spike, step
from malstrom_py.rescale.autoscaling import Autoscale

MEANS: Final = (700, 1050, 2100, 2400, 4150)
"""Of the 700 rows a second that a worker takes at its target: just as many, in the middle, at an edge and beyond it."""

HOURS: Final = 4

STRONG: Final = Noise(quick=0.2, slow=0.15)
LITTLE: Final = Noise(quick=0.05, slow=0.03)

NOISES: Final = {
    "5 %, 3 % over a minute": LITTLE,
    "10 %, 5 % over a minute": Noise(quick=0.1, slow=0.05),
    "50 %, nothing slow": Noise(quick=0.5),
    "20 %, 15 % over 15 s": Noise(quick=0.2, slow=0.15, stays_s=15.0),
    "20 %, 15 % over a minute": STRONG,
    "20 %, 15 % over five minutes": Noise(quick=0.2, slow=0.15, stays_s=300.0),
    "30 %, 25 % over a minute": Noise(quick=0.3, slow=0.25),
}
"""How much a load differs from second to second, and for longer."""

STEPS: Final = ((500, 1500), (600, 4200), (300, 7000), (1500, 2300), (4200, 600), (2800, 1300))
STEP_S: Final = 1200.0
SETTLED_S: Final = 900.0
OPTIONS: Final = Autoscale(max=12)


def changes(found: Outcome, from_s: float = SETTLED_S) -> list[float]:
    """Return when the size has changed after ``from_s``."""
    return [at_s for at_s, _ in found.sizes if at_s > from_s]


def needless(found: Outcome) -> int:
    """Return the number of decisions in the hour that has most of them, after the job has found its size."""
    times = changes(found)
    return max((sum(0 <= at_s - since_s < HOUR_S for at_s in times) for since_s in times), default=0)


def run(curve: Curve, seconds: float, noise: Noise, seed: int, *, loss: float = 0.0) -> Outcome:
    """Return what comes of our rule."""
    return simulate(OurRule(OPTIONS), curve, seconds=seconds, can=Workers(loss=loss), noise=noise, seed=seed)


def row(name: str, found: list[Outcome]) -> str:
    """Return the means over the runs, and how many runs have two needless decisions in an hour."""
    counts, runs = [needless(one) for one in found], len(found)
    two = sum(count > 1 for count in counts)
    made = sum(one.decisions for one in found) / runs
    workers = sum(one.worker_s for one in found) / HOURS / HOUR_S / runs
    lag_s = sum(one.lag_s(0.99) for one in found) / runs
    return f"| {name} | {two} of {runs} | {max(counts)} | {made:.2f} | {workers:.2f} | {lag_s:.2f} |"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=12)
    seeds = range(parser.parse_args().seeds)
    print("| noise | runs with two in an hour | most in an hour | decisions | workers | lag, 99th percentile, s |")
    print("|---|---|---|---|---|---|")
    for name, noise in NOISES.items():
        runs = [run(constant(mean), HOURS * HOUR_S, noise, seed) for mean, seed in product(MEANS, seeds)]
        print(row(name, runs), flush=True)
    for name, noise in (("little", LITTLE), ("strong", STRONG)):
        cases = product(STEPS, (0.0, 0.1), seeds)
        steps = [run(step(*pair, STEP_S), STEP_S + 900, noise, seed, loss=loss) for pair, loss, seed in cases]
        counts = sorted(Counter(len(changes(one, STEP_S)) for one in steps).items())
        lags = sum(one.lag_s(0.99) for one in steps) / len(steps), max(one.lag_s() for one in steps)
        print(f"{len(steps)} steps, {name} noise: decisions {counts}, lag {lags[0]:.1f} s, at most {lags[1]:.1f}")
        spikes = [run(spike(1200, 6000, 1200, 600), 2 * HOUR_S, noise, seed) for seed in seeds]
        hours = sum(one.worker_s for one in spikes) / HOUR_S / len(spikes)
        made = sum(one.decisions for one in spikes) / len(spikes)
        print(f"{len(spikes)} spikes, {name} noise: decisions {made:.1f}, worker-hours {hours:.2f}", flush=True)


if __name__ == "__main__":
    main()
