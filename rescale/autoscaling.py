"""The number of workers that a job needs, from the rates and the use of time of its workers. Pure.

The rule is that of DS2 (Kalavri et al., "Three steps is all you need", OSDI 2018): the true rate of a worker is the
records that it processes divided by the time for which it was busy, and a job needs as many workers as its arrival rate
takes at that rate. A worker runs the whole graph, so its busy time is the cost of a record summed over all steps, and
one number is the size of the job.

Rule: more workers come, in one step, if the lowest sample of `Autoscale.up_after_s` asks for them; fewer only if the
highest sample of `Autoscale.cool_down_s` would have fitted. What lies between the two is a dead band, as wide as the
load is noisy. Where workers that left come back, the cool-down is an hour.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite
from typing import Final

from malstrom_py.errors import PlanError

TOLERANCE: Final = 0.1
"""How far above their target workers may be before others are added, and below it fewer must be before some leave."""

LEARNT_S: Final = 3600.0
"""How long it is remembered that more workers have not helped, and that some have left."""

_REGRET_S: Final = 4 * LEARNT_S
"""For how long workers stay for `LEARNT_S` after some left that were needed again within that time."""

RETRY_S: Final = 60.0
"""How long a size is not asked for again after there was no room for it."""

_LONGEST_S: Final = 1e9

_GAIN: Final = 0.2
"""Which part of the gain that perfect scaling promises is enough for added workers to stay."""

_KNOWN_BUSY: Final = 0.02
"""Below this share of the time the cost of a record is not known."""

_BEHIND: Final = 0.05
"""The lag grows if it gains this share of the arrivals in each sample."""

_WAITS: Final = 0.5
"""Workers are held up if they wait for credit for this share of their time."""


@dataclass(frozen=True, slots=True)
class Autoscale:
    """How a job changes the number of its workers by its load: ``min`` to ``max`` workers, busy for ``target`` of their
    time.

    ``interval_s``: the time between two samples, in seconds. ``up_after_s``: how long the job must have been above its
    target before workers are added. ``cool_down_s``: how long it must have been below before workers leave, and how
    long a number of workers that a user has requested is left alone. ``catch_up_s``: the time in which a lag is to be
    read.

    >>> Autoscale(min=2, max=16, target=0.6).up_after_s
    15.0

    Raises: PlanError: an option is out of range.
    """

    min: int = 1
    max: int = 8
    target: float = 0.7
    interval_s: float = 5.0
    up_after_s: float = 15.0
    cool_down_s: float = 300.0
    catch_up_s: float = 120.0

    def __post_init__(self) -> None:
        for name in ("min", "max"):
            if type(size := getattr(self, name)) is not int or size < 1:
                raise PlanError(f"autoscale: {name} must be a whole number of at least 1, got {size!r}")
        if self.min > self.max:
            raise PlanError(f"autoscale: min must be at most max, got {self.min} and {self.max}")
        if not _is_number(self.target) or not 0.1 <= self.target <= 0.95:
            raise PlanError(f"autoscale: target is a share of time from 0.1 to 0.95, got {self.target!r}")
        for name in ("interval_s", "up_after_s", "cool_down_s", "catch_up_s"):
            seconds = getattr(self, name)
            if not _is_number(seconds) or not 0.5 <= seconds <= _LONGEST_S:
                raise PlanError(
                    f"autoscale: {name} must be a number of seconds from 0.5 to {_LONGEST_S:.0f}, got {seconds!r}"
                )

    def within(self, workers: int) -> int:
        """Return the allowed size that is nearest to ``workers``."""
        return min(max(workers, self.min), self.max)

    @property
    def samples(self) -> int:
        """The number of samples in ``up_after_s``."""
        return max(2, ceil(self.up_after_s / self.interval_s))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Observation:
    """What a job did since the sample before, at ``at_s`` on a monotonic clock.

    ``read_per_s``: the rows that its sources read. ``busy``: the share of its time for which each worker was busy, 1.0
    for a worker that could not have done more. ``waiting``: the mean share for which workers waited for credit.
    ``lag_rows``: the rows that could be read now, None where no source knows; ``lag_per_s``: how fast they grow.
    """

    at_s: float
    workers: int
    read_per_s: float
    busy: Sequence[float]
    waiting: float = 0.0
    lag_rows: int | None = None
    lag_per_s: float = 0.0

    @property
    def arrival_per_s(self) -> float:
        """The rows that arrived; where no source knows its lag, those that were read."""
        return max(0.0, self.read_per_s + self.lag_per_s)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a decision rests on, over the last samples.

    ``arrival_per_s``: the rows that arrived, which are those that were read and the growth of the lag.
    ``needed_per_s``: the same with what reads the lag in time. ``capacity_per_s``: the rows that the present workers
    take at their target. ``busy``, ``waiting``: mean shares of the workers' time, and ``busiest``: of the busiest one.
    """

    arrival_per_s: float = 0.0
    needed_per_s: float = 0.0
    capacity_per_s: float = 0.0
    busy: float = 0.0
    busiest: float = 0.0
    waiting: float = 0.0
    lag_rows: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Go from ``workers`` to ``size`` workers, or stay where both are the same; ``reason`` in words."""

    workers: int
    size: int
    reason: str
    figures: Figures = Figures()

    @property
    def goes(self) -> bool:
        """Whether the number of workers changes."""
        return self.size != self.workers


class AutoscalePolicy:
    """Decides on the number of workers of one job by ``options``: one `Observation` after the other, while nothing
    moves.

    >>> policy = AutoscalePolicy(Autoscale(max=8, interval_s=5, up_after_s=10))
    >>> full = [Observation(at, 1, 1000.0, [1.0], lag_rows=int(at * 2000), lag_per_s=2000.0) for at in (5.0, 10.0)]
    >>> decision = [policy.decide(seen) for seen in full][-1]
    >>> decision.size, decision.reason
    (5, '3,000 rows/s arrive, 1 worker takes 700 at its target of 70 %')
    """

    def __init__(self, options: Autoscale) -> None:
        self.options = options
        self._recent: deque[Observation] = deque(maxlen=options.samples)
        self._peaks: deque[tuple[float, float]] = deque()
        """Each need that no later one exceeds, and when it was."""
        self._size = 0
        self._rate = inf
        """What one worker takes at its target, in rows a second."""
        self._grew_from: tuple[int, float] | None = None
        self._cap: tuple[int, float, str] = options.max, inf, ""
        """No more workers than these until then, and why."""
        self._held_until_s = self._again_s = -inf
        self._changed_s = self._left_s = self._regretted_s = -inf

    def held(self, at_s: float) -> None:
        """Leave the number of workers alone for a cool-down: a user has requested one."""
        self._held_until_s = at_s + self.options.cool_down_s

    def refused(self, at_s: float, decision: Decision, size: int, why: str) -> None:
        """Note that the job can go to ``size`` workers only, and not to those of ``decision``, for a while."""
        self._grew_from = None
        self._again_s = at_s + RETRY_S
        if decision.size > decision.workers:
            self._cap = size, self._again_s, why
        elif size == decision.workers:
            self._left_s = -inf

    def paused(self) -> None:
        """Forget the last samples: the workers did something else since, such as a rescale."""
        self._recent.clear()

    def decide(self, seen: Observation) -> Decision:
        """Return what to do, given what was seen since the call before."""
        options = self.options
        if seen.workers != self._size:
            self._size, self._changed_s = seen.workers, seen.at_s
            self.paused()
        self._recent.append(seen)
        size = options.within(seen.workers)
        if size != seen.workers and seen.at_s >= max(self._held_until_s, self._again_s):
            return self._go(seen, size, f"the job may have {options.min} to {options.max} workers", Figures())
        figures = self._figures(seen)
        self._note_need(seen)
        if len(self._recent) < options.samples:
            return _stay(seen, "there are too few samples since the last change", figures)
        if seen.at_s < self._held_until_s:
            return _stay(seen, "a user has requested this number of workers", figures)
        if size != seen.workers:
            return _stay(seen, "the job could not have an allowed number of workers a little while ago", figures)
        return self._useless(seen, figures) or self._more(seen, figures) or self._fewer(seen, figures)

    def _note_need(self, seen: Observation) -> None:
        need, peaks = self._need(seen.arrival_per_s, seen.lag_rows), self._peaks
        while peaks and peaks[-1][1] <= need:
            peaks.pop()
        peaks.append((seen.at_s, need))
        while seen.at_s - peaks[0][0] > max(LEARNT_S, self.options.cool_down_s):
            peaks.popleft()

    def _need(self, arrival: float, lag: int | None) -> float:
        """Return the rows a second to be taken at the target. A lag is read by workers that are busy all the time."""
        options = self.options
        return max(arrival, options.target * (arrival + (lag or 0) / options.catch_up_s))

    def _figures(self, seen: Observation) -> Figures:
        """Return the means of the last samples, once the cost of a record is known from them."""
        recent, count = self._recent, len(self._recent)
        by_worker = [sum(shares) / count for shares in zip(*(one.busy for one in recent), strict=True)]
        mean, busiest = sum(by_worker) / max(1, len(by_worker)), max(by_worker, default=0.0)
        waiting = sum(one.waiting for one in recent) / count
        arrival, read = (
            sum(rates) / count for rates in zip(*((r.arrival_per_s, r.read_per_s) for r in recent), strict=True)
        )
        level = self._level(mean, busiest, waiting)
        if read > 0 and level > _KNOWN_BUSY and (count == self.options.samples or self._rate == inf):
            self._rate = read / level / seen.workers
        capacity = self._rate * seen.workers
        needed = self._need(arrival, seen.lag_rows)
        taken = capacity if isfinite(capacity) else 0.0
        return Figures(arrival, needed, taken, mean, busiest, waiting, seen.lag_rows)

    def _level(self, mean: float, busiest: float, waiting: float) -> float:
        """Return how loaded the workers are: 1.0 at their target.

        The busiest worker may be busier than the target by half of what is left, because keys are never dealt evenly.
        Workers whose lag grows, or that wait for credit for most of the time, can do no more, however busy they are.
        """
        target, recent = self.options.target, self._recent
        is_full = len(recent) == self.options.samples
        is_behind = is_full and all(one.lag_per_s > _BEHIND * one.arrival_per_s for one in recent)
        level = max(mean / target, busiest / ((1.0 + target) / 2))
        return max(level, 1.0 / target) if waiting > _WAITS or is_behind else level

    def _useless(self, seen: Observation, figures: Figures) -> Decision | None:
        """Go back if the workers that were added take no more together than those before, and all are at work."""
        before, self._grew_from = self._grew_from, None
        if before is None or before[0] >= seen.workers or figures.arrival_per_s < figures.capacity_per_s:
            return None
        size, took = before
        if self._rate * seen.workers > took * (1.0 + _GAIN * (seen.workers / size - 1.0)):
            return None
        reason = f"{_workers(seen.workers)} {_take(seen.workers)} no more than {size} did"
        self._cap = size, seen.at_s + LEARNT_S, reason
        return self._go(seen, max(size, self.options.min), reason, figures)

    def _more(self, seen: Observation, figures: Figures) -> Decision | None:
        capacity, target = self._rate * seen.workers, self.options.target
        lowest = min(self._need(one.arrival_per_s, one.lag_rows) for one in self._recent)
        if lowest <= capacity * (1.0 + min(TOLERANCE, (1.0 / target - 1.0) / 2)):
            return None
        size, reason, (most, until_s, why) = (
            self._size_for(figures.needed_per_s),
            self._reason(seen, figures),
            self._cap,
        )
        if seen.at_s >= until_s:
            most, why = self.options.max, ""
        if min(size, most) <= seen.workers:
            why = why and f": {why}"
            return _stay(seen, f"{reason}, and the job may have no more than {_workers(most)}{why}", figures)
        if seen.at_s - self._left_s < LEARNT_S:
            self._regretted_s = seen.at_s
        self._grew_from = seen.workers, capacity
        return self._go(seen, min(size, most), reason, figures)

    def _size_for(self, need: float) -> int:
        """Return the smallest size that takes ``need``, and one more than allowed if none does."""
        sizes = range(self.options.min, self.options.max + 1)
        return next((size for size in sizes if size * self._rate >= need), self.options.max + 1)

    def _reason(self, seen: Observation, figures: Figures) -> str:
        takes = f"{_workers(seen.workers)} {_take(seen.workers)} {figures.capacity_per_s:,.0f}"
        lag = f" and {figures.lag_rows:,} rows of lag wait" if figures.needed_per_s > figures.arrival_per_s else ""
        its, target = "its" if seen.workers == 1 else "their", 100 * self.options.target
        return f"{figures.arrival_per_s:,.0f} rows/s arrive{lag}, {takes} at {its} target of {target:.0f} %"

    def _fewer(self, seen: Observation, figures: Figures) -> Decision:
        for_s = self.options.cool_down_s
        if seen.at_s - self._regretted_s < _REGRET_S:
            for_s = max(for_s, LEARNT_S)
        peak = next(need for at_s, need in self._peaks if at_s >= seen.at_s - for_s)
        size = min(seen.workers, self._size_for(peak * (1.0 + TOLERANCE)))
        if seen.at_s - self._changed_s < for_s - self.options.interval_s or size == seen.workers:
            reason = f"the load is within the target, or fewer workers would not have been enough for {for_s:,.0f} s"
            return _stay(seen, reason, figures)
        self._left_s = seen.at_s
        rate = self._rate * size
        fits = f"{_workers(size)} {_take(size)} {rate:,.0f}" if isfinite(rate) else "the workers were idle"
        return self._go(seen, size, f"at most {peak:,.0f} rows/s were needed for {for_s:,.0f} s, {fits}", figures)

    def _go(self, seen: Observation, size: int, reason: str, figures: Figures) -> Decision:
        self._changed_s = seen.at_s
        return Decision(seen.workers, size, reason, figures)


def _stay(seen: Observation, reason: str, figures: Figures) -> Decision:
    return Decision(seen.workers, seen.workers, reason, figures)


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def _take(count: int) -> str:
    return "takes" if count == 1 else "take"
