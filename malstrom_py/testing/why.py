"""``why``: the recorded input records of the key and window that led to one output row.

The steps between the recordings of a job and the output are replayed on the graph of one worker, record by record. So
it is known which captured record each record at the entry of the output's keyed region comes from.

Rules:
- Steps before the entry have no state by key: each captured record has its own results there.
- From the entry on only records of the row's key are processed.
- The row's inputs are the records of its key: those in the window if a window made it, else all up to the one that
  made it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, Final, NamedTuple

from malstrom_py.builder.job import Job
from malstrom_py.builder.plan import Plan, Region, Step, StreamRef, is_exchanged, make_plan
from malstrom_py.capture.merge import Merge
from malstrom_py.capture.recording import Recording
from malstrom_py.clock import VirtualClock
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.data.equality import seen_form
from malstrom_py.data.messages import MAX_EPOCH, Control, DataMessage, Epoch, PartOpened
from malstrom_py.data.row_form import fields_of
from malstrom_py.data.time import from_time
from malstrom_py.errors import CaptureError, PlanError, shown
from malstrom_py.errors.text import instead_of
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.flat import UPDATE
from malstrom_py.operators.keyed import StatefulOperator
from malstrom_py.operators.window_join import WindowJoin
from malstrom_py.sinks.capture import Capture
from malstrom_py.testing.described_rows import WantedKey, is_same
from malstrom_py.testing.single_step import OpenEnd, Recorder, SingleStep, StepRunner, part_of
from malstrom_py.testing.tester import messages_of
from malstrom_py.windows import WINDOW_END, WINDOW_START, WindowResult
from malstrom_py.worker_context import own_values
from malstrom_py.workers.control.tap import TapRecord
from malstrom_py.workers.engine.flow_limits import Batching

_ENTRY: Final = "-entry"
_OUTPUT: Final = "-output"


class CapturedRecord(NamedTuple):
    """A record of the recording ``recording``, as it was captured; ``key`` and ``timestamp`` are None without them."""

    recording: str
    key: Any
    value: Any
    timestamp: int | None


class Why(NamedTuple):
    """What ``step`` has made of ``inputs``: a record with ``key``, ``value`` and ``timestamp``.

    ``window``: start and end (exclusive) of the window that made it, None if none did. ``inputs``: in the order of the
    replay. ``parameters``: those that functions read in the replay, with their defaults: a recording has no values that
    were set, with which other records may have led to the row.
    """

    step: str
    key: Any
    value: Any
    timestamp: int | None
    window: tuple[int, int] | None
    inputs: list[CapturedRecord]
    parameters: Mapping[str, Any] = {}


def why(job: Job, row: Any, step: str | None = None) -> Why:
    """Return the captured input records that led to ``row``, an output of ``step`` of a job that captures its inputs.

    ``row``: a dict with what is known of the output, enough to choose it: ``key``, ``timestamp``, ``value``,
    the ``start`` and ``end`` of a window, and fields of the value; or the value itself. ``step``: by default the one
    before the only sink. A job that runs can be asked: its recordings are read up to now. A key may be given as JSON
    has it, unless it is a key itself: a text is that text before it is a date.

    Raises:
        PlanError: the inputs of the step are not captured, or it has no keys.
        CaptureError: no output is such a row, or several are; a recording is missing or damaged.

    >>> import malstrom_py as mp
    >>> from malstrom_py import capture, sinks, sources
    >>> job = mp.Job("docs")
    >>> sales = job.source("sales", sources.Memory([("tea", 3), ("jam", 2), ("tea", 4), ("tea", 5)]))
    >>> sales.capture_into("sold", capture.InMemory())
    >>> paid = sales.key_by("article", lambda sale: sale[0]).map("paid", lambda sale: sale[1])
    >>> paid.sum("total").sink("out", sinks.Memory())
    >>> mp.run(job).read
    4
    >>> [record.value for record in mp.why(job, {"key": "tea", "value": 7}).inputs]
    [('tea', 3), ('tea', 4)]
    """
    return explained(job, row, step)


def explained(job: Job, row: Any, step: str | None = None, *, key_type: str | None = None) -> Why:
    """Return what `why` does. ``key_type``: the name of the type of the key, which was given as JSON has it."""
    if not isinstance(job, Job):
        raise PlanError(f"mp.why takes the job that was captured, got {type(job).__name__}")
    graph = _Graph.of(job, step)
    replayed, found = _find(graph, _described(row, graph), key_type)
    inputs = replayed.inputs[: found.inputs]
    if len(found.windows) > 1:
        (start, end), (other, last) = found.windows[:2]
        raise CaptureError(
            f"step {graph.output.step!r}: this row may be of {len(found.windows)} windows of its key and time, such as "
            f"those from {start} to {end} and from {other} to {last}: name the window's step with step="
        )
    window, message = (found.windows or (None,))[0], found.message
    if window is not None and message.timestamp is not None:
        inputs = [one for one in inputs if any(window[0] <= time < window[1] for time in one.times)]
    records = [one.record for one in inputs]
    parameters = dict(sorted(graph.read.items()))
    return Why(graph.output.step, message.key, message.value, message.timestamp, window, records, parameters)


def _described(row: Any, graph: _Graph) -> dict[str, Any]:
    """Return the parts of a row that the user has given: of a tapped record without where it was tapped, of a flat row
    without the key that it does not have.
    """
    if not isinstance(row, Mapping):
        return {"value": row}
    is_tapped = {*row} == {*TapRecord._fields}
    left_out = {"worker", "output"} if is_tapped else set()
    if graph.is_flat and row.get("key", ...) is None and isinstance(row.get("value"), Mapping):
        left_out.add("key")
    return {name: part for name, part in row.items() if name not in left_out}


def _find(graph: _Graph, wanted: Mapping[str, Any], key_type: str | None) -> tuple[_Replayed, _Output]:
    """Return the output that ``wanted`` describes, and the replay of its key that has made it."""
    if "key" in wanted:
        keys = WantedKey(wanted["key"], key_type=key_type)
        replayed = _Replayed(graph, keys)
        outputs = replayed.outputs()
        first = next(outputs, None)
        if key_type is not None and not keys.found:
            raise CaptureError(f"step {graph.output.step!r}: no key of type {key_type} is {shown(wanted['key'])}")
        if first is not None and "key" not in first.fields:
            try:
                found = _only(graph, chain((first,), outputs), wanted)
            except CaptureError:
                if len(keys.found) < 2:
                    raise
            else:
                if len(keys.found) < 2:
                    return replayed, found
            key, wanted = _chosen(graph, keys), {name: part for name, part in wanted.items() if name != "key"}
            replayed = _Replayed(graph, WantedKey(key, is_exact=True))
            return replayed, _only(graph, replayed.outputs(), wanted)
    elif key_type is not None:
        raise CaptureError(f"the type of a key is {key_type}, and the row says no key")
    # The row has no key, or its key may be a field of the value.
    key = _only(graph, _Replayed(graph, None).outputs(), wanted).message.key
    replayed = _Replayed(graph, WantedKey(key, is_exact=True))
    return replayed, _only(graph, replayed.outputs(), wanted)


def _chosen(graph: _Graph, keys: WantedKey) -> Any:
    """Return the one of several keys that is given itself, and not only as JSON has it."""
    with suppress(KeyError, TypeError):  # a list cannot be one
        return keys.found[seen_form(keys.given)]
    some = " and ".join(shown(key) for key in list(keys.found.values())[:2])
    raise CaptureError(
        f"step {graph.output.step!r}: {len(keys.found)} keys are written as {shown(keys.given)}, such as {some}: give "
        f"the key itself, or its type with --key-type"
    )


@dataclass(frozen=True, slots=True)
class _Output:
    """A record that the step has sent: ``inputs`` of its key were there then. ``windows``: those that may have made it,
    several if windows of its key and time were united.
    """

    message: DataMessage[Any, Any]
    windows: tuple[tuple[int, int], ...]
    inputs: int

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the value, or of the value of a window."""
        value = self.message.value
        return fields_of([value.value if isinstance(value, WindowResult) else value])[0]

    def view(self, step: Step) -> dict[str, list[Any]]:
        """Return all that a row may say of the record: its parts, the window, and the fields of its value.

        A name may have several of these.
        """
        message, value = self.message, self.message.value
        parts: list[tuple[str, Any]] = [("key", message.key), ("value", value)]
        parts += [(name, message.timestamp) for name in ("timestamp", "time")]
        for window in self.windows:
            parts += zip(("start", "end"), window, strict=True)
            if (unit := step.traits.unit) is not None:
                moments = (from_time(time, unit) for time in window)
                parts += zip((WINDOW_START, WINDOW_END), moments, strict=True)
        if isinstance(value, WindowResult):
            parts.append((UPDATE, value.update))
        names = step.traits.key_names
        keys = (message.key,) if len(names) == 1 else message.key
        if isinstance(keys, tuple) and len(keys) == len(names):
            parts += zip(names, keys, strict=True)
        view: dict[str, list[Any]] = {}
        for name, part in (*parts, *self.fields.items()):
            view.setdefault(name, []).append(part)
        return view


