"""The base of steps, of keyed ones most: one state per key, and what they persist while tracked (S1, S2, S5)."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import pytest

from malstrom_py import agg
from malstrom_py.clock import Clock
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import AbsBarrier, Control, DataMessage, Epoch, PartFinished, PartOpened
from malstrom_py.errors import InternalError, OperatorError
from malstrom_py.operators.aggregate import Aggregate, Count, Distinct, Fold, Max, Mean, Min, Reduce, Sum, TopN
from malstrom_py.operators.base import OnError, Operator, OperatorFactory, StepContext
from malstrom_py.operators.branching import Branch
from malstrom_py.operators.collect import CollectStep
from malstrom_py.operators.event_time import AssignTimestamps
from malstrom_py.operators.key_by import KeyBy
from malstrom_py.operators.logic import KeyedLogic, Output
from malstrom_py.operators.stateful_map import StatefulFlatMap, StatefulMap, TtlMap
from malstrom_py.operators.stateful_op import StatefulOp
from malstrom_py.operators.stateless import Filter, FilterMap, FlatMap, Inspect, InspectFrontier, Map
from malstrom_py.operators.write_sink import WriteParts
from malstrom_py.state.artefact import contents, is_delta
from malstrom_py.testing import CapturingPersistenceBackend, VirtualClock
from tests.unit.operators.desk import TIMED, enriching, row
from tests.unit.operators.stepping import Stepped


def echo(message: Any, state: Any, output: Any) -> Any:
    output.send(message)
    return (state or 0) + 1


NUMBERS = count()
"""Make every value another, so that `Distinct` lets all of them pass."""

FACTORIES: dict[str, OperatorFactory] = {
    "count": Count,
    "sum": Sum,
    "min": Min,
    "max": Max,
    "mean": Mean,
    "reduce": partial(Reduce, fn=lambda left, right: left * 31 + right),
    "fold": partial(Fold, fn=lambda seen, value: (*seen, value), default=tuple),
    "stateful_map": partial(StatefulMap, fn=lambda _, value, seen: ((seen, value), (seen or 0) + 1), default=None),
    "stateful_op": partial(StatefulOp, logic=echo, default=None),
    "stateful_flat_map": partial(
        StatefulFlatMap, fn=lambda _, value, seen: (iter([(seen, value)]), value), default=None
    ),
    "ttl_map": partial(TtlMap, fn=lambda _, value, seen: ((seen, value), (seen or 0) + 1), ttl=100, default=None),
    "top_n": partial(TopN, n=3, by=None),
    "distinct": partial(Distinct, by=lambda value: (value, next(NUMBERS))),
    "aggregate": partial(Aggregate, aggregations={"n": agg.count(), "least": agg.min(), "unique": agg.n_unique()}),
    "collect": partial(CollectStep, size=1, every_s=None),
}
EVERY_KEYED_STEP = pytest.mark.parametrize("name", sorted(FACTORIES))


def held(name: str, keys: int) -> int:
    """How many of ``keys`` keys have state: `collect` has sent everything, its lists being of one value."""
    return 0 if name == "collect" else keys


@EVERY_KEYED_STEP
@pytest.mark.parametrize("on_error", ["fail", "skip", "dead-letter"])
@pytest.mark.parametrize("key", [[1], {}, (1, [])], ids=repr)
def test_a_key_that_cannot_be_hashed_fails_whatever_the_policy(name: str, on_error: OnError, key: Any) -> None:
    step = Stepped(FACTORIES[name], on_error=on_error)
    with pytest.raises(OperatorError, match=rf"'under-test'.*{type(key).__name__} cannot be hashed.*key_by"):
        step.push(Batch([1, 2], keys=["a", key]))


@EVERY_KEYED_STEP
def test_a_batch_without_keys_is_our_bug(name: str) -> None:
    with pytest.raises(InternalError, match="'under-test'"):
        Stepped(FACTORIES[name]).push(Batch([1]))


# Tracked


SLOTS = 4


def slots_of(keys: Sequence[Any]) -> list[int]:
    return [ord(str(key)[0]) % SLOTS for key in keys]


class Persisting:
    """A tracked step, and what it has persisted since it began, each barrier committed."""

    def __init__(self, step: Stepped) -> None:
        self.step = step
        self.chain: list[bytes] = []
        step.operator.track(slots_of)

    def barrier(self) -> list[Any]:
        """Persist: the keys that were written, also as gone, sorted."""
        backend = CapturingPersistenceBackend()
        parent = f"s{len(self.chain)}" if self.chain else None
        self.step.push(AbsBarrier(f"s{len(self.chain) + 1}", backend, parent))
        data = backend.states["under-test"]
        assert is_delta(data) is bool(self.chain)
        self.chain.append(data)
        codec = self.step.operator.context.codec
        return sorted(codec.decode_at_rest(key) for _, (keys, _) in contents(data) for key in keys)

    def resumed(self, fresh: Stepped) -> Persisting:
        """The step in a new process, which continues the chain if it can."""
        again = Persisting(self.restored(fresh))
        again.step.operator.continue_chain(f"s{len(self.chain)}")
        again.chain = self.chain
        return again

    def restored(self, fresh: Stepped, slots: Sequence[int] = range(SLOTS)) -> Stepped:
        fresh.operator.install(self.chain, slots)
        return fresh


def persisting(factory: Callable[[Any], Operator], **options: Any) -> Persisting:
    return Persisting(Stepped(factory, keyed=True, **options))


def batch(*rows: tuple[str, Any], at: int | None = None) -> Batch:
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    return Batch(values, keys=keys, timestamps=None if at is None else [at] * len(rows))


def same_state(one: Persisting, fresh: Stepped) -> bool:
    restored, known = one.restored(fresh).operator.state, one.step.operator.state  # type: ignore[attr-defined]
    times, there = ({key: state.timers.times(key) for key in sorted(known.keys())} for state in (known, restored))
    return restored.keys() == known.keys() and (restored.values, there) == (known.values, times)


@pytest.mark.parametrize(
    "factory",
    [
        Count,
        partial(Distinct, by=None),
        partial(Aggregate, aggregations={"n": agg.count(), "kinds": agg.n_unique()}),
        partial(StatefulOp, logic=lambda message, state, output: (state or 0) + message.value),
    ],
)
def test_s2_the_keys_of_records_are_written_and_no_others(factory: Any) -> None:
    one = persisting(factory)
    one.step.push(batch(("a", 1), ("b", 2), ("c", 3)))
    assert one.barrier() == ["a", "b", "c"]
    one.step.push(batch(("b", 5)))
    assert one.barrier() == ["b"]
    assert one.barrier() == []
    assert same_state(one, Stepped(factory, keyed=True))


class Halving(KeyedLogic[str, int, int, int]):
    """Keeps the last value; an epoch or the clock halves the even ones, and drops those that are 0."""

    def on_data(self, message: DataMessage[str, int], key_state: int | None, output: Output[str, int]) -> int:
        return message.value

    def on_epoch(self, epoch: Epoch, state: MutableMapping[str, int], output: Output[str, int]) -> None:
        for key, value in sorted(state.items()):
            if value % 2 == 0:
                state[key] = value // 2
        for key in [key for key, value in state.items() if value == 0]:
            del state[key]

    def on_schedule(self, state: MutableMapping[str, int], output: Output[str, int]) -> None:
        self.on_epoch(Epoch(0), state, output)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda state: state.pop("a"), ["a"]),
        (lambda state: state.popitem(), ["c"]),
        (lambda state: state.clear(), ["a", "b", "c"]),
        (lambda state: state.update(a=7, b=8), ["a", "b"]),
        (lambda state: state.setdefault("a", 9), []),
        (lambda state: state.__setitem__("b", None), ["b"]),
        (lambda state: [*state, *state.values(), *state.items(), *state.keys(), len(state), "a" in state], []),
        (lambda state: state.pop("z", None), []),
    ],
)
def test_s2_every_way_to_change_the_mapping_is_noted(change: Callable[[Any], object], expected: list[str]) -> None:
    class Changing(Halving):
        def on_epoch(self, epoch: Epoch, state: MutableMapping[str, int], output: Output[str, int]) -> None:
            if epoch.time == 3:
                change(state)

    one = persisting(partial(StatefulOp, logic=Changing()), timed=True)
    one.step.push(batch(("a", 1), ("b", 2), ("c", 3), at=5))
    one.barrier()
    one.step.push(Epoch(3))
    assert one.barrier() == expected
    assert same_state(one, Stepped(partial(StatefulOp, logic=Halving()), keyed=True))


# collect


def collecting(clock: Clock, size: int = 9) -> Stepped:
    return Stepped(partial(CollectStep, size=size, every_s=10.0), keyed=True, clock=clock)


def test_s2_a_list_that_waits_is_written_once_and_knows_how_long_it_has_waited() -> None:
    here, there = VirtualClock(), VirtualClock(start_s=5_000.0)
    one = Persisting(collecting(here))
    one.step.push(batch(("a", 1)))
    assert one.barrier() == ["a"]
    here.advance(4.0)
    one.step.push(batch(("b", 1)))
    assert one.barrier() == ["b"]
    here.advance(3.0)
    assert one.barrier() == []
    fresh = one.restored(collecting(there))
    there.advance(2.5)
    fresh.call(partial(fresh.operator.on_schedule, clock=there))
    assert fresh.rows() == []
    there.advance(0.5)
    fresh.call(partial(fresh.operator.on_schedule, clock=there))
    assert fresh.rows() == [("a", [1], None)]
    there.advance(4.0)
    fresh.call(partial(fresh.operator.on_schedule, clock=there))
    assert fresh.rows()[1:] == [("b", [1], None)]


def test_s2_a_list_that_waits_over_two_resumes_is_written_anew_by_each_clock() -> None:
    here, there = VirtualClock(), VirtualClock(start_s=5_000.0)
    one = Persisting(collecting(here))
    one.step.push(batch(("a", 1)))
    one.barrier()
    here.advance(4.0)
    one.barrier()
    again = one.resumed(collecting(there))
    there.advance(3.0)
    again.step.push(batch(("b", 1)))
    backend = CapturingPersistenceBackend()
    again.step.push(AbsBarrier("s3", backend, "s2"))
    again.chain = [backend.states["under-test"]]
    assert not is_delta(*again.chain)
    last = VirtualClock(start_s=90.0)
    fresh = again.restored(collecting(last))
    last.advance(3.0)
    fresh.call(partial(fresh.operator.on_schedule, clock=last))
    assert fresh.rows() == [("a", [1], None)]


# write_parts


class Ledger:
    """Parts by key, whose position the test sets in the test, or how much was written."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, Any]] = []
        self.told: dict[str, Any] = {}

    def assign_part(self, message: DataMessage[Any, Any]) -> str:
        return str(message.key)

    def build_part(self, part: str, state: Any) -> Page:
        self.opened.append((part, state))
        return Page(self, part, state or 0)


