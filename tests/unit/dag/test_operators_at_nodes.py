"""`register_operator`: the kinds of operators of a node, what is refused, outputs, dead letters and errors."""

from __future__ import annotations

import functools
import operator as operators
from collections.abc import Callable
from functools import partial
from typing import Any

import polars as pl
import pytest

from malstrom_py.dag import DagBuilder, DagExecutor
from malstrom_py.dag.registration import registration_of
from malstrom_py.data.batch import Batch
from malstrom_py.data.epochs import limit_out_of_orderness
from malstrom_py.data.messages import DataMessage, DeadLetter
from malstrom_py.errors import DagError, OperatorError, PlanError
from malstrom_py.operators.aggregate import Count
from malstrom_py.operators.base import OnError, Operator, Outlet, StepContext
from malstrom_py.operators.branching import Branch, Cloned, Split, Union
from malstrom_py.operators.columns import FilterColumns, MapBatches, Select
from malstrom_py.operators.event_time import GenerateEpochs
from malstrom_py.operators.logic import KeyedLogic, Output
from malstrom_py.operators.stateful_op import StatefulOp
from malstrom_py.operators.stateless import Filter, Map
from malstrom_py.operators.stateless_op import StatelessOp
from tests.unit.dag.graphs import at, line, total


class Stateless:
    def on_data(self, message: Any, output: Any) -> None:
        """Do nothing."""


class WithEpochs(Stateless):
    def on_epoch(self, epoch: Any, output: Any) -> None:
        """Do nothing."""


class Stateful:
    def on_data(self, message: Any, key_state: Any, output: Any) -> Any:
        return None


class Keyed(KeyedLogic[Any, Any, Any, Any]):
    def on_batch(self, keys: Any, values: Any, timestamps: Any, state: Any, output: Any) -> None:
        """Do nothing."""


class Callable1:
    def __call__(self, value: Any) -> Any:
        return value


class Callable3:
    def __call__(self, message: Any, key_state: Any, output: Any) -> Any:
        return None


def one(value: Any, *, scale: int = 2) -> Any:
    return value


def with_default(value: Any, scale: int = 2) -> Any:
    return value


def two(message: Any, output: Any) -> None:
    """Do nothing."""


def three(message: Any, key_state: Any, output: Any) -> Any:
    return None


def any_number(*arguments: Any) -> Any:
    return arguments[0]


@functools.wraps(two)
def wrapped(*arguments: Any, **named: Any) -> None:
    two(*arguments, **named)


def built(thing: Any, **options: Any) -> tuple[type[Operator], str]:
    """Return the class of the operator that is built of ``thing``, and the label of its state."""
    node = line(None).dag.nodes[1]
    given: dict[str, Any] = {"default": None, "on_error": "fail", "kind": None, **options}
    registered = registration_of(thing, node, **given)
    return type(registered.factory(StepContext("dag", "a", timed=None, keyed=None))), registered.label


FUNCTIONS = [one, with_default, lambda n=1: n, any_number, Callable1(), int, str.upper, len, dict.fromkeys]
FUNCTIONS += [operators.itemgetter("x"), partial(operators.mul, 2), partial(three, None, None)]


@pytest.mark.parametrize(
    ("things", "kind", "label"),
    [
        (FUNCTIONS, Map, "function"),
        ([two, wrapped, Stateless(), WithEpochs(), Stateless().on_data], StatelessOp, "stateless"),
        ([three, Stateful(), Callable3(), Keyed(), Stateful().on_data], StatefulOp, "stateful"),
        ([Count], Count, "Count"),
        ([Union], Union, "Union"),
        ([partial(Filter, predicate=bool)], Filter, "Filter"),
    ],
)
def test_what_a_thing_is_is_told_without_saying(things: list[Any], kind: type[Operator], label: str) -> None:
    assert [built(thing) for thing in things] == [(kind, label)] * len(things)


def test_a_kind_is_said_where_it_cannot_be_told() -> None:
    assert built(any_number, kind="stateful")[0] is StatefulOp
    assert built(any_number, kind="stateless")[0] is StatelessOp
    assert built(lambda context: [Union(context)].pop(), kind="factory")[0] is Union
    assert built(Union, kind="factory")[0] is Union


