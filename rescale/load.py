"""Placement by load: which worker owns which slot when the slots are weighed. Pure.

R10: the weights of workers are within a tenth of their mean where the slots allow it, and few slots move: at most 1.1
times as many as that needs where they are light, nearly as few where they are not. A slot that is heavier than a fair
share of a worker cannot be divided: its worker may own up to a tenth of a fair share beside it, and the others share
the rest. Slots of workers that leave always move.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import compress
from math import ceil, sqrt
from operator import itemgetter
from typing import Final

from malstrom_py.rescale.moves.placement import rebalanced
from malstrom_py.rescale.moves.protocol import Table

Weights = Sequence[float]
"""The weight of each slot, in any unit."""

TOLERANCE: Final = 0.1
"""How far the weight of a worker may be from a fair share, as a part of it."""

ROW_BYTES: Final = 1_024
"""So many bytes of a row weigh as much as the row itself: about as long as one takes, the other does."""

IDLE: Final = 0.05
"""The part of the total weight that all slots share alike: one without rows has keys too, whose state takes room."""

HALF_LIFE_S: Final = 15.0
"""After so many seconds what was measured weighs half."""

KNOWN: Final = 512
"""The number of sampled rows after which weights are known."""

CHANCE: Final = 3.0
"""By how many standard deviations of chance the sampled rows of a slot must differ from the mean to count for it alone.

Else the heaviest slots are those that were sampled most, and moving them moves far less than was meant.
"""

KNOWN_S: Final = 3.0
"""How long rows must have been counted before: a worker whose first counts come later than others' seems to be idle."""

COUNTED_MAX: Final = 4_096
"""A worker reports the counts of so many slots at most, those of the largest counts."""

_SEARCHED_MOVES: Final = 6
_SEARCHED: Final = 2_000


def row_weight(size: int) -> float:
    """Return the weight of a row of about ``size`` bytes.

    >>> row_weight(0), row_weight(4_096)
    (1.0, 5.0)
    """
    return 1.0 + size / ROW_BYTES


def imbalance(table: Table, members: Sequence[int], weights: Weights) -> float:
    """Return the weight of the heaviest of ``members`` over their mean: 1.0 if all are alike.

    >>> imbalance((0, 0, 1), [0, 1], [3.0, 3.0, 2.0])
    1.5
    """
    loads = dict.fromkeys(members, 0.0)
    for owner, weight in zip(table, weights, strict=True):
        if owner in loads:
            loads[owner] += weight
    total = sum(loads.values())
    return max(loads.values()) * len(loads) / total if total > 0 else 1.0


def fair_share(weights: Weights, workers: int) -> float:
    """Return the fair share of a worker, when each slot that is heavier than it has a worker for itself.

    >>> fair_share([1.0, 1.0, 1.0, 1.0], 2), fair_share([10.0, 1.0, 1.0, 1.0, 1.0], 3)
    (2.0, 2.0)
    """
    rest = sum(weights)
    for heavy in sorted(weights, reverse=True)[: workers - 1]:
        if heavy * workers <= rest:
            break
        rest -= heavy
        workers -= 1
    return rest / workers


def placed(table: Table, members: Sequence[int], weights: Weights | None) -> Table:
    """Return ``table`` balanced over ``members`` by ``weights``, with few moved slots (R10); by number without weights.

    >>> placed((0, 0, 0, 1), [0, 1], [4.0, 1.0, 1.0, 2.0])
    (0, 1, 1, 1)
    >>> placed((0, 0, 0, 1), [0, 1], None)
    (0, 0, 1, 1)
    """
    if weights is None or not sum(weights) > 0:
        return rebalanced(table, members)
    first = _evened(table, members, weights)
    if not first.is_even:
        # Slots that fit beside nothing: others make room for them.
        second = _evened(table, members, weights, spreads=True)
        first = min(first, second, key=lambda made: (not made.is_even, imbalance(made.table, members, weights)))
    if first.is_even and len(first.moved) > _SEARCHED_MOVES + 1:
        return first.table
    # Few moves: the fewest are found by trying.
    tried = _Placing(table, members, weights)
    most = min(_SEARCHED_MOVES, len(first.moved) - 1 if first.is_even else len(table))
    budget = [_SEARCHED]
    found = any(tried.search(moves, budget) for moves in range(most + 1))
    return tried.table if found else first.table


