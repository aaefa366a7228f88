"""What it costs that a record changes worker: partition, encode, decode; and W1 on several workers.

Rows of a string key and an int value go through a real `Exchange` and `Codec`, with credits, from one
worker to another in this process. ``python -m bench.micro --only exchange workers`` prints it.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import malstrom_py as mp
from bench.micro import inputs
from bench.micro.inputs import Pair
from bench.micro.timing import WrongResult, interleave, ratios, spread
from bench.micro.workloads import Check, Tally, add, key_of
from malstrom_py import partitioners, sources
from malstrom_py.data.batch import Batch
from malstrom_py.operators.base import StepContext
from malstrom_py.partitioners import KeySlots
from malstrom_py.rescale.channels.channel import ChannelId, Grant, InboundChannel, RemoteInbound
from malstrom_py.rescale.moves.placement import first_table
from malstrom_py.rescale.partitioners import slots_of_legal_keys
from malstrom_py.rescale.slots import slots_of
from malstrom_py.workers.engine.exchange import Exchange
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.engine.measuring import SAMPLED_ROWS

BUDGET_US: Final = 0.45
ROWS_PER_BATCH: Final = (256, 1024, 8192)
SLOTS: Final = 1024
STEP: Final = "key"

SHARES: Final[dict[str, tuple[int, ...]]] = {
    "all rows to the other worker": (1,) * SLOTS,
    "half of the rows to the other worker": tuple(first_table(SLOTS, range(2))),
}
"""What part of the rows leaves, and the routing table that makes it so."""


def batches_of(pairs: Sequence[Pair], rows: int) -> list[Batch]:
    """The pairs as keyed batches, as a ``key_by`` sends them; every key is a new string, whose hash is not known."""
    cuts = (inputs.fresh(list(pairs[start : start + rows])) for start in range(0, len(pairs), rows))
    return [Batch([value for _, value in cut], keys=[key for key, _ in cut]) for cut in cuts]


class Crossing:
    """The exchange of worker 0, and the channel from it on worker 1."""

    def __init__(self, table: Sequence[int], rows_max: int) -> None:
        context = StepContext("bench", STEP)
        slots = slots_of_legal_keys(partitioners.stable_hash, SLOTS, step=STEP)
        self._exchange = Exchange(context, (0, 1), table, slots=slots, batching=Batching(rows_max=rows_max))
        self._inbound = RemoteInbound(ChannelId(STEP, 0, 1), partial(context.codec.decode_batch, step=STEP))
        self.checks: dict[int, Check] = {0: (0, 0), 1: (0, 0)}
        self.keys: dict[int, set[str]] = {0: set(), 1: set()}

    def send(self, batches: Sequence[Batch]) -> None:
        """Everything there, batch by batch, and the credit back."""
        exchange = self._exchange
        for batch in batches:
            exchange.on_batch(batch)
            self._carry()
        exchange.flush()
        self._carry()

    def _carry(self) -> None:
        out, inbound = self._exchange.remote[1], self._inbound
        for frame in out.take():
            inbound.receive(frame)
            for grant in self._drain(1, inbound):
                out.grant(grant)
        self._drain(0, self._exchange.loopback)

    def _drain(self, worker: int, channel: InboundChannel) -> list[Grant]:
        grants = list[Grant]()
        while True:
            item = channel.take()
            if item is None:
                return grants
            grant = channel.freed()
            if grant is not None:
                grants.append(grant)
            if isinstance(item, Batch):
                rows, total = self.checks[worker]
                self.checks[worker] = rows + len(item), total + sum(item.values)
                self.keys[worker].update((item.keys or [])[:1])


def cross(table: Sequence[int], rows_max: int, batches: Sequence[Batch]) -> Check:
    """The batches through a new exchange, which knows no key yet: rows and sum of what both workers received."""
    crossing = Crossing(table, rows_max)
    crossing.send(batches)
    (stayed, total_stayed), (left, total_left) = crossing.checks.values()
    for worker, keys in crossing.keys.items():
        if any(table[slot] != worker for slot in slots_of(list(keys), SLOTS)):
            raise WrongResult(f"worker {worker} got a key whose slot it does not own")
    return stayed + left, total_stayed + total_left


def by_hand(table: Sequence[int], batches: Sequence[Batch]) -> Check:
    """The same with a dict that remembers the owners of keys, and with pickle, without credits or numbers."""
    slots, known = partitioners.stable_hash.bind(SLOTS), dict[Any, int]()
    count = total = 0
    for batch in batches:
        sent: tuple[tuple[list[Any], list[Any]], ...] = (([], []), ([], []))
        for key, value in zip(batch.keys or (), batch.values, strict=True):
            owner = known.get(key)
            if owner is None:
                known[key] = owner = table[slots.slot_of(key)]
            keys, values = sent[owner]
            keys.append(key)
            values.append(value)
        _, left = pickle.loads(pickle.dumps(sent[1], 5))
        count += len(sent[0][1]) + len(left)
        total += sum(sent[0][1]) + sum(left)
    return count, total


def renew(pairs: list[Pair], rows: int, _: list[Batch]) -> list[Batch]:
    """Batches whose keys are new strings again."""
    return batches_of(pairs, rows)


def measure_exchange(n: int, reps: int) -> list[str]:
    """The cost per record, those that stay included, in lines of text. The budget is for rows that all leave."""
    pairs, lines = inputs.w1(n, zipf=False), []
    for share, table in SHARES.items():
        for rows in ROWS_PER_BATCH:
            variants = {"by hand": partial(by_hand, table), "exchange": partial(cross, table, rows)}
            renewed = partial(renew, pairs, rows)
            seconds = interleave(variants, batches_of(pairs, rows), reps=reps, fresh=renewed)
            cost = spread([s / n * 1e6 for s in seconds["exchange"]])
            ratio = ratios(seconds["by hand"], seconds["exchange"])
            verdict = "hit" if cost.median <= BUDGET_US else "MISS"
            lines.append(
                f"exchange, (str, int) rows, {rows:,} per batch, {share}: {cost.show()} µs per record, "
                f"{ratio.show()} of the speed by hand with pickle, budget <= {BUDGET_US} µs, {verdict}"
            )
    return lines


@dataclass(slots=True)
class Counted:
    """The default partitioner, which counts the keys that it is asked about."""

    asked: int = field(default=0, compare=False)

    def bind(self, slots: int, *, step: str = "") -> KeySlots:
        bound = partitioners.stable_hash.bind(slots, step=step)
        return _CountedSlots(self, bound)


class _CountedSlots:
    def __init__(self, counted: Counted, bound: KeySlots) -> None:
        self._counted = counted
        self._bound = bound

    def slot_of(self, key: Any) -> int:
        self._counted.asked += 1
        return self._bound.slot_of(key)

    def slots_of(self, keys: Sequence[Any]) -> list[int]:
        self._counted.asked += len(keys)
        return self._bound.slots_of(keys)

    def slots_of_arrow(self, keys: Any) -> Any:
        self._counted.asked += len(keys)
        return self._bound.slots_of_arrow(keys)


def w1_on(workers: int, rows: list[Pair], partitioner: Counted) -> Check:
    """W1 as a job on that many workers; the source has a part for each."""
    job, tally = mp.Job("bench"), Tally(sum)
    stream = job.source("in", sources.Memory(rows, parts=workers))
    stream.key_by(STEP, key_of, partitioner=partitioner).stateful_map("add", add).sink("out", tally)
    mp.run(job, workers=workers, progress=False)
    return tally.check


def measure_workers(n: int, reps: int, numbers: Sequence[int] = (1, 2, 4)) -> list[str]:
    """W1 on several workers of one process, in lines of text: the cost of the exchange; nothing runs in parallel."""
    pairs = inputs.w1(n, zipf=False)
    asked = {workers: Counted() for workers in numbers}
    variants = {str(workers): partial(w1_on, workers, partitioner=asked[workers]) for workers in numbers}
    seconds = interleave(variants, pairs, reps=reps, fresh=inputs.fresh)
    # A job samples as soon as it has the rows of a sample, and then a hundredth at most.
    sampled = (reps + 1) * (SAMPLED_ROWS + n / 100)
    if numbers[0] == 1 and asked[1].asked > sampled:
        raise WrongResult(f"with one worker {asked[1].asked} keys were hashed, more than those that are sampled")
    lines = []
    for workers in numbers:
        ratio = ratios(seconds[str(numbers[0])], seconds[str(workers)])
        rate = spread([n / s for s in seconds[str(workers)]]).median
        lines.append(
            f"W1 on {workers} workers in one process: {rate:,.0f} records/s, {ratio.show()} of one, "
            f"{asked[workers].asked / (n * (reps + 1)):.2f} keys per record given to the partitioner"
        )
    return lines
