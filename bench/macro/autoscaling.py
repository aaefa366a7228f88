"""``python -m bench.macro.autoscaling``: our rule beside the threshold rule of an HPA, under load curves and seeds.

Both see the same job, a queue whose workers lose 5 % with each doubling (`bench.macro.load_curves`), and both rescale
while it runs, in two seconds. A Flink job in reactive mode would also stop and restart at each decision, which is not
counted here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.macro.load_curves import (
    HOUR_S,
    Curve,
    Noise,
    OurRule,
    Outcome,
    Rule,
    ThresholdRule,
    Workers,
    constant,
    day,
    ramp,
    simulate,
    spike,
    step,
)
from malstrom_py.rescale.autoscaling import Autoscale

MOST: Final = 16
CAN: Final = Workers(loss=0.05)


@dataclass(frozen=True, slots=True)
class Case:
    """A load of so many seconds."""

    curve: Curve
    seconds: float
    noise: Noise


CASES: Final = {
    "constant": Case(constant(2600), 2 * HOUR_S, Noise(0.1, 0.05)),
    "step": Case(step(600, 4200, 600), HOUR_S, Noise(0.05, 0.03)),
    "ramp": Case(ramp(600, 5000, 600, 3 * HOUR_S), 4 * HOUR_S, Noise(0.1, 0.05)),
    "spike": Case(spike(1200, 6000, 1200, 600), 2 * HOUR_S, Noise(0.05, 0.03)),
    "day": Case(day(600, 5500), 24 * HOUR_S, Noise(0.1, 0.05)),
    "noise": Case(constant(2400), 12 * HOUR_S, Noise(0.2, 0.15)),
}

RULES: Final[dict[str, Callable[[], Rule]]] = {
    "ours, 70 %": lambda: OurRule(Autoscale(max=MOST)),
    "HPA, 35 %": lambda: ThresholdRule(1, MOST, 0.35),
    "HPA, 50 %": lambda: ThresholdRule(1, MOST, 0.5),
    "HPA, 70 %": lambda: ThresholdRule(1, MOST, 0.7),
}


def outcomes(case: Case, rule: Callable[[], Rule], seeds: int) -> list[Outcome]:
    """Return what comes of ``rule`` for each seed."""
    return [
        simulate(rule(), case.curve, seconds=case.seconds, can=CAN, noise=case.noise, seed=seed)
        for seed in range(seeds)
    ]


def row(curve: str, rule: str, found: list[Outcome]) -> str:
    """Return a line of the table: means over the seeds, and the largest lag of all."""
    count = len(found)
    decisions = sum(one.decisions for one in found) / count
    hours = sum(one.worker_s for one in found) / count / HOUR_S
    lag_s = sum(one.lag_s(0.99) for one in found) / count
    most_s = max(one.lag_s() for one in found)
    return f"| {curve} | {rule} | {decisions:.1f} | {hours:.1f} | {lag_s:.1f} | {most_s:.1f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    print("| load | rule | decisions | worker-hours | lag, 99th percentile, s | largest lag, s |")
    print("|---|---|---|---|---|---|")
    all_found: dict[str, list[list[Outcome]]] = {rule: [] for rule in RULES}
    for name, case in CASES.items():
        for rule, make in RULES.items():
            found = outcomes(case, make, seeds)
            all_found[rule].append(found)
            print(row(name, rule, found))
    for rule, cases in all_found.items():
        decisions = sum(one.decisions for found in cases for one in found) / seeds
        hours = sum(one.worker_s for found in cases for one in found) / seeds / HOUR_S
        worst = max(sum(one.lag_s(0.99) for one in found) / seeds for found in cases)
        most = max(one.lag_s() for found in cases for one in found)
        print(f"| **all** | {rule} | {decisions:.1f} | {hours:.1f} | {worst:.1f} | {most:.1f} |")


if __name__ == "__main__":
    main()
