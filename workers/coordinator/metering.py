"""The metrics and loads of one run: the counts and figures of all workers in sum, rates over the last seconds, the
weights of slots for placement (R10), and the keys that are too heavy for one worker.

Rule: `sample` is called about once a second. A rate is the difference to the oldest of the last samples, so that it
does not depend on who asks, nor how often. What follows from loads is in `rescale.load` and `rescale.hot_keys`; nothing
here moves anything.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Final, TypeVar

from msgspec.structs import replace

from malstrom_py.builder.compiled_steps import compiled_of
from malstrom_py.builder.plan import Plan, Region, is_exchanged
from malstrom_py.clock import Clock
from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.data.time import PER_SECOND, Unit
from malstrom_py.events import AnyEvent, HotKeyBegun, HotKeyEnded
from malstrom_py.metrics import (
    RATES_S,
    EdgeMetrics,
    ExchangeMetrics,
    HeavyKey,
    HeavySlot,
    HotKey,
    JobMetrics,
    MoveMetrics,
    PartMetrics,
    RateMetrics,
    SnapshotMetrics,
    StepMetrics,
    WorkerMetrics,
)
from malstrom_py.rescale.hot_keys import HotKeys
from malstrom_py.rescale.load import SlotLoads, Weights, imbalance
from malstrom_py.rescale.moves.protocol import Table
from malstrom_py.workers.reports.event_log import MoveTotals
from malstrom_py.workers.reports.figures import WorkerFigures, tally_s
from malstrom_py.workers.reports.job_status import JobStatus
from malstrom_py.workers.reports.result import RunResult, StepCounts

SAMPLE_S: Final = 1.0
"""The interval of samples, or that of count reports if it is longer."""

_SAMPLES: Final = 6
_MIN_S: Final = 0.5
_OLD_S: Final = 2 * _SAMPLES * SAMPLE_S
_HEAVY_MAX: Final = 64
_NOTHING: Final = StepCounts("", 0, {})
_READ: Final = ""
_ABSENT: Final[tuple[WorkerFigures, Mapping[str, int]]] = (WorkerFigures(), {_READ: 0})
_PLACE: Final = re.compile(r"\S+:\d+$")

H = TypeVar("H", HeavyKey, HeavySlot)

Counts = Mapping[int, Mapping[str, StepCounts]]

_Arrivals = Mapping[str, int]
"""The rows that a worker has taken by each way: all its sources, and each exchange."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a run had done ``at_s``: ``steps`` in sum, ``workers`` and ``counts`` by worker."""

    at_s: float
    steps: Mapping[str, StepCounts]
    workers: Mapping[int, tuple[WorkerFigures, _Arrivals]]
    counts: Counts

    @classmethod
    def of(
        cls, at_s: float, steps: Mapping[str, StepCounts], counts: Counts, figures: Mapping[int, WorkerFigures]
    ) -> Sample:
        workers = {worker: (found, _arrivals(counts.get(worker, {}), found)) for worker, found in figures.items()}
        return cls(at_s, steps, workers, counts)


