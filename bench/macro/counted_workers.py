"""Workers that hold counts of keys instead of rows, and answer the orders of the real coordinator as workers do.

Messages between them and the coordinator are encoded and decoded as between processes, so that their bytes and the
coordinator's time for them count. The time of the workers is measured apart. What workers send each other is only
counted: a marker for each channel, by its real size.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import thread_time
from typing import Any, Final

import numpy as np

from malstrom_py.builder.plan import Plan
from malstrom_py.metrics import HeavyKey, HeavySlot, PartMetrics
from malstrom_py.rescale.channels.channel import ChannelId, Frame
from malstrom_py.rescale.moves.protocol import (
    BarrierPassed,
    Bye,
    ByesTaken,
    InjectBarrier,
    Leave,
    Marker,
    MarkersIn,
    OpenSlots,
    PackAhead,
    PackedAhead,
    PartsPolled,
    PollParts,
    RegionDone,
    RescaleMove,
    Shipped,
    ShippedIn,
    StartMove,
    Switched,
)
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import Checkpointer
from malstrom_py.snapshot.manifest import Artefact, Kind, artefact_path
from malstrom_py.workers.coordinator.job_machine import topology_of
from malstrom_py.workers.coordinator.recovery import RunStart, plan_image
from malstrom_py.workers.coordinator.worker_group import Arrived, StartGroup
from malstrom_py.workers.reports.figures import WorkerFigures
from malstrom_py.workers.reports.result import StepCounts
from malstrom_py.workers.transport.messages import (
    COORDINATOR,
    Built,
    Close,
    Connected,
    Content,
    Finish,
    Finished,
    OpenSources,
    Parted,
    PartWith,
    Reach,
    Reached,
    Saved,
    SourcesOpened,
    Start,
    Welcome,
    WorkerCounts,
)
from malstrom_py.workers.transport.wire import InStreams, OutStream

KEYS_PER_S: Final = 230_000
"""What a worker ships or installs, as docs/design/0011 measured for small states."""
KEY_BYTES: Final = 100
BATCH: Final = 256
"""How many messages the coordinator takes in one step, as from ZeroMQ."""
HEAVY_KEYS: Final = 16
HEAVY_SLOTS: Final = 8
_ADDRESS: Final = "tcp://10.0.128.128:45678"
_ROWS_PER_S: Final = 50_000


@dataclass
class Traffic:
    """What has been sent: messages by kind, and their bytes. ``between``: in the channels between workers."""

    letters: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    between: Counter[str] = field(default_factory=Counter)
    between_bytes: int = 0

    @property
    def control(self) -> int:
        """The messages between the coordinator and workers, without periodic figures."""
        return self.letters.total() - self.letters[WorkerCounts.__name__]


class CountedWorkers:
    """The workers of a run of ``plan`` whose keyed steps hold ``keys`` keys each, spread evenly. A `WorkerGroup`.

    ``readers``: returns who reads each part, as the coordinator knows it.
    """

    def __init__(self, plan: Plan, *, keys: int, readers: Callable[[], Mapping[tuple[str, str], int]]) -> None:
        self.wake = threading.Event()
        self.busy = False
        self.at_work = True
        self.traffic = Traffic()
        self.workers_s = 0.0
        """The time of the workers, which is not the coordinator's."""
        self.moves = 0
        self.gained_most = 0
        """The most slots that a worker has gained or lost in a move of the last rescale."""
        self._plan = plan
        self._topology = topology_of(plan)
        self._fed = [exchange for exits in self._topology.regions.values() for exchange in exits]
        self._stateful = [name for name, step in plan_image(plan).steps.items() if step.stateful]
        self._keys_per_slot = keys / plan.slots
        self._readers = readers
        self._checkpointer: Checkpointer | None = None
        self._saved: set[int] = set()
        self._parts: dict[int, dict[str, dict[str, tuple[int, bool]]]] = {}
        self._here: dict[int, OutStream] = {}
        self._out: dict[int, OutStream] = {}
        self._in = InStreams(COORDINATOR, 1)
        self._incarnation = 1
        self._orders: deque[tuple[int, Content]] = deque()
        self._in_flight: deque[list[bytes]] = deque()
        self._taken: list[Arrived] = []
        self._table: np.ndarray[Any, Any] = np.zeros(0, np.int64)
        self._move: RescaleMove | None = None
        self._slots: dict[int, list[int]] = {}
        self._done_at_cut: set[int] = set()
        self._share: dict[int, int] = {}
        self._lost: dict[int, int] = {}
        self._leaving: set[int] = set()
        self._counts: dict[int, Mapping[str, StepCounts]] = {}
        self._figures: dict[int, WorkerFigures] = {}

    # The interface of a group.

    @property
    def has_sent(self) -> bool:
        """Whether messages of workers to the coordinator are in flight."""
        return bool(self._in_flight)

    @property
    def workers(self) -> Sequence[int]:
        return list(self._here)

    def begin(self, begun: RunStart | None) -> None:
        assert begun is not None
        self._checkpointer, self._incarnation = begun.checkpointer, begun.incarnation
        self._in = InStreams(COORDINATOR, begun.incarnation)

    def start(self, start: StartGroup) -> None:
        present = list(self._here)
        for worker in start.workers:
            self._here[worker] = OutStream(COORDINATOR, worker, self._incarnation)
            self._out[worker] = OutStream(worker, COORDINATOR, self._incarnation)
        addresses = dict.fromkeys(start.workers, _ADDRESS)
        everyone = {**dict.fromkeys(present, _ADDRESS), **addresses}
        for worker in start.workers:
            self.send(worker, start.build(worker, self._incarnation))
            self.send(worker, Reach({other: at for other, at in everyone.items() if other != worker}))
        for worker in present:
            self.send(worker, Welcome(addresses))
        if not start.joins:
            with self._as_workers():
                self._table = np.array(start.table)
        self._taken += [Connected(worker) for worker in start.workers]

    def send(self, worker: int, content: Content) -> None:
        kind = type(content).__name__
        self.traffic.letters[kind] += 1
        for message in self._here[worker].messages([content]):
            self.traffic.bytes[kind] += sum(map(len, message))
        self._orders.append((worker, content))

    def arrived(self) -> Sequence[Arrived]:
        with self._as_workers():
            while self._orders:
                self._obey(*self._orders.popleft())
        taken, self._taken = self._taken, []
        for _ in range(min(BATCH, len(self._in_flight))):
            for content in self._in.open(self._in_flight.popleft()):
                if isinstance(content, WorkerCounts):
                    self._counts[content.worker] = content.counts
                    self._figures[content.worker] = content.figures
                elif not isinstance(content, Built | Reached):
                    taken.append(content)
        return taken

    def receive(self) -> Sequence[Arrived]:
        return self.arrived()

    def wait(self, wait_s: float | None, *, pending: bool = False) -> None:
        """Return: each worker answers an order when it is taken."""

    def check_room(self, size: int, *, now: bool = False) -> None:
        """There is room."""

    def counts(self) -> Mapping[int, Mapping[str, StepCounts]]:
        return {worker: self._counts.get(worker, {}) for worker in self._here}

    def figures(self) -> Mapping[int, WorkerFigures]:
        return {worker: found for worker in self._here if (found := self._figures.get(worker)) is not None}

    def finished(self, members: Sequence[int], version: int) -> bool:
        return False

    def suspended(self, members: Sequence[int], version: int) -> bool:
        return False

    def fixed(self) -> Mapping[int, str]:
        return {}

    def remove(self, workers: Sequence[int]) -> None:
        for worker in workers:
            self.send(worker, Close())
        with self._as_workers():
            self._orders.clear()
            for worker in workers:
                del self._here[worker]
                self._counts.pop(worker, None)
                self._figures.pop(worker, None)

    def close(self, *, failed: bool) -> None:
        self.remove(list(self._here))

    # The workers.

    @contextmanager
    def _as_workers(self) -> Iterator[None]:
        began = thread_time()
        yield
        self.workers_s += thread_time() - began

    def _answer(self, worker: int, *contents: Content) -> None:
        for content in contents:
            kind = type(content).__name__
            self.traffic.letters[kind] += 1
            for message in self._out[worker].messages([content]):
                self.traffic.bytes[kind] += sum(map(len, message))
                self._in_flight.append(message)

    def _obey(self, worker: int, order: Content) -> None:
        match order:
            case StartMove():
                self._begin_move(order.move)
                self._switch(worker, order.move)
            case OpenSlots():
                if worker not in self._done_at_cut:
                    self._answer(worker, self._done(worker, order.region))
            case PollParts():
                self._answer(worker, PartsPolled(order.version, worker, order.source))
            case Leave():
                self._leave(worker)
            case PackAhead():
                self._answer(worker, PackedAhead(order.snapshot, worker))
            case InjectBarrier():
                self._save(worker, order.snapshot)
            case _:
                self._reply(worker, order)

    def _reply(self, worker: int, order: Content) -> None:
        match order:
            case OpenSources():
                self._answer(worker, SourcesOpened(worker, ""))
            case PartWith():
                self._answer(worker, Parted(worker))
            case Finish():
                self._answer(worker, Finished(worker, (), self._counts_of(0.0)))
            case Reach() | Welcome():
                self._answer(worker, Reached(worker))
            case Start() | Close():
                pass
            case _:
                self._answer(worker, Built(worker))

    def _begin_move(self, move: RescaleMove) -> None:
        """Note what each worker gains and loses, and count what goes through the channels."""
        if self._move is not None and self._move.version == move.version:
            return
        if self._move is None or not self._move.more:
            self.moves = self.gained_most = 0
        self._move = move
        self.moves += 1
        table = np.array(move.table)
        changed = np.flatnonzero(table != self._table)
        gained, self._lost = Counter(table[changed].tolist()), Counter(self._table[changed].tolist())
        self._table = table
        self._share = {worker: max(gained[worker], self._lost[worker]) for worker in move.everyone}
        self._done_at_cut = {worker for worker in move.everyone if not gained[worker]}
        self.gained_most = max(self.gained_most, *self._share.values())
        everyone = len(move.everyone)
        for exchange in self._topology.exchanges:
            self._between(exchange, Marker(move, 10**9, 10**9), everyone**2)
        for exchange in self._fed:
            self._between(exchange, Shipped(move.version), everyone**2)

    def _between(self, exchange: str, message: Marker | Shipped | Bye, count: int) -> None:
        frame = Frame(ChannelId(exchange, 0, 1), control=message)
        size = sum(len(part) for parts in OutStream(0, 1, 1).messages([frame]) for part in parts)
        self.traffic.between[type(message).__name__] += count
        self.traffic.between_bytes += size * count

    def _switch(self, worker: int, move: RescaleMove) -> None:
        version, topology = move.version, self._topology
        self._answer(worker, Switched(version, worker))
        self._answer(worker, *(MarkersIn(version, worker, exchange) for exchange in topology.exchanges))
        self._answer(worker, *(ShippedIn(version, worker, exchange) for exchange in self._fed))
        at_cut = [region for region, exits in topology.regions.items() if not exits or worker in self._done_at_cut]
        self._answer(worker, *(self._done(worker, region) for region in at_cut))

    def _done(self, worker: int, region: str) -> RegionDone:
        assert self._move is not None
        keys = int(self._lost[worker] * self._keys_per_slot)
        paused_s = self._share[worker] * self._keys_per_slot / KEYS_PER_S
        return RegionDone(self._move.version, worker, region, paused_s, keys, keys * KEY_BYTES)

    def _leave(self, leaver: int) -> None:
        assert self._move is not None
        self._leaving.add(leaver)
        leavers = set(self._move.old).difference(self._move.new)
        if self._leaving != leavers:
            return
        self._leaving = set()
        for exchange in self._topology.exchanges:
            self._between(exchange, Bye(), len(leavers) * len(self._move.everyone))
        for worker in self._move.new:
            for exchange in self._topology.exchanges:
                self._answer(worker, ByesTaken(self._move.version, worker, exchange))

    def _save(self, worker: int, snapshot: str) -> None:
        assert self._checkpointer is not None
        if not self._parts:
            for (source, part), reader in self._readers().items():
                self._parts.setdefault(reader, {}).setdefault(source, {})[part] = (123_456_789, False)
        kind: Kind = "delta" if worker in self._saved else "full"
        save = self._checkpointer.save_delta if kind == "delta" else self._checkpointer.save_snapshot
        self._saved.add(worker)
        id, artefacts = SnapshotId(snapshot), []
        for step in self._stateful:
            digest = save(id, step, worker, b"state")
            artefacts.append(Artefact(step, worker, kind, id, artefact_path(id, step, worker, kind), 5, digest))
        frontiers = dict.fromkeys(self._topology.exchanges, 10**9)
        saved = Saved(snapshot, worker, tuple(artefacts), self._parts.get(worker, {}), {}, frontiers, ())
        self._answer(worker, BarrierPassed(snapshot, worker, 0.002), saved)

    def report_counts(self, second: float) -> None:
        """Let all workers send their figures after this many seconds of work."""
        with self._as_workers():
            self._parts, self._slots = {}, {}
            for slot, owner in enumerate(self._table.tolist()):
                self._slots.setdefault(owner, []).append(slot)
            parts: dict[int, list[PartMetrics]] = {}
            for (source, part), reader in self._readers().items():
                found = PartMetrics(source, part, reader, int(_ROWS_PER_S * second), "123456", watermark=second)
                parts.setdefault(reader, []).append(found)
            for worker in self._here:
                figures = self._figures_of(worker, second, parts.get(worker, []))
                self._answer(worker, WorkerCounts(worker, self._counts_of(second), figures))

    def _counts_of(self, second: float) -> dict[str, StepCounts]:
        rows, keys = int(_ROWS_PER_S * second), int(self._keys_per_slot * self._plan.slots / max(1, len(self._here)))
        return {
            step.name: StepCounts(
                step.kind,
                rows,
                {port.name: rows for port in step.ports},
                keys=keys if step.name in self._stateful else None,
                epoch=int(second),
                busy_s=second / 2,
            )
            for step in self._plan.steps
        }

    def _figures_of(self, worker: int, second: float, parts: Sequence[PartMetrics]) -> WorkerFigures:
        exchanges = self._topology.exchanges
        return WorkerFigures(
            host=f"node-{worker // 8}",
            pid=worker,
            cpu_s=second,
            rss_bytes=1 << 30,
            busy_s=second / 2,
            arrived={exchange: int(_ROWS_PER_S * second) for exchange in exchanges},
            backlog=dict.fromkeys(exchanges, 0),
            state_bytes=dict.fromkeys(self._stateful, 1 << 28),
            parts=parts,
            slot_loads=dict.fromkeys(self._slots.get(worker, ()), int(1_000 * second)),
            sampled=int(1_000 * second),
            heavy_keys=[
                HeavyKey(exchange, f"key-{worker}-{number}", 0.01, worker)
                for exchange in exchanges
                for number in range(HEAVY_KEYS)
            ],
            heavy_slots=[
                HeavySlot(exchange, number, 0.01, worker) for exchange in exchanges for number in range(HEAVY_SLOTS)
            ],
        )