ALL_COLUMNS = "step 'a': .* takes whole batches, so on_error='skip' cannot identify"
COLUMN_STEPS = [
    partial(Select, expressions=[pl.col("a")]),
    partial(FilterColumns, predicate=pl.col("a") > 1),
    partial(MapBatches, fn=lambda batch: batch),
]
MISSPELT: dict[str, Any] = {"predicat": len}


@pytest.mark.parametrize(
    ("thing", "options", "message"),
    [
        (None, {}, "node 'a': expected a function, a logic with on_data, or a step.*, got NoneType"),
        (7, {}, "node 'a': expected a function.*, got int"),
        ("upper", {}, "node 'a': expected a function.*, got str"),
        (lambda: 1, {}, "node 'a': a function takes a value; or .* This one takes 0"),
        (lambda a, b, c, d: 1, {}, "This one takes 4. If it does take one of these, pass kind="),
        (Stateless, {}, "step 'a': pass an instance, Stateless"),
        (Keyed, {}, "step 'a': pass an instance, Keyed"),
        (KeyedLogic(), {}, "'a': KeyedLogic has neither on_data nor on_batch"),
        (type("Near", (), {"on_dta": three})(), {}, r"'a': Near.on_dta is not a hook .*; did you mean 'on_data'\?"),
        (type("Near", (Keyed,), {"on_epoc": three})(), {}, "'a': Near.on_epoc is not a hook"),
        (Count(StepContext("dag", "a")), {}, "node 'a': pass the class Count or a partial of it, not an instance"),
        (one, {"on_error": "ignore"}, "node 'a': on_error must be 'fail', 'skip' or 'dead-letter', got 'ignore'"),
        (one, {"kind": "logic"}, "node 'a': kind must be one of 'function', 'stateless', .* 'factory', got 'logic'"),
        (one, {"default": list}, "node 'a': default= is for logics with state, but this is a function"),
        (one, {"default": 0, "kind": "stateful"}, "node 'a': default must be a function that makes a state, got int"),
        (7, {"kind": "function"}, "node 'a': a function must be callable, but int is not"),
        (7, {"kind": "factory"}, "node 'a': a factory must be callable, but int is not"),
        (Keyed(), {"on_error": "skip"}, "step 'a': on_batch takes whole batches, so on_error='skip' cannot identify"),
        *[(step, {"on_error": "skip"}, ALL_COLUMNS) for step in COLUMN_STEPS],
        (Branch, {}, "node 'a': Branch cannot be made from a StepContext alone: missing a required .*'predicate'"),
        (partial(Split, n=2), {}, "node 'a': Split cannot be made from .* 'fn'"),
        (partial(Branch, **MISSPELT), {}, "node 'a': Branch cannot be made from a StepContext alone"),
        (partial(Select), {}, "node 'a': Select cannot be made"),
    ],
)
def test_what_cannot_be_an_operator_is_refused(thing: Any, options: dict[str, Any], message: str) -> None:
    executor = DagExecutor.from_dag(line(None).dag)
    with pytest.raises(PlanError, match=message):
        executor.register_operator("a", thing, **options)
    executor.register_operator("a", COLUMN_STEPS[0])


def test_an_operator_is_registered_once_for_an_operator_node_before_the_first_event() -> None:
    executor = line(None, total)
    for node in ("in", "out"):
        with pytest.raises(PlanError, match=f"'{node}' is a (source|sink): operators are registered for operator nod"):
            executor.register_operator(node, str)
    with pytest.raises(PlanError, match=r"node 'b' has an operator already \(stateful\)"):
        executor.register_operator("b", str)
    executor.metrics()
    assert executor.take_all_sink_outputs() == {}
    executor.register_operator("a", lambda n: n + 1)
    executor.process_event("in", 1)
    with pytest.raises(PlanError, match="node 'a' has an operator already"):
        executor.register_operator("a", str)
    executor = line(None)
    executor.process_event("in", 1)
    with pytest.raises(PlanError, match="node 'a': register operators before the first event"):
        executor.register_operator("a", str)