class Metering:
    """The metrics and loads of a run of ``plan``. ``publish`` is called with the events of hot keys."""

    def __init__(self, plan: Plan, clock: Clock, publish: Callable[[AnyEvent], None] = lambda event: None) -> None:
        self._plan = plan
        self._clock = clock
        self._publish = publish
        self._slots = SlotLoads(plan.slots)
        self._hot = HotKeys()
        self._units: dict[str, Unit | None] = {step.name: step.traits.unit for step in plan.steps}
        self._regions = {entry: region for region in plan.regions for entry in region.entries}
        self._samples: deque[Sample] = deque([Sample(clock.monotonic_s(), {}, {}, {})], maxlen=_SAMPLES)
        self.due_s = clock.monotonic_s() + SAMPLE_S
        """When the next sample is due, on the clock's monotonic time."""

    @cached_property
    def _places(self) -> dict[str, str]:
        return {step.name: _place_in(step.detail) for step in self._plan.steps}

    @cached_property
    def _compiled(self) -> dict[str, str]:
        return {step.name: str(compiled) for step in self._plan.steps if (compiled := compiled_of(step)) is not None}

    @cached_property
    def _edges(self) -> list[EdgeMetrics]:
        steps = {step.name: step for step in self._plan.steps}
        return [
            EdgeMetrics(ref.step, steps[ref.step].ports[ref.port].name, reader.name, is_exchanged(steps[ref.step], ref))
            for ref, reader in self._plan.edges()
            if reader.shadow_of is None
        ]

    def sample(self, steps: Mapping[str, StepCounts], counts: Counts, figures: Mapping[int, WorkerFigures]) -> None:
        """Note the figures now: ``steps`` in sum, ``counts`` and ``figures`` by worker."""
        self.due_s = self._clock.monotonic_s() + max(SAMPLE_S, tally_s(len(figures)))
        self._samples.append(Sample.of(self._clock.monotonic_s(), steps, counts, figures))

    def weigh(self, figures: Mapping[int, WorkerFigures], workers: int) -> None:
        """Take the loads of slots from ``figures``, and those of keys from the last sample, of ``workers`` workers."""
        counted = {worker: found.slot_loads for worker, found in figures.items()}
        sampled = sum(found.sampled for found in figures.values())
        squares = sum(found.sampled_squares for found in figures.values())
        self._slots.note(self._clock.monotonic_s(), counted, sampled=sampled, squares=squares)
        self._announce(*self._hot.update(self.keys_busy(), workers=workers))

    def close(self) -> None:
        """Publish the end of what is hot: the run ends."""
        self._announce(*self._hot.update([], workers=1))

    def _announce(self, started: Iterable[HotKey], ended: Iterable[HotKey]) -> None:
        for key in started:
            self._publish(HotKeyBegun(key.step, key.key, key.worker, key.share, key.busy))
        for key in ended:
            self._publish(HotKeyEnded(key.step, key.key))

    @property
    def weights(self) -> Weights | None:
        """The weights of the slots; None until enough rows are counted."""
        return self._slots.weights

    def imbalance(self, table: Table, members: Sequence[int]) -> float | None:
        """Return the load of the most loaded of ``members`` over the mean; None until loads are known."""
        weights = self.weights
        return None if weights is None else imbalance(table, members, weights)

    def keys_busy(self) -> list[HotKey]:
        """Return the heaviest keys of the last sample, each with its share of all rows of its exchange, and for which
        part of the time its worker is busy with it: as much as with other rows of the same region.
        """
        now = self._samples[-1]
        before = self._before(now.at_s)
        over_s = now.at_s - before.at_s
        if not over_s > 0:
            return []
        found: list[HotKey] = []
        parts = {step: _parts_of_all(step, now, before) for step in self._regions}
        for worker, (figures, _) in now.workers.items():
            regions = {step: self._regions[step] for step in {heavy.step for heavy in figures.heavy_keys}}
            busy = {step: _region_busy(region, step, worker, now, before) for step, region in regions.items()}
            found += (
                HotKey(
                    heavy.step,
                    heavy.key,
                    heavy.share * parts[heavy.step].get(heavy.worker, 0.0),
                    min(1.0, heavy.share * busy[heavy.step] / over_s),
                    worker,
                )
                for heavy in figures.heavy_keys
            )
        return found

    def rates(self) -> RateMetrics:
        """Return the rates of the last sample."""
        now = self._samples[-1]
        before = self._before(now.at_s)
        over_s = max(now.at_s - before.at_s, 1e-9)
        at = self._clock.now_s()
        pairs = [(here, before.workers.get(worker, (here, {}))[0]) for worker, (here, _) in now.workers.items()]
        watermarks = [part.watermark for here, _ in pairs for part in here.parts if part.watermark is not None]
        return RateMetrics(
            at,
            rows_per_s("source", now, before, over_s),
            rows_per_s("sink", now, before, over_s),
            busy=_mean([share_of(here.busy_s - was.busy_s, over_s) for here, was in pairs]),
            waiting=_mean([share_of(here.waiting_s - was.waiting_s, over_s) for here, was in pairs]),
            event_lag_s=at - min(watermarks) if watermarks else None,
        )

    def metrics(
        self,
        result: RunResult,
        counts: Counts,
        figures: Mapping[int, WorkerFigures],
        *,
        members: Sequence[int],
        table: Table,
        status: JobStatus,
        totals: MoveTotals,
    ) -> JobMetrics:
        """Return the metrics now. ``result``: the counts in sum; the others are by worker, or of the job."""
        now = Sample.of(self._clock.monotonic_s(), result.steps, counts, figures)
        before = self._before(now.at_s)
        over_s = max(now.at_s - before.at_s, 1e-9)
        at = self._clock.now_s()
        present = {worker: figures.get(worker, WorkerFigures()) for worker in members}
        return JobMetrics(
            job=self._plan.job,
            state=status.state,
            phase=status.phase,
            error=status.error,
            at=at,
            duration_s=result.duration_s,
            steps={name: self._step(name, step, before, over_s, at, present) for name, step in result.steps.items()},
            edges=list(self._edge_rates(result.steps, before, over_s)),
            parts=list(_parts(present, at)),
            exchanges=dict(self._exchanges(result.steps, before, over_s, present)),
            workers=list(_workers(now, before, over_s, counts, members, table)),
            heavy_keys=_heaviest([key for one in present.values() for key in one.heavy_keys], now, before),
            heavy_slots=_heaviest(
                [
                    slot
                    for worker, one in present.items()
                    for slot in one.heavy_slots
                    if slot.slot < len(table) and table[slot.slot] == worker
                ],
                now,
                before,
            ),
            hot_keys=self._hot.hot,
            imbalance=self.imbalance(table, members),
            snapshots=_snapshots(status),
            moving=None
            if status.moving is None
            else MoveMetrics(*(getattr(status.moving, name) for name in MoveMetrics.__struct_fields__)),
            restarts=status.restarts,
            rescales=totals.rescales,
            moved_slots=totals.slots,
            moved_keys=totals.keys,
            moved_bytes=totals.bytes,
            rescale_s=totals.duration_s,
        )

    def _before(self, now_s: float) -> Sample:
        """Return the sample that rates are since: the first one is of no worker, and serves for the first second."""
        recent = [sample for sample in self._samples if now_s - sample.at_s <= _OLD_S]
        latest = self._samples[0] if recent else self._samples[-1]
        return next((sample for sample in recent if sample.workers and now_s - sample.at_s >= _MIN_S), latest)

    def _step(
        self,
        name: str,
        step: StepCounts,
        before: Sample,
        over_s: float,
        at: float,
        present: Mapping[int, WorkerFigures],
    ) -> StepMetrics:
        was = before.steps.get(name, _NOTHING)
        sizes = [size for one in present.values() if (size := one.state_bytes.get(name)) is not None]
        watermark = self._seconds(name, step.epoch)
        return StepMetrics(
            kind=step.kind,
            rows_in=step.rows_in,
            rows_out=step.rows_out,
            in_per_s=(step.rows_in - was.rows_in) / over_s,
            out_per_s=(step.rows_out - was.rows_out) / over_s,
            busy_s=step.busy_s,
            busy=max(0.0, step.busy_s - was.busy_s) / over_s,
            filtered=step.filtered,
            late=step.late,
            unmatched=step.unmatched,
            skipped=step.skipped,
            dead_letters=step.dead_letters,
            keys=step.keys,
            state_bytes=sum(sizes) if sizes else None,
            watermark=watermark,
            lag_s=None if watermark is None else at - watermark,
            place=self._places.get(name, ""),
            compiled=self._compiled.get(name, ""),
        )

    def _seconds(self, name: str, epoch: int | None) -> float | None:
        unit = self._units.get(name)
        return None if epoch is None or unit is None or epoch == MAX_EPOCH else epoch / PER_SECOND[unit]

    def _edge_rates(self, steps: Mapping[str, StepCounts], before: Sample, over_s: float) -> Iterator[EdgeMetrics]:
        for edge in self._edges:
            rows = steps[edge.source].ports.get(edge.port, 0) if edge.source in steps else 0
            was = before.steps.get(edge.source, _NOTHING).ports.get(edge.port, 0)
            yield replace(edge, rows=rows, per_s=(rows - was) / over_s)

    def _exchanges(
        self, steps: Mapping[str, StepCounts], before: Sample, over_s: float, present: Mapping[int, WorkerFigures]
    ) -> Iterator[tuple[str, ExchangeMetrics]]:
        for name in dict.fromkeys(edge.source for edge in self._edges if edge.exchange):
            now, was = steps.get(name, _NOTHING), before.steps.get(name, _NOTHING)
            yield (
                name,
                ExchangeMetrics(
                    rows=now.rows_out,
                    bytes=now.sent_bytes,
                    rows_per_s=(now.rows_out - was.rows_out) / over_s,
                    bytes_per_s=(now.sent_bytes - was.sent_bytes) / over_s,
                    backlog=sum(one.backlog.get(name, 0) for one in present.values()),
                    waiting_s=now.waiting_s,
                    waiting=min(1.0, (now.waiting_s - was.waiting_s) / over_s / max(1, len(present))),
                ),
            )


