"""The figures of a worker: its use of time, its parts, the size of its state, its heaviest keys and slots.

Rule: nothing is done per record. Time is taken per step of the worker, keys are sampled from some batches, and what
costs more (positions of parts, sizes of states) is measured again only when it takes a hundredth of the time.
"""

from __future__ import annotations

import os
import resource
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import heapify, heapreplace
from itertools import islice, repeat
from random import Random
from time import perf_counter_ns, thread_time_ns
from typing import Any, Final

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.equality import settled_keys
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.data.time import PER_SECOND
from malstrom_py.errors import shown
from malstrom_py.metrics import HeavyKey, HeavySlot, PartMetrics
from malstrom_py.operators.event_time import GenerateEpochs
from malstrom_py.operators.keyed import StatefulOperator
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.rescale.load import COUNTED_MAX, row_weight
from malstrom_py.workers.engine.exchange import Exchange
from malstrom_py.workers.engine.graph_builder import WorkerGraph
from malstrom_py.workers.engine.rough_sizes import rough_size
from malstrom_py.workers.reports.figures import WorkerFigures

SKETCH_KEYS: Final = 64
"""The number of keys that a sketch counts."""

SAMPLED_ROWS: Final = 32
"""The rows that are sampled of a batch. Before as many have arrived no batch is sampled."""

_SAMPLE_NS: Final = 20_000_000
_SAMPLE_COST: Final = 500
"""Sampling takes at most a five-hundredth of the processor time."""

_SAMPLE_WAIT: Final = 50
"""And at most a fiftieth of the time: a partitioner of the user may wait."""

_SAMPLED_KEYS: Final = 64
_SAMPLED_BYTES: Final = 1 << 20
_KNOWN_ROWS: Final = 256
_HALVED_ROWS: Final = 1 << 16
_PARTS_MAX: Final = 64
_HEAVY_KEYS_MAX: Final = 16
_HEAVY_SLOTS_MAX: Final = 8
_EVERY_NS: Final = 1_000_000_000
_COST: Final = 100
"""Samples of keys, and the expensive figures, take at most a hundredth of the time."""

_PAGE_BYTES: Final = resource.getpagesize()
_RANDOM: Final = Random(1)


