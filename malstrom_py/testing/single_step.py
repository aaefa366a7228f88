"""One step alone, on the graph of one worker: its plan, fake remote workers, open inputs and recorded outputs.

Rule: the step has the same builder, planner and graph as in a job. The channels to the fake workers have real frames,
numbers and credit; a fake worker keeps what it receives, and returns credit when the test takes it.

Rule: between two calls, messages are in flight only at the fake workers, and in a step that awaits calls until
`finish_calls`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

from malstrom_py.builder.job import Job
from malstrom_py.builder.keyed_stream import KeyedStreamBuilder
from malstrom_py.builder.plan import SOURCE_REGION, Plan, Step, StreamRef, Traits
from malstrom_py.builder.stream import StreamBuilder
from malstrom_py.clock import Clock
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import (
    AbsBarrier,
    Acquire,
    Collect,
    Control,
    Epoch,
    Interrogate,
    PartMessage,
    PartOpened,
    PersistenceBackend,
    Rescale,
    StateMessage,
    SuspendMarker,
)
from malstrom_py.errors import PlanError
from malstrom_py.errors.text import describe_function
from malstrom_py.operators.base import Operator, OperatorFactory, Outlet, StepContext
from malstrom_py.operators.enrich.enrich import Enrich
from malstrom_py.rescale.channels.channel import (
    Barrier,
    ChannelId,
    Credit,
    Frame,
    Grant,
    Item,
    RemoteInbound,
    RemoteOutbound,
    Suspend,
)
from malstrom_py.rescale.moves.placement import first_table
from malstrom_py.worker_context import Resources
from malstrom_py.workers.engine.exchange import Exchange
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.engine.graph_builder import Membership, build_graph

StreamFactory = Callable[..., Any]
"""Takes the input stream (or streams) and returns the outputs of the step: a stream, a tuple of streams, or None."""

INPUT_REGION = "input"


class OpenEnd(Operator):
    """An input of the step under test: forwards every message."""

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        out.send(batch)


class Recorder(Operator):
    """An output of the step under test: keeps every message, in order."""

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.messages: list[Batch | Control] = []

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        self.messages.append(batch)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        self.messages.append(epoch)

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        self.messages.append(message)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        self.messages.append(message)

    def take(self) -> list[Batch | Control]:
        """Return the messages recorded since the last call."""
        messages, self.messages = self.messages, []
        return messages


@dataclass(frozen=True, slots=True)
class SingleStep:
    """The plan of a step under test. ``outputs`` and ``dead_letters`` are (recorder, step that it records)."""

    plan: Plan
    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, str], ...]
    dead_letters: tuple[tuple[str, str], ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps that the factory made."""
        own = {*self.inputs, *(name for name, _ in (*self.outputs, *self.dead_letters))}
        return tuple(step for step in self.plan.steps if step.name not in own)

    def crosses(self, recorder: str) -> bool:
        """Return whether an exchange is between the input and an output."""
        step = self.plan.steps[self.plan.rank(recorder)]
        return step.traits.region != self.plan.steps[0].traits.region


def plan_single_step(
    factory: StreamFactory, *, keyed: bool, timed: bool, inputs: int, slots: int, types: Iterable[type]
) -> SingleStep:
    """Plan the step that ``factory`` makes of ``inputs`` open inputs. `PlanError` if it does not return streams."""
    _check_factory(factory, inputs)
    job = Job("under-test", slots)
    for kind in types:
        job.register_type(kind)
    traits = Traits(
        keyed=keyed,
        unit="ms" if timed else None,
        epochs=timed,
        split=timed,
        region=INPUT_REGION if keyed else SOURCE_REGION,
    )
    names = tuple(f"input-{number}" for number in range(inputs))
    builder: type[StreamBuilder[Any, Any]] = KeyedStreamBuilder if keyed else StreamBuilder
    ends = [builder(job, job.add(Step(name, "source", OpenEnd, traits=traits)), traits) for name in names]
    try:
        streams = _streams(factory(*ends))
    except PlanError as error:
        option = _missing_option(error, keyed=keyed, timed=timed)
        if option is None:
            raise
        raise PlanError(f"{error}. In a test of the step alone give {option}, so that the stream has them") from None
    recorded = [(stream.ref, stream.traits) for stream in streams]
    if not any(stream.ref.step not in names for stream in streams) and streams:
        raise PlanError("the factory returned its input: return the output of the step")
    outputs = _record(job, "output", recorded)
    plan = job.plan()
    buried = [
        (StreamRef(step.name, step.dead_letter_port), job.dead_letters(step.name).traits)
        for step in plan.steps
        if step.dead_letter_port is not None
    ]
    dead_letters = _record(job, "dead-letters", buried)
    return SingleStep(job.plan() if buried else plan, names, outputs, dead_letters)


