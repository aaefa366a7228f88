"""The coordinator of up to 1,000 workers, on paper: what it costs to rescale, to snapshot and to watch them.

The coordinator, its machines, the planning, the messages and the manifests are the real ones. The workers are
`CountedWorkers`. Times are of the processor, of the thread that coordinates, with all that it would do in the
background. Nothing is sent over a network.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import thread_time
from typing import Any, Final

import malstrom_py as mp
from bench.macro.channel_costs import channel_costs
from bench.macro.counted_workers import CountedWorkers, Traffic
from bench.micro import machine
from malstrom_py import sinks, sources
from malstrom_py.builder.plan import Plan
from malstrom_py.clock import SystemClock
from malstrom_py.errors import MalstromError
from malstrom_py.rescale.load import Weights, placed
from malstrom_py.rescale.moves.move_sizing import Pacing
from malstrom_py.rescale.moves.placement import first_table, opening_move, plan_moves
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.manifest import manifest_bytes
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.workers.coordinator.coordinator import Coordinator
from malstrom_py.workers.coordinator.job_machine import topology_of
from malstrom_py.workers.coordinator.metering import SAMPLE_S
from malstrom_py.workers.coordinator.recovery import SnapshotUse
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.reports.event_log import MoveTotals
from malstrom_py.workers.reports.figures import tally_s
from malstrom_py.workers.reports.job_status import JobStatus, RescaleReport
from malstrom_py.workers.reports.result import RunResult
from malstrom_py.workers.simulator.direct_background import DirectBackground

SIZES: Final = (10, 100, 300, 1_000)
SLOTS: Final = 65_536
KEYS: Final = 100_000
"""The keys of a worker: 10^8 on 1,000 workers."""
SNAPSHOTS: Final = 7
"""As many deltas as a chain has by default before the next one has it compacted."""
SNAPSHOT_EVERY_S: Final = 60.0
SCRAPE_EVERY_S: Final = 15.0
"""How often Prometheus asks for metrics, by default about."""
PLAN_S: Final = 1.0
BUSY: Final = 0.1
LINGER_S: Final = Batching().linger_s
FRAME_S: Final = 15e-6
"""What a small frame costs its sender and its receiver, as docs/design/0010 measured."""


@dataclass
class Figures:
    """What a job of ``workers`` workers costs its coordinator."""

    workers: int
    target: int
    start_s: float = 0.0
    start_bytes: int = 0
    plan_s: float = 0.0
    plan_by_load_s: float = 0.0
    moves: int = 0
    slots_most: int = 0
    rescale_s: float = 0.0
    letters: int = 0
    letter_bytes: int = 0
    between: int = 0
    between_bytes: int = 0
    back_s: float = 0.0
    back_letters: int = 0
    back_moves: int = 0
    reports_s: float = 0.0
    sample_s: float = 0.0
    metrics_s: float = 0.0
    first_snapshot_s: float = 0.0
    snapshot_s: float = 0.0
    manifest_bytes: int = 0
    manifest_read_s: float = 0.0

    @property
    def busy(self) -> float:
        """The share of its time that the coordinator works: on figures of workers, on metrics, and on snapshots."""
        figures = self.reports_s / tally_s(self.workers) + self.sample_s / max(SAMPLE_S, tally_s(self.workers))
        return figures + self.metrics_s / SCRAPE_EVERY_S + self.snapshot_s / SNAPSHOT_EVERY_S


def plan_of(workers: int, slots: int) -> Plan:
    """A job with two exchanges, one of them fed by a region, and two parts per worker."""
    job = mp.Job("paper", slots=slots)
    rows = job.source("in", sources.Memory(range(2 * workers), parts=2 * workers)).key_by("by-user", lambda n: n)
    rows.sum("per-user").key_by("by-shop", lambda n: n).sum("per-shop").sink("out", sinks.Memory())
    return job.plan()


class Run:
    """A coordinator of ``workers`` counted workers that hold ``keys`` keys."""

    def __init__(self, workers: int, *, slots: int, keys: int, store: MemoryStore | None = None) -> None:
        self.plan = plan_of(workers, slots)
        self.store = store or MemoryStore()
        self.group = CountedWorkers(self.plan, keys=keys, readers=lambda: self.coordinator.readers)
        snapshots = Snapshots(self.store, interval_s=None)
        self.coordinator: Coordinator[CountedWorkers] = Coordinator(
            self.plan,
            self.group,
            workers=workers,
            clock=SystemClock(),
            snapshot_use=SnapshotUse(snapshots),
            background=DirectBackground,
            calling=DirectBackground,
            ahead_least=None,  # what goes ahead of moves is not on paper
        )
        self._second = 0.0

    def open(self) -> None:
        """Start the workers."""
        self.coordinator.begin()
        self.coordinator.open()

    @contextmanager
    def timed(self, note: Callable[[float], None]) -> Iterator[None]:
        """Note the coordinator's time, and count traffic from zero."""
        self.group.traffic = Traffic()
        began, others = thread_time(), self.group.workers_s
        yield
        note(thread_time() - began - (self.group.workers_s - others))

    def rescale(self, members: Sequence[int]) -> RescaleReport:
        """Rescale to ``members``."""
        ended: list[RescaleReport | MalstromError] = []
        self.coordinator.request(members, ended.append)
        self._until(ended)
        (report,) = ended
        if isinstance(report, MalstromError):
            raise report
        return report

    def snapshot(self) -> None:
        """Make a snapshot."""
        made: list[Any] = []
        self.coordinator.snapshot(made.append)
        self._until(made)

    def _until(self, answers: list[Any]) -> None:
        for _ in range(100_000_000):
            if answers:
                return
            self.coordinator.step()
        raise AssertionError("the workers do not answer")

    def reports(self) -> None:
        """Each worker sends its figures once."""
        self._second += 1
        self.group.report_counts(self._second)
        while self.group.has_sent:
            self.coordinator.step()

    def sample(self) -> None:
        """Take a sample of the figures, with the loads of slots and keys."""
        self.coordinator.sample()

    def metrics(self) -> None:
        """Answer one that asks for metrics."""
        coordinator, group = self.coordinator, self.group
        result = RunResult("paper", coordinator.counts(), self._second)
        status = JobStatus(
            "paper", "running", len(coordinator.members), coordinator.phase, result, None, moving=coordinator.moving
        )
        coordinator.metering.metrics(
            result,
            group.counts(),
            group.figures(),
            members=coordinator.members,
            table=coordinator.table,
            status=status,
            totals=MoveTotals(),
        )


