"""The number of workers that a job needs, from the rates and the use of time of its workers. Pure.

The rule is that of DS2 (Kalavri et al., "Three steps is all you need", OSDI 2018): the true rate of a worker is the
records that it processes divided by the time for which it was busy, and a job needs as many workers as its arrival rate
takes at that rate. A worker runs the whole graph, so its busy time is the cost of a record summed over all steps, and
one number is the size of the job.

Rule: more workers come as soon as `Autoscale.up_after_s` of samples in a row ask for them, in one step; fewer only
after `Autoscale.cool_down_s` in which the largest need would have fitted. Between the two is a dead band, which is as
much wider as the load is noisy. Where bursts bring back workers that have left, the cool-down is longer, and a small
decrease under a rough load waits for several of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil, inf, isfinite, log, sqrt
from statistics import median
from typing import Final

from malstrom_py.errors import PlanError

TOLERANCE: Final = 0.1
"""How far above their target workers may be before others are added, as a share of what they take at it."""

_ROOM: Final = 0.05
"""How far below its target a smaller size must be for workers to leave."""

LEARNT_S: Final = 3600.0
"""How long it is remembered what a size takes, and that more workers have not helped."""

_REGRET_S: Final = 4 * LEARNT_S
"""How long it is remembered that workers left too early."""

_REGRET: Final = 4.0
"""How much longer workers stay, up to `LEARNT_S`, after some left that were needed again within `_REGRET_S`."""

RETRY_S: Final = 60.0
"""How long a size is not asked for again after there was no room for it."""

_LONGEST_S: Final = 1e9

_MARGIN: Final = 1.25
"""The room that a smaller size must have above the largest need of an hour, in deviations of the load."""

_BRIEF: Final = 1.5
"""How much more room above the largest need of a moment, and again the less of the last hour is known."""

_WIDE: Final = 3.0
"""How far above their target workers may be for a moment, in deviations of the load."""

_WIDEST: Final = 0.7
"""The same, as a share of what lies between the target and full workers."""

_SMALL: Final = 3.0
"""A decrease is small if it is by a share of the workers of no more than so many deviations of a rough load."""

_SMALL_MAX: Final = 0.25
"""And by no larger share than this: a load that is a good part lower is followed after the cool-down."""

_LONG: Final = 12.0
"""For how many cool-downs fewer workers must have been enough for a small decrease, up to `LEARNT_S`: an hour by
default."""

_MEAN: Final = 8
"""Over how many times `Autoscale.up_after_s` the load is not for a moment."""

_FEWEST: Final = 4
"""From how few differences the deviation of a load is known."""

_FAR: Final = 6.0
"""Differences that are so many times the median one are not noise."""

_MIDDLE: Final = 0.6745
"""The median of the distances from the mean, in standard deviations."""

_GROWTH: Final = 0.3
"""By how much workers must have become more before it is judged whether that has helped."""

_GAIN: Final = 0.2
"""Which part of the gain that perfect scaling promises is enough for added workers to stay."""

_KNOWN_BUSY: Final = 0.02
"""Below this share of the time the cost of a record is not known."""

_BEHIND: Final = 0.05
"""The lag grows if it gains this share of the arrivals in each sample."""

_WAITS: Final = 0.5
"""Workers are held up if they wait for credit for this share of their time."""

_PRIOR: Final = 0.1
"""How much weight perfect scaling has beside what was measured at other sizes."""


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


@dataclass(frozen=True, slots=True)
class _Cap:
    """No more than ``size`` workers until ``until_s``."""

    size: int
    until_s: float
    why: str


class Capacities:
    """The rows a second that each number of workers takes at its target, as measured.

    Rule: a new figure of one size changes the level of all, as the cost of a record does; a first figure after a
    rescale changes the shape. What was not measured follows a power law, with perfect scaling as the prior.

    >>> taken = Capacities()
    >>> taken.measured(1, 100.0, 0.0, is_first=True)
    >>> taken.of(4)
    400.0
    >>> taken.measured(4, 200.0, 60.0, is_first=True)
    >>> 200 < taken.of(8) < 320
    True
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, float]] = {}
        self._size = 0

    def measured(self, size: int, rows_per_s: float, at_s: float, *, is_first: bool) -> None:
        """Note that ``size`` workers take so much. ``is_first``: the first figure since they are so many."""
        self._known = {known: entry for known, entry in self._known.items() if at_s - entry[1] < LEARNT_S}
        before = self._known.get(size)
        if before is not None and not is_first:
            level = rows_per_s / before[0]
            self._known = {known: (rate * level, since) for known, (rate, since) in self._known.items()}
        self._known[size] = rows_per_s, at_s
        self._size = size

    def known(self, size: int) -> float | None:
        """Return what was measured at ``size`` workers."""
        entry = self._known.get(size)
        return None if entry is None else entry[0]

    def of(self, size: int) -> float:
        """Return what ``size`` workers take; infinity if nothing is known."""
        present = self.known(self._size)
        if present is None:
            return inf
        return float(present * (size / self._size) ** (1.0 - self._loss()))

    def _loss(self) -> float:
        """Return how much of each further worker is lost: 0 if twice the workers take twice as much, at most 0.95."""
        points = [(log(size), log(size / rate)) for size, (rate, _) in self._known.items()]
        middle = sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)
        spread = sum((x - middle[0]) * (x - middle[0]) for x, _ in points)
        common = sum((x - middle[0]) * (y - middle[1]) for x, y in points)
        return min(0.95, max(0.0, common / (spread + _PRIOR)))


