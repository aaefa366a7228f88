"""The job: a named graph of steps, built step by step and planned as a whole."""

from __future__ import annotations

import sys
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, get_args

from malstrom_py.builder import diagram, explain
from malstrom_py.builder.columns_read import narrow_sources
from malstrom_py.builder.keyed_stream import KeyedStreamBuilder
from malstrom_py.builder.mistakes import names_first, source_of
from malstrom_py.builder.plan import DEAD_LETTERS, Plan, Port, Step, StreamRef, Traits, ancestors, make_plan
from malstrom_py.builder.state_migration import former_name
from malstrom_py.builder.stream import StreamBuilder
from malstrom_py.codec import TypeTable, can_register
from malstrom_py.data.epochs import after_s, limit_out_of_orderness
from malstrom_py.data.messages import DeadLetter
from malstrom_py.errors import PlanError
from malstrom_py.errors.unknown_names import JOB, STEPS, unknown_attribute
from malstrom_py.operators.base import OnError
from malstrom_py.operators.event_time import RestoreEpochs
from malstrom_py.operators.key_by import KeepKeys
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.sinks.base import Target, TransactionalSink, target_of
from malstrom_py.sinks.output_record import check_targets
from malstrom_py.sources.base import BaseSource, PartitionedSource, Source, StatelessSource, as_source, check_source
from malstrom_py.validation import check_name, refuse_class, short
from malstrom_py.worker_context import Parameter, plain_value

__tracebackhide__ = True  # pytest shows the line of the user

_IN_NOTEBOOK: Final = ". In a notebook, run the cell with mp.Job(…) again before a cell that adds steps to it"

C = TypeVar("C", bound=type)
V = TypeVar("V")