@pytest.mark.parametrize("made", [lambda context: None, lambda context: Count, str])
def test_a_factory_that_gives_no_operator_is_told_at_the_first_event(made: Callable[[Any], Any]) -> None:
    executor = DagExecutor.from_dag(line(None).dag)
    executor.register_operator("a", made, kind="factory")
    with pytest.raises(PlanError, match=r"node 'a': the factory returned .*, which is not an Operator"):
        executor.process_event("in", 1)


def test_state_is_kept_by_key_and_default_makes_the_first() -> None:
    executor = DagExecutor.from_dag(line(None).dag)
    executor.register_operator("a", grow, default=list)
    executor.process_events("in", [at(1, None, "x"), at(2, None, "y"), at(3, None, "x"), 4, 5])
    assert executor.take_sink_outputs("out") == [[1], [2], [1, 3], [4], [4, 5]]


def grow(message: DataMessage[Any, int], state: list[int], output: Output[Any, list[int]]) -> list[int]:
    output.emit(message.key, [*state, message.value])
    return [*state, message.value]


# Outputs.

EVEN = partial(Branch, predicate=lambda n: 10 % n == 0)


def graph(*reads: str, outputs: list[str] | None = None) -> DagExecutor:
    """Return the graph s -> p, with a sink for each read output of p, named as the output."""
    builder = DagBuilder().source("s").operator("p", outputs=outputs).connect("s", "p").sink_for("p", "out")
    for output in reads:
        builder.sink_for(f"p:{output}", output)
    return DagExecutor.from_dag(builder.build())


@pytest.mark.parametrize("reads", [("odd", "dead_letters", "late"), ("dead_letters", "late", "odd")])
@pytest.mark.parametrize("declared", [False, True])
def test_late_and_dead_letters_stand_behind_a_steps_own_outputs(reads: tuple[str, ...], declared: bool) -> None:
    executor = graph(*reads, outputs=list(reads) if declared else None)
    executor.register_operator("p", EVEN, on_error="dead-letter")
    executor.process_watermark("s", 5)
    executor.process_events("s", [at(5, 6), at(3, 6), at(0, 6)])
    executor.inject_events("p", [at(2, 5)])
    executor.run()
    taken = executor.take_all_sink_outputs()
    assert [letter.value for letter in taken.pop("dead_letters")] == [0]
    assert taken == {"out": [5], "odd": [3], "late": [2]}
    assert executor.dag.nodes[1].outputs == ("odd", "late", "dead_letters")