def _only(graph: _Graph, outputs: Iterable[_Output], wanted: Mapping[str, Any]) -> _Output:
    """Return the output that ``wanted`` describes; the first one of several that are the same in all parts."""
    found: list[tuple[dict[str, list[Any]], _Output]] = []
    step, names = graph.step, dict[str, None]()
    for output in outputs:
        view = output.view(step)
        names |= dict.fromkeys(view)
        if all(_has(view, output, name, part) for name, part in wanted.items()):
            found.append((view, output))
    if not found:
        unknown = [name for name in wanted if name not in names] if names else []
        why_not = (
            f" no output has {unknown[0]!r}{instead_of(unknown[0], list(names))}"
            if unknown
            else (
                " a replay of the recordings makes other rows. If values come from elsewhere, or depend on the order "
                "of several streams, give only the key and the time"
            )
        )
        if graph.read:
            why_not += f". Parameters have their defaults in it: {_parameters(graph.read)}"
        raise CaptureError(f"step {graph.output.step!r} has not made this row:{why_not}")
    first, output = found[0]
    if others := [view for view, _ in found[1:] if view != first]:
        raise CaptureError(
            f"step {graph.output.step!r} has made {len(others) + 1:,} rows that are described so, the first two for "
            f"key {shown(first['key'][0])} at time {first['time'][0]} and key {shown(others[0]['key'][0])} at time "
            f"{others[0]['time'][0]}: say more of the row, such as its key, time or value"
        )
    return output