class Page:
    def __init__(self, ledger: Ledger, part: str, rows: int) -> None:
        self._ledger, self._part, self._rows = ledger, part, rows

    def write(self, batch: Batch) -> None:
        self._rows += len(batch)

    def snapshot(self) -> Any:
        return self._ledger.told.get(self._part, self._rows)

    def close(self) -> None:
        """Nothing is open."""


def writing(ledger: Ledger) -> Stepped:
    return Stepped(partial(WriteParts, sink=ledger, keyed=False), ports=0, keyed=True)


def test_s2_the_positions_that_changed_are_written_and_restored_writers_are_opened_at_once() -> None:
    ledger, other = Ledger(), Ledger()
    one = Persisting(writing(ledger))
    one.step.push(batch(("a", 1), ("b", 1)))
    assert one.barrier() == ["a", "b"]
    assert one.barrier() == []
    one.step.push(batch(("b", 2), ("b", 3)))
    assert one.barrier() == ["b"]
    one.restored(writing(other))
    assert sorted(other.opened) == [("a", 1), ("b", 3)]


def test_s2_a_position_that_moves_by_itself_is_written_and_one_that_may_change_in_place_always() -> None:
    ledger = Ledger()
    one = Persisting(writing(ledger))
    one.step.push(batch(("a", 1), ("b", 1)))
    one.barrier()
    ledger.told = {"a": 7, "b": [1]}
    assert one.barrier() == ["a", "b"]
    assert one.barrier() == ["b"]


