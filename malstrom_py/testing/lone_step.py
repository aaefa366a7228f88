"""A step on its own: the plan in which its inputs are open ends and its outputs are recorded.

Rule: the step is built by the same builder, planned by the same planner and run by the same graph as in a job.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.errors import PlanError
from malstrom_py.job import Job
from malstrom_py.keyed_stream import KeyedStreamBuilder
from malstrom_py.messages import Control, Epoch, PartMessage, StateMessage
from malstrom_py.operators.base import Operator, OperatorFactory, Outlet, StepContext
from malstrom_py.operators.failures import describe_function
from malstrom_py.plan import SOURCE_REGION, Plan, Step, StreamRef, Traits
from malstrom_py.stream import StreamBuilder

StreamFactory = Callable[..., Any]
"""Takes the input stream (or streams) and returns what the step makes of it: a stream, a tuple of streams, or None."""

INPUT_REGION = "input"


class OpenEnd(Operator):
    """An input of the step under test: passes on what is pushed."""

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
        """What has been recorded since the last call."""
        messages, self.messages = self.messages, []
        return messages


@dataclass(frozen=True, slots=True)
class LoneStep:
    """The plan of a step under test. ``outputs`` and ``dead_letters`` are (recorder, step that it records)."""

    plan: Plan
    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, str], ...]
    dead_letters: tuple[tuple[str, str], ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps that the factory has made."""
        own = {*self.inputs, *(name for name, _ in (*self.outputs, *self.dead_letters))}
        return tuple(step for step in self.plan.steps if step.name not in own)

    def crosses(self, recorder: str) -> bool:
        """Whether an exchange stands between the input and an output."""
        step = self.plan.steps[self.plan.rank(recorder)]
        return step.traits.region != self.plan.steps[0].traits.region


def lone_step(
    factory: StreamFactory, *, keyed: bool, timed: bool, inputs: int, slots: int, types: Iterable[type]
) -> LoneStep:
    """Plan what ``factory`` makes of ``inputs`` open ends. `PlanError` if that is no stream of theirs."""
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
        raise PlanError(f"{error}. In a test of the step alone give {option}: the stream has them then") from None
    recorded = [(stream.ref, stream.traits) for stream in streams]
    if not any(stream.ref.step not in names for stream in streams) and streams:
        raise PlanError("the factory returned its input: let it return what the step makes of it")
    outputs = _record(job, "output", recorded)
    plan = job.plan()
    buried = [
        (StreamRef(step.name, step.dead_letter_port), job.dead_letters(step.name).traits)
        for step in plan.steps
        if step.dead_letter_port is not None
    ]
    dead_letters = _record(job, "dead-letters", buried)
    return LoneStep(job.plan(), names, outputs, dead_letters)


def _check_factory(factory: object, inputs: int) -> None:
    """`PlanError` if ``factory`` is no function of so many streams, but a logic, say."""
    takes = "a stream" if inputs == 1 else f"{inputs} streams"
    instead = f"pass a function that takes {takes} and returns what the step makes of it, such as "
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
        return  # a builtin without a signature: the call itself will tell


def _missing_option(error: PlanError, *, keyed: bool, timed: bool) -> str | None:
    """The option of the test kit by which the stream has what the step needs; None where ``error`` names another."""
    if not keyed and "has no keys" in str(error):
        return "keyed=True"
    return "timed=True" if not timed and "has no epochs" in str(error) else None


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
    """``stream -> stream`` for an operator of one's own: what `OperatorTester` and ``check_operator`` take.

    ``factory`` builds the operator from a `StepContext`, as the classes of ``malstrom_py.operators`` do.
    """

    def build(stream: StreamBuilder[Any, Any]) -> StreamBuilder[Any, Any]:
        ref = stream.job.add(Step(name, "custom", factory, (stream.ref,), traits=stream.traits))
        return type(stream)(stream.job, ref, stream.traits)

    return build