def _has(view: Mapping[str, Sequence[Any]], output: _Output, name: str, wanted: Any) -> bool:
    """Return whether a part of the row is as ``wanted``; the value of a window may be given as its flat row."""
    if any(is_same(wanted, one) for one in view.get(name, ())):
        return True
    if name != "value" or not isinstance(wanted, Mapping) or not isinstance(output.message.value, WindowResult):
        return False
    is_whole = {*output.fields} <= {*wanted}
    return is_whole and all(any(is_same(part, one) for one in view.get(field, ())) for field, part in wanted.items())


def _parameters(read: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in sorted(read.items()))


@dataclass(frozen=True, slots=True)
class _Graph:
    """The steps between recordings and an output. ``cuts``: the capturing step of each stream that is replayed.

    ``is_flat``: the row that is meant was made of the output by flat. ``read``: the parameters that replays have read.
    """

    job: Job
    plan: Plan
    output: StreamRef
    cuts: Mapping[StreamRef, Step]
    region: Region
    is_flat: bool
    read: dict[str, Any] = field(default_factory=dict)

    @property
    def step(self) -> Step:
        """The step of the output."""
        return self.plan.steps[self.plan.rank(self.output.step)]

    @classmethod
    def of(cls, job: Job, step: str | None) -> _Graph:
        """Find the output, and the recordings that are nearest to the entry of its region."""
        plan = job.plan()
        captures = {one.inputs[0]: one for one in plan.steps if _capture_of(one) is not None}
        output = _output_of(plan, step)
        if not captures:
            raise PlanError(
                f"job {job.name!r} captures nothing: put stream.capture_into('name', place) after its sources, or "
                f"after key_by, and run it again"
            )
        region = next(region for region in plan.regions if output.step in region.steps)
        steps = {one.name: one for one in plan.steps}
        cuts = _cuts(steps, captures, output, output, outside=False)
        if isinstance(cuts, str):
            raise PlanError(
                f"step {output.step!r}: its records come from source {cuts!r} too, which is not captured on the way: "
                f"put stream.capture_into('name', place) after it, and run the job again"
            )
        if not region.entries and not any(captures[ref].traits.keyed for ref in cuts):
            raise PlanError(
                f"step {output.step!r} is not keyed: no key_by is before it, so rows do not belong to records by key"
            )
        if not steps[output.step].traits.keyed:
            raise PlanError(
                f"step {output.step!r}: its rows have no keys any more, so they do not belong to records by key: name "
                f"the last step with keys with step="
            )
        is_flat = output != _named(plan, steps, step)
        return cls(job, plan, output, {ref: captures[ref] for ref in cuts}, region, is_flat)

    def single(self) -> SingleStep:
        """Return the plan that replays: an open end for each recording, and what notes the records that pass."""
        steps = {step.name: step for step in self.plan.steps}
        kept: set[str] = set()
        left = [self.output]
        while left:
            ref = left.pop()
            if ref not in self.cuts and ref.step not in kept:
                kept.add(ref.step)
                left += steps[ref.step].inputs
        if deciding := [name for name in kept if steps[name].kind == "generate_epochs"]:
            raise PlanError(
                f"step {self.output.step!r}: its recording is before {deciding[0]!r}, which decides by the partitions "
                f"of the source what is late, and a recording has none: capture the on-time stream of {deciding[0]!r}"
            )
        if by_clock := sorted(name for name in kept if _goes_by_clock(steps[name])):
            raise PlanError(
                f"step {self.output.step!r}: {by_clock[0]!r} goes by the runtime's clock, and a replay has another, so "
                f"no captured record leads to its rows for certain"
            )
        made = [Step(cut.name, "source", OpenEnd, traits=cut.traits) for cut in self.cuts.values()]
        for step in (one for one in self.plan.steps if one.name in kept):
            is_inside = step.name in self.region.steps
            made.append(replace(step, inputs=tuple(self._fed_by(ref, inside=is_inside) for ref in step.inputs)))
            if step.name in self.region.entries:
                traits = replace(step.traits, keyed=True)
                made.append(Step(step.name + _ENTRY, "why", Entry, (StreamRef(step.name),), traits=traits))
        inside = [one for one in self.plan.steps if one.name in kept and one.name in self.region.steps]
        noted = dict.fromkeys(ref for one in inside for ref in one.inputs if ref.step in self.region.steps)
        noted.pop(self.output, None)
        outputs = [(f"{number}{_OUTPUT}", ref) for number, ref in enumerate([*noted, self.output])]
        for name, ref in outputs:
            made.append(Step(name, "sink", Recorder, (self._fed_by(ref, inside=True),), (), traits=self.step.traits))
        plan = make_plan(self.job.name, self.plan.slots, made, self.plan.types)
        ends = tuple(cut.name for cut in self.cuts.values())
        return SingleStep(plan, ends, tuple((name, ref.step) for name, ref in outputs), ())

    def enters(self, ref: StreamRef) -> bool:
        """Return whether a stream is the entry of the region, or in it."""
        return ref.step in self.region.steps or (ref.step in self.region.entries and ref.port == 0)

    def _fed_by(self, ref: StreamRef, *, inside: bool) -> StreamRef:
        if ref in self.cuts:
            return StreamRef(self.cuts[ref].name)
        if inside and ref.step in self.region.entries and ref.port == 0:
            return StreamRef(ref.step + _ENTRY)
        return ref


