"""Test mode: what it finds, what it leaves alone, and that it changes nothing else."""

from __future__ import annotations

from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, sources
from malstrom_py.codec import Codec
from malstrom_py.errors import CodecError, OperatorError
from malstrom_py.operators.base import Operator, StepContext
from malstrom_py.workers.engine.test_mode import CheckedStep


def stream_of(*items: Any) -> mp.StreamBuilder[None, Any]:
    return mp.Job("checks").source("in", sources.Memory(items))


def run(stream: mp.StreamBuilder[Any, Any], workers: int = 1) -> list[Any]:
    out = sinks.Memory()
    stream.sink("out", out)
    mp.run(stream.job, workers, checks=True)
    return out.items


def sort_in_place(values: list[int]) -> list[int]:
    values.sort()
    return values


class Mutating(mp.KeyedLogic[Any, Any, Any, Any]):
    """Changes the batch itself, which others are given too."""

    def __init__(self, column: str) -> None:
        self._column = column

    def on_batch(self, keys: Any, values: Any, timestamps: Any, state: Any, output: Any) -> None:
        {"keys": keys, "values": values}[self._column][0] = None


CHANGES = {
    "map": lambda s: s.map("step", sort_in_place),
    "filter": lambda s: s.filter("step", lambda values: values.append(1) is None),
    "inspect": lambda s: s.inspect("step", lambda values: values.clear()),
    "key_by": lambda s: s.key_by("step", lambda values: values.pop()),
    "flat_map": lambda s: s.flat_map("step", lambda values: [values.pop()]),
    "stateful_map": lambda s: s.key_by("k", len).stateful_map("step", lambda k, v, st: (sort_in_place(v), None)),
    "on_batch keys": lambda s: s.key_by("k", len).stateful_op("step", Mutating("keys")),
    "on_batch values": lambda s: s.key_by("k", len).stateful_op("step", Mutating("values")),
    "stateless_op": lambda s: s.stateless_op("step", lambda message, output: message.value.clear()),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_step_that_changes_what_it_is_given_is_named(name: str, workers: int) -> None:
    with pytest.raises(OperatorError, match=r"step 'step' changed a value it was given.*Return a changed copy"):
        run(CHANGES[name](stream_of([3, 1, 2], [2, 1])), workers)


def test_a_sink_that_changes_what_it_is_given_is_named() -> None:
    stream = stream_of([2, 1])
    stream.sink("out", sinks.Callable(sort_in_place))
    with pytest.raises(OperatorError, match="step 'out' changed a value it was given"):
        mp.run(stream.job, checks=True)


def test_a_changed_copy_is_no_change() -> None:
    assert run(stream_of([2, 1]).map("step", sorted).map("other", lambda values: [*values, 3])) == [[1, 2, 3]]


def test_values_that_cannot_be_encoded_are_no_trouble_where_they_need_not_be() -> None:
    generators = stream_of(3).map("generator", lambda n: (number for number in range(n)))
    assert run(generators.map("sum", sum).key_by("key", lambda n: n).count("count")) == [1]


def test_what_crosses_an_exchange_must_be_encodable_with_one_worker_too() -> None:
    with pytest.raises(CodecError, match=r"'key'.*generator"):
        run(stream_of(3).map("generator", lambda n: (number for number in range(n))).key_by("key", lambda g: "a"))


@pytest.mark.parametrize(
    "state", [len, object(), {"f": print}, (n for n in [1])], ids=lambda state: type(state).__name__
)
def test_state_must_be_storable_and_the_error_names_step_and_key(state: Any) -> None:
    keyed = stream_of("k").key_by("key", lambda word: word)
    with pytest.raises(CodecError, match=r"'step' for key 'k'"):
        run(keyed.stateful_map("step", lambda key, value, old: (value, state)))


def test_an_unregistered_class_in_state_is_found_and_a_registered_one_passes() -> None:
    class Total:
        """Not a dataclass."""

    keyed = stream_of("k").key_by("key", lambda word: word)
    with pytest.raises(CodecError, match=r"'step' for key 'k'.*Total"):
        run(keyed.stateful_map("step", lambda key, value, old: (value, Total())))


@pytest.mark.parametrize("workers", [1, 3])
def test_counts_and_results_are_those_of_a_run_without_checks(workers: int) -> None:
    def result(checks: bool) -> tuple[dict[Any, Any], Any]:
        job, out = mp.Job("a"), sinks.Memory()
        timed = job.source("in", sources.Memory(range(200), parts=2)).assign_timestamps("at", lambda n: n)
        on_time, late = timed.generate_epochs("epochs", mp.limit_out_of_orderness(3))
        late.sink("late", sinks.Memory())
        keyed = on_time.key_by("key", lambda n: n % 7)
        keyed.ttl_map("step", lambda key, n, seen: (seen + n, seen + n), ttl=20, default=int).sink("out", out)
        return out.by_key, mp.run(job, workers, checks=checks).steps

    with_checks, without = result(True), result(False)
    assert with_checks[0] == without[0]
    assert with_checks[1] == without[1]


class Grows(mp.KeyedLogic[int, int, list[int], list[int]]):
    """Sends its state at each epoch, and changes it afterwards."""

    def on_data(self, message: Any, key_state: list[int] | None, output: Any) -> list[int]:
        return [*(key_state or ()), message.value]

    def on_epoch(self, epoch: mp.Epoch, state: Any, output: Any) -> None:
        for key, values in state.items():
            values.append(0)
            output.emit(key, values, min(epoch.time, mp.MAX_EPOCH - 1))


def grow(key: int, value: int, state: list[int]) -> tuple[list[int], list[int]]:
    state.append(value)
    return state, state


SENT = {
    "by a record": lambda keyed: keyed.stateful_map("grow", grow, default=list),
    "by an epoch": lambda keyed: keyed.stateful_op("grow", Grows()),
    "by an aggregate": lambda keyed: keyed.aggregate(
        "grow", all=agg.custom(list, lambda state, value: grow(0, value, state)[0], list.__add__, lambda state: state)
    ),
}


@pytest.mark.parametrize("how", SENT)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("rows_max", [1, 1000])
def test_the_step_that_changes_what_it_has_sent_is_named(workers: int, rows_max: int, how: str) -> None:
    """Records of other keys come between, and nothing after the step is blamed."""
    job = mp.Job("sent")
    timed = job.source("in", sources.Memory(range(6))).assign_timestamps("at", lambda n: n)
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(0))
    SENT[how](on_time.key_by("k", lambda n: n % 2)).sink("out", sinks.Memory())
    with pytest.raises(mp.OperatorError, match="step 'grow' changed a value that it had sent"):
        mp.run(job, workers, batch=mp.Batching(rows_max=rows_max), checks=True)