class _Needs:
    """What a job needed in the last hour, and how noisy its load was."""

    def __init__(self, options: Autoscale) -> None:
        self.since_s = inf
        self._kept_s = max(LEARNT_S, options.cool_down_s)
        self._every_s = options.samples * options.interval_s
        self._apart = max(1, round(options.cool_down_s / self._every_s))
        self._peaks: deque[tuple[float, float]] = deque()
        self._arrivals: deque[float] = deque(maxlen=max(2 * _FEWEST, ceil(LEARNT_S / self._every_s)))
        self._noted_s = -inf
        self._noise: float | None = None
        self._roughness: float | None = None

    def add(self, at_s: float, need: float, arrival: float) -> None:
        """Note what arrives and is needed at ``at_s``. A need before a larger one is not asked for again."""
        self.since_s = min(self.since_s, at_s)
        peaks = self._peaks
        while peaks and peaks[-1][1] <= need:
            peaks.pop()
        peaks.append((at_s, need))
        while at_s - peaks[0][0] > self._kept_s:
            peaks.popleft()
        if at_s - self._noted_s >= self._every_s:
            self._noted_s = at_s
            self._arrivals.append(arrival)
            self._noise = self._roughness = None

    def peak(self, since_s: float) -> float:
        """Return the largest need since then."""
        return next(need for at_s, need in self._peaks if at_s >= since_s)

    def mean(self) -> float:
        """Return the mean arrivals of the last minutes."""
        return sum(islice(reversed(self._arrivals), _MEAN)) / min(_MEAN, len(self._arrivals))

    def quiet(self, at_s: float, from_s: float) -> float:
        """Return what a smaller size must take: the largest need of the last ``from_s``, and room for noise; or that of
        a longer time, which needs less room.
        """
        known_s = at_s - self.since_s
        found, over_s = inf, from_s
        while over_s <= max(from_s, min(known_s, LEARNT_S)):
            brief = max(0.0, 1.0 - over_s / LEARNT_S) * _BRIEF + max(0.0, 1.0 - known_s / LEARNT_S)
            room = max(_ROOM, (_MARGIN + brief) * self.noise)
            found = min(found, self.peak(at_s - over_s) * (1.0 + room))
            over_s *= 2
        return found

    @property
    def noise(self) -> float:
        """Return the standard deviation of the load, as a share of it: 0 while it is not known.

        Rule: it is that of the differences over a cool-down, less their median, by the median of what is left, without
        what is far off. So neither a ramp counts nor a single step or spike.
        """
        if self._noise is None:
            self._noise = self._deviation()
        return self._noise

    @property
    def roughness(self) -> float:
        """Return `noise`, but from how far the middle of a cool-down is off the mean of its ends.

        A load that rises and falls within several cool-downs is noisy by its differences, but not rough.
        """
        if self._roughness is None:
            rates, apart = list(self._arrivals), max(1, self._apart // 2)
            triples = zip(rates, rates[apart:], rates[2 * apart :], strict=False)
            bends = [_share(old + new - 2.0 * middle, (old + new + 2.0 * middle) / 4.0) for old, middle, new in triples]
            self._roughness = _spread(bends) / sqrt(6.0)
        return self._roughness

    def _deviation(self) -> float:
        rates = list(self._arrivals)
        pairs = zip(rates, rates[max(1, min(self._apart, len(rates) // 2)) :], strict=False)
        return _spread([_share(new - old, (old + new) / 2.0) for old, new in pairs]) / sqrt(2.0)


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _spread(shares: Sequence[float]) -> float:
    """Return the standard deviation of ``shares`` by the median, without what is far off; 0 if they are too few."""
    if len(shares) < _FEWEST:
        return 0.0
    middle = sorted(shares)[len(shares) // 2]
    off = [abs(share - middle) for share in shares]
    limit = _FAR * median(off)
    return median(share for share in off if share <= limit) / _MIDDLE


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
        self._taken = Capacities()
        self._recent: deque[Observation] = deque(maxlen=options.samples)
        self._needs = _Needs(options)
        self._size = 0
        self._is_new = True
        self._from: int | None = None
        self._cap: _Cap | None = None
        self._held_until_s = self._again_s = -inf
        self._changed_s = -inf
        self._left_s = -inf
        self._regretted_s = -inf
        self._patience = 1.0

    @property
    def noise(self) -> float:
        """The standard deviation of the load about its mean, as a share of it; 0 while it is not known."""
        return self._needs.noise

    def held(self, at_s: float) -> None:
        """Leave the number of workers alone for a cool-down: a user has requested one."""
        self._held_until_s = at_s + self.options.cool_down_s

    def refused(self, at_s: float, decision: Decision, size: int, why: str) -> None:
        """Note that the job can go to ``size`` workers only, and not to those of ``decision``, for a while."""
        self._from = None
        self._again_s = at_s + RETRY_S
        if decision.size > decision.workers:
            self._cap = _Cap(size, self._again_s, why)
        elif size == decision.workers:
            self._left_s = -inf

    def paused(self) -> None:
        """Forget the last samples: the workers did something else since, such as a rescale."""
        self._recent.clear()

    def decide(self, seen: Observation) -> Decision:
        """Return what to do, given what was seen since the call before."""
        if seen.workers != self._size:
            self._resized(seen)
        self._recent.append(seen)
        options = self.options
        is_within = options.min <= seen.workers <= options.max
        if not is_within and seen.at_s >= max(self._held_until_s, self._again_s):
            reason = f"the job may have {options.min} to {options.max} workers"
            return self._go(seen, options.within(seen.workers), reason, Figures())
        is_full = len(self._recent) == options.samples
        level = self._level()
        if is_full or not isfinite(self._taken.of(1)):
            self._learn(seen, level)
        figures = self._figures(seen)
        self._needs.add(seen.at_s, figures.needed_per_s, figures.arrival_per_s)
        if not is_full:
            return _stay(seen, "there are too few samples since the last change", figures)
        if seen.at_s < self._held_until_s:
            return _stay(seen, "a user has requested this number of workers", figures)
        if not is_within:
            return _stay(seen, "the job could not have an allowed number of workers a little while ago", figures)
        return self._useless(seen, level, figures) or self._more(seen, figures) or self._fewer(seen, figures)

    def _resized(self, seen: Observation) -> None:
        self._changed_s = seen.at_s
        self._size = seen.workers
        self._is_new = True
        self.paused()

    def _shares(self) -> tuple[float, float]:
        """Return the mean share of busy time, and that of the busiest worker."""
        count = len(self._recent)
        by_worker = [sum(shares) / count for shares in zip(*(seen.busy for seen in self._recent), strict=True)]
        return sum(by_worker) / max(1, len(by_worker)), max(by_worker, default=0.0)

    def _level(self) -> float:
        """Return how loaded the workers are: 1.0 at their target.

        The busiest worker may be busier than the target by half of what is left, because keys are never dealt evenly.
        Workers whose lag grows, or that wait for credit for most of the time, can do no more, however busy they are.
        """
        target = self.options.target
        mean, busiest = self._shares()
        level = max(mean / target, busiest / ((1.0 + target) / 2))
        waits = sum(seen.waiting for seen in self._recent) / len(self._recent)
        return max(level, 1.0 / target) if waits > _WAITS or self._is_behind() else level

    def _is_behind(self) -> bool:
        """Whether the lag grew in each of the last samples."""
        is_full = len(self._recent) == self.options.samples
        return is_full and all(seen.lag_per_s > _BEHIND * seen.arrival_per_s for seen in self._recent)

    def _learn(self, seen: Observation, level: float) -> None:
        read = sum(one.read_per_s for one in self._recent) / len(self._recent)
        if read > 0 and level > _KNOWN_BUSY:
            self._taken.measured(seen.workers, read / level, seen.at_s, is_first=self._is_new)
            self._is_new = False

    def _figures(self, seen: Observation) -> Figures:
        mean, busiest = self._shares()
        arrival = sum(one.arrival_per_s for one in self._recent) / len(self._recent)
        capacity = self._taken.of(seen.workers)
        return Figures(
            arrival_per_s=arrival,
            needed_per_s=self._need(arrival, seen.lag_rows),
            capacity_per_s=capacity if isfinite(capacity) else 0.0,
            busy=mean,
            busiest=busiest,
            waiting=sum(one.waiting for one in self._recent) / len(self._recent),
            lag_rows=seen.lag_rows,
        )

    def _need(self, arrival: float, lag: int | None) -> float:
        """Return the rows a second to be taken at the target. A lag is read by workers that are busy all the time."""
        options = self.options
        return max(arrival, options.target * (arrival + (lag or 0) / options.catch_up_s))

    def _useless(self, seen: Observation, level: float, figures: Figures) -> Decision | None:
        """Go back if the workers that were added take no more together than those before, and all are at work."""
        before, self._from = self._from, None
        if before is None or before >= seen.workers or level < 1.0:
            return None
        took, takes, growth = self._taken.known(before), self._taken.known(seen.workers), seen.workers / before - 1.0
        if took is None or takes is None or growth < _GROWTH or takes > (1.0 + _GAIN * growth) * took:
            return None
        reason = f"{_workers(seen.workers)} {_take(seen.workers)} no more than {before} did"
        self._cap = _Cap(before, seen.at_s + LEARNT_S, reason)
        return self._go(seen, max(before, self.options.min), reason, figures)

    def _more(self, seen: Observation, figures: Figures) -> Decision | None:
        capacity, target = self._taken.of(seen.workers), self.options.target
        limit = capacity * (1.0 + min(TOLERANCE, (1.0 / target - 1.0) / 2))
        lowest = min(self._need(one.arrival_per_s, one.lag_rows) for one in self._recent)
        if lowest <= limit:
            return None
        wide = min(_WIDE * self.noise, _WIDEST * (1.0 / target - 1.0))
        if lowest <= capacity * (1.0 + wide) and self._needs.mean() <= limit:
            return None
        size, most = self._size_for(figures.needed_per_s), self._most(seen.at_s)
        reason = self._reason(seen, figures)
        if size > most and most <= seen.workers:
            why = "" if self._cap is None or most == self.options.max else f": {self._cap.why}"
            return _stay(seen, f"{reason}, and the job may have no more than {_workers(most)}{why}", figures)
        size = min(size, most)
        if size > seen.workers and seen.at_s - self._left_s < _REGRET_S and self._regretted_s < self._left_s:
            self._regretted_s = seen.at_s
            self._patience *= _REGRET
        return self._go(seen, size, reason, figures) if size > seen.workers else None

    def _reason(self, seen: Observation, figures: Figures) -> str:
        target = self.options.target
        takes = f"{_workers(seen.workers)} {_take(seen.workers)} {figures.capacity_per_s:,.0f}"
        lag = f" and {figures.lag_rows:,} rows of lag wait" if figures.needed_per_s > figures.arrival_per_s else ""
        its = "its" if seen.workers == 1 else "their"
        return f"{figures.arrival_per_s:,.0f} rows/s arrive{lag}, {takes} at {its} target of {100 * target:.0f} %"

    def _fewer(self, seen: Observation, figures: Figures) -> Decision:
        cool_down_s = self.options.cool_down_s
        for_s = max(cool_down_s, min(LEARNT_S, cool_down_s * self._patience))
        size = self._enough(seen, for_s)
        if 0.0 < 1.0 - size / seen.workers <= min(_SMALL * self._needs.roughness, _SMALL_MAX):
            for_s = max(for_s, min(LEARNT_S, _LONG * cool_down_s))
            size = self._enough(seen, for_s)
        if size == seen.workers:
            reason = f"the load is within the target, or fewer workers would not have been enough for {for_s:,.0f} s"
            return _stay(seen, reason, figures)
        if seen.at_s - max(self._regretted_s, self._left_s) > _REGRET_S:
            self._patience = 1.0
        self._left_s = seen.at_s
        takes, peak = self._taken.of(size), self._needs.peak(seen.at_s - for_s)
        fits = f"{_workers(size)} {_take(size)} {takes:,.0f}" if isfinite(takes) else "the workers were idle"
        reason = f"at most {peak:,.0f} rows/s were needed for {for_s:,.0f} s, {fits}"
        return self._go(seen, size, reason, figures)

    def _enough(self, seen: Observation, for_s: float) -> int:
        """Return the smallest size that would have been enough for ``for_s``; the present one before that."""
        if seen.at_s - max(self._changed_s, self._needs.since_s) < for_s - self.options.interval_s:
            return seen.workers
        need = self._needs.quiet(seen.at_s, for_s)
        sizes = range(self.options.min, seen.workers)
        return next((size for size in sizes if need <= self._taken.of(size)), seen.workers)

    def _size_for(self, need: float) -> int:
        """Return the smallest size that takes ``need``, and one more than allowed if none does."""
        sizes = range(self.options.min, self.options.max + 1)
        return next((size for size in sizes if self._taken.of(size) >= need), self.options.max + 1)

    def _most(self, at_s: float) -> int:
        if self._cap is not None and at_s >= self._cap.until_s:
            self._cap = None
        return self.options.max if self._cap is None else min(self._cap.size, self.options.max)

    def _go(self, seen: Observation, size: int, reason: str, figures: Figures) -> Decision:
        self._from = seen.workers
        self._changed_s = seen.at_s
        return Decision(seen.workers, size, reason, figures)


def _stay(seen: Observation, reason: str, figures: Figures) -> Decision:
    return Decision(seen.workers, seen.workers, reason, figures)


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def _take(count: int) -> str:
    return "takes" if count == 1 else "take"