def _output_of(plan: Plan, step: str | None) -> StreamRef:
    """Return the stream whose row is meant: that of results of windows, if they became flat rows, which have no key."""
    steps = {one.name: one for one in plan.steps}
    ref = _named(plan, steps, step)
    while steps[ref.step].kind == "flat":
        ref = steps[ref.step].inputs[0]
    return ref


def _named(plan: Plan, steps: Mapping[str, Step], step: str | None) -> StreamRef:
    if step is None:
        sinks = [one for one in plan.steps if one.kind == "sink" and _capture_of(one) is None]
        if len(sinks) != 1:
            found = f"its sinks are {', '.join(repr(one.name) for one in sinks)}" if sinks else "it has no sink"
            raise PlanError(f"job {plan.job!r}: name the step whose row is meant with step=; {found}")
        return sinks[0].inputs[0]
    if step not in steps:
        raise PlanError(f"job {plan.job!r} has no step {step!r}{instead_of(step, list(steps))}")
    return steps[step].inputs[0] if steps[step].kind == "sink" else StreamRef(step)


def _capture_of(step: Step) -> Capture | None:
    """Return the sink of a step that captures into a place."""
    sink = step.factory.keywords.get("sink") if step.kind == "sink" and isinstance(step.factory, partial) else None
    return sink if isinstance(sink, Capture) else None


