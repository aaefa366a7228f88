"""The source region of one worker, by hand: parts come and go, and what came out is kept."""

from __future__ import annotations

from functools import partial
from typing import Any

from malstrom_py.data.batch import Batch
from malstrom_py.data.epochs import limit_out_of_orderness
from malstrom_py.data.messages import MIN_EPOCH, AbsBarrier, Epoch, PartReleased
from malstrom_py.operators.base import Operator, StepContext
from malstrom_py.operators.event_time import LATE, ON_TIME, AssignTimestamps, GenerateEpochs
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.sources.base import Part
from malstrom_py.testing import CapturingPersistenceBackend, VirtualClock
from malstrom_py.workers.engine.executor import Executor, NodeSpec
from tests.unit.operators.stepping import Recorder

BOUND = 3


class OneWorker:
    """The source region of one worker: source, timestamps (the value itself), epochs, and what came out of these."""

    def __init__(self, source: Any) -> None:
        self.source = ReadSource(StepContext("test", "in"), source=source)
        at = AssignTimestamps(StepContext("test", "at"), fn=lambda value: value, unit="ms")
        generator = limit_out_of_orderness(BOUND)
        self.epochs = GenerateEpochs(StepContext("test", "epochs"), generator=generator, unit="ms")
        self.on_time, self.late = Recorder(), Recorder()
        operators: list[tuple[Operator, tuple[tuple[int, int], ...], tuple[bool, ...]]] = [
            (self.source, (), (True,)),
            (at, ((0, 0),), (True,)),
            (self.epochs, ((1, 0),), (True, False)),
            (self.on_time, ((2, ON_TIME),), ()),
            (self.late, ((2, LATE),), ()),
        ]
        self.executor = Executor([NodeSpec(o.context.step, o, inputs, ports) for o, inputs, ports in operators])
        self.clock = VirtualClock()

    def call(self, function: Any) -> Any:
        result = self.executor.call(0, function)
        self.executor.run()
        return result

    def open(self, *parts: str) -> OneWorker:
        self.call(partial(self.source.open, parts=[Part(part) for part in parts]))
        return self

    def poll(self, rows_max: int = 1) -> int:
        read: int = self.call(partial(self.source.poll, rows_max=rows_max, linger_s=0.0, clock=self.clock))
        return read

    def finish(self) -> OneWorker:
        while not self.source.finished:
            self.poll(100)
        return self

    def give(self, part: str, other: OneWorker, *, polled: bool = True) -> PartReleased:
        """Release ``part``; ``polled``: whether the other worker may poll it immediately (R6)."""
        position, released = self.call(partial(self.source.release, part=Part(part)))
        assert isinstance(released, PartReleased)
        other.call(partial(other.source.take, part=Part(part), position=position, state=released.state))
        if polled:
            other.source.poll_gained()
        return released

    def epoch(self) -> int:
        return max((m.time for m in self.on_time.messages if isinstance(m, Epoch)), default=MIN_EPOCH)


def values_of(*recorders: Recorder) -> list[int]:
    return [value for r in recorders for batch in r.messages if isinstance(batch, Batch) for value in batch.values]


def positions(worker: OneWorker) -> dict[str, Any]:
    """What a barrier persists of the source: part -> position, and whether it is finished."""
    backend = CapturingPersistenceBackend()
    worker.executor.push(0, AbsBarrier("s", backend))
    worker.executor.run()
    found: dict[str, Any] = worker.source.context.codec.decode_at_rest(backend.states["in"])
    return found