@names_first
class Job:
    """A named graph of steps. ``name`` and ``slots`` (into which keys are hashed) never change.

    ``compile=False``: functions of steps are called for each row, as with ``compile=False`` of each step.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sinks, sources
    >>> job = mp.Job("words")
    >>> words = job.source("words", sources.Memory(["ant", "bee", "asp"]))
    >>> words.key_by("letter", lambda word: word[0]).count("seen").sink("out", sinks.Memory())
    >>> print(job.explain())  # doctest: +ELLIPSIS
    job words (4 steps, 1024 slots)
       0  words   source  [Memory(3 items)]
       1  letter  key_by <- words  [<lambda> at ...; compiled; exchange: a keyed region begins]
       2  seen    count <- letter
       3  out     sink <- seen  [Memory]
    """

    def __init__(self, name: str, slots: int = 1024, *, compile: bool = True) -> None:
        self.name = check_name(name, "job")
        if not isinstance(slots, int) or isinstance(slots, bool) or not 1 <= slots <= 1 << 20:
            raise PlanError(f"job {name!r}: slots must be a whole number from 1 to {1 << 20}, got {slots!r}")
        self.slots = slots
        self.compiles = compile
        self._steps: dict[str, Step] = {}
        self._types = TypeTable()
        self._parameters: dict[str, Any] = {}
        self.made_by = ""
        """What makes this job again, as ``module:name``: the command line sets it, for a reload."""

    if not TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> NoReturn:
            if not attribute.startswith("_") and hasattr(KeyedStreamBuilder, attribute):
                raise AttributeError(f"Job has no method {attribute!r}: {STEPS}", name=attribute, obj=self)
            raise unknown_attribute(self, attribute, JOB)

    def __repr__(self) -> str:
        return f"Job({self.name!r}, {len(self._steps)} steps)"

    def _repr_html_(self) -> str:
        """A picture of the steps, for a notebook."""
        steps = list(self._steps.values())
        return diagram.to_html(f"job {self.name}: {len(steps)} steps, {self.slots:,} slots", steps)

    def shown_to(self, stream: StreamRef) -> str:
        """Return a picture of the steps before ``stream``, for a notebook (for builders)."""
        steps = ancestors(list(self._steps.values()), {stream.step})
        return diagram.to_html(f"stream {stream.step} of job {self.name}", steps, last=stream)

    def source(
        self,
        name: str,
        source: Source[V],
        *,
        on_error: OnError = "fail",
        silent_after: timedelta | None = None,
        renamed_from: str | None = None,
    ) -> StreamBuilder[None, V]:
        """Return a stream of the records of ``source``. ``on_error`` is the policy for records that cannot be read.

        ``silent_after``: after this time without a record, on the runtime's clock, `events.InputSilent` is published,
        to the second.
        ``renamed_from``: the former name of the step, to resume from a snapshot that has that name.
        """
        check_name(name, "step")
        refuse_class(source, name)
        if not isinstance(source, BaseSource | PartitionedSource | StatelessSource):
            lacks = source_of(source) or ": it has neither list_parts and build_part nor build(worker)"
            raise PlanError(f"step {name!r}: {type(source).__name__} is not a source{lacks}")
        check_source(source, name)
        if on_error not in get_args(OnError):
            raise PlanError(f"step {name!r}: on_error must be 'fail', 'skip' or 'dead-letter', got {on_error!r}")
        ports = (Port(), Port(DEAD_LETTERS, epochs=False)) if on_error == "dead-letter" else (Port(),)
        factory = partial(ReadSource, source=source)
        former = former_name(renamed_from, name)
        silent_s, detail = after_s(silent_after, name, "silent_after"), short(source)
        step = Step(name, "source", factory, (), ports, on_error, detail=detail, renamed_from=former)
        ref = self.add(replace(step, silent_after_s=silent_s))
        kind = as_source(source).rows
        if kind is not None and can_register(kind):
            with suppress(PlanError):  # a class that cannot be stored: a step that keeps such rows reports it
                self._types.register(kind)
        return StreamBuilder(self, ref, Traits())

    def replay_from(
        self,
        name: str,
        target: object,
        recording: str | None = None,
        *,
        streams: Collection[int] | None = None,
        since: int | datetime | None = None,
        pace: float | None = None,
        follow: bool = False,
    ) -> Any:
        """Return the stream that `StreamBuilder.capture_into` recorded: its records, keys, timestamps and watermarks.

        ``recording``: the name of the captured step, if several are at ``target``. ``streams``: the numbers of the
        workers whose streams are replayed, by default all. ``since``, ``pace`` and ``follow``: as of `sources.Replay`.
        The job may have any number of workers. Each key has its records in their order; no record is late. A
        `capture.Reader` as ``target`` is opened here, and its first header waited for.

        Raises:
            CaptureError: there is no such recording.
        """
        from malstrom_py.sources.replay import Replay, header_of  # which few jobs need, with all that reads recordings

        header = header_of(target, recording)
        source = Replay(target, recording, streams=streams, since=since, pace=pace, follow=follow)
        stream: StreamBuilder[Any, Any] = self.source(name, source.restoring(self._types))
        traits = replace(stream.traits, unit=header.unit)
        ref = stream.ref
        if header.unit is not None and header.epochs:
            traits = replace(traits, epochs=True, split=True)
            options: dict[str, Any] = {"generator": limit_out_of_orderness(0), "unit": header.unit}
            factory = partial(RestoreEpochs, **options)
            ports = (Port("on_time"),)
            ref = self.add(Step(f"{name}-epochs", "generate_epochs", factory, (ref,), ports, traits=traits))
        if header.keyed:
            traits = replace(traits, keyed=True, region=f"{name}-keys")
            ref = self.add(Step(f"{name}-keys", "key_by", KeepKeys, (ref,), traits=traits))
            return KeyedStreamBuilder(self, ref, traits)
        return StreamBuilder(self, ref, traits)

    def parameter(self, name: str, default: V) -> Parameter[V]:
        """Return a value that functions of this job read as ``value``, and that `JobHandle.set` changes while it runs.

        ``default``: True, False, a number, text, bytes, or a list or dict of these; what is set is of its type. Do not
        change a list or dict that you read. A job that resumes has the value that was set last.

        >>> import malstrom_py as mp
        >>> from malstrom_py import sources
        >>> job = mp.Job("docs")
        >>> threshold = job.parameter("threshold", 10)
        >>> numbers = job.source("in", sources.Memory([5, 10, 15]))
        >>> mp.collect(numbers.filter("large", lambda number: number >= threshold.value))
        [10, 15]

        Raises: PlanError: the name is taken, or the default is no such value.
        """
        check_name(name, "parameter")
        if name in self._parameters:
            raise PlanError(f"job {self.name!r} already has a parameter {name!r}: give this one another name")
        self._parameters[name] = plain_value(f"parameter {name!r}: the default", default)
        return Parameter(self.name, name, default)

    @property
    def types(self) -> TypeTable:
        """The classes whose values can be persisted (for builders)."""
        return self._types

    def register_type(self, kind: C) -> C:
        """Allow values of a class (dataclass, msgspec.Struct, named tuple, Enum) to be persisted. Returns the class."""
        return self._types.register(kind)

    def register_state(self, kind: type) -> None:
        """Register the type of a step's ``default`` if that type needs it (for builders)."""
        if can_register(kind):
            self._types.register(kind)

    def dead_letters(self, step: str) -> StreamBuilder[None, DeadLetter]:
        """Return the stream of records that ``step`` failed on; the step must have ``on_error="dead-letter"``."""
        found = self._steps.get(check_name(step, "step"))
        if found is None:
            raise PlanError(f"job {self.name!r} has no step {step!r}; its steps: {', '.join(self._steps) or 'none'}")
        port = found.dead_letter_port
        if port is None:
            raise PlanError(f"step {step!r} has no dead letters: give it on_error='dead-letter'")
        traits = Traits(region=self._region_of_letters(found), split=found.traits.split)
        self._types.register(DeadLetter)
        return StreamBuilder(self, StreamRef(step, port), traits)

    def plan(self) -> Plan:
        """Return the checked graph; `PlanError` names the wrong step and what to do. Every runtime calls it first."""
        check_targets({step.name: target for step in self._steps.values() if (target := _target_of(step)) is not None})
        steps = narrow_sources(list(self._steps.values()))
        plan = make_plan(self.name, self.slots, steps, self._types, made_by=self.made_by)
        return replace(plan, parameters=dict(self._parameters))

    def explain(self) -> str:
        """Return the plan as text, one line per step."""
        return explain.explain(self.plan())

    def to_mermaid(self) -> str:
        """Return the plan as a Mermaid flow chart."""
        return explain.to_mermaid(self.plan())

    def add(self, step: Step) -> StreamRef:
        """Add a step (for builders); `PlanError` if its name is taken."""
        if step.name in self._steps:
            raise PlanError(
                f"job {self.name!r} already has a step {step.name!r} ({self._steps[step.name].kind}): "
                f"give this {step.kind} another name{_IN_NOTEBOOK if 'IPython' in sys.modules else ''}"
            )
        self._steps[step.name] = step
        return StreamRef(step.name)

    def steps_before(self, kind: str, stream: StreamRef) -> list[str]:
        """Return the names of the steps of ``kind`` that the records of ``stream`` come through (for builders)."""
        before = ancestors(list(self._steps.values()), {stream.step})
        return [step.name for step in before if step.kind == kind]

    def _region_of_letters(self, step: Step) -> str:
        """Return the region of a step's dead letters: its own; for a key_by the region before its exchange."""
        if step.kind != "key_by":
            return step.traits.region
        (ref,) = step.inputs
        before = self._steps[ref.step]
        keyed_there = before.kind == "key_by" and ref.port != before.dead_letter_port
        return before.traits.region if keyed_there else self._region_of_letters(before)

    def plan_to(self, stream: StreamBuilder[Any, Any], sink: TransactionalSink) -> Plan:
        """Return a plan of the steps before ``stream``, ended by ``sink``; the job itself does not change."""
        names = (f"collected{number or ''}" for number in count())
        name = next(name for name in names if name not in self._steps)
        last = Step(name, "sink", partial(WriteSink, sink=sink), (stream.ref,), (), traits=stream.traits)
        steps = [*ancestors(list(self._steps.values()), {stream.ref.step}), last]
        plan = make_plan(self.name, self.slots, narrow_sources(steps), self._types)
        return replace(plan, parameters=dict(self._parameters))


def _target_of(step: Step) -> Target | None:
    """Return what a sink step writes to; None for other steps."""
    if step.kind != "sink" or not isinstance(step.factory, partial):
        return None
    return target_of(step.factory.keywords["sink"])
