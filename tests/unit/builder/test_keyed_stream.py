"""Keyed stream builders: they stay keyed, and check what stateful steps are given."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.builder.keyed_stream import KeyedStreamBuilder
from malstrom_py.errors import PlanError
from malstrom_py.operators.logic import KeyedLogic


def keyed() -> KeyedStreamBuilder[int, int]:
    return mp.Job("a").source("numbers", sources.Memory([1, 2, 3])).key_by("parity", lambda n: n % 2)


class Batches(KeyedLogic[int, int, int, int]):
    def on_batch(self, keys: Any, values: Any, timestamps: Any, state: Any, output: Any) -> None:
        for key, value in zip(keys, values, strict=True):
            output.emit(key, value)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("map", (lambda n: n,)),
        ("filter", (lambda n: n,)),
        ("filter_map", (lambda n: n,)),
        ("flat_map", (lambda n: [n],)),
        ("flatten", ()),
        ("inspect", (lambda n: n,)),
        ("key_by", (str,)),
        ("assign_timestamps", (lambda n: n,)),
        ("stateful_map", (lambda key, value, state: (value, state),)),
        ("stateful_op", (lambda message, state, output: None,)),
        ("reduce", (max,)),
        ("count", ()),
        ("sum", ()),
        ("min", ()),
        ("max", ()),
        ("mean", ()),
        ("stateful_flat_map", (lambda key, value, state: ([value], state),)),
        ("top_n", (1,)),
        ("distinct", ()),
        ("stateless_op", (lambda message, output: None,)),
        ("union", ()),
    ],
)
def test_behind_a_step_the_stream_is_still_keyed(method: str, arguments: tuple[Any, ...]) -> None:
    assert isinstance(getattr(keyed(), method)("it", *arguments), KeyedStreamBuilder)


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
    assert mp.collect(built) == (expected or [("k", 3, 0), ("k", 1, 3), ("k", 2, 1)])
    (step,) = (step for step in built.job.plan_to(built, sinks.Memory()).steps if step.name == "it")
    assert step.kind == method


def test_both_sides_of_a_branch_are_still_keyed() -> None:
    assert [type(side) for side in keyed().branch("even", lambda n: n % 2)] == [KeyedStreamBuilder] * 2


def test_a_keyed_stream_may_be_keyed_anew() -> None:
    out = sinks.Memory()
    stream = keyed()
    stream.key_by("size", lambda n: n > 1).count("seen").sink("out", out)
    mp.run(stream.job)
    assert out.by_key == {False: [1], True: [1, 2]}


@pytest.mark.parametrize("method", ["stateful_map", "reduce"])
@pytest.mark.parametrize("function", [None, 7, "n"], ids=repr)
def test_what_is_no_function_is_refused_and_names_the_step(method: str, function: Any) -> None:
    with pytest.raises(PlanError, match="step 'totals': expected a function, got"):
        getattr(keyed(), method)("totals", function)


@pytest.mark.parametrize("default", [0, [], "int"], ids=repr)
def test_a_default_is_a_function_that_makes_a_state(default: Any) -> None:
    with pytest.raises(
        PlanError, match="step 'totals': default must be a function that makes a state, such as default=l"
    ):
        keyed().stateful_map("totals", lambda key, value, state: (value, state), default=default)
    with pytest.raises(PlanError, match="step 'totals'"):
        keyed().stateful_op("totals", lambda message, state, output: None, default=default)
    with pytest.raises(PlanError, match="step 'totals'"):
        keyed().fold("totals", lambda total, value: total, default=default)


def test_fold_needs_a_default() -> None:
    with pytest.raises(TypeError, match="default"):
        keyed().fold("totals", lambda total, value: total)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("method", ["sum", "min", "max", "mean"])
def test_by_is_a_function_or_the_name_of_a_column(method: str) -> None:
    job = mp.Job("a")
    rows = job.source("rows", sources.Memory([{"n": 1}, {"n": 1}])).key_by("all", lambda _: "all")
    expected = [1, 2] if method == "sum" else [1, 1]
    assert mp.collect(getattr(rows, method)("column", by="n")) == expected
    assert mp.collect(getattr(rows, method)("function", by=lambda row: row["n"])) == expected
    with pytest.raises(PlanError, match="step 'neither': expected a function or the name of a column, got int"):
        getattr(rows, method)("neither", by=7)


@pytest.mark.parametrize("on_error", ["skip", "dead-letter"])
def test_on_batch_knows_no_policy_per_record(on_error: Any) -> None:
    with pytest.raises(PlanError, match=r"step 'totals': on_batch takes whole batches, so on_error=.*override on_data"):
        keyed().stateful_op("totals", Batches(), on_error=on_error)
    assert mp.collect(keyed().stateful_op("totals", Batches())) == [1, 2, 3]


@pytest.mark.parametrize(
    ("logic", "why"),
    [
        (Batches, r"pass an instance, Batches\(…\)"),
        (type("Near", (Batches,), {"on_epoc": id})(), r"did you mean 'on_epoch'\?"),
        (None, "has neither on_data nor on_batch"),
    ],
)
def test_a_logic_is_checked_at_the_call(logic: Any, why: str) -> None:
    with pytest.raises(PlanError, match=rf"step 'totals': .*{why}"):
        keyed().stateful_op("totals", logic)


@pytest.mark.parametrize("method", ["stateful_map", "stateful_op", "reduce", "sum", "min", "max", "mean"])
def test_the_policy_of_a_step_is_checked(method: str) -> None:
    arguments = (max,) if method in ("stateful_map", "stateful_op", "reduce") else ()
    with pytest.raises(
        PlanError, match="step 'totals': on_error must be 'fail', 'skip' or 'dead-letter', got 'ignore'"
    ):
        getattr(keyed(), method)("totals", *arguments, on_error="ignore")


@pytest.mark.parametrize("name", ["a b", None])
@pytest.mark.parametrize(
    ("method", "argument"), [("stateful_map", "fn"), ("stateful_op", "logic"), ("reduce", "fn"), ("sum", "by")]
)
def test_the_name_of_a_step_is_checked_first(method: str, argument: str, name: Any) -> None:
    with pytest.raises(PlanError, match="name"):
        getattr(keyed(), method)(name, **{argument: 7})


def test_all_streams_of_split_and_cloned_are_still_keyed() -> None:
    split, cloned = keyed().split("s", 2, lambda n: [0]), keyed().cloned("c", 3)
    assert [type(stream) for stream in (*split, *cloned)] == [KeyedStreamBuilder] * 5
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


@pytest.mark.parametrize("stream", ["untimed", "timed", "late"])
def test_t1_timers_and_ttl_need_epochs_and_the_late_stream_has_none(stream: str) -> None:
    """Its records are below the frontier: a timer for them would fire immediately, or at the end."""
    streams = {"untimed": keyed(), "timed": keyed().assign_timestamps("at", lambda n: n), "late": on_time_and_late()[1]}
    with pytest.raises(
        PlanError, match=r"step 'it': on_timer runs on event time, but the stream has no epochs.*on-time"
    ):
        streams[stream].stateful_op("it", Waking())
    with pytest.raises(
        PlanError, match=r"step 'it': ttl_map runs on event time, but the stream has no epochs.*on-time"
    ):
        streams[stream].ttl_map("it", last, ttl=5)


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


@pytest.mark.parametrize("ttl", [0, -1, timedelta(0), timedelta(days=-1)], ids=repr)
def test_a_ttl_is_positive(ttl: Any) -> None:
    with pytest.raises(PlanError, match="step 'it': ttl must be positive"):
        on_time_and_late()[0].ttl_map("it", last, ttl=ttl)


@pytest.mark.parametrize("ttl", ["5s", 1.5, None, True], ids=repr)
def test_a_ttl_is_a_span_of_time(ttl: Any) -> None:
    with pytest.raises(PlanError, match="step 'it': ttl must be a timedelta, or an int in the stream's unit, got"):
        on_time_and_late()[0].ttl_map("it", last, ttl=ttl)


def test_collect_needs_a_size_or_a_time() -> None:
    with pytest.raises(
        PlanError, match="step 'it': collect needs size= or every=: without either it emits nothing until the end"
    ):
        keyed().collect("it")


@pytest.mark.parametrize("size", [0, -1, 1.5, "3", True], ids=repr)
def test_a_size_is_a_whole_number_of_at_least_one(size: Any) -> None:
    with pytest.raises(PlanError, match=r"step 'it': (n|size) must be a whole number of at least 1, got"):
        keyed().collect("it", size=size)
    with pytest.raises(PlanError, match=r"step 'it': (n|size) must be a whole number of at least 1, got"):
        keyed().top_n("it", size)


@pytest.mark.parametrize("every", [0, 3, 1.5, "3s", timedelta(0), timedelta(seconds=-1)], ids=repr)
def test_every_is_a_span_of_time_above_zero(every: Any) -> None:
    with pytest.raises(PlanError, match="step 'it': every must be a timedelta above 0, got"):
        keyed().collect("it", every=every)


@pytest.mark.parametrize("method", ["top_n", "distinct"])
def test_by_of_the_new_steps_is_a_function_or_a_column_too(method: str) -> None:
    arguments = (1,) if method == "top_n" else ()
    rows = mp.Job("a").source("rows", sources.Memory([{"n": 1}, {"n": 1}])).key_by("all", lambda _: "all")
    by_column, by_function = (
        mp.collect(getattr(rows, method)(name, *arguments, by=by)) for name, by in (("c", "n"), ("f", lambda r: r["n"]))
    )
    assert by_column == by_function
    assert len(by_column) == (2 if method == "top_n" else 1)
    with pytest.raises(PlanError, match="step 'neither': expected a function or the name of a column, got int"):
        getattr(rows, method)("neither", *arguments, by=7)


class Plain:
    """No kind of class whose values could be stored."""


@pytest.mark.parametrize("kind", [Plain, int, dict, 7, "Plain", None], ids=repr)
def test_register_type_takes_classes_whose_values_are_their_fields(kind: Any) -> None:
    with pytest.raises(PlanError, match=r"job\.register_type takes dataclasses, NamedTuples and Enums, got"):
        mp.Job("a").register_type(kind)


def test_a_default_that_raises_is_told_when_the_step_is_added() -> None:
    keyed = mp.Job("a").source("in", sources.Memory([1])).key_by("k", lambda n: n)
    with pytest.raises(PlanError, match=r"step 'm': default raised ZeroDivisionError"):
        keyed.stateful_map("m", lambda key, value, state: (value, state), default=lambda: 1 // 0)


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