# enrich


def test_s1_enrich_holds_epochs_until_they_leave_and_persists_none() -> None:
    with enriching(TIMED) as step:
        one = Persisting(step)
        step.push(row("a", 1, 1))
        assert not step.operator.holds_epochs
        step.push(Epoch(5))
        assert step.operator.holds_epochs
        with pytest.raises(InternalError, match="held back epochs"):
            one.barrier()
        step.desk.answer("a")
        step.settle()
        assert not step.operator.holds_epochs
        assert one.barrier() == []


def test_s5_records_of_one_key_that_waited_on_two_workers_are_an_internal_error() -> None:
    with enriching(TIMED) as step, enriching(TIMED) as fresh:
        one = Persisting(step)
        step.push(row("a", 1, 1))
        one.barrier()
        fresh.operator.install(one.chain, range(SLOTS))
        with pytest.raises(InternalError, match="records of key 'a' waited on two workers"):
            fresh.operator.install(one.chain, range(SLOTS))
        step.desk.answer("a")
        fresh.desk.answer("a")


# all


def test_migrate_that_raises_is_named_with_step_and_key() -> None:
    one = persisting(Count)
    one.step.push(batch(("a", 1)))
    one.barrier()

    def migrate(key: str, state: int) -> int:
        raise ValueError("secret")

    fresh = Stepped(Count, keyed=True)
    with pytest.raises(OperatorError, match=r"step 'under-test' failed for key 'a': ValueError in .*migrate at ") as it:
        fresh.operator.install(one.chain, range(SLOTS), migrate=migrate)
    assert (it.value.key, "secret" in str(it.value)) == ("a", True)


