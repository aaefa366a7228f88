"""``python -m bench.macro.autoscaling_noise``: how often the autoscaler changes its mind under noise and after steps.

A decision is needless if the mean load is what it was and 15 minutes have passed since the start. Counted are those of
the worst hour, which may begin at any time.
"""

from __future__ import annotations

import argparse
from collections import Counter
from itertools import product
from typing import Final

from bench.macro.load_curves import HOUR_S, Noise, OurRule, Outcome, Workers, constant, simulate, spike, step
from malstrom_py.rescale.autoscaling import Autoscale

MEANS: Final = (700, 1050, 2100, 2400, 4150)
"""Of the 700 rows a second that a worker takes at its target: just as many, in the middle, at an edge and beyond it."""

STRONG: Final = Noise(quick=0.2, slow=0.15)
LITTLE: Final = Noise(quick=0.05, slow=0.03)

NOISES: Final = {
    "20 %, 15 % over a minute": STRONG,
    "20 %, 15 % over 15 s": Noise(0.2, 0.15, 15.0),
    "20 %, 15 % over five minutes": Noise(0.2, 0.15, 300.0),
    "30 %, 25 % over a minute": Noise(0.3, 0.25),
    "10 %, 5 % over a minute": Noise(0.1, 0.05),
    "5 %, 3 % over a minute": LITTLE,
    "50 %, nothing slow": Noise(0.5, 0.0),
}
STEPS: Final = ((500, 1500), (600, 4200), (300, 7000), (1500, 2300), (4200, 600), (2800, 1300))
SETTLED_S: Final = 900.0
OPTIONS: Final = Autoscale(max=12)


def needless(found: Outcome, from_s: float = SETTLED_S) -> int:
    """Return the number of decisions in the hour that has most of them, after the job has found its size."""
    times = [at_s for at_s, _ in found.sizes if at_s > from_s]
    return max((sum(0 <= at_s - since_s < HOUR_S for at_s in times) for since_s in times), default=0)


def under_noise(mean: float, noise: Noise, seed: int, *, hours: float = 4.0) -> Outcome:
    """Return what comes of a load that is the same but for its noise."""
    return simulate(OurRule(OPTIONS), constant(mean), seconds=hours * HOUR_S, noise=noise, seed=seed)


def after_step(before: float, after: float, loss: float, noise: Noise, seed: int) -> tuple[int, Outcome]:
    """Return how many decisions followed a step within 15 minutes, and the outcome."""
    found = simulate(
        OurRule(OPTIONS), step(before, after, 1200), seconds=2100, can=Workers(loss=loss), noise=noise, seed=seed
    )
    return sum(at_s > 1200 for at_s, _ in found.sizes), found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--noises", type=int, default=len(NOISES))
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.seeds)
    print("| noise | runs | with two or more in an hour | most | decisions | workers | lag 99 %, s |")
    for name, noise in list(NOISES.items())[: given.noises]:
        made = [(mean, under_noise(mean, noise, seed)) for mean, seed in product(MEANS, seeds)]
        counts = [needless(found) for _, found in made]
        by_mean = Counter(mean for (mean, _), count in zip(made, counts, strict=True) if count > 1)
        workers = sum(found.worker_s for _, found in made) / 4 / HOUR_S / len(made)
        changes = sum(found.decisions for _, found in made) / len(made)
        lag_s = sum(found.lag_s(0.99) for _, found in made) / len(made)
        two = sum(count > 1 for count in counts)
        print(f"| {name} | {len(made)} | {two} {dict(by_mean)} | {max(counts)} | {changes:.2f} | {workers:.2f} | {lag_s:.2f} |", flush=True)
    for noise in (LITTLE, STRONG):
        found = [after_step(*pair, loss, noise, seed) for pair, loss, seed in product(STEPS, (0.0, 0.1), seeds)]
        lag_s = sum(one.lag_s(0.99) for _, one in found) / len(found)
        print(f"steps {noise}", sorted(Counter(count for count, _ in found).items()), f"lag {lag_s:.1f} {max(o.lag_s() for _,o in found):.1f} worker-h {sum(one.worker_s for _, one in found)/3600/len(found):.3f}")
        spikes = [
            simulate(OurRule(OPTIONS), spike(1200, 6000, 1200, 600), seconds=2 * HOUR_S, noise=noise, seed=seed)
            for seed in seeds
        ]
        print(f"spikes {sum(one.worker_s for one in spikes)/3600/len(spikes):.2f} wh {sum(one.decisions for one in spikes)/len(spikes):.2f} decisions lag99 {sum(one.lag_s(.99) for one in spikes)/len(spikes):.1f}, max {max(one.lag_s() for one in spikes):.1f}")


if __name__ == "__main__":
    main()