@pytest.mark.parametrize(
    ("step", "reads", "message"),
    [
        (EVEN, (), "node 'p': Branch sends to 2 streams, .* but the node has no side output for the others"),
        (EVEN, ("dead_letters",), "node 'p': Branch sends to 2 streams, .* the node has no side output"),
        (partial(Split, n=3, fn=lambda n: [n]), ("one",), "node 'p': Split sends to 3 .* the node has only 'one' for"),
        (partial(Cloned, n=2), ("late",), "node 'p': Cloned sends to 2 streams"),
    ],
)
def test_a_stream_without_an_output_of_its_own_is_refused(step: Any, reads: tuple[str, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        graph(*reads).register_operator("p", step, on_error="dead-letter")


def test_the_ports_of_a_step_are_its_outputs_in_order() -> None:
    executor = graph("2", "1", outputs=["1", "2"])
    executor.register_operator("p", partial(Split, n=3, fn=lambda n: [min(2, n // 10)]))
    executor.process_events("s", [1, 15, 99, 2])
    assert executor.take_all_sink_outputs() == {"out": [1, 2], "1": [15], "2": [99]}


def test_the_late_of_generate_epochs_is_its_own_and_need_not_be_read() -> None:
    step = partial(GenerateEpochs, generator=limit_out_of_orderness(0), unit="ms")
    for reads in ((), ("dead_letters",), ("dead_letters", "late")):
        executor = graph(*reads)
        executor.register_operator("p", step)
        executor.process_events("s", [at(5, 5), at(4, 4), at(6, 6)])
        late = {"late": [4]} if "late" in reads else {}
        assert executor.take_all_sink_outputs() == {"out": [5, 6], **late}
        fresh = graph(*reads)
        fresh.register_operator("p", step)
        fresh.restore(executor.checkpoint())
        fresh.process_event("s", at(3, 3))
        assert fresh.take_all_sink_outputs() == ({"late": [3]} if late else {})
        with pytest.raises(OperatorError, match="step 'p' received records without timestamps"):
            fresh.process_event("s", 1)
    with pytest.raises(PlanError, match="node 'p': GenerateEpochs sends to its main output and to 'late'"):
        graph("tardy").register_operator("p", step)


def test_output_to_a_port_or_a_name_that_is_not_there_is_an_error_and_what_nothing_reads_is_counted() -> None:
    class Third(Operator):
        def on_batch(self, batch: Batch, out: Outlet) -> None:
            out.send(batch, 2)

    def aside(message: DataMessage[Any, int], output: Output[Any, int]) -> None:
        output.side("odd").send(message)

    with pytest.raises(OperatorError, match="step 'a' sent to its output 2, but it has 1, numbered from 0"):
        line(Third).process_event("in", 1)
    executor = graph("rejected")
    executor.register_operator("p", aside, on_error="skip")
    with pytest.raises(OperatorError, match=r"'p' sent .* side output 'odd', but its side outputs are 'rejected'"):
        executor.process_event("s", 1)
    executor = graph(outputs=["odd"])
    executor.register_operator("p", aside)
    executor.process_event("s", 1)
    assert executor.take_all_sink_outputs() == {}
    assert executor.node_metrics()["p"].rows_out == 1


def last_of_key(message: DataMessage[Any, DeadLetter], key_state: None, output: Output[Any, Any]) -> None:
    """A stateful logic on dead letters, which have the key of their record."""
    output.emit(message.key, message.value.value)


@pytest.mark.parametrize("on_error", ["skip", "dead-letter"])
@pytest.mark.parametrize("read", [False, True])
def test_records_that_fail_are_skipped_or_go_to_dead_letters_with_their_keys_and_are_counted(
    on_error: OnError, read: bool
) -> None:
    builder = DagBuilder().source("in").operator("parse").connect("in", "parse").sink_for("parse", "out")
    if read:
        builder.operator("seen").connect("parse:dead_letters", "seen").sink_for("seen", "letters")
    executor = DagExecutor.from_dag(builder.build())
    executor.register_operator("parse", int, on_error=on_error)
    if read:
        executor.register_operator("seen", last_of_key)
    executor.process_events("in", [at("1"), at("two", 5, "k"), at("3")])
    letters = [at("two", None, "k")] if read and on_error == "dead-letter" else []
    taken = executor.take_all_sink_outputs(messages=True)
    assert taken == {"out": [at(1), at(3)], **({"letters": letters} if letters else {})}
    node = executor.node_metrics()["parse"]
    counted = (1, 0) if on_error == "skip" else (0, 1)
    assert ((node.skipped, node.dead_letters), node.rows_out) == (counted, 2 + len(letters))


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (["k"], "a key of type list cannot be hashed"),
        (float("nan"), "a key is NaN"),
        (("a", []), "a key of type tuple cannot be hashed"),
    ],
)
def test_a_key_that_would_be_found_nowhere_is_told_when_its_event_is_handed_in(key: Any, why: str) -> None:
    event = at(1, None, key)
    handed_in: list[Callable[[DagExecutor], None]] = [
        lambda executor: executor.process_event("in", event),
        lambda executor: executor.process_event("in", [at(1, None, "k"), event]),
        lambda executor: executor.process_events("in", ["k", event]),
        lambda executor: executor.process_event("in", Batch([1], keys=[key])),
        lambda executor: executor.inject_events("a", [event]),
    ]
    for hand_in in handed_in:
        executor = line(total)
        with pytest.raises(DagError, match=f"node '(in|a)': {why}") as caught:
            hand_in(executor)
        assert "key_by" not in str(caught.value)
        executor.run()
        assert executor.take_all_sink_outputs() == {}