def _workers(
    now: Sample, before: Sample, over_s: float, counts: Counts, members: Sequence[int], table: Sequence[int]
) -> Iterator[WorkerMetrics]:
    slots = Counter(table)
    for worker in members:
        here, rows = now.workers.get(worker, _ABSENT)
        was, rows_before = before.workers.get(worker, (here, rows))
        yield WorkerMetrics(
            worker=worker,
            host=here.host,
            pid=here.pid,
            cpu_s=here.cpu_s,
            cpu=max(0.0, here.cpu_s - was.cpu_s) / over_s,
            rss_bytes=here.rss_bytes,
            state_in_memory=here.state_in_memory,
            state_on_disk=here.state_on_disk,
            found_on_disk=here.found_on_disk,
            not_on_disk=here.not_on_disk,
            busy_s=here.busy_s,
            waiting_s=here.waiting_s,
            busy=share_of(here.busy_s - was.busy_s, over_s),
            waiting=share_of(here.waiting_s - was.waiting_s, over_s),
            rows_in=max(rows.values()),
            in_per_s=max(0, *(count - rows_before.get(way, 0) for way, count in rows.items())) / over_s,
            keys=sum(step.keys or 0 for step in counts.get(worker, {}).values()),
            slots=slots[worker],
        )


def _arrivals(counts: Mapping[str, StepCounts], figures: WorkerFigures) -> _Arrivals:
    read = sum(step.rows_in for step in counts.values() if step.kind == "source")
    return {_READ: read, **figures.arrived}


