"""The oracle finds no error in correct runs, and an error in each damaged run."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.simulation.jobs.damages import DAMAGES, damaged
from tests.simulation.jobs.jobs import SHAPES
from tests.simulation.jobs.runs import in_process, run
from tests.simulation.jobs.verdicts import Violation

ROUNDS = 1
"""How often each damage is done to each shape."""

CASES_MAX = 80
"""How many cases may be drawn until each damage has found something to damage."""


def objects_to(seed: int, shape: str, done: Counter[str]) -> list[str]:
    """The damages to one run that the oracle did not see."""
    case, ran = run(seed, shape=shape, runtime=in_process, growing=0.0)
    missed = []
    for damage in DAMAGES:
        if done[damage.__name__] >= ROUNDS:
            continue
        broken = damaged(damage, case.layout, ran.outcome, random.Random(seed))
        if broken is None:
            continue
        done[damage.__name__] += 1
        try:
            case.check(broken)
        except Violation:
            continue
        missed.append(f"{damage.__name__} (seed {seed})")
    return missed


@pytest.mark.long(but=("late", "several-sources"))
@pytest.mark.parametrize("shape", SHAPES)
def test_each_damage_to_each_shape_is_seen(shape: str) -> None:
    done: Counter[str] = Counter()
    for seed in range(CASES_MAX):
        assert objects_to(seed, shape, done) == []
    assert [damage.__name__ for damage in DAMAGES if done[damage.__name__] < ROUNDS] == []