def _goes_by_clock(step: Step) -> bool:
    """Return whether a step with state groups records by the runtime's clock."""
    options = step.factory.keywords if isinstance(step.factory, partial) else {}
    # Of a window, or of the ``ttl=`` of a stream without watermarks.
    return bool(options.get("by_clock")) or (step.kind == "collect" and options.get("every_s") is not None)


def _cuts(
    steps: Mapping[str, Step], captures: Mapping[StreamRef, Step], ref: StreamRef, output: StreamRef, *, outside: bool
) -> set[StreamRef] | str:
    """Return the streams to replay instead of all that leads to ``ref``: those nearest to the entry of the region, or
    in it if nothing before is captured. The name of a source that has no recording on the way.
    """
    step = steps[ref.step]
    outside = outside or is_exchanged(step, ref)
    is_captured = ref in captures and ref != output
    if is_captured and outside:
        return {ref}
    found: set[StreamRef] = set()
    for one in step.inputs:
        before = _cuts(steps, captures, one, output, outside=outside)
        if isinstance(before, str):
            return {ref} if is_captured else before
        found |= before
    if not step.inputs:
        return {ref} if is_captured else step.name
    return found


class _Noted(dict[tuple[str, str], Any]):
    """The values of parameters, which notes those that are ``read``."""

    def __init__(self, values: Mapping[tuple[str, str], Any], read: dict[str, Any]) -> None:
        super().__init__(values)
        self._read = read

    def __getitem__(self, key: tuple[str, str]) -> Any:
        value = self._read[key[1]] = super().__getitem__(key)
        return value


class Entry(Operator):
    """The entry of the keyed region: notes the keys and times that come, and lets those of one key pass."""

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.key: WantedKey | None = None
        """None: all keys pass, and nothing is noted."""
        self.times: list[Any] = []
        """Of the records that have passed since they were last taken."""

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        if self.key is None:
            out.send(batch)
            return
        batch = batch.compress(list(map(self.key.takes, batch.keys or ())))
        self.times += batch.timestamps or [None] * len(batch)
        out.send(batch)


class _Input(NamedTuple):
    record: CapturedRecord
    times: list[Any]
    """Of the records of the key that it has become at the entry."""


