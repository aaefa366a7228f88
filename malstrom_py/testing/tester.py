"""`OperatorTester`: runs one step alone, with fake remote workers and persisted state kept in memory.

A test writes rows in the form of the stream: with or without keys and timestamps. Batches are read back as messages.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, cast

from malstrom_py.clock import VirtualClock
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import (
    MIN_EPOCH,
    AbsBarrier,
    Acquire,
    Collect,
    Control,
    DataMessage,
    Epoch,
    Interrogate,
    PartOpened,
    PartReleased,
)
from malstrom_py.errors import DeadlineError
from malstrom_py.operators.keyed import StatefulOperator
from malstrom_py.rescale.channels.channel import InLine
from malstrom_py.rescale.keys.key_hash import encode_key
from malstrom_py.state.ahead_of_barrier import AheadOfBarrier, split
from malstrom_py.state.artefact import is_delta, merged
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.state.memory import StateMemory
from malstrom_py.testing.disk import MemoryDisk
from malstrom_py.testing.exact import MutationWatch
from malstrom_py.testing.single_step import SingleStep, StepRunner, StreamFactory, part_of, plan_single_step
from malstrom_py.workers.engine.flow_limits import Batching


class CapturingPersistenceBackend:
    """A persistence backend in memory: ``states``, operator -> its encoded state.

    >>> backend = CapturingPersistenceBackend()
    >>> backend.persist("count", b"state")
    >>> backend.states, backend.calls
    ({'count': b'state'}, ['count'])
    """

    def __init__(self) -> None:
        self.states: dict[str, bytes] = {}
        self.calls: list[str] = []

    def persist(self, operator: str, state: bytes) -> None:
        """Keep the state of one operator; ``calls`` lists the operators in order."""
        self.calls.append(operator)
        self.states[operator] = state


@dataclass(frozen=True, slots=True)
class Persisted:
    """The result of `OperatorTester.barrier`: the states of the steps by name, and the watermark of the input."""

    states: Mapping[str, bytes] = field(default_factory=dict)
    epoch: int = MIN_EPOCH


def chain_of(persisted: Sequence[Persisted], step: str) -> list[bytes]:
    """Return the chain that restores ``step`` at the last of ``persisted``: a full artefact, then deltas.

    >>> from malstrom_py.state.artefact import artefact
    >>> full, delta = ({"count": artefact({}, delta=kind)} for kind in (False, True))
    >>> len(chain_of([Persisted(full), Persisted(full), Persisted(delta)], "count"))
    2
    """
    chain: list[bytes] = []
    for one in persisted:
        state = one.states.get(step)
        if state is not None:
            chain = [*chain, state] if is_delta(state) else [state]
    return chain


def batch_of(rows: Sequence[Any], *, keyed: bool, timed: bool, part: str | None = None) -> Batch:
    """Return a batch of rows in the form ``(key, value, timestamp)``, without keys or timestamps the stream lacks.

    A `DataMessage` is a row of any stream. ValueError for a row of another form.

    >>> batch_of([("a", 1), ("b", 2)], keyed=True, timed=False).keys, batch_of([1, 2], keyed=False, timed=False).values
    (['a', 'b'], [1, 2])
    """
    messages = [_message_of(row, keyed=keyed, timed=timed) for row in rows]
    return Batch(
        [message.value for message in messages],
        keys=[message.key for message in messages] if keyed else None,
        timestamps=cast("list[int]", [message.timestamp for message in messages]) if timed else None,
        part=part,
    )


def messages_of(batch: Batch) -> list[DataMessage[Any, Any]]:
    """Return the rows of a batch as messages.

    >>> messages_of(Batch([1], keys=["a"]))
    [DataMessage(key='a', value=1, timestamp=None)]
    """
    nothing = [None] * len(batch)
    columns = zip(batch.keys or nothing, batch.values, batch.timestamps or nothing, strict=True)
    return [DataMessage(key, value, timestamp) for key, value, timestamp in columns]


def _message_of(row: Any, *, keyed: bool, timed: bool) -> DataMessage[Any, Any]:
    message = row if isinstance(row, DataMessage) else _written(row, keyed=keyed, timed=timed)
    if timed and type(message.timestamp) is not int:
        raise ValueError("the stream is timed: each row needs a timestamp, an int")
    return message


def _written(row: Any, *, keyed: bool, timed: bool) -> DataMessage[Any, Any]:
    form = [name for name, there in (("key", keyed), ("value", True), ("timestamp", timed)) if there]
    if len(form) == 1:
        return DataMessage(None, row)
    if not isinstance(row, tuple) or len(row) != len(form):
        raise ValueError(f"a row of this stream must be a tuple ({', '.join(form)}) or a DataMessage, got {row!r}")
    named = dict(zip(form, row, strict=True))
    return DataMessage(named.get("key"), named["value"], named.get("timestamp"))


Message = DataMessage[Any, Any] | Control
"""One output of a step."""

Sendable = Batch | Sequence[Any] | Control
"""What can be sent to a step: a batch, rows, or a control message."""


class OperatorTester:
    """Runs the step (or steps) that ``factory`` makes of a stream: ``OperatorTester(lambda stream: stream.map(…))``.

    ``keyed``: whether the input stream has keys; ``timed``: whether it has timestamps (in ms) and watermarks. A row has
    the form of the stream: ``(key, value, timestamp)``, ``(key, value)`` without times, ``(value, timestamp)`` without
    keys, the value alone without either; a `DataMessage` is always possible. ``inputs``: the number of input streams of
    ``factory``. ``workers``: worker 0, which runs the step, and fake workers for steps with an exchange. ``types``:
    classes to register, as ``job.register_type`` does. With ``checks`` (test mode) each `step` checks that values which
    were sent or received have not changed (`LawError`), and that keys, values and state can be encoded (`CodecError`
    naming step, key and type). A function that can never return the result that its step needs is an immediate
    `OperatorError`.

    `step` waits for pending calls, as of ``enrich``. Resources of ``per_worker`` are closed by `close`, at the end of a
    ``with`` block, or when the tester is garbage-collected.

    >>> def add(key, value, total):
    ...     return total + value, total + value
    >>> tester = OperatorTester(lambda stream: stream.stateful_map("sum", add, default=int), keyed=True)
    >>> tester.send_local([("a", 1), ("a", 2), ("b", 5)]).step().receive_local()
    [DataMessage(key='a', value=1, ...), DataMessage(key='a', value=3, ...), DataMessage(key='b', value=5, ...)]

    State moves as between workers, and is persisted as at a barrier:

    >>> taken = tester.collect(tester.interrogate(lambda key: key == "a"))
    >>> other = OperatorTester(lambda stream: stream.stateful_map("sum", add, default=int), keyed=True)
    >>> other.acquire(taken)
    >>> other.states["sum"].values, tester.states["sum"].values
    ({'a': 3}, {'b': 5})

    At an exchange, rows of keys that other workers own go to these workers:

    >>> tester = OperatorTester(lambda stream: stream.key_by("word", str), workers=2)
    >>> tester.send_local(["ant", "elk"]).step().receive_local()
    [DataMessage(key='elk', value='elk', timestamp=None)]
    >>> tester.receive_remote(1)
    [DataMessage(key='ant', value='ant', timestamp=None)]
    """

    encodes = True
    """Whether test mode also checks that keys, values and state can be encoded."""

    def __init__(
        self,
        factory: StreamFactory,
        *,
        keyed: bool = False,
        timed: bool = False,
        inputs: int = 1,
        workers: int = 1,
        types: Iterable[type] = (),
        slots: int = 1024,
        batch: Batching | None = None,
        clock: VirtualClock | None = None,
        checks: bool = True,
    ) -> None:
        self._single = plan_single_step(factory, keyed=keyed, timed=timed, inputs=inputs, slots=slots, types=types)
        self._keyed, self._timed = keyed, timed
        self.clock = clock or VirtualClock()
        self._runner = StepRunner(self._single, workers=workers, batching=batch or Batching(), clock=self.clock)
        self._queue: deque[tuple[Sendable, int | None]] = deque()
        self._received: dict[str, list[Message]] = {}
        self._watch = MutationWatch() if checks else None
        self._opened = keyed
        self._closed = weakref.finalize(self, _close_collected, self._runner.close)
        if checks:
            for operator in self._runner.enriching.values():
                operator.checked = self.encodes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the resources of this worker, and cancel pending calls; raise the first error."""
        if self._closed.detach() is not None:
            self._runner.close()

    def send_local(self, *messages: Sendable, input: int | None = None) -> Self:
        """Queue batches (a `Batch`, or a list of rows) and control messages. `step` processes them.

        By default data goes to input 0, and control messages go to all inputs.
        """
        self._queue.extend((message, input) for message in messages)
        return self

    def step(self) -> Self:
        """Process the queue and everything that results; call ``on_schedule`` if ``linger_s`` of the clock passed."""
        self._open({})
        while self._queue:
            message, input = self._queue.popleft()
            if isinstance(message, Batch | Sequence):
                self._push(message, input or 0)
            elif input is None:
                self._runner.control(message)
            else:
                self._runner.push(message, self._single.inputs[input])
            self._record()
        self._runner.settle()
        self._runner.finish_calls()
        self._runner.schedule()
        self._runner.finish_calls()
        self._record()
        if self._watch is not None:
            self._watch.check()
            for state in self.states.values() if self.encodes else ():
                state.snapshot()
        return self

    def receive_local(self, output: int = 0) -> list[Message]:
        """Return the output since the last call, in order: records as `DataMessage`, and control messages."""
        return self._received.pop(self._single.outputs[output][0], [])

    def receive_dead_letters(self) -> list[Message]:
        """Return the dead letters since the last call."""
        return [message for name, _ in self._single.dead_letters for message in self._received.pop(name, [])]

    def send_remote(self, worker: int, *messages: Any, exchange: str | None = None) -> Self:
        """Send from ``worker``: rows, as ``(key, value)`` or with times, `Epoch`, or ``Barrier`` and ``Suspend``."""
        name = self._exchange(exchange)
        timed = self._single.plan.steps[self._single.plan.rank(name)].traits.unit is not None
        for message in messages:
            rows = isinstance(message, Sequence)
            self._runner.remotes[worker].put(name, batch_of(message, keyed=True, timed=timed) if rows else message)
        self._runner.settle()
        self._runner.finish_calls()
        self._record()
        return self

    def receive_remote(self, worker: int, *, exchange: str | None = None) -> list[Message | InLine]:
        """Return the decoded messages to ``worker`` since the last call, and return their credit (F2)."""
        name = self._exchange(exchange)
        items, grants = self._runner.remotes[worker].take(name)
        for grant in grants:
            self._runner.exchanges[name].remote[worker].grant(grant)
        messages: list[Message | InLine] = []
        for item in items:
            messages.extend(messages_of(item) if isinstance(item, Batch) else [item])
        return messages

    def interrogate(self, predicate: Callable[[Any], bool] = lambda key: True) -> set[Any]:
        """Return the keys with state that pass ``predicate``."""
        message = Interrogate(predicate)
        self.send_local(message).step()
        return message.keys

    def collect(self, keys: Collection[Any]) -> dict[str, bytes]:
        """Remove the state of ``keys`` and return it, encoded, by step."""
        message = Collect(dict.fromkeys(keys).keys())
        self.send_local(message).step()
        return message.states

    def acquire(self, states: Mapping[str, bytes]) -> None:
        """Add state that `collect` of another tester returned."""
        self.send_local(Acquire(states)).step()

    def barrier(self, snapshot: str = "snapshot", *, parent: str | None = None) -> Persisted:
        """Send a barrier and return the persisted state. (After exchanges it waits for the barriers of ``workers``.)

        ``parent``: the last committed snapshot. After `track` only the changes since then are persisted.
        """
        backend = CapturingPersistenceBackend()
        self.send_local(AbsBarrier(snapshot, backend, parent)).step()
        states = dict(backend.states)
        for step in self.tracked:
            packed = self.states[step].take_packed() if step in self.states else ()
            if packed:
                full, *delta = (b"".join(one.made()) for one in split(packed, states[step]))
                states[step] = merged([full, *delta]) if delta else full
        return Persisted(states, self._runner.epoch())

    def pack_ahead(self, snapshot: str, *, parent: str | None = None, keys_max: int = 1) -> list[AheadOfBarrier]:
        """Return what packs the state of each step ahead of ``barrier(snapshot, parent=parent)``, after `track`."""
        operators = [one for one in self._runner.operators.values() if isinstance(one, StatefulOperator)]
        states = [state for one in operators if (state := one.packs_ahead) is not None and state.tracked]
        return [state.pack_ahead(snapshot, parent, keys_max=keys_max) for state in states]

    def track(self, slots_of: Callable[[Sequence[Any]], Sequence[int]]) -> Self:
        """Track from now on which keys change, and persist keyed artefacts, by the slots of ``slots_of``.

        >>> tester = OperatorTester(lambda stream: stream.count("n"), keyed=True).track(lambda keys: [0] * len(keys))
        >>> full = tester.send_local([("a", 1), ("b", 1)]).step().barrier("first")
        >>> delta = tester.send_local([("a", 1)]).step().barrier("second", parent="first")
        >>> other = OperatorTester(lambda stream: stream.count("n"), keyed=True)
        >>> other.install([full, delta], slots=[0])
        >>> other.states["n"].values
        {'a': 2, 'b': 1}
        """
        for operator in self._runner.operators.values():
            operator.track(slots_of)
        return self

    def keep_on_disk(self) -> Self:
        """Put all state on disk after each batch, as a worker does with more than ``mp.State(memory=…)``.

        In place of a disk is a dict. Steps that do not put their state on disk are not concerned.

        >>> tester = OperatorTester(lambda stream: stream.count("n"), keyed=True).keep_on_disk()
        >>> tester.send_local([("a", 1), ("b", 1)]).step().states["n"].values, tester.interrogate() == {"a", "b"}
        ({}, True)
        """
        memory = StateMemory(0, MemoryDisk, encode_key)
        for operator in self._runner.operators.values():
            if isinstance(operator, StatefulOperator) and operator.keeps_on_disk:
                operator.keep_within(memory)
        return self

    def install(self, persisted: Sequence[Persisted], slots: Collection[int]) -> None:
        """Install the keys of ``slots`` from the persisted state of one tester with `track`, at its last snapshot.

        ``persisted``: the results of the committed snapshots, oldest first. For a new tester; call it once for each
        tester that persisted.
        """
        self._open({})
        if persisted[-1].epoch > self._runner.epoch():
            self._runner.control(Epoch(persisted[-1].epoch))
        for name in self.tracked:
            if name in persisted[-1].states:
                self._runner.operators[name].install(chain_of(persisted, name), slots)
        self._forget()

    def continue_chain(self, snapshot: str) -> None:
        """Persist the changes since ``snapshot`` next, whose state is the installed one. Requires `track`."""
        for name in self.tracked:
            self._runner.operators[name].continue_chain(snapshot)

    def restore(self, persisted: Persisted, owned: Callable[[Any], bool] = lambda key: True) -> None:
        """Restore the result of `barrier`, with the keys that are ``owned`` here. For a new tester.

        As in a restored job, the watermark passes before the state is restored, so that no key sees it twice; but it is
        queued after the rows that a step holds back.
        """
        codec, states, enriching = self._runner.codec, self.states, self._runner.enriching
        of_parts = {name: state for name, state in persisted.states.items() if name not in {*states, *enriching}}
        self._open({name: codec.decode_at_rest(state, step=name) for name, state in of_parts.items()})
        for name, operator in enriching.items():
            if name in persisted.states:
                operator.restore(persisted.states[name], owned)
        if persisted.epoch > self._runner.epoch():
            self._runner.control(Epoch(persisted.epoch))
        for name, state in states.items():
            if name in persisted.states:
                state.restore(persisted.states[name], owned)
        self._forget()

    def release_parts(self) -> dict[str, dict[str, Any]]:
        """Release the source partitions of an unkeyed input (R2); return input -> the steps' state of its partition."""
        self.step()
        released = {name: PartReleased(part_of(name)) for name in self._single.inputs}
        for name, message in released.items():
            self._runner.push(message, name)
        self._record()
        return {name: message.state for name, message in released.items()}

    def take_parts(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Open the source partitions with state that `release_parts` of another tester returned."""
        self._opened = True
        for name in self._single.inputs:
            self._runner.push(PartOpened(part_of(name), states[name]), name)
        self._record()

    @property
    def states(self) -> dict[str, KeyedState]:
        """The keyed state of each step that has one: ``.values`` and ``.timers``, by key."""
        operators = self._runner.operators.items()
        return {name: operator.state for name, operator in operators if isinstance(operator, StatefulOperator)}

    @property
    def tracked(self) -> list[str]:
        """The steps that persist keyed artefacts after `track`."""
        return [*self.states, *self._runner.enriching]

    @property
    def codec(self) -> Codec:
        """The codec of state and batches."""
        return self._runner.codec

    @property
    def single(self) -> SingleStep:
        """The plan of the step."""
        return self._single

    def _open(self, parts: Mapping[str, Mapping[str, Any]]) -> None:
        """Open the source part of each unkeyed input, once, with its persisted state."""
        if not self._opened:
            self._opened = True
            self._runner.open(parts)
            self._forget()

    def _push(self, rows: Batch | Sequence[Any], input: int) -> None:
        name = self._single.inputs[input]
        if not isinstance(rows, Batch):
            part = None if self._keyed else part_of(name)
            rows = batch_of(rows, keyed=self._keyed, timed=self._timed, part=part)
        if self._watch is not None:
            self._watch.add("a batch that it was given", rows)
        if len(rows):
            self._runner.push(rows, name)

    def _record(self) -> None:
        for name, step in (*self._single.outputs, *self._single.dead_letters):
            received = self._received.setdefault(name, [])
            for message in self._runner.recorder(name).take():
                if not isinstance(message, Batch):
                    received.append(message)
                    continue
                if self._watch is not None:
                    if self.encodes:
                        self._runner.codec.encode_batch(message, step=step)
                    self._watch.add("a batch that it had sent", message)
                received.extend(messages_of(message))

    def _forget(self) -> None:
        """Drop the output so far: it does not result from the test's input."""
        self._record()
        self._received.clear()
        if self._watch is not None:
            self._watch.clear()

    def _exchange(self, name: str | None) -> str:
        if name is None:
            (name,) = self._runner.exchanges
        return name


def _close_collected(close: Callable[[], object]) -> None:
    """Close the runner of a tester that was not closed; the garbage collector calls it.

    In another context: the collector may call while this thread sets a context variable, and CPython up to 3.11
    crashes if another one is set in the same context then (python/cpython#148891). A thread that does not end in time
    is left to end: it may wait for a lock that this thread holds.
    """
    with suppress(DeadlineError):
        copy_context().run(close)