def _check_factory(factory: object, inputs: int) -> None:
    """`PlanError` if ``factory`` is not a function of ``inputs`` streams, but for example a logic."""
    takes = "a stream" if inputs == 1 else f"{inputs} streams"
    instead = f"pass a function that takes {takes} and returns the output of the step, such as "
    if isinstance(factory, type) or not callable(factory):
        name = factory.__name__ if isinstance(factory, type) else type(factory).__name__
        raise PlanError(
            f"got {'the class ' if isinstance(factory, type) else 'an object of type '}{name}, not a function of the "
            f"stream: {instead}lambda stream: stream.stateful_op('step', {name}(…))"
        )
    try:
        inspect.signature(factory).bind(*range(inputs))
    except TypeError as error:
        raise PlanError(
            f"{describe_function(factory)} cannot be called with {takes} ({error}): {instead}lambda stream: "
            f"stream.map('step', fn)"
        ) from None
    except ValueError:
        return  # a builtin without a signature: the call itself fails


def _missing_option(error: PlanError, *, keyed: bool, timed: bool) -> str | None:
    """Return the missing option of the test kit that caused ``error``, or None."""
    if not keyed and "has no keys" in str(error):
        return "keyed=True"
    return "timed=True" if not timed and "has no watermarks" in str(error) else None


def _streams(made: Any) -> list[StreamBuilder[Any, Any]]:
    streams = [] if made is None else list(made) if isinstance(made, tuple | list) else [made]
    for stream in streams:
        if not isinstance(stream, StreamBuilder):
            raise PlanError(f"the factory takes a stream and returns streams, got {type(stream).__name__}")
    return streams


def _record(job: Job, prefix: str, streams: list[tuple[StreamRef, Traits]]) -> tuple[tuple[str, str], ...]:
    recorders = []
    for number, (ref, traits) in enumerate(streams):
        job.add(Step(f"{prefix}-{number}", "sink", Recorder, (ref,), (), traits=traits))
        recorders.append((f"{prefix}-{number}", ref.step))
    return tuple(recorders)


def as_step(factory: OperatorFactory, *, name: str = "step") -> Callable[[Any], Any]:
    """Return a function ``stream -> stream`` for your operator, for `OperatorTester` and ``check_operator``.

    ``factory`` builds the operator from a `StepContext`, as the classes of ``malstrom_py.operators`` do.
    """

    def build(stream: StreamBuilder[Any, Any]) -> StreamBuilder[Any, Any]:
        ref = stream.job.add(Step(name, "custom", factory, (stream.ref,), traits=stream.traits))
        return type(stream)(stream.job, ref, stream.traits)

    return build


class RemoteWorker:
    """A fake worker ``remote``: the other ends of worker ``local``'s channels of ``exchanges``."""

    def __init__(
        self, remote: int, local: int, exchanges: Sequence[str], codec: Codec, credit: Credit, incarnation: int
    ) -> None:
        self._out: dict[str, RemoteOutbound] = {}
        self._in: dict[str, RemoteInbound] = {}
        for name in exchanges:
            encode, decode = partial(codec.encode_batch, step=name), partial(codec.decode_batch, step=name)
            self._out[name] = RemoteOutbound(ChannelId(name, remote, local), encode, incarnation, credit)
            self._in[name] = RemoteInbound(ChannelId(name, local, remote), decode, incarnation)

    def put(self, exchange: str, item: Item) -> None:
        """Send one item to the worker under test."""
        channel = self._out[exchange]
        match item:
            case Batch():
                channel.put(item)
            case Epoch():
                channel.put_epoch(item)
            case _:
                channel.put_control(item)
        channel.flush()

    def sent(self) -> list[Frame]:
        """Return the frames for the worker under test that have credit."""
        return [frame for channel in self._out.values() for frame in channel.take()]

    def receive(self, message: Frame | Grant) -> None:
        """Receive a message of the worker under test."""
        if isinstance(message, Frame):
            self._in[message.channel.exchange].receive(message)
        else:
            self._out[message.channel.exchange].grant(message)

    def take(self, exchange: str) -> tuple[list[Item], list[Grant]]:
        """Return the decoded items received over ``exchange``, and the credit to return for them."""
        items, grants = list[Item](), list[Grant]()
        channel = self._in[exchange]
        while True:
            item = channel.take()
            if item is None:
                return items, grants
            items.append(item)
            grant = channel.freed()
            if grant is not None:
                grants.append(grant)


_INCARNATION: Final = 1

_table = lru_cache(maxsize=16)(first_table)
"""Cached because tests build thousands of runners of few sizes."""


class _Nowhere:
    def persist(self, operator: str, state: bytes) -> None:
        """Drop ``state``: barriers of fake workers have no backend."""