class _Replayed:
    """A replay of the records of ``key``, or of all. ``inputs``: those that reached the entry so far."""

    def __init__(self, graph: _Graph, key: WantedKey | None) -> None:
        self.inputs: list[_Input] = []
        self._graph = graph
        self._key = key
        self._ends = {cut.name: (cut, graph.enters(ref)) for ref, cut in graph.cuts.items()}
        single = graph.single()
        self._runner = StepRunner(single, workers=1, batching=Batching(), clock=VirtualClock())
        self._runner.resources.parameters = _Noted(own_values(graph.job.name, graph.plan.parameters, None), graph.read)
        self._recorders = [self._runner.recorder(name) for name, _ in single.outputs]
        operators = self._runner.operators
        near = self._after_state()
        self._makers = [operators[step] if step in near else None for _, step in single.outputs]
        self._entries = [one for one in operators.values() if isinstance(one, Entry)]
        for entry in self._entries:
            entry.key = key
        inside = {*graph.region.steps}
        for name, operator in operators.items():
            if isinstance(operator, StatefulOperator) and name not in inside:
                raise PlanError(
                    f"step {graph.output.step!r} gets its records from step {name!r}, which has state by key, so that "
                    f"no captured record leads to one of them alone: capture the stream after {name!r} as well"
                )

    def _after_state(self) -> set[str]:
        """Return the last step with state before the output, and those after it: a later state has several windows."""
        steps = {step.name: step for step in self._graph.plan.steps}
        found, left = set[str](), [self._graph.output.step]
        while left:
            name = left.pop()
            if name in self._graph.region.steps and name in self._runner.operators:
                found.add(name)
                if not isinstance(self._runner.operators[name], StatefulOperator):
                    left += [ref.step for ref in steps[name].inputs]
        return found

    def outputs(self) -> Iterator[_Output]:
        """Replay, and yield what the step sends."""
        try:
            streams = map(self._stream, self._graph.cuts.values())
            for _, item, name in heapq.merge(*streams, key=itemgetter(0)):
                if isinstance(item, CapturedRecord):
                    self._push(item, name)
                else:
                    self._process(item, name)
                yield from self._taken()
        finally:
            self._runner.close()

    def _stream(self, cut: Step) -> Iterator[tuple[int, CapturedRecord | Control, str]]:
        """Yield the records and epochs of a recording, each with the time at which it was captured."""
        capture = _capture_of(cut)
        assert capture is not None
        recording = Recording(capture.place, cut.name)
        streams = sorted(recording.streams)
        # Without keys or watermarks nothing orders streams but the time at which they were captured.
        together = [streams] if cut.traits.keyed or cut.traits.epochs else [[stream] for stream in streams]
        if not cut.traits.keyed:
            yield 0, PartOpened(part_of(cut.name), None), cut.name
        last_ns = 0
        for last_ns, item in heapq.merge(*(self._read(recording, some) for some in together), key=itemgetter(0)):
            if isinstance(item, Epoch):
                if cut.traits.epochs:
                    yield last_ns, item, cut.name
                continue
            for message in messages_of(item):
                yield last_ns, CapturedRecord(cut.name, message.key, message.value, message.timestamp), cut.name
        if not cut.traits.epochs:
            yield last_ns, Epoch(MAX_EPOCH), cut.name

    def _read(self, recording: Recording, streams: Sequence[tuple[int, str]]) -> Iterator[tuple[int, Batch | Epoch]]:
        merge = Merge(recording, streams, Codec(self._graph.plan.types))
        try:
            while (found := merge.take()) is not None:
                yield merge.captured_ns, found
        finally:
            merge.close()

    def _push(self, record: CapturedRecord, name: str) -> None:
        cut, is_inside = self._ends[name]
        is_noted = is_inside and self._key is not None
        if is_inside and self._key is not None and not self._key.takes(record.key):
            return
        times = None if record.timestamp is None else [record.timestamp]
        has_keys = cut.traits.keyed or cut.traits.local
        part = None if cut.traits.keyed else part_of(name)
        batch = Batch([record.value], keys=[record.key] if has_keys else None, timestamps=times, part=part)
        if is_noted:
            self.inputs.append(_Input(record, [record.timestamp]))
            self._process(batch, name)
            return
        mine = _Input(record, [])
        self.inputs.append(mine)
        self._process(batch, name)
        for entry in self._entries:
            if entry.times:
                mine.times.extend(entry.times)
                entry.times = []
        if not mine.times:
            self.inputs.pop()

    def _process(self, message: Batch | Control, name: str) -> None:
        """Process a message, and all that its calls return: it belongs to no later one."""
        self._runner.push(message, name)
        if self._runner.enriching:
            self._runner.finish_calls()

    def _taken(self) -> Iterator[_Output]:
        """Yield what has been sent, with the window that made it: its own, or of its key and time on the way to it."""
        taken = [[*_records(recorder)] for recorder in self._recorders]
        if not taken[-1]:
            return
        windows: dict[tuple[Any, Any], dict[tuple[int, int], None]] = {}
        for maker, messages in zip(self._makers, taken, strict=True):
            for one in messages if maker is not None else ():
                if (window := _window_of(one, maker)) is not None:
                    windows.setdefault((one.key, one.timestamp), {})[window] = None
        for message in taken[-1]:
            own = _window_of(message, self._makers[-1])
            found = windows.get((message.key, message.timestamp), ()) if own is None else (own,)
            yield _Output(message, tuple(found), len(self.inputs))


def _window_of(message: DataMessage[Any, Any], maker: Operator | None) -> tuple[int, int] | None:
    """Return the window of a result of ``maker``; None for other records."""
    value, time = message.value, message.timestamp
    if type(value) is WindowResult:
        return value.start, value.end
    return (time + 1 - maker.size, time + 1) if isinstance(maker, WindowJoin) and time is not None else None


def _records(recorder: Recorder) -> Iterator[DataMessage[Any, Any]]:
    for message in recorder.take():
        if isinstance(message, Batch):
            yield from messages_of(message)