def pays(before: Table, after: Table, members: Sequence[int], weights: Weights | None) -> bool:
    """Return whether it pays to go from ``before`` to ``after`` with the same ``members``: the heaviest of them is more
    than a tenth above the mean, and less so after it. Without weights: whether there is anything to move.
    """
    if weights is None or not sum(weights) > 0:
        return before != after
    now = imbalance(before, members, weights)
    return now > 1 + TOLERANCE and imbalance(after, members, weights) < now


class SlotLoads:
    """The weights of ``slots`` slots, from rows that workers count by slot: averages that decay.

    Slots whose sampled rows differ from the mean by no more than chance does weigh the same.

    >>> loads = SlotLoads(4)
    >>> loads.note(10.0, {0: {0: 900.0}, 1: {1: 300.0}}, sampled=600, squares=2_400.0)
    >>> loads.weights is None
    True
    >>> loads.note(13.0, {0: {0: 1_800.0}, 1: {1: 600.0}}, sampled=1_200, squares=4_800.0)
    >>> [round(weight, 3) for weight in loads.weights]
    [0.725, 0.25, 0.013, 0.013]
    """

    def __init__(self, slots: int) -> None:
        self._rates = [0.0] * slots
        self._counted: dict[int, Mapping[int, float]] = {}
        self._began_s: float | None = None
        self._noted_s: float | None = None
        self._sampled_before: int | None = None
        self._sampled = 0
        self._samples = 0.0
        self._squares_before = 0.0
        self._squares = 0.0

    @property
    def weights(self) -> list[float] | None:
        """The share of each slot, all with a small one; None unless enough rows were counted, for long, and lately."""
        total, counted_s = sum(self._rates), (self._noted_s or 0.0) - (self._began_s or 0.0)
        if self._sampled < KNOWN or counted_s < KNOWN_S or self._samples < 1 or not self._squares > 0:
            return None
        same = IDLE / len(self._rates)
        return [(1 - IDLE) * rate / total + same for rate in self._smoothed(total)]

    def _smoothed(self, total: float) -> list[float]:
        """Return the rates, with one mean for all slots that differ by chance alone."""
        # Some sampled rows count for more than others: the sum is as certain as that of so many alike ones.
        samples = total**2 / self._squares
        rates, row, mean = self._rates, total / samples, samples / len(self._rates)
        by_chance = [abs(rate / row - mean) <= CHANCE * sqrt(max(rate / row, mean)) for rate in rates]
        alike = sum(compress(rates, by_chance)) / max(1, sum(by_chance))
        return [alike if chance else rate for rate, chance in zip(rates, by_chance, strict=True)]

    def note(self, now_s: float, counted: Mapping[int, Mapping[int, float]], *, sampled: int, squares: float) -> None:
        """Take the rows, weighed, that each worker has counted by slot since its start, from ``sampled`` rows of all.

        ``squares``: the sum of the squares of what each of these counted for. A slot that moves is counted by its new
        owner from then on. Counts that are smaller than before are of a new worker.
        """
        before_s, self._noted_s = self._noted_s, now_s
        self._began_s = now_s if self._began_s is None else self._began_s
        new: dict[int, float] = {}
        for worker, slots in counted.items():
            known = self._counted.get(worker, {})
            # A slot that was left out had a count, of at most the smallest one.
            left_out = min(known.values()) if len(known) >= COUNTED_MAX else 0.0
            for slot, rows in slots.items():
                was = known.get(slot, left_out)
                new[slot] = new.get(slot, 0.0) + (rows - was if rows >= was else rows)
        self._counted = {worker: dict(slots) for worker, slots in counted.items()}
        sampled_before, self._sampled_before = self._sampled_before, sampled
        squares_before, self._squares_before = self._squares_before, squares
        if before_s is None or sampled_before is None or now_s <= before_s:
            return
        self._sampled += max(0, sampled - sampled_before)
        kept = 0.5 ** ((now_s - before_s) / HALF_LIFE_S)
        per_s = (1 - kept) / (now_s - before_s)
        self._rates = [kept * rate + per_s * new.get(slot, 0.0) for slot, rate in enumerate(self._rates)]
        self._samples = kept * self._samples + max(0, sampled - sampled_before)
        self._squares = kept**2 * self._squares + per_s**2 * max(0.0, squares - squares_before)