def rows_per_s(kind: str, now: Sample, before: Sample, over_s: float) -> float:
    """Return the rows per second that all steps of ``kind`` have taken."""
    steps = [(name, step) for name, step in now.steps.items() if step.kind == kind]
    rows = sum(step.rows_in - before.steps.get(name, _NOTHING).rows_in for name, step in steps)
    return max(0, rows) / over_s


def _mean(shares: Sequence[float]) -> float:
    return sum(shares) / max(1, len(shares))


def share_of(spent_s: float, over_s: float) -> float:
    """Return a share of the time, from 0 to 1, also of a worker whose number another one had before."""
    return min(1.0, max(0.0, spent_s / over_s))


def _place_in(detail: str) -> str:
    found = _PLACE.search(detail)
    return "" if found is None else found[0]


def _snapshots(status: JobStatus) -> SnapshotMetrics | None:
    made = status.snapshots
    if made is None:
        return None
    names = ("made", "last", "bytes", "duration_s", "pause_s", "interval_s")
    return SnapshotMetrics(at=made.at_s, **{name: getattr(made, name) for name in names})


def _parts(present: Mapping[int, WorkerFigures], at: float) -> Iterable[PartMetrics]:
    """Return each part once: the figures of a worker may still have one that has moved to another."""
    parts = {(part.source, part.part): part for one in present.values() for part in one.parts}
    return (part if part.watermark is None else replace(part, lag_s=at - part.watermark) for part in parts.values())


