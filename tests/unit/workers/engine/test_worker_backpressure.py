"""A worker that is a hundred times slower than the others: what waits for it is bounded, and nothing is lost (F2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.builder.plan import Plan
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.rescale.channels.channel import Credit, Frame, RemoteInbound
from malstrom_py.rescale.moves.placement import first_table
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.engine.graph_builder import Membership, deal_parts
from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.transport.messages import COORDINATOR

ROWS_MAX, CREDIT, FAN_OUT, WORKERS = 16, 64, 5, 3
SPILL = ROWS_MAX * FAN_OUT
"""What one message may send to one worker: a polled batch, of which every row becomes several."""

CHANNEL_MAX = (CREDIT - 1) + (ROWS_MAX - 1 + SPILL) + (ROWS_MAX - 1 + SPILL) + (ROWS_MAX - 1)
"""The bound of rows in flight: the credit and one frame, the output of one message, and the buffered rows."""

LOOPBACK_MAX = CREDIT - 1 + SPILL


def rows_of(items: Any) -> int:
    return sum(len(item) if isinstance(item, Batch) else item.rows for item in items if isinstance(item, Batch | Frame))


@dataclass
class Peaks:
    """The most that was queued on any one channel, in rows, and in any one inbox, in frames and items."""

    channel: int = 0
    loopback: int = 0
    items: int = 0


class SlowCrew:
    """Workers over one plan, of which one is stepped once while the others are stepped ``slowness`` times."""

    def __init__(self, plan: Plan, *, slow: int, slowness: int) -> None:
        batching = Batching(rows_max=ROWS_MAX, credit=Credit(rows=CREDIT, size=1 << 20))
        members = range(WORKERS)
        table = first_table(plan.slots, members)
        self._slow, self._slowness = slow, slowness
        self.clock = VirtualClock()
        self.workers = [
            Worker(
                plan, Membership(worker, members, table), batching=batching, clock=self.clock, codec=Codec(plan.types)
            )
            for worker in members
        ]
        self.peaks = Peaks()

    def run(self, turns_max: int = 1_000_000) -> SlowCrew:
        parts = deal_parts(self.workers[0]._plan, range(WORKERS), self.clock).parts
        for worker in self.workers:
            worker.open_sinks()
        for worker in self.workers:
            self._deliver(worker.open_sources(parts[worker.id]))
        for turn in range(turns_max):
            if all(worker.finished for worker in self.workers):
                return self
            for worker in self.workers:
                if worker.id != self._slow or turn % self._slowness == 0:
                    self._deliver(worker.step()[1])
                    self._look()
            self.clock.advance(0.001)
        raise AssertionError("it does not come to an end")

    def _deliver(self, outgoing: Any) -> None:
        for receiver, message in outgoing:
            if receiver != COORDINATOR:
                self.workers[receiver].receive(message)

    def _look(self) -> None:
        peaks = self.peaks
        for sender in self.workers:
            for name, exchange in sender._graph.exchanges.items():
                peaks.loopback = max(peaks.loopback, exchange.loopback._rows)
                for member, channel in exchange.remote.items():
                    inbound = self.workers[member]._graph.exchanges[name].inbound
                    lane = inbound[sender.id]
                    assert isinstance(lane, RemoteInbound)
                    untaken = rows_of(channel._backlog) + rows_of(lane._items) + rows_of(lane._frames)
                    peaks.channel = max(peaks.channel, channel.buffered_rows + untaken)
                    peaks.items = max(peaks.items, sum(map(len, inbound.values())) + len(channel._epochs))


def fan_out(number: int) -> list[tuple[int, int]]:
    return [(number, copy) for copy in range(FAN_OUT)]


def job_of(rows: int, key: Callable[[tuple[int, int]], int]) -> tuple[mp.Job, list[tuple[int, int]]]:
    job, out = mp.Job("slow"), list[tuple[int, int]]()
    stream = job.source("in", sources.Memory(range(rows), parts=WORKERS)).flat_map("fan-out", fan_out)
    stream.key_by("key", key).map("same", lambda item: item).sink("out", sinks.Callable(out.append))
    return job, out


@pytest.mark.long(but=("90% on one key-2", "even-2"))
@pytest.mark.parametrize("slow", range(WORKERS))
@pytest.mark.parametrize("skew", [False, True], ids=["even", "90% on one key"])
def test_f2_memory_is_flat_however_much_there_is_to_read(slow: int, skew: bool) -> None:
    def key(item: tuple[int, int]) -> int:
        return 0 if skew and item[0] % 10 else item[0] % 50

    peaks = []
    for rows in (1_500, 6_000):
        job, out = job_of(rows, key)
        coordinator = SlowCrew(job.plan(), slow=slow, slowness=100).run()
        assert Counter(out) == Counter(item for number in range(rows) for item in fan_out(number))
        peaks.append(coordinator.peaks)
    short, long = peaks
    assert long.channel <= CHANNEL_MAX
    assert long.loopback <= LOOPBACK_MAX
    assert long.items <= 2 * short.items, "the waiting rows grow with the input"
    # The slow worker did hold the others back: that is what was to be tested.
    assert max(long.channel, long.loopback) > CREDIT


def test_f2_all_outputs_of_one_message_pass_however_small_the_credit() -> None:
    job, out = mp.Job("spill"), list[int]()
    stream = job.source("in", sources.Memory([1], parts=1)).flat_map("much", lambda n: range(1000))
    stream.key_by("key", lambda n: n % 50).sink("out", sinks.Callable(out.append))
    SlowCrew(job.plan(), slow=1, slowness=3).run()
    assert sorted(out) == list(range(1000))


@pytest.mark.long(but=("1",))
@pytest.mark.parametrize("slow", range(WORKERS))
def test_f2_a_slow_worker_without_rows_is_not_buried_under_epochs(slow: int) -> None:
    """All rows are of one key, so two of the three workers get epochs only."""
    peaks = []
    for rows in (1_000, 4_000):
        job, out = mp.Job("epochs"), list[int]()
        timed = job.source("in", sources.Memory(range(rows), parts=1)).assign_timestamps("at", lambda n: n)
        on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(0))
        on_time.key_by("key", lambda n: 0).sink("out", sinks.Callable(out.append))
        peaks.append(SlowCrew(job.plan(), slow=slow, slowness=100).run().peaks)
        assert out == list(range(rows))
    assert peaks[1].items <= 2 * CREDIT
    assert peaks[1].items <= peaks[0].items + 2