def measure(workers: int, target: int, *, slots: int, keys: int, snapshots: int) -> Figures:
    """Start a job, watch it, snapshot it, rescale it to ``target`` workers and back, and resume it."""
    figures = Figures(workers, target)
    run = Run(workers, slots=slots, keys=keys)

    def set_(name: str) -> Callable[[float], None]:
        return lambda value: setattr(figures, name, value)

    with run.timed(set_("start_s")):
        run.open()
    traffic = run.group.traffic
    figures.start_bytes = sum(traffic.bytes.values())
    for _ in range(2):  # the first ones make tables that stay
        with run.timed(set_("reports_s")):
            run.reports()
        with run.timed(set_("sample_s")):
            run.sample()
        with run.timed(set_("metrics_s")):
            run.metrics()
    with run.timed(set_("first_snapshot_s")):
        run.snapshot()
    for _ in range(snapshots):
        with run.timed(set_("snapshot_s")):
            run.snapshot()
    _manifest(run, figures)
    figures.plan_s = planning_s(workers, target, slots=slots)
    figures.plan_by_load_s = planning_s(workers, target, slots=slots, weights=skewed(slots))
    before = tuple(run.coordinator.members)
    with run.timed(set_("rescale_s")):
        run.rescale((*before, *run.coordinator.new_workers(target - workers)))
    traffic = run.group.traffic
    figures.moves, figures.slots_most = run.group.moves, run.group.gained_most
    figures.letters, figures.letter_bytes = traffic.control, sum(traffic.bytes.values())
    figures.between, figures.between_bytes = traffic.between.total(), traffic.between_bytes
    with run.timed(set_("back_s")):
        run.rescale(before)
    figures.back_letters, figures.back_moves = run.group.traffic.control, run.group.moves
    return figures


def _manifest(run: Run, figures: Figures) -> None:
    checkpointer = StoreCheckpointer(run.store, "paper")
    last = checkpointer.entries()[-1]
    began = thread_time()
    entry = checkpointer.entry_after(last.sequence - 1)
    figures.manifest_read_s = thread_time() - began
    assert entry is not None
    assert entry.manifest is not None
    figures.manifest_bytes = len(manifest_bytes(entry.manifest))


def skewed(slots: int) -> list[float]:
    """Weights of slots, some of which are heavy."""
    rng = random.Random(36)
    return [min(20.0, rng.paretovariate(1.5)) for _ in range(slots)]


def planning_s(workers: int, target: int, *, slots: int, weights: Weights | None = None) -> float:
    """How long the plan of all moves takes, each of the size of the first one."""
    members, wanted = range(workers), range(target)
    table = first_table(slots, members)
    parts = {("in", str(part)): part % workers for part in range(2 * workers)}
    began = thread_time()
    end = placed(table, wanted, weights)
    opening_move(0, members, table, wanted, target=end)
    moves = list(plan_moves(1, members, table, parts, wanted, slots_max=Pacing.of(slots).slots_max, target=end))
    assert moves[-1].new == tuple(wanted)
    return thread_time() - began