class KeySketch:
    """The heaviest of many keys, by the Space-Saving algorithm: counts `SKETCH_KEYS` keys, so memory is bounded.

    A new key takes the place of the lightest one, with its count, by which it may be counted too high. Counts are
    halved after many rows, so that they are of recent rows.

    >>> sketch = KeySketch()
    >>> sketch.add(["a", "b", "a", "a"], [1, 2, 1, 1])
    >>> sketch.heaviest(1), sketch.heaviest_slots(1)
    ([('a', 0.75)], [(1, 0.75)])
    """

    def __init__(self) -> None:
        self._counts: dict[Any, int] = {}
        self._slots: Counter[int] = Counter()
        self._rows = 0

    def add(self, keys: Sequence[Any], slots: Sequence[int]) -> None:
        """Count ``keys`` and their ``slots``."""
        counts = self._counts
        self._slots.update(slots)
        new: list[tuple[Any, int]] = []
        for key, times in Counter(keys).items():
            if key in counts:
                counts[key] += times
            elif len(counts) < SKETCH_KEYS:
                counts[key] = times
            else:
                new.append((key, times))
        if new:
            self._replace_lightest(new)
        self._rows += len(keys)
        if self._rows >= _HALVED_ROWS:
            self._counts = {key: count // 2 for key, count in counts.items() if count > 1}
            self._slots = Counter({slot: count // 2 for slot, count in self._slots.items() if count > 1})
            self._rows //= 2

    def keep(self, slots_of: Callable[[Sequence[Any]], Sequence[int]], owns: Callable[[int], bool]) -> None:
        """Forget the keys of slots that this worker does not own (any more).

        What was counted before then weighs little beside the rows that arrive from now on: the other keys of this
        worker have other shares, and those that are new here have no count yet.
        """
        keys = list(self._counts)
        kept = [key for key, slot in zip(keys, slots_of(keys), strict=True) if owns(slot)]
        slots = {slot: count for slot, count in self._slots.items() if owns(slot)}
        rows = sum(slots.values())
        scale = min(1.0, _KNOWN_ROWS / max(1, rows))
        self._counts = {key: round(self._counts[key] * scale) for key in kept}
        self._slots = Counter({slot: round(count * scale) for slot, count in slots.items()})
        self._rows = round(rows * scale)

    @property
    def is_known(self) -> bool:
        """Whether there are rows enough for shares."""
        return self._rows >= _KNOWN_ROWS

    def _replace_lightest(self, new: Sequence[tuple[Any, int]]) -> None:
        """Put each of the ``new`` keys in the place of the lightest one then, of several the one that came first."""
        counts = self._counts
        # No two have the same number: keys, which may have no order, are not compared.
        lightest = [(count, number, key) for number, (key, count) in enumerate(counts.items())]
        heapify(lightest)
        for number, (key, times) in enumerate(new, len(lightest)):
            count, _, replaced = lightest[0]
            del counts[replaced]
            counts[key] = count + times
            heapreplace(lightest, (count + times, number, key))

    def heaviest(self, most: int) -> list[tuple[Any, float]]:
        """Return the ``most`` heaviest keys, each with its share of the rows, the heaviest first."""
        ordered = sorted(self._counts.items(), key=lambda counted: -counted[1])
        return [(key, count / self._rows) for key, count in ordered[:most]]

    def heaviest_slots(self, most: int) -> list[tuple[int, float]]:
        """Do the same for slots."""
        return [(slot, count / self._rows) for slot, count in self._slots.most_common(most)]


class KeySampler:
    """Samples the keys of the rows that arrive by ``exchange``."""

    def __init__(self, exchange: Exchange) -> None:
        self.sketch = KeySketch()
        self.rows = 0
        """How many rows have arrived."""
        self.loads: Counter[int] = Counter()
        """About what the rows of each slot weigh, since the start: each sampled row counts for those before it."""
        self.sampled = 0
        """How many rows were sampled."""
        self.squares = 0.0
        """The sum of the squares of what each sampled row has counted for."""
        self._sampled_at = 0
        self._exchange = exchange
        self._version = exchange.version
        self._next_ns = 0
        self._offset = 0

    def saw(self, batch: Batch) -> None:
        """Note a batch that has arrived. Some of them are sampled."""
        self.rows += len(batch)
        now_ns = perf_counter_ns()
        if now_ns < self._next_ns or self.rows < SAMPLED_ROWS:
            return
        began_ns = thread_time_ns()
        # The code of the user's keys and partitioner may raise, which their step then reports, or take long.
        with suppress(Exception):
            self._sample(batch)
        # At random times: keys that come in turn would meet samples at fixed ones in the same places again and again.
        # Mostly by processor time: a wait for a processor would put the next sample off by ten seconds.
        cost_ns = max(_SAMPLE_COST * (thread_time_ns() - began_ns), _SAMPLE_WAIT * (perf_counter_ns() - now_ns))
        between_ns = max(_SAMPLE_NS, cost_ns)
        self._next_ns = now_ns + int(between_ns * _RANDOM.uniform(0.5, 1.5))

    def keep_owned(self) -> None:
        """Forget the keys that have moved away, if the table has changed."""
        if self._version == self._exchange.version:
            return
        self._version = self._exchange.version
        try:
            self.sketch.keep(self._exchange.slots_of, self._exchange.owns)
        except Exception:  # of the user's partitioner, or the equality of keys
            self.sketch = KeySketch()

    def _sample(self, batch: Batch) -> None:
        stride = max(1, len(batch) // SAMPLED_ROWS)
        self._offset = (self._offset + 1) % stride
        rows = range(self._offset, len(batch), stride)[:SAMPLED_ROWS]
        column = batch.key_column
        if column is None:
            held = batch.keys or []
            keys = [held[row] for row in rows]
        else:
            keys = settled_keys([column[row].as_py() for row in rows])
        # F3: with one worker these are the only keys that are hashed.
        slots = self._exchange.slots_of(keys)
        self.keep_owned()
        # What was sent by the table before may still arrive here for keys that have moved away.
        here = [(key, slot) for key, slot in zip(keys, slots, strict=True) if self._exchange.owns(slot)]
        self.sketch.add([key for key, _ in here], [slot for _, slot in here])
        self.sampled += len(rows)
        each, self._sampled_at = (self.rows - self._sampled_at) / len(rows), self.rows
        for slot, size in zip(slots, _sizes(batch, rows), strict=True):
            weight = round(each * row_weight(size))
            self.loads[slot] += weight
            self.squares += weight**2


def _sizes(batch: Batch, rows: range) -> Iterator[int]:
    """Return about how many bytes each of ``rows`` has."""
    if isinstance(batch, ColumnBatch):
        return repeat(batch.size // len(batch), len(rows))
    return (rough_size(batch.values[row]) for row in rows)


class TimeUse:
    """The use of time of a worker with ``exchanges``: busy, waiting with a backlog, or idle."""

    def __init__(self, exchanges: Sequence[Exchange]) -> None:
        self.busy_ns = 0
        self.waiting_ns = 0
        self._exchanges = exchanges
        self._until_ns = perf_counter_ns()
        self.backlogged: list[Exchange] = []

    def stepped(self, began_ns: int, *, busy: bool) -> None:
        """Note a step of the worker, which began at ``began_ns`` and ends now. ``busy``: whether it did anything."""
        now_ns = perf_counter_ns()
        if self.backlogged:
            since_ns = self._until_ns
            for exchange in self.backlogged:
                exchange.waiting_ns += now_ns - since_ns
            self.waiting_ns += (began_ns if busy else now_ns) - since_ns
            self.backlogged.clear()
        if busy:
            self.busy_ns += now_ns - began_ns
        self._until_ns = now_ns
        for exchange in self._exchanges:  # a comprehension would cost more, and almost always be empty
            if exchange.backlogged:
                self.backlogged.append(exchange)


class Measuring:
    """The figures of the worker ``number`` that runs ``graph``."""

    def __init__(self, number: int, graph: WorkerGraph) -> None:
        self._number = number
        self._graph = graph
        self._samplers = {name: KeySampler(exchange) for name, exchange in graph.exchanges.items()}
        for region, region_input in zip(graph.regions, graph.inputs, strict=True):
            region_input.samplers = {name: self._samplers[name] for name in region.entries}
        self.time = TimeUse(list(graph.exchanges.values()))
        self._again_ns = 0
        self._parts: Mapping[str, PartMetrics] = {}
        self._state_bytes: Mapping[str, int] = {}
        self._loads: Mapping[int, int] = {}
        self._sampled, self._squares = 0, 0.0

    def figures(self, *, fresh: bool = False) -> WorkerFigures:
        """Return the figures now; ``fresh``: the expensive ones too, however often."""
        began_ns = perf_counter_ns()
        if fresh or began_ns >= self._again_ns:
            self._parts = dict(islice(self._read_parts(), _PARTS_MAX))
            self._state_bytes = dict(self._state_sizes())
            self._loads, samplers = self._slot_loads(), self._samplers.values()
            self._sampled, self._squares = sum(one.sampled for one in samplers), sum(one.squares for one in samplers)
            took_ns = perf_counter_ns() - began_ns
            self._again_ns = began_ns + max(_EVERY_NS, _COST * took_ns)
        for sampler in self._samplers.values():
            sampler.keep_owned()
        heavy = [(name, sampler) for name, sampler in self._samplers.items() if sampler.sketch.is_known]
        return WorkerFigures(
            host=_HOST,
            pid=os.getpid(),
            cpu_s=_cpu_s(),
            rss_bytes=_rss_bytes(),
            **({} if self._graph.memory is None else self._graph.memory.figures),
            busy_s=self.time.busy_ns / 1e9,
            waiting_s=self.time.waiting_ns / 1e9,
            arrived={name: sampler.rows for name, sampler in self._samplers.items()},
            backlog={name: exchange.backlog for name, exchange in self._graph.exchanges.items()},
            state_bytes=self._state_bytes,
            slot_loads=self._loads,
            sampled=self._sampled,
            sampled_squares=self._squares,
            parts=[self._parts[name] for name in self._open_parts() if name in self._parts],
            heavy_keys=[
                HeavyKey(name, shown(key), share, self._number)
                for name, sampler in heavy
                for key, share in sampler.sketch.heaviest(_HEAVY_KEYS_MAX)
            ],
            heavy_slots=[
                HeavySlot(name, slot, share, self._number)
                for name, sampler in heavy
                for slot, share in sampler.sketch.heaviest_slots(_HEAVY_SLOTS_MAX)
            ],
        )

    def _slot_loads(self) -> Mapping[int, int]:
        loads: Counter[int] = sum((sampler.loads for sampler in self._samplers.values()), Counter())
        return dict(loads.most_common(COUNTED_MAX)) if len(loads) > COUNTED_MAX else dict(loads)

    def _open_parts(self) -> Iterator[str]:
        """Return the parts that are read here now: one that has ended or moved away has no figures any more."""
        return (
            name
            for source in self._graph.operators.values()
            if isinstance(source, ReadSource)
            for name in source.open_names
        )

    def _read_parts(self) -> Iterator[tuple[str, PartMetrics]]:
        operators = self._graph.operators.values()
        epochs = {
            part: (epoch, idle, PER_SECOND[operator.unit])
            for operator in operators
            if isinstance(operator, GenerateEpochs)
            for part, epoch, idle in operator.parts()
        }
        for source in operators:
            if isinstance(source, ReadSource):
                for name, read in source.open_parts():
                    epoch, idle, per_second = epochs.get(name, (MIN_EPOCH, False, 1))
                    known = MIN_EPOCH < epoch < MAX_EPOCH
                    yield (
                        name,
                        PartMetrics(
                            source.context.step,
                            read.part.encode(errors="backslashreplace").decode(),  # the name of a file may be any bytes
                            self._number,
                            read.rows,
                            read.position,
                            read.lag_rows,
                            read.lag_bytes,
                            watermark=epoch / per_second if known else None,
                            idle=idle,
                        ),
                    )

    def _state_sizes(self) -> Iterator[tuple[str, int]]:
        for step, operator in self._graph.operators.items():
            if isinstance(operator, StatefulOperator) and (keys := operator.keys):
                sampled, size = operator.state.sampled_bytes(_SAMPLED_KEYS, _SAMPLED_BYTES)
                if sampled:
                    yield step, size * keys // sampled


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _rss_bytes() -> int:
    """Return the resident memory of this process; its peak where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123  a file of the kernel, read once a second
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


_HOST: Final = socket.gethostname()