def test_a_state_changed_in_place_by_a_record_that_then_failed_is_found() -> None:
    def picky(key: int, value: int, state: list[int]) -> tuple[int, list[int]]:
        state.append(value)
        return 1 // (1 - value % 2), state

    job = mp.Job("in-place")
    keyed = job.source("in", sources.Memory(range(3))).key_by("k", lambda n: 0)
    keyed.stateful_map("picky", picky, default=list, on_error="skip").sink("out", sinks.Memory())
    with pytest.raises(mp.OperatorError, match="'picky' changed the state of key 0 in place and then failed"):
        mp.run(job, checks=True)


def test_a_partitioner_that_would_fail_on_several_workers_is_found_with_one() -> None:
    job = mp.Job("partitioner")
    keyed = job.source("in", sources.Memory(range(3))).key_by("k", lambda n: n, partitioner=lambda key: 5000)
    keyed.sink("out", sinks.Memory())
    mp.run(job)
    with pytest.raises(mp.OperatorError, match="returned 5000"):
        mp.run(job, checks=True)


def test_s5_a_step_that_is_watched_is_told_where_epochs_go_on() -> None:
    told: list[int] = []

    class Told(Operator):
        def continue_at(self, epoch: int) -> None:
            told.append(epoch)

    CheckedStep(Told(StepContext("test", "noted")), Codec()).continue_at(7)
    assert told == [7]