def _evened(table: Table, members: Sequence[int], weights: Weights, *, spreads: bool = False) -> _Placing:
    made = _Placing(table, members, weights)
    made.deal()
    if spreads:
        made.spread()
    made.even_out()
    made.take_back()
    return made


class _Placing:
    """A placement in the making: a slot moves at most once. Slots without a member as owner are those of None."""

    def __init__(self, table: Table, members: Sequence[int], weights: Weights) -> None:
        self._before = table
        self._weights = weights
        self._owner = list(table)
        self._members = sorted(set(members))
        fair = fair_share(weights, len(self._members))
        # A share that is exactly at its bound must not be above it by rounding.
        self._fair, self._beside = fair, TOLERANCE * fair + 1e-9 * sum(weights)
        self._load: dict[int | None, float] = dict.fromkeys([*self._members, None], 0.0)
        self._own: dict[int | None, list[tuple[float, int]]] = {owner: [] for owner in self._load}
        self._came: dict[int | None, list[tuple[float, int]]] = {owner: [] for owner in self._load}
        self._looked = 1 + (len(table) + 32 * len(self._members)) // 2_048
        self.moved: dict[int, float] = {}
        for slot, owner in enumerate(table):
            here = owner if owner in self._load else None
            self._load[here] += weights[slot]
            self._own[here].append((weights[slot], slot))
        for slots in self._own.values():
            slots.sort()

    @property
    def table(self) -> Table:
        """The placement now."""
        return tuple(self._owner)

    @property
    def is_even(self) -> bool:
        """Whether every slot has a member as owner, and every member is within its bounds."""
        return not self._own[None] and all(map(self._is_within, self._members))

    def deal(self) -> None:
        """Give each slot of a leaver to the lightest member, the heaviest slot first."""
        lightest = [(self._load[member], member) for member in self._members]
        heapify(lightest)
        while self._own[None]:
            weight, slot = self._own[None][-1]
            _, taker = lightest[0]
            self._move(weight, slot, None, taker)
            heapreplace(lightest, (self._load[taker], taker))

    def spread(self) -> None:
        """Move the heaviest slots from members above their bound to the lightest, which may then be above theirs."""
        lightest = [(self._load[member], member) for member in self._members]
        heapify(lightest)
        for giver in sorted(self._members, key=self._over, reverse=True):
            while self._over(giver):
                while lightest[0][0] != self._load[lightest[0][1]]:
                    heappop(lightest)
                taker = lightest[0][1]
                rank = bisect_right(self._own[giver], (self._load[giver] - self._fair + self._beside, len(self._owner)))
                if giver == taker or not rank:
                    break
                self._move(*self._own[giver][rank - 1], giver, taker)
                for member in (giver, taker):
                    heappush(lightest, (self._load[member], member))

    def even_out(self) -> None:
        """Move slots from the member with the largest surplus to the lightest, the heaviest that fits, until all are
        within bounds or no move makes two members more alike.
        """
        lightest = [(self._load[member], member) for member in self._members]
        givers = [(-self._surplus(member), member) for member in self._members]
        heapify(lightest)
        heapify(givers)
        while givers:
            while lightest[0][0] != self._load[lightest[0][1]]:
                heappop(lightest)
            (surplus, giver), taker = givers[0], lightest[0][1]
            if -surplus != self._surplus(giver):
                heappop(givers)
            elif self._over(giver) or self._is_under(taker):
                found = None if giver == taker else self._fitting(giver, taker)
                if found is None:
                    heappop(givers)
                    continue
                self._move(*found, giver, taker)
                for member in (giver, taker):
                    heappush(lightest, (self._load[member], member))
                    heappush(givers, (-self._surplus(member), member))
            else:
                return

    def take_back(self) -> None:
        """Leave slots with their owners whose move turns out not to be needed, the lightest first."""
        if not self.is_even:
            return
        for slot, weight in sorted(self.moved.items(), key=itemgetter(1, 0)):
            before, here = self._before[slot], self._owner[slot]
            if before not in self._load:
                continue
            self._undo(weight, slot, before, here)
            if not (self._is_within(before) and self._is_within(here)):
                self._move(weight, slot, before, here)

    def search(self, moves: int, budget: list[int]) -> bool:
        """Find a placement within the bounds with at most ``moves`` more moves. ``budget``: how many placements may be
        looked at, large ones for several. Return whether there is one; the table is then that.
        """
        if self.is_even:
            return True
        budget[0] -= self._looked
        if moves < self._at_least() or budget[0] < 0:
            return False
        for step in self._steps():
            self._move(*step)
            if self.search(moves - 1, budget):
                return True
            self._undo(*step)
        return False

    def _at_least(self) -> int:
        """Return a number of moves that is needed, if not sufficient, for a placement within the bounds."""
        given, taken = len(self._own[None]), 0
        heaviest = max((slots[-1][0] for slots in self._own.values() if slots), default=0.0)
        for member in self._members:
            over, under = self._over(member), self._fair - self._beside - self._load[member]
            if under > 0:
                taken += ceil(under / heaviest) if heaviest else len(self._owner)
            for weight, _ in reversed(self._own[member]):
                if over <= 0:
                    break
                given += 1
                # Without a slot that is heavier than a fair share the bound is another one.
                over = 0.0 if weight > self._fair else over - weight
        return max(given, taken, 1)

    def _steps(self) -> list[tuple[float, int, int | None, int]]:
        """Return moves (weight, slot, giver, taker): every placement within the bounds makes one of them."""
        lightest = sorted(self._members, key=lambda member: (self._load[member], member))
        if self._own[None]:
            return [(*self._own[None][-1], None, taker) for taker in lightest]
        giver = max(self._members, key=self._over)
        if self._over(giver):
            pairs = [(giver, taker) for taker in lightest]
        else:
            pairs = [(giver, lightest[0]) for giver in reversed(lightest)]
        return [
            (*slot, giver, taker) for giver, taker in pairs if giver != taker for slot in self._of_each_weight(giver)
        ]

    def _of_each_weight(self, member: int) -> list[tuple[float, int]]:
        """Return one slot of each weight, the heaviest first."""
        return sorted(dict(reversed(self._own[member])).items(), reverse=True)

    def _fitting(self, giver: int, taker: int) -> tuple[float, int] | None:
        """Return the heaviest slot of ``giver`` that leaves both within bounds, or else makes the two more alike."""
        own, low, high = self._own[giver], self._fair - self._beside, self._fair + self._beside
        if own and own[-1][0] > self._fair and self._over(giver) and self._load[taker] <= self._beside:
            return own[-1]
        apart = self._load[giver] - self._load[taker]
        for limit in (min(high - self._load[taker], self._load[giver] - low), apart / 2):
            rank = bisect_right(own, (limit, len(self._owner)))
            if rank and own[rank - 1][0] > 0:
                return own[rank - 1]
        # Every slot is heavier than half of the distance: the lightest may still bring the two closer.
        return own[0] if own and 0 < own[0][0] < apart * (1 - 1e-9) else None

    def _is_within(self, member: int) -> bool:
        return not self._over(member) and not self._is_under(member)

    def _is_under(self, member: int) -> bool:
        return self._load[member] < self._fair - self._beside

    def _over(self, member: int) -> float:
        return max(0.0, self._surplus(member) - self._beside)

    def _surplus(self, member: int) -> float:
        """Return what ``member`` has above a fair share, or above its slot that is heavier than that."""
        heaviest = max((slots[-1][0] for slots in (self._own[member], self._came[member]) if slots), default=0.0)
        return self._load[member] - max(self._fair, heaviest)

    def _move(self, weight: float, slot: int, giver: int | None, taker: int) -> None:
        del self._own[giver][bisect_left(self._own[giver], (weight, slot))]
        insort(self._came[taker], (weight, slot))
        self._shift(weight, slot, giver, taker)
        self.moved[slot] = weight

    def _undo(self, weight: float, slot: int, giver: int | None, taker: int) -> None:
        del self._came[taker][bisect_left(self._came[taker], (weight, slot))]
        insort(self._own[giver], (weight, slot))
        self._shift(weight, slot, taker, giver)
        del self.moved[slot]

    def _shift(self, weight: float, slot: int, giver: int | None, taker: int | None) -> None:
        self._load[giver] -= weight
        self._load[taker] += weight
        self._owner[slot] = self._before[slot] if taker is None else taker