def test_a_step_without_state_has_nothing_to_note_and_nothing_to_take_over() -> None:
    step = Stepped(partial(Map, fn=str), keyed=True)
    step.operator.track(slots_of)
    backend = CapturingPersistenceBackend()
    step.push(batch(("a", 1)), AbsBarrier("s1", backend))
    assert backend.states == {}
    assert not step.operator.holds_epochs
    with pytest.raises(InternalError, match="step 'under-test' keeps no keyed state"):
        step.operator.install([], [])


def test_a_step_that_goes_on_is_not_told_the_epoch_again() -> None:
    seen: list[int] = []
    step = Stepped(partial(InspectFrontier, fn=seen.append), timed=True)
    step.operator.continue_at(7)
    step.push(Epoch(7), Epoch(9))
    assert seen == [9]


def test_a_key_that_cannot_be_hashed_is_named_while_keys_are_noted_too() -> None:
    one = persisting(Count)
    one.barrier()
    with pytest.raises(OperatorError, match="a key of type list cannot be hashed"):
        one.step.push(Batch([1], keys=[["a"]]))


# All operators


def picky(value: int) -> int:
    if value % 7 == 3:
        raise ValueError
    return value % 3


STATELESS: dict[str, OperatorFactory] = {
    "assign_timestamps": partial(AssignTimestamps, fn=picky, unit="ms"),
    "branch": partial(Branch, predicate=picky),
    "filter": partial(Filter, predicate=picky),
    "filter_map": partial(FilterMap, fn=lambda value: picky(value) or None),
    "flat_map": partial(FlatMap, fn=lambda value: range(picky(value))),
    "inspect": partial(Inspect, fn=picky),
    "key_by": partial(KeyBy, fn=picky),
    "map": partial(Map, fn=picky),
}
EVERY_STATELESS_STEP = pytest.mark.parametrize("name", sorted(STATELESS))


@EVERY_STATELESS_STEP
def test_a_batch_is_accounted_for(name: str) -> None:
    step = Stepped(STATELESS[name], on_error="dead-letter", ports=2 if name == "branch" else 1)
    step.push(Batch(list(range(50))))
    counters = step.counters
    assert counters.rows_in == 50
    assert counters.dead_letters == 7
    if name != "flat_map":
        assert sum(counters.rows_out) + counters.filtered == 50


@pytest.mark.parametrize("name", sorted(STATELESS.keys() - {"key_by"}))
def test_parts_pass_through_the_source_region(name: str) -> None:
    parts: list[Control] = [PartOpened("p"), PartFinished("p")]
    assert Stepped(STATELESS[name]).push(*parts).messages() == parts


def test_an_operator_that_takes_no_batches_says_so() -> None:
    step = Stepped(Operator)
    with pytest.raises(NotImplementedError, match="Operator takes no batches"):
        step.push(Batch([1]))
    assert Operator(StepContext("test", "bare")).keys is None