def _heaviest(found: list[H], now: Sample, before: Sample) -> list[H]:
    """Return the heaviest of ``found``, whose shares are of the rows of a worker, with shares of the rows of all.

    Each key and slot is there once: the figures of a worker may still have one that has moved to another.
    """
    parts = {step: _parts_of_all(step, now, before) for step in {heavy.step for heavy in found}}

    def share(heavy: H) -> float:
        return heavy.share * parts[heavy.step].get(heavy.worker, 0.0)

    once: dict[tuple[str, object], H] = {}
    for heavy in sorted(found, key=share, reverse=True):
        once.setdefault((heavy.step, heavy.key if isinstance(heavy, HeavyKey) else heavy.slot), heavy)
    return [replace(heavy, share=share(heavy)) for heavy in islice(once.values(), _HEAVY_MAX)]


def _region_busy(region: Region, entry: str, worker: int, now: Sample, before: Sample) -> float:
    """Return the seconds that ``worker`` has spent between samples in ``region`` with rows that came by ``entry``."""

    def spent_s(sample: Sample) -> float:
        steps = sample.counts.get(worker, {})
        return sum(steps[name].busy_s for name in region.steps if name in steps)

    def arrived(sample: Sample, entry: str) -> int:
        figures, _ = sample.workers.get(worker, _ABSENT)
        return figures.arrived.get(entry, 0)

    rows = {name: max(0, arrived(now, name) - arrived(before, name)) for name in region.entries}
    return max(0.0, spent_s(now) - spent_s(before)) * rows[entry] / max(1, sum(rows.values()))


def _parts_of_all(step: str, now: Sample, before: Sample) -> dict[int, float]:
    """Return which part of the rows of exchange ``step`` has arrived at each worker: lately, or if none has, so far."""
    rows = {worker: figures.arrived.get(step, 0) for worker, (figures, _) in now.workers.items()}
    earlier = {worker: figures.arrived.get(step, 0) for worker, (figures, _) in before.workers.items()}
    lately = {worker: max(0, count - earlier.get(worker, 0)) for worker, count in rows.items()}
    counted = lately if any(lately.values()) else rows
    total = max(1, sum(counted.values()))
    return {worker: count / total for worker, count in counted.items()}


class RateHistory:
    """The rates of a job in the last ten minutes, which outlast a restart: for who begins to watch it later. Any thread
    may call the methods.

    >>> history = RateHistory()
    >>> for at in (0.0, 1.0, 601.0):
    ...     history.add(RateMetrics(at, read_per_s=5.0, written_per_s=5.0, busy=0.5, waiting=0.0))
    >>> [rates.at for rates in history.put_into(JobMetrics("docs", "running", "steady"), since=0.0).rates]
    [1.0, 601.0]
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rates: deque[RateMetrics] = deque()

    def add(self, rates: RateMetrics) -> None:
        """Keep ``rates``, and drop those of more than ten minutes before."""
        with self._lock:
            self._rates.append(rates)
            while self._rates[0].at < rates.at - RATES_S:
                self._rates.popleft()

    def put_into(self, metrics: JobMetrics, since: float | None) -> JobMetrics:
        """Return ``metrics`` with the rates after ``since``; None: without any."""
        if since is None:
            return metrics
        with self._lock:
            return replace(metrics, rates=[rates for rates in self._rates if rates.at > since])

    def put_into_answer(self, asked: Future[JobMetrics], since: float | None) -> Future[JobMetrics]:
        """Do the same with metrics that come later."""
        if since is None:
            return asked
        answer: Future[JobMetrics] = Future()
        answer.set_running_or_notify_cancel()  # threads that wait for it cannot cancel it
        asked.add_done_callback(lambda done: answer.set_result(self.put_into(done.result(), since)))
        return answer
