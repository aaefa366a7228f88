"""Builds the graph of one worker from a plan: the executor's nodes, the exchanges, the inputs of regions, and the
initial state of steps, each key on the worker that owns its slot.

Rule: a step gets its initial state once: when the job starts without a snapshot, or from a snapshot without the step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from malstrom_py.builder.columns_read import columns_needed
from malstrom_py.builder.plan import PartitionerLike, Plan, Region, Step, StreamRef, is_exchanged
from malstrom_py.clock import Clock
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.errors import CodecError, InternalError, PlanError
from malstrom_py.operators.base import Operator, StepContext
from malstrom_py.operators.branching import Union
from malstrom_py.operators.keyed import StatefulOperator
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.operators.time_windows import TimeWindows
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.rescale.keys.key_hash import encode_key
from malstrom_py.rescale.keys.key_types import check_keys
from malstrom_py.rescale.moves.receiving_machine import ReceivingMachine
from malstrom_py.rescale.partitioners import partitioner_of, slots_of_legal_keys
from malstrom_py.sources.base import Part
from malstrom_py.state.memory import State, StateMemory
from malstrom_py.worker_context import Resources
from malstrom_py.workers.engine.exchange import Exchange
from malstrom_py.workers.engine.executor import Executor, NodeSpec
from malstrom_py.workers.engine.flow_limits import ROWS_TRUSTED, Batching, TimeShare
from malstrom_py.workers.engine.idle_sources import IdleSource, followers_of
from malstrom_py.workers.engine.region_input import ExchangeEntry, PassBarrier, RegionInput
from malstrom_py.workers.engine.state_transfer import KeyedSteps, StateTransfer
from malstrom_py.workers.engine.test_mode import CheckedStep
from malstrom_py.workers.transport.messages import COORDINATOR, Outgoing

SlotsOf = Callable[[Sequence[Any]], list[int]]
"""The slots of keys."""


@dataclass(frozen=True, slots=True)
class Membership:
    """The number of this worker, the members, and the routing table of ``version``.

    A joiner is not in ``members`` yet (R1). ``warned``: the steps that have warned of their function; the workers of
    one process share the set. ``parameters``: the values of those that were set.
    """

    worker: int
    members: Sequence[int]
    table: Sequence[int]
    version: int = 0
    incarnation: int = 1
    warned: set[str] = field(default_factory=set, compare=False)
    parameters: Mapping[str, Any] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class WorkerGraph:
    """The graph of a worker. ``operators``: by step; ``nodes``: step -> its node in the executor.

    ``followers``: the idle sources that may follow other workers (T2). ``messages``: messages of regions to other
    workers and the coordinator, outside the channels. ``slots_of``: step with keyed state -> a function from keys to
    slots. ``entries``: exchange -> its receiving node. ``turn``: the share of a round of each region and source.
    ``memory``: of the states, if it is limited.
    """

    executor: Executor
    operators: dict[str, Operator]
    nodes: dict[str, int]
    exchanges: dict[str, Exchange]
    regions: Sequence[Region]
    inputs: list[RegionInput]
    followers: list[IdleSource]
    messages: list[Outgoing]
    slots_of: dict[str, SlotsOf]
    entries: dict[str, int]
    turn: TimeShare
    memory: StateMemory | None = None

    def close(self) -> None:
        """End the references of the nodes to each other, and of the regions to the worker; forget state on disk."""
        self.executor.close()
        if self.memory is not None:
            self.memory.close()
        for region_input in self.inputs:
            region_input.close()


def build_graph(
    plan: Plan,
    member: Membership,
    *,
    batching: Batching,
    codec: Codec,
    clock: Clock,
    pass_barrier: PassBarrier,
    checks: bool = False,
    state: State | None = None,
    keys_per_chunk: int | None = None,
) -> WorkerGraph:
    """Build new operators, and an exchange of three nodes for each ``key_by``: keys, sending, receiving.

    ``checks``: whether every step is checked (test mode). ``state``: how much state is kept in memory.
    """
    operators = _operators(plan, member, codec, clock, checks=checks)
    shadows = {step.name for step in plan.steps if step.shadow_of is not None}
    memory = None if state is None else _kept_within(state, operators.values())
    specs, nodes, entries, exchanges = _nodes_of(plan, member, operators, batching=batching, codec=codec, clock=clock)
    if checks:
        specs = [
            replace(spec, operator=CheckedStep(spec.operator, codec))
            if spec.operator and spec.name not in shadows
            else spec
            for spec in specs
        ]
    executor = Executor(specs, measured=True)
    regions = plan.regions
    messages: list[Outgoing] = []
    if shadows:
        from malstrom_py.workers.engine.shadowing import attach_shadows  # few jobs have one

        attach_shadows(plan, member.worker, operators, nodes, executor, clock, messages)
    turn = TimeShare(sum(bool(region.entries) + len(region.sources) for region in regions))
    keyed = {region.name: _keyed(plan, region, nodes, exchanges) for region in regions}
    names = {node: name for name, node in nodes.items()}
    slots_of = {names[node]: group.slots_of for groups in keyed.values() for group in groups for node in group.nodes}
    for step, of_step in slots_of.items():
        if isinstance(operator := operators[step], StatefulOperator) and operator.state.memory is not None:
            operator.state.memory.cold.slots_of = of_step
    inputs = [
        RegionInput(
            executor,
            [ExchangeEntry(exchanges[name], entries[name]) for name in region.entries],
            [nodes[name] for name in region.sources],
            [exchanges[name] for name in region.exits],
            pass_barrier,
            [operator for name in region.steps if (operator := operators[name]).holding],
            sinks=[sink for name in region.steps if isinstance(sink := operators[name], WriteSink)],
            machine=_machine(region, member),
            shipping=StateTransfer(
                region.name,
                member.worker,
                executor,
                keyed[region.name],
                keys_first=keys_per_chunk,
                keys_indexed=keys_per_chunk,
            ),
            messages=messages,
            clock=clock,
            turn=turn,
        )
        for region in regions
    ]
    sending = [(name, nodes[name] + 1) for name in entries]
    followers = followers_of(zip(regions, inputs, strict=True), executor, operators, nodes, sending)
    made = (executor, operators, nodes, exchanges, regions, inputs, followers, messages, slots_of)
    return WorkerGraph(*made, entries, turn, memory)


def build_fed(
    plan: Plan, *, codec: Codec, clock: Clock, measured: bool = False
) -> tuple[Executor, dict[str, Operator]]:
    """Build the graph of a plan that has no exchanges and is fed by calls: its executor, and its operators by step.

    Steps are nodes of the same rank. Whether a record has a key and a timestamp differs by record.
    """
    operators: dict[str, Operator] = {}
    nodes: dict[str, int] = {}
    specs: list[NodeSpec] = []
    for step in plan.steps:
        context = StepContext(
            job=plan.job,
            step=step.name,
            inputs=tuple(ref.step for ref in step.inputs),
            on_error=step.on_error,
            dead_letter_port=step.dead_letter_port,
            timed=None,
            keyed=None,
            codec=codec,
            clock=clock,
        )
        operator = step.factory(context)
        operators[step.name], nodes[step.name] = operator, len(specs)
        # Messages pass through a union: the executor needs no operator for that.
        specs.append(_spec(step, None if type(operator) is Union else operator, nodes, {}))
    return Executor(specs, measured=measured), operators


def _operators(plan: Plan, member: Membership, codec: Codec, clock: Clock, *, checks: bool) -> dict[str, Operator]:
    """Return every operator, by its step."""
    contexts = {step.name: _context(plan, step, member, codec, clock, checks=checks) for step in plan.steps}
    return {step.name: step.factory(contexts[step.name]) for step in plan.steps}


def track_keys(graph: WorkerGraph) -> None:
    """Let each step with keyed state record which keys change (S2)."""
    for step, slots_of in graph.slots_of.items():
        graph.operators[step].track(slots_of)


def _kept_within(state: State, operators: Collection[Operator]) -> StateMemory:
    """Let ``operators`` keep as much of their state in memory as ``state`` says, and return this memory."""
    memory = state.opened(encode_key)
    for operator in operators:
        if isinstance(operator, StatefulOperator) and operator.keeps_on_disk:
            operator.keep_within(memory)
    return memory


def build_sinks(plan: Plan, clock: Clock) -> list[WriteSink]:
    """Return the sink steps of ``plan``, for commits only: they never write."""
    codec = Codec(plan.types)
    sinks = (step for step in plan.steps if step.kind == "sink")
    built = (step.factory(_context(plan, step, None, codec, clock)) for step in sinks)
    return [step for step in built if isinstance(step, WriteSink)]


def build_sources(plan: Plan, clock: Clock) -> list[ReadSource]:
    """Return the source steps of ``plan``, to list their parts only: they never read."""
    codec = Codec(plan.types)
    sources = (step for step in plan.steps if step.kind == "source")
    built = (step.factory(_context(plan, step, None, codec, clock)) for step in sources)
    return [step for step in built if isinstance(step, ReadSource)]


@dataclass(frozen=True, slots=True)
class PartAssignment:
    """The assignment of the parts of all ``sources``: worker -> step -> parts; ``movable``: those with movable parts.

    ``growing``: the sources that are listed again while the job runs; ``new_positions``: where those of their parts
    begin that are not in the snapshot (R13).
    """

    parts: Mapping[int, Mapping[str, Sequence[Part]]]
    movable: frozenset[str]
    growing: frozenset[str]
    new_positions: Mapping[str, Mapping[Part, Any]]
    sources: Sequence[ReadSource]


Known = Mapping[str, Mapping[Part, Any]]
"""The parts of the restored snapshot, by step, with their positions."""


def deal_parts(plan: Plan, workers: Sequence[int], clock: Clock, known: Known | None = None) -> PartAssignment:
    """List the parts of every source of ``plan`` and assign them to ``workers``.

    A source keeps what it learns by listing (for example the types of files), so later copies of ``plan`` have it too.
    """
    known = known or {}
    resources = Resources(worker=COORDINATOR)
    try:
        with resources:
            sources = build_sources(plan, clock)
            listed = {
                source.context.step: source.list_parts(workers, known.get(source.context.step)) for source in sources
            }
            new = {
                source.context.step: source.new_positions(
                    [part for parts in listed[source.context.step].values() for part in parts],
                    known.get(source.context.step),
                )
                for source in sources
            }
    finally:
        resources.close()
    parts = {worker: {step: dealt[worker] for step, dealt in listed.items()} for worker in workers}
    movable = frozenset(source.context.step for source in sources if source.moves_parts)
    growing = frozenset(source.context.step for source in sources if source.lists_again_every_s is not None)
    return PartAssignment(parts, movable, growing, new, sources)


def movable_parts(
    dealt: Mapping[int, Mapping[str, Sequence[Part]]], movable: Collection[str]
) -> dict[tuple[str, str], int]:
    """Return the assigned parts of the sources that can move: (source, part) -> worker."""
    return {
        (source, str(part)): worker
        for worker, sources in dealt.items()
        for source, parts in sources.items()
        if source in movable
        for part in parts
    }


class _Nodes(NamedTuple):
    """The nodes, the node of each step, the receiving node of each exchange, and the exchanges."""

    specs: list[NodeSpec]
    nodes: dict[str, int]
    entries: dict[str, int]
    exchanges: dict[str, Exchange]


def _nodes_of(
    plan: Plan, member: Membership, operators: dict[str, Operator], *, batching: Batching, codec: Codec, clock: Clock
) -> _Nodes:
    made = _Nodes([], {}, {}, {})
    specs, nodes, entries, exchanges = made
    read = {ref for ref, _ in plan.edges()}
    columns_read = columns_needed(plan.steps)
    for step in plan.steps:
        nodes[step.name] = len(specs)
        specs.append(_spec(step, operators[step.name], nodes, entries))
        if is_exchanged(step, StreamRef(step.name)) and StreamRef(step.name) in read:
            context = _context(plan, step, member, codec, clock)
            exchange = exchanges[step.name] = _exchange(plan, step, member, batching, context)
            specs.append(NodeSpec(f"{step.name} (send)", exchange, ((nodes[step.name], 0),), ()))
            entries[step.name] = len(specs)
            specs.append(NodeSpec(f"{step.name} (receive)", None))
            exchange.combine = _combine(plan, step, operators)
            exchange.columns_sent = columns_read[step.name]
    return made


def _combine(plan: Plan, step: Step, operators: Mapping[str, Operator]) -> Callable[[Batch], Batch] | None:
    """Return what gathers rows before the exchange of ``step``, if only a window that can merge reads them (F5)."""
    readers = [reader.name for ref, reader in plan.edges() if ref == StreamRef(step.name)]
    reader = operators[readers[0]] if len(readers) == 1 else None
    return reader.combine if type(reader) is TimeWindows and reader.combines else None


def _machine(region: Region, member: Membership) -> ReceivingMachine:
    return ReceivingMachine(
        region.name,
        member.worker,
        exchanges=region.entries,
        feeds_exchanges=bool(region.exits),
        members=tuple(member.members),
        table=tuple(member.table),
        version=member.version,
    )


def _keyed(plan: Plan, region: Region, nodes: dict[str, int], exchanges: dict[str, Exchange]) -> list[KeyedSteps]:
    """Return the steps of ``region`` that may have state, grouped by the partitioner of their keys."""
    groups: list[tuple[PartitionerLike | None, Exchange, list[int], list[str]]] = []
    for name in region.entries:
        partitioner = plan.steps[plan.rank(name)].traits.partitioner
        # By equality, as for a union: the steps after a union are one group, in the order of the graph.
        alike = [names for other, _, _, names in groups if partitioner == other]
        if alike:
            alike[0].append(name)
        else:
            groups.append((partitioner, exchanges[name], [], [name]))
    for step in plan.steps:
        traits = step.traits
        if step.name in region.steps and traits.keyed and not traits.local and step.kind != "key_by":
            for partitioner, _, steps, _ in groups:
                if partitioner == traits.partitioner:
                    steps.append(nodes[step.name])
    return [KeyedSteps(steps, exchange.slots_of, names) for _, exchange, steps, names in groups]


def _spec(step: Step, operator: Operator | None, nodes: dict[str, int], entries: dict[str, int]) -> NodeSpec:
    inputs = tuple(
        # Port 0 of a step with an exchange is its keyed stream, which is read at the receiving node.
        (entries[ref.step], 0) if ref.port == 0 and ref.step in entries else (nodes[ref.step], ref.port)
        for ref in step.inputs
    )
    return NodeSpec(step.name, operator, inputs, tuple(port.epochs for port in step.ports))


def _exchange(plan: Plan, step: Step, member: Membership, batching: Batching, context: StepContext) -> Exchange:
    return Exchange(
        context,
        member.members,
        member.table,
        slots=slots_of_legal_keys(partitioner_of(step.traits.partitioner, step.name), plan.slots, step=step.name),
        batching=batching,
        incarnation=member.incarnation,
        version=member.version,
        trust=ROWS_TRUSTED,
    )


def _context(
    plan: Plan, step: Step, member: Membership | None, codec: Codec, clock: Clock, *, checks: bool = False
) -> StepContext:
    """Return the context of ``step`` on a worker, or on the coordinator (None)."""
    return StepContext(
        job=plan.job,
        step=step.name,
        worker=COORDINATOR if member is None else member.worker,
        workers=1 if member is None else len({*member.members, member.worker}),
        inputs=tuple(ref.step for ref in step.inputs),
        on_error=step.on_error,
        dead_letter_port=step.dead_letter_port,
        timed=step.traits.unit is not None,
        keyed=step.traits.keyed or step.traits.local,
        codec=codec if step.types is None else Codec(step.types),
        check_keys=partial(check_keys, step=step.name),
        clock=clock,
        warned=set() if member is None else member.warned,
        checked=checks,
    )


States = Mapping[str, Mapping[Any, Any]]
"""Step -> key -> state."""


def initial_states(plan: Plan, steps: Collection[str]) -> States:
    """Load and return the initial states of ``steps``.

    Raises:
        PlanError: a row is wrong, or a key is not legal (F4).
        OperatorError: a function that returns the rows has raised.
    """
    loaded: dict[str, Mapping[Any, Any]] = {}
    for step in plan.steps:
        if step.name in steps and step.initial is not None:
            states = step.initial.states()
            try:
                check_keys(list(states), step.name)
            except CodecError as error:
                raise PlanError(f"initial_state: {error}") from error
            loaded[step.name] = states
    return loaded


def start_with(graph: WorkerGraph, states: States, slots: Collection[int]) -> None:
    """Install in the steps of a worker the ``states`` of the keys in its ``slots``."""
    for step, by_key in states.items():
        operator = graph.operators[step]
        if not isinstance(operator, StatefulOperator):
            raise InternalError(f"step {step!r} has no keyed state, but has an initial state")
        keys = list(by_key)
        own = (key for key, slot in zip(keys, graph.slots_of[step](keys), strict=True) if slot in slots)
        operator.start_with({key: by_key[key] for key in own})
