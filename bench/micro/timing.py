"""How the benchmarks measure: every variant once per round, in turn, so that other load on the machine hits all.

Rule: every result, of the first, untimed round and of each timed call, must be the first variant's.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

Variant = Callable[[Any], object]


class WrongResult(Exception):
    """A variant computed something else than the first one."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, smallest and largest of some measurements."""

    median: float
    low: float
    high: float

    def show(self, digits: int = 2) -> str:
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"


def spread(figures: list[float]) -> Spread:
    """The spread of ``figures``, of which there is at least one."""
    return Spread(statistics.median(figures), min(figures), max(figures))


def interleave(
    variants: Mapping[str, Variant],
    data: Any,
    *,
    reps: int,
    fresh: Callable[[Any], Any] | None = None,
    each_round: Callable[[], None] | None = None,
    clock: Callable[[], float] = perf_counter,
) -> dict[str, list[float]]:
    """Seconds per variant and round. ``fresh`` makes new input of ``data`` before each call, outside the clock;
    ``each_round`` is called at the end of each round, for what measures itself.

    The input is frozen first (as the programs do that ours are compared with): the collector never looks at it.
    """
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    try:
        gc.collect()
        gc.freeze()
        expected = {name: variant(data) for name, variant in variants.items()}
        check_equal(expected)
        for _ in range(reps):
            for name, variant in variants.items():
                given = data if fresh is None else fresh(data)
                gc.collect()
                gc.freeze()
                started = clock()
                result = variant(given)
                seconds[name].append(clock() - started)
                check_equal(expected | {f"{name}, timed,": result})
            if each_round is not None:
                each_round()
    finally:
        gc.unfreeze()
    return seconds


def ratios(base: list[float], other: list[float]) -> Spread:
    """How fast ``other`` was relative to ``base``, round by round: 1 is equal, 2 twice as fast."""
    return spread([a / b for a, b in zip(base, other, strict=True)])


def check_equal(results: Mapping[str, object]) -> None:
    """`WrongResult` unless all results are the first one's."""
    names = list(results)
    for name in names[1:]:
        if results[name] != results[names[0]]:
            raise WrongResult(f"{name} gave {results[name]}, but {names[0]} gave {results[names[0]]}")
