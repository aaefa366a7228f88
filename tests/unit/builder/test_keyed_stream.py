"""Keyed stream builders: they stay keyed, check what stateful steps are given, and have side outputs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, sources
from malstrom_py.builder.keyed_stream import KeyedStreamBuilder
from malstrom_py.data.messages import DataMessage
from malstrom_py.errors import PlanError
from malstrom_py.operators.logic import KeyedLogic


def keyed() -> KeyedStreamBuilder[int, int]:
    return mp.Job("a").source("numbers", sources.Memory([1, 2, 3])).key_by("parity", lambda n: n % 2)


class Batches(KeyedLogic[int, int, int, int]):
    def on_batch(self, keys: Any, values: Any, timestamps: Any, state: Any, output: Any) -> None:
        for key, value in zip(keys, values, strict=True):
            output.emit(key, value)


@pytest.mark.parametrize(
    ("method", "arguments", "expected"),
    [
        ("stateful_map", {"fn": lambda key, value, seen: ((key, value, seen), value), "default": int}, None),
        ("stateful_op", {"logic": lambda message, state, output: output.send(message)}, [3, 1, 2]),
        ("reduce", {"fn": lambda left, right: left * 10 + right}, [3, 31, 312]),
        ("fold", {"fn": lambda seen, value: [*seen, value], "default": list}, [[3], [3, 1], [3, 1, 2]]),
        ("count", {}, [1, 2, 3]),
        ("sum", {}, [3, 4, 6]),
        ("min", {}, [3, 1, 1]),
        ("max", {}, [3, 3, 3]),
        ("mean", {}, [3.0, 2.0, 2.0]),
        ("stateful_flat_map", {"fn": lambda key, value, seen: (range(value), 1), "default": int}, [0, 1, 2, 0, 0, 1]),
        ("top_n", {"n": 2}, [[3], [3, 1], [3, 2]]),
        ("distinct", {"by": lambda n: n > 1}, [3, 1]),
        ("collect", {"size": 2}, [[3, 1], [2]]),
        ("stateless_op", {"logic": lambda message, output: output.send(message)}, [3, 1, 2]),
    ],
)
def test_each_method_runs_the_step_of_its_name(method: str, arguments: dict[str, Any], expected: Any) -> None:
    stream = mp.Job("a").source("numbers", sources.Memory([3, 1, 2])).key_by("all", lambda _: "k")
    built = getattr(stream, method)("it", **arguments)
    assert isinstance(built, KeyedStreamBuilder)
    assert mp.collect(built) == (expected or [("k", 3, 0), ("k", 1, 3), ("k", 2, 1)])
    (step,) = (step for step in built.job.plan_to(built, sinks.Memory()).steps if step.name == "it")
    assert step.kind == method


def test_fold_needs_a_default() -> None:
    with pytest.raises(PlanError, match="default"):
        keyed().fold("totals", lambda total, value: total)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("method", ["sum", "min", "max", "mean", "top_n", "distinct"])
def test_by_is_a_function_or_the_name_of_a_column(method: str) -> None:
    arguments = (1,) if method == "top_n" else ()
    rows = mp.Job("a").source("rows", sources.Memory([{"n": 1}, {"n": 1}])).key_by("all", lambda _: "all")
    expected = {"sum": [1, 2], "top_n": [[{"n": 1}]] * 2, "distinct": [{"n": 1}]}.get(method, [1, 1])
    assert mp.collect(getattr(rows, method)("column", *arguments, by="n")) == expected
    assert mp.collect(getattr(rows, method)("function", *arguments, by=lambda row: row["n"])) == expected
    with pytest.raises(PlanError, match="step 'neither': expected a function or the name of a column, got int"):
        getattr(rows, method)("neither", *arguments, by=7)


@pytest.mark.parametrize("on_error", ["skip", "dead-letter"])
def test_on_batch_knows_no_policy_per_record(on_error: Any) -> None:
    with pytest.raises(PlanError, match=r"step 'totals': on_batch takes whole batches, so on_error=.*override on_data"):
        keyed().stateful_op("totals", Batches(), on_error=on_error)
    assert mp.collect(keyed().stateful_op("totals", Batches())) == [1, 2, 3]


def test_streams_of_steps_without_state_are_still_keyed() -> None:
    split, cloned = keyed().split("s", 2, lambda n: [0]), keyed().cloned("c", 3)
    made = keyed().map("m", range).flatten("f"), keyed().union("u"), *keyed().branch("b", bool), *split, *cloned
    assert {type(stream) for stream in made} == {KeyedStreamBuilder}
    assert not isinstance(keyed().key_local("local", str), KeyedStreamBuilder)


BOUND = mp.limit_out_of_orderness(5)


def on_time_and_late() -> tuple[Any, Any]:
    timed = mp.Job("a").source("numbers", sources.Memory([1, 20, 2, 40])).assign_timestamps("at", lambda n: n)
    on_time, late = timed.generate_epochs("epochs", BOUND)
    return on_time.key_by("on-time", lambda n: "all"), late.key_by("late", lambda n: "all")


class Waking(KeyedLogic[Any, Any, Any, Any]):
    def on_data(self, message: Any, key_state: Any, output: Any) -> Any:
        return key_state

    def on_timer(self, key: Any, time: int, key_state: Any, output: Any) -> Any:
        return key_state


def last(key: Any, value: int, state: Any) -> tuple[Any, int]:
    return state, value


def test_t1_on_the_late_stream_steps_without_event_time_work_and_times_stay() -> None:
    assert mp.collect(on_time_and_late()[1].count("it")) == [1]
    assert mp.collect(on_time_and_late()[1].collect("it", size=5)) == [[2]]  # at the end of the stream

    class Times(KeyedLogic[Any, Any, Any, Any]):
        def on_data(self, message: Any, key_state: Any, output: Any) -> Any:
            output.emit(message.key, message.timestamp, message.timestamp)

        def on_epoch(self, epoch: mp.Epoch, state: Any, output: Any) -> None:
            epochs.append(epoch.time)

    epochs: list[int] = []
    assert mp.collect(on_time_and_late()[1].stateful_op("it", Times())) == [2]
    assert epochs == [mp.MAX_EPOCH]


def test_timers_and_ttl_run_on_the_on_time_stream() -> None:
    assert mp.collect(on_time_and_late()[0].stateful_op("it", Waking())) == []
    assert mp.collect(on_time_and_late()[0].ttl_map("it", last, ttl=timedelta(seconds=1))) == [None, 1, 20]


def test_side_outputs_of_a_keyed_stream_are_keyed() -> None:
    def sort(message: mp.DataMessage[int, int], state: int | None, output: mp.Output[int, int]) -> int:
        (output.side("odd") if message.value % 2 else output).send(message)
        return 0

    even, odd = keyed().stateful_op("sort", sort, sides=["odd"])
    assert isinstance(odd, mp.KeyedStreamBuilder)
    assert mp.collect(even) == [2]
    assert mp.collect(odd.count("odds")) == [1, 2]
    main, side = keyed().stateless_op("sort", lambda message, output: output.side("a").send(message), sides=["a"])
    assert (mp.collect(main), mp.collect(side.count("all"))) == ([], [1, 1, 2])


# Aggregates


def sales() -> Any:
    rows = [{"shop": "ab"[number % 2], "price": number} for number in range(10)]
    return mp.Job("j").source("in", sources.Memory(rows, parts=2)).key_by("shop", "shop")


def test_an_aggregate_may_be_called_name_or_self() -> None:
    values = mp.collect(sales().aggregate("figures", name=agg.count(), self=agg.last("price")))
    assert values[0] == {"name": 1, "self": 0}


def test_a_plan_tells_what_is_computed() -> None:
    stream = sales().aggregate("figures", n=agg.count(), mean=agg.mean("price"))
    stream.sink("out", sinks.Memory())
    assert "figures  aggregate <- shop  [n=agg.count(), mean=agg.mean('price')]" in stream.job.explain()


@dataclass(frozen=True)
class Span:
    low: int
    high: int


def widened(span: Span | None, sale: dict[str, int]) -> Span:
    price = sale["price"]
    return Span(price, price) if span is None else Span(min(span.low, price), max(span.high, price))


def joined(left: Span | None, right: Span | None) -> Span | None:
    if left is None or right is None:
        return left or right
    return Span(min(left.low, right.low), max(left.high, right.high))


def ends(span: Span | None) -> tuple[int, int] | None:
    return None if span is None else (span.low, span.high)


def no_span() -> Span | None:
    return None


@pytest.mark.parametrize("workers", [1, 3])
def test_a_registered_class_may_be_a_state_on_any_number_of_workers(workers: int) -> None:
    stream, out = sales(), sinks.Memory()
    stream.job.register_type(Span)
    span = agg.custom(no_span, widened, joined, ends)
    stream.aggregate("figures", n=agg.count(), span=span).sink("out", out)
    mp.run(stream.job, workers, checks=True)
    assert {shop: rows[-1] for shop, rows in out.by_key.items()} == {
        "a": {"n": 5, "span": (0, 8)},
        "b": {"n": 5, "span": (1, 9)},
    }


# Side outputs


def numbers() -> mp.StreamBuilder[None, int]:
    return mp.Job("a").source("numbers", sources.Memory([1, 2, 3]))


def aside(message: DataMessage[None, int], output: mp.Output[None, int]) -> None:
    (output.side("odd") if message.value % 2 else output).send(message)


def once(message: DataMessage[None, int], output: mp.Output[None, int]) -> None:
    output.send(message)


def test_side_outputs_are_streams_behind_the_main_one_and_carry_epochs() -> None:
    job = mp.Job("sides")
    timed = job.source("numbers", sources.Memory([1, 2, 3])).assign_timestamps("at", lambda n: n)
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(0))
    even, odd, none = on_time.stateless_op("sort", aside, sides=("odd", "none"))
    assert [mp.collect(stream) for stream in (even, odd, none)] == [[2], [1, 3], []]
    totals = odd.key_by("all", lambda n: "all").ttl_map("total", lambda k, n, s: (n, s), ttl=1)
    assert mp.collect(totals) == [1, 3]
    (only,) = numbers().stateless_op("it", once, sides=[])
    assert mp.collect(only) == mp.collect(numbers())


def test_side_outputs_stand_before_dead_letters() -> None:
    def risky(message: DataMessage[None, int], output: mp.Output[None, int]) -> None:
        output.side("all").send(message)
        output.emit(None, 6 // message.value)

    job = mp.Job("sides")
    quotients, every = job.source("numbers", sources.Memory([3, 0, 2])).stateless_op(
        "risky", risky, sides=["all"], on_error="dead-letter"
    )
    assert (mp.collect(quotients), mp.collect(every)) == ([2, 3], [3, 2])
    assert [letter.value for letter in mp.collect(job.dead_letters("risky"))] == [0]


def test_a_side_output_that_was_not_named_fails_the_job() -> None:
    with pytest.raises(mp.OperatorError, match="step 'it' sent a record to a side output 'odd', but it has none"):
        mp.collect(numbers().stateless_op("it", aside, on_error="skip"))
