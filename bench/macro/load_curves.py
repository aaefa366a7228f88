"""Load curves, a job as a queue, and two rules that choose its number of workers: ours, and the threshold of an HPA.

The job is a fluid: rows arrive by a curve with noise, wait, and are taken by workers at what so many of them can do. It
has no records, so an hour takes a fraction of a second.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Final, Protocol

from malstrom_py.rescale.autoscaling import Autoscale, AutoscalePolicy, Decision, Observation

HOUR_S: Final = 3600

Curve = Callable[[float], float]
"""Rows a second that arrive at a time in seconds."""


def constant(rows_per_s: float) -> Curve:
    """The same load at all times."""
    return lambda at_s: rows_per_s


def step(before: float, after: float, at_s: float) -> Curve:
    """A load that changes once."""
    return lambda now_s: before if now_s < at_s else after


def ramp(before: float, after: float, from_s: float, to_s: float) -> Curve:
    """A load that grows evenly."""
    return lambda at_s: before + (after - before) * min(1.0, max(0.0, (at_s - from_s) / (to_s - from_s)))


def spike(base: float, top: float, from_s: float, lasts_s: float) -> Curve:
    """A load that is higher for a while."""
    return lambda at_s: top if from_s <= at_s < from_s + lasts_s else base


def day(least: float, most: float, day_s: float = 24.0 * HOUR_S) -> Curve:
    """A load with one top a day."""
    return lambda at_s: least + (most - least) * (1 - math.cos(2 * math.pi * at_s / day_s)) / 2


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise that multiplies a load: of each second by itself, and one that stays for ``stays_s``."""

    quick: float = 0.0
    slow: float = 0.0
    stays_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Workers:
    """What workers take: ``rows_per_s`` for one, and with each doubling a share ``loss`` less of the twofold.

    ``skew``: how much busier the busiest one is than the mean. ``usable``: more workers than these take no more.
    """

    rows_per_s: float = 1000.0
    loss: float = 0.0
    skew: float = 1.0
    usable: int = 1 << 30

    def take(self, count: int) -> float:
        """Return the rows a second that ``count`` workers take."""
        useful = min(count, self.usable)
        return float(self.rows_per_s * useful ** (1.0 - self.loss) / (self.skew if useful > 1 else 1.0))


class Rule(Protocol):
    """A rule that chooses the number of workers."""

    @property
    def every_s(self) -> float: ...

    def decide(self, seen: Observation) -> Decision: ...


class OurRule:
    """`AutoscalePolicy`."""

    def __init__(self, options: Autoscale) -> None:
        self._policy = AutoscalePolicy(options)
        self.every_s = options.interval_s

    def decide(self, seen: Observation) -> Decision:
        return self._policy.decide(seen)


class ThresholdRule:
    """The rule of a Horizontal Pod Autoscaler, as set-ups of Flink's reactive mode use it.

    Every 15 s the wanted size is the size now times the mean CPU use over its target, rounded up, within a tolerance of
    10 %. Up at most to twice the size or by four workers in 15 s; down to the largest size wanted in five minutes.
    """

    every_s = 15.0

    def __init__(self, least: int, most: int, target: float) -> None:
        self._least, self._most, self._target = least, most, target
        self._wanted: list[tuple[float, int]] = []

    def decide(self, seen: Observation) -> Decision:
        now, use = seen.workers, sum(seen.busy) / len(seen.busy) / self._target
        wanted = now if abs(use - 1) <= 0.1 else ceil(now * use - 1e-9)
        wanted = min(max(wanted, self._least), self._most)
        self._wanted = [(at_s, size) for at_s, size in self._wanted if seen.at_s - at_s < 300.0] + [(seen.at_s, wanted)]
        largest = max(size for _, size in self._wanted)
        size = min(wanted, max(2 * now, now + 4)) if wanted > now else min(now, largest)
        return Decision(now, size, f"CPU use is {use:.2f} of its target")


@dataclass(slots=True)
class Outcome:
    """What came of a rule under a curve. ``lag_s``: the time that the lag of each second would take at the present
    arrivals; ``sizes``: (second, workers) after each decision.
    """

    decisions: int = 0
    worker_s: float = 0.0
    lags_s: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    sizes: list[tuple[float, int]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def lag_s(self, quantile: float = 1.0) -> float:
        """Return a quantile of the lag, in seconds of arrivals."""
        return sorted(self.lags_s)[min(len(self.lags_s) - 1, int(quantile * len(self.lags_s)))]

    def size_at(self, at_s: float) -> int:
        """Return the number of workers at a time."""
        return next(size for since_s, size in reversed(self.sizes) if since_s <= at_s)


def simulate(
    rule: Rule,
    curve: Curve,
    *,
    seconds: float,
    workers: int = 1,
    can: Workers = Workers(),
    noise: Noise = Noise(),
    seed: int = 0,
    rescale_s: float = 2.0,
    has_lag: bool = True,
) -> Outcome:
    """Run a job for ``seconds`` under ``curve``, with a size that ``rule`` chooses.

    A rescale takes ``rescale_s``, in which the workers before it work on and nothing is decided.
    """
    rng, outcome = random.Random(seed), Outcome(sizes=[(0.0, workers)])
    lag = slow = 0.0
    read = at_work = since_s = lag_then = 0.0
    next_size, until_s = workers, -1.0
    for second in range(int(seconds)):
        slow = _drifted(slow, noise, rng)
        arrivals = max(0.0, curve(second) * (1.0 + slow + noise.quick * rng.gauss(0, 1)))
        takes = can.take(workers)
        taken = min(lag + arrivals, takes)
        lag += arrivals - taken
        read, at_work = read + taken, at_work + taken / takes
        outcome.worker_s += max(workers, next_size)
        outcome.lags.append(lag)
        outcome.lags_s.append(lag / max(1.0, curve(second)))
        now_s = second + 1.0
        if until_s >= 0:
            if now_s < until_s:
                continue
            workers, until_s = next_size, -1.0
            outcome.sizes.append((now_s, workers))
            read, at_work, since_s, lag_then = 0.0, 0.0, now_s, lag
        elif now_s - since_s >= rule.every_s:
            span_s = now_s - since_s
            busy = _shares(at_work / span_s, workers, can)
            seen = Observation(now_s, workers, read / span_s, busy)
            if has_lag:
                seen = replace(seen, lag_rows=int(lag), lag_per_s=(lag - lag_then) / span_s)
            decision = rule.decide(seen)
            read, at_work, since_s, lag_then = 0.0, 0.0, now_s, lag
            if decision.goes:
                outcome.decisions += 1
                outcome.reasons.append(decision.reason)
                next_size, until_s = decision.size, now_s + rescale_s
    return outcome


def _drifted(slow: float, noise: Noise, rng: random.Random) -> float:
    stays = math.exp(-1.0 / noise.stays_s)
    return stays * slow + noise.slow * math.sqrt(1 - stays * stays) * rng.gauss(0, 1)


def _shares(busiest: float, workers: int, can: Workers) -> Sequence[float]:
    """Return the share of each worker: the first is the busiest, the mean is less by the skew."""
    if workers == 1:
        return [busiest]
    mean = busiest / can.skew
    return [busiest, *[(mean * workers - busiest) / (workers - 1)] * (workers - 1)]