def rows_of(found: Sequence[Figures], exchanges: int) -> Iterator[list[str]]:
    """Yield the table of the coordinator, line by line: the name of a figure, and the figure of each size."""
    yield ["workers", *(f"{f.workers:,} -> {f.target:,}" for f in found)]
    yield ["plan of all moves, s", *(f"{f.plan_s:.3f}{_verdict(f.plan_s <= PLAN_S)}" for f in found)]
    yield ["the same by load, s", *(f"{f.plan_by_load_s:.3f}{_verdict(f.plan_by_load_s <= PLAN_S)}" for f in found)]
    yield ["moves", *(f"{f.moves:,}" for f in found)]
    yield ["most slots of a worker in a move", *(f"{f.slots_most:,}" for f in found)]
    yield ["letters", *(f"{f.letters:,}" for f in found)]
    per = [f.letters / f.moves / f.target / exchanges for f in found]
    yield ["letters per move, worker and exchange", *(f"{each:.2f}" for each in per)]
    yield ["letters, MB", *(f"{f.letter_bytes / 1e6:,.1f}" for f in found)]
    yield ["coordinator, s", *(f"{f.rescale_s:.2f}" for f in found)]
    yield ["in channels", *(f"{f.between:,}" for f in found)]
    yield ["in channels, MB", *(f"{f.between_bytes / 1e6:,.0f}" for f in found)]
    yield ["back: moves", *(f"{f.back_moves:,}" for f in found)]
    yield ["back: letters", *(f"{f.back_letters:,}" for f in found)]
    yield ["back: coordinator, s", *(f"{f.back_s:.2f}" for f in found)]
    yield ["start: coordinator, s", *(f"{f.start_s:.2f}" for f in found)]
    yield ["start: letters, MB", *(f"{f.start_bytes / 1e6:,.1f}" for f in found)]
    yield ["figures of all workers, s", *(f"{f.reports_s:.3f}" for f in found)]
    yield ["which come each, s", *(f"{tally_s(f.workers):.1f}" for f in found)]
    yield ["a sample of them, as often, s", *(f"{f.sample_s:.3f}" for f in found)]
    yield ["an answer with metrics, s", *(f"{f.metrics_s:.3f}" for f in found)]
    yield ["first snapshot, s", *(f"{f.first_snapshot_s:.3f}" for f in found)]
    yield ["snapshot of the longest chains, s", *(f"{f.snapshot_s:.3f}" for f in found)]
    yield ["its manifest, MB", *(f"{f.manifest_bytes / 1e6:.2f}" for f in found)]
    yield ["read its manifest, s", *(f"{f.manifest_read_s:.3f}" for f in found)]
    yield ["busy, one snapshot a minute", *(f"{f.busy:.1%}{_verdict(f.busy <= BUSY)}" for f in found)]


def channel_rows(sizes: Sequence[int], exchanges: int) -> Iterator[list[str]]:
    """Yield the table of an all-to-all of channels, line by line."""
    channel_bytes, stream_bytes, descriptors = channel_costs()
    streams = [workers - 1 for workers in sizes]
    yield ["workers", *(f"{workers:,}" for workers in sizes)]
    yield ["channels of the job", *(f"{workers**2 * exchanges:,}" for workers in sizes)]
    # A worker has half of the stream to each peer, and half of the one from it: together one.
    yield ["descriptors of a worker", *(f"{count * descriptors:,.0f}" for count in streams)]
    memory = [count * (stream_bytes + exchanges * channel_bytes) / 1e6 for count in streams]
    yield ["memory of a worker, MB", *(f"{each:,.1f}" for each in memory)]
    frames = [workers * exchanges / LINGER_S for workers in sizes]
    yield ["frames a second of a worker", *(f"{each:,.0f}" for each in frames)]
    yield ["its time for them", *(f"{each * FRAME_S:.0%}" for each in frames)]


def _verdict(holds: bool) -> str:
    return "" if holds else " MISS"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    arguments = argparse.ArgumentParser(prog="python -m bench.macro.thousand_workers", description=__doc__)
    arguments.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="how many workers")
    arguments.add_argument("--slots", type=int, default=SLOTS)
    arguments.add_argument("--keys", type=int, default=KEYS, help="per worker")
    arguments.add_argument("--snapshots", type=int, default=SNAPSHOTS, help="after the first one")
    given = arguments.parse_args(argv)
    print(machine.describe())
    exchanges = len(topology_of(plan_of(1, 1)).exchanges)
    found = []
    for workers in given.sizes:
        target, keys = workers + max(1, workers // 10), given.keys * workers
        found.append(measure(workers, target, slots=given.slots, keys=keys, snapshots=given.snapshots))
        print(f"{workers:,} workers are done", file=sys.stderr, flush=True)
    for table in (rows_of(found, exchanges), channel_rows(given.sizes, exchanges)):
        print()
        for number, line in enumerate(table):
            print(f"| {' | '.join(line)} |")
            if not number:
                print(f"|---|{'---:|' * len(given.sizes)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