class StepRunner:
    """Runs ``step`` on worker 0 of ``workers``."""

    def __init__(self, step: SingleStep, *, workers: int, batching: Batching, clock: Clock) -> None:
        plan = step.plan
        self._step = step
        self._clock = clock
        self._linger_s = batching.linger_s
        self._schedule_at_s = clock.monotonic_s() + batching.linger_s
        self.codec = Codec(plan.types)
        self.backend: PersistenceBackend = _Nowhere()
        self._barriers: dict[str, AbsBarrier] = {}
        member = Membership(0, range(workers), _table(plan.slots, range(workers)), incarnation=_INCARNATION)
        graph = build_graph(
            plan, member, batching=batching, codec=self.codec, clock=clock, pass_barrier=self._pass_barrier
        )
        self._executor, self._nodes, self._inputs = graph.executor, graph.nodes, graph.inputs
        self.operators: Mapping[str, Operator] = graph.operators
        self.resources = Resources(clock=clock)
        self._holding = [(self._nodes[name], op) for name, op in graph.operators.items() if op.holding]
        self.enriching = {name: op for name, op in graph.operators.items() if isinstance(op, Enrich)}
        self.exchanges: Mapping[str, Exchange] = graph.exchanges
        self.remotes = {
            worker: RemoteWorker(worker, 0, list(self.exchanges), self.codec, batching.credit, _INCARNATION)
            for worker in range(1, workers)
        }

    def push(self, message: Batch | Control, input: str) -> None:
        """Process ``message`` at one input, and everything that results from it."""
        with self.resources:
            self._executor.push(self._nodes[input], message)
            self._executor.run()
            self._settle()

    def control(self, message: Control) -> None:
        """Process ``message`` at all inputs; a message about state also enters the regions after exchanges."""
        with self.resources:
            match message:
                case AbsBarrier() | SuspendMarker():
                    self._in_band(message)
                case Interrogate() | Collect() | Acquire() | Rescale():
                    for feed in reversed(self._inputs):
                        feed.inject(message)
                case _:
                    for name in self._step.inputs:
                        self._executor.push(self._nodes[name], message)
                    self._executor.run()
            self._settle()

    def open(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Open the source part of each input; ``states``: step -> part -> the state of that part."""
        for name in self._step.inputs:
            part = part_of(name)
            kept = {step: parts[part] for step, parts in states.items() if part in parts}
            self.push(PartOpened(part, kept or None), name)

    def schedule(self) -> None:
        """Call ``on_schedule`` of the steps that have it, if ``linger_s`` has passed since the last call."""
        if self._clock.monotonic_s() < self._schedule_at_s:
            return
        self._schedule_at_s = self._clock.monotonic_s() + self._linger_s
        with self.resources:
            for name, operator in self.operators.items():
                if operator.scheduled:
                    self._executor.call(self._nodes[name], partial(operator.on_schedule, clock=self._clock))
            self._executor.run()
            self._settle()

    def finish_calls(self) -> None:
        """Wait for the pending calls of each step, one step after the other, so that the output does not depend on the
        duration of calls. `DeadlineError` if a call does not return.
        """
        with self.resources:
            for node, operator in self._holding:
                self._executor.finish_calls([(node, operator)], self.resources.wake, self._settle)

    def settle(self) -> None:
        """Transfer and process the messages in the channels until they are empty."""
        with self.resources:
            self._settle()

    def close(self) -> None:
        """Cancel pending calls, and close the resources of this worker."""
        try:
            for operator in self.enriching.values():
                operator.close()
        finally:
            self.resources.close()

    def _settle(self) -> None:
        self._carry()
        moved = True
        while moved:
            moved = False
            for feed in self._inputs:
                taken, grants = feed.take()
                moved = moved or taken > 0
                for grant in grants:
                    self.remotes[grant.channel.sender].receive(grant)
            self._carry()

    def recorder(self, name: str) -> Recorder:
        """Return the recorder of an output."""
        recorder = self.operators[name]
        assert isinstance(recorder, Recorder)
        return recorder

    def epoch(self) -> int:
        """Return the minimum epoch of the inputs."""
        return min(self._executor.frontier(self._nodes[name]) for name in self._step.inputs)

    def _in_band(self, message: AbsBarrier | SuspendMarker) -> None:
        """Send in band: the message crosses an exchange after the rows before it, and is aligned there (S1)."""
        barrier: Barrier | Suspend = Suspend()
        if isinstance(message, AbsBarrier):
            self._barriers[message.snapshot] = message
            self.backend = message.backend
            barrier = Barrier(message.snapshot)
        for feed in self._inputs:
            feed.at_sources(barrier)

    def _pass_barrier(
        self, message: Barrier, frontiers: Mapping[str, int], let_in: Callable[[StateMessage], None]
    ) -> None:
        let_in(self._barriers.get(message.snapshot) or AbsBarrier(message.snapshot, self.backend))

    def _carry(self) -> None:
        for exchange in self.exchanges.values():
            exchange.flush()
            for receiver, channel in exchange.remote.items():
                for frame in channel.take():
                    self.remotes[receiver].receive(frame)
        for worker, remote in self.remotes.items():
            for sent in remote.sent():
                inbound = self.exchanges[sent.channel.exchange].inbound[worker]
                assert isinstance(inbound, RemoteInbound)
                inbound.receive(sent)


def part_of(input: str) -> str:
    """Return the name of the source part of an unkeyed input."""
    return f"{input}/part"
