"""Stream builders: fan-out, arguments checked at the call, and steps in the wrong place."""

from __future__ import annotations

from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import partitioners, sinks, sources
from malstrom_py.errors import PlanError


def numbers(job: mp.Job | None = None) -> mp.StreamBuilder[None, int]:
    return (job or mp.Job("a")).source("numbers", sources.Memory([1, 2, 3]))


def timed() -> mp.StreamBuilder[None, int]:
    return numbers().assign_timestamps("at", lambda n: n)


BOUND = mp.limit_out_of_orderness(5)


def test_using_a_builder_twice_is_fan_out() -> None:
    job, left, right = mp.Job("a"), sinks.Memory(), sinks.Memory()
    stream = numbers(job)
    stream.map("double", lambda n: n * 2).sink("left", left)
    stream.filter("odd", lambda n: n % 2).sink("right", right)
    result = mp.run(job)
    assert (left.items, right.items) == ([2, 4, 6], [1, 3])
    assert (result.read, result.written) == (3, 5)


def test_a_stream_may_go_to_two_sinks() -> None:
    job, left, right = mp.Job("a"), sinks.Memory(), sinks.Memory()
    stream = numbers(job)
    stream.sink("left", left)
    stream.sink("right", right)
    mp.run(job)
    assert left.items == right.items == [1, 2, 3]


STATEFUL = [
    *("stateful_map", "stateful_flat_map", "stateful_op", "ttl_map", "reduce", "fold", "count", "sum", "min", "max"),
    *("mean", "top_n", "distinct", "collect"),
]


@pytest.mark.parametrize("method", STATEFUL)
def test_a_stateful_step_on_an_unkeyed_stream_names_step_and_remedy(method: str) -> None:
    with pytest.raises(
        PlanError, match=rf"step 'totals': {method} keeps state per key, but stream 'numbers' has no keys.*\.key_by\("
    ):
        getattr(numbers(), method)("totals", lambda *_: 1, default=int)


@pytest.mark.parametrize("method", STATEFUL)
@pytest.mark.parametrize("between", [lambda s: s, lambda s: s.map("m", str), lambda s: s.union("u", s)])
def test_r11_a_stateful_step_behind_key_local_is_refused_with_the_remedy(method: str, between: Any) -> None:
    local = between(numbers().key_local("local", lambda n: n % 2))
    with pytest.raises(PlanError, match=rf"step 'totals': {method} keeps state per key, but key_local .*\.key_by"):
        getattr(local, method)("totals", lambda *_: 1)


@pytest.mark.parametrize("method", STATEFUL)
def test_r11_key_local_behind_key_by_takes_the_keys_that_were_distributed_away(method: str) -> None:
    local = numbers().key_by("key", str).key_local("local", lambda n: n % 2)
    with pytest.raises(PlanError, match="key_local"):
        getattr(local, method)("totals")


def test_key_by_behind_key_local_makes_stateful_steps_possible_again() -> None:
    keyed = numbers().key_local("local", str).key_by("key", lambda n: n % 2)
    assert mp.collect(keyed.count("totals")) == [1, 1, 2]


def test_a_method_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="StreamBuilder has no method 'mapp'"):
        numbers().mapp  # type: ignore[attr-defined]  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


FUNCTION_STEPS = [
    *("map", "filter", "filter_map", "flat_map", "inspect", "branch", "key_by", "key_local", "assign_timestamps"),
]


@pytest.mark.parametrize("method", FUNCTION_STEPS)
@pytest.mark.parametrize("function", [None, 7, [len]], ids=repr)
def test_what_is_no_function_is_refused_and_names_the_step(method: str, function: Any) -> None:
    with pytest.raises(PlanError, match=r"step 'double': expected a function.*, got"):
        getattr(numbers(), method)("double", function)


@pytest.mark.parametrize("method", FUNCTION_STEPS)
@pytest.mark.parametrize("name", ["a b", "", 7, None, len], ids=repr)
def test_the_name_of_a_step_is_checked_first(method: str, name: Any) -> None:
    with pytest.raises(PlanError, match="name"):
        getattr(numbers(), method)(name, "double")


@pytest.mark.parametrize("method", [*FUNCTION_STEPS, "flatten"])
@pytest.mark.parametrize("on_error", ["ignore", None])
def test_the_policy_of_a_step_is_checked(method: str, on_error: Any) -> None:
    arguments = () if method == "flatten" else (str,)
    with pytest.raises(PlanError, match="step 'it': on_error must be 'fail', 'skip' or 'dead-letter', got"):
        getattr(numbers(), method)("it", *arguments, on_error=on_error)


@pytest.mark.parametrize("sink", [None, [], print, sources.Memory([1])], ids=repr)
def test_what_is_no_sink_is_refused(sink: Any) -> None:
    with pytest.raises(
        PlanError, match=r"step 'out': .* is not a sink: it has neither build\(worker\) nor open\(worker\)"
    ):
        numbers().sink("out", sink)


def test_a_sink_class_is_told_to_be_made() -> None:
    with pytest.raises(PlanError, match=r"step 'out': pass an instance, Memory\(…\), not the class itself"):
        numbers().sink("out", sinks.Memory)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("unit", ["m", "", None])
def test_a_unit_is_checked(unit: Any) -> None:
    with pytest.raises(PlanError, match="step 'at': unit"):
        numbers().assign_timestamps("at", lambda n: n, unit=unit)


def test_timestamps_may_be_assigned_anew_before() -> None:
    stream = timed().assign_timestamps("again", lambda n: n * 2, unit="s")
    assert stream.traits.unit == "s"


def test_what_is_known_of_a_stream_follows_its_steps() -> None:
    stream = numbers()
    assert (stream.traits.unit, stream.traits.epochs, stream.traits.keyed) == (None, False, False)
    on_time, late = stream.assign_timestamps("at", lambda n: n, unit="us").generate_epochs("epochs", BOUND)
    assert (on_time.traits.unit, on_time.traits.epochs, late.traits.epochs) == ("us", True, False)
    keyed = on_time.key_by("key", str).filter("all", lambda _: True)
    assert (keyed.traits.keyed, keyed.traits.region, keyed.traits.epochs) == (True, "key", True)
    assert keyed.key_by("other", str).traits.region == "other"


def test_key_distribute_is_key_by() -> None:
    assert mp.collect(numbers().key_distribute("parity", lambda n: n % 2).count("seen")) == [1, 1, 2]


def test_the_text_of_a_builder_names_its_step() -> None:
    stream = numbers()
    assert repr(stream) == "StreamBuilder('numbers')"
    assert repr(stream.key_by("key", str)) == "KeyedStreamBuilder('key')"


@pytest.mark.parametrize(
    ("method", "arguments", "expected"),
    [
        ("map", [lambda n: n * 2], [2, 4, 6]),
        ("filter", [lambda n: n % 2], [1, 3]),
        ("filter_map", [lambda n: n * 2 if n % 2 else None], [2, 6]),
        ("flat_map", [range], [0, 0, 1, 0, 1, 2]),
        ("inspect", [lambda n: n * 2], [1, 2, 3]),
        ("key_by", [str], [1, 2, 3]),
        ("assign_timestamps", [lambda n: -n], [1, 2, 3]),
    ],
)
def test_each_method_runs_the_step_of_its_name(method: str, arguments: list[Any], expected: list[int]) -> None:
    built = getattr(numbers(), method)("it", *arguments)
    assert mp.collect(built) == expected
    (step,) = (step for step in built.job.plan_to(built, sinks.Memory()).steps if step.name == "it")
    assert step.kind == method


def test_flatten_and_branch_run_the_steps_of_their_names() -> None:
    assert mp.collect(numbers().map("pair", lambda n: (n, -n)).flatten("items")) == [1, -1, 2, -2, 3, -3]
    yes, no = numbers().branch("small", lambda n: n < 2)
    assert (mp.collect(yes), mp.collect(no)) == ([1], [2, 3])


def send(message: mp.DataMessage[None, int], output: mp.Output[None, int]) -> None:
    output.send(message)


def test_split_cloned_union_and_stateless_op_run_the_steps_of_their_names() -> None:
    low, high = numbers().split("size", 2, lambda n: [n > 2])
    assert (mp.collect(low), mp.collect(high)) == ([1, 2], [3])
    assert [mp.collect(stream) for stream in numbers().cloned("twins", 2)] == [[1, 2, 3]] * 2
    same = numbers().stateless_op("it", send)
    assert mp.collect(same) == [1, 2, 3]
    job = mp.Job("a")
    numbers(job).union("both", job.source("more", sources.Memory([4]))).sink("out", sinks.Memory())
    assert [step.kind for step in job.plan().steps] == ["source", "source", "union", "sink"]
    kinds = [stream.job.plan_to(stream, sinks.Memory()).steps[1].kind for stream in (low, same)]
    assert kinds == ["split", "stateless_op"]


@pytest.mark.parametrize("n", [0, -1, 1.0, "2", None, True], ids=repr)
def test_split_and_cloned_make_at_least_one_stream(n: Any) -> None:
    with pytest.raises(PlanError, match=r"step 'it': (n|size) must be a whole number of at least 1, got"):
        numbers().split("it", n, lambda value: [0])
    with pytest.raises(PlanError, match=r"step 'it': (n|size) must be a whole number of at least 1, got"):
        numbers().cloned("it", n)


@pytest.mark.parametrize("name", ["a b", "", 7, None, len], ids=repr)
def test_the_name_of_a_step_with_a_number_or_streams_is_checked_first_too(name: Any) -> None:
    for build in (
        lambda: numbers().split(name, 0, "no function"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: numbers().cloned(name, 0),
        lambda: numbers().union(name, numbers()),
        lambda: numbers().stateless_op(name, lambda message, output: None),
    ):
        with pytest.raises(PlanError, match="name"):
            build()


def test_split_takes_a_function_and_stateless_op_a_logic() -> None:
    with pytest.raises(PlanError, match="step 'it': expected a function, got int"):
        numbers().split("it", 2, 7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    class Near:
        def on_data(self, message: Any, output: Any) -> None:
            """Says nothing."""

        def on_timer(self, key: Any, time: int, output: Any) -> None:
            """There is none."""

    for logic, why in (
        (Near(), "on_timer is not a hook of"),
        (Near, "pass an instance"),
        (7, "has no on_data"),
    ):
        with pytest.raises(PlanError, match=rf"step 'it': .*{why}"):
            numbers().stateless_op("it", logic)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_a_union_is_of_streams_of_one_job() -> None:
    with pytest.raises(PlanError, match="step 'both': a union takes streams of one job only"):
        numbers().union("both", numbers())
    with pytest.raises(PlanError, match="step 'both': a union takes streams, got list"):
        numbers().union("both", [numbers()])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


ALIKE: dict[str, Any] = {
    "unkeyed": lambda s: s,
    "local": lambda s: s.key_local(f"{s.ref.step}-k", str),
    "keyed": lambda s: s.key_by(f"{s.ref.step}-k", str),
    "keyed by index": lambda s: s.key_by(f"{s.ref.step}-k", int, partitioner=partitioners.index),
    "timed": lambda s: s.assign_timestamps(f"{s.ref.step}-at", int),
    "timed in s": lambda s: s.assign_timestamps(f"{s.ref.step}-at", int, unit="s"),
    "with epochs": lambda s: ALIKE["timed"](s).generate_epochs(f"{s.ref.step}-e", BOUND)[0],
    "late": lambda s: ALIKE["timed"](s).generate_epochs(f"{s.ref.step}-e", BOUND)[1],
}


@pytest.mark.parametrize("left", ALIKE)
@pytest.mark.parametrize("right", ALIKE)
def test_t1_a_union_is_of_streams_that_are_keyed_and_timed_alike(left: str, right: str) -> None:
    job = mp.Job("a")
    one, other = ALIKE[left](numbers(job)), ALIKE[right](job.source("more", sources.Memory([4])))
    if left == right or {left, right} == {"timed", "late"}:
        expected = ([] if left == "late" else [1, 2, 3]) + ([] if right == "late" else [4])
        assert sorted(mp.collect(one.union("both", other))) == expected
        return
    keyed = {"local", "keyed", "keyed by index"} & {left, right}
    what = "differently keyed streams.*key_by after" if keyed else "timed differently.*generate_epochs after"
    with pytest.raises(PlanError, match=f"step 'both': a union of .*{what}"):
        one.union("both", other)


def test_a_union_with_a_late_stream_is_as_late_as_that_and_gets_no_epochs_anew() -> None:
    job = mp.Job("a")
    _, late = ALIKE["timed"](numbers(job)).generate_epochs("epochs", BOUND)
    both = late.union("both", job.source("more", sources.Memory([4])).assign_timestamps("at", int))
    with pytest.raises(PlanError, match="step 'again': generate_epochs is upstream already"):
        both.generate_epochs("again", BOUND)


@pytest.mark.parametrize("partitioner", [7, "index", [], {"a": 1}], ids=repr)
def test_what_is_no_partitioner_is_refused(partitioner: Any) -> None:
    for build in (numbers().key_by, numbers().key_distribute):
        with pytest.raises(
            PlanError,
            match=r"step 'k': partitioner must be one of malstrom_py\.partitioners or "
            "a function",
        ):
            build("k", str, partitioner=partitioner)


class Parts:
    """A partitioned sink that is never opened."""

    def assign_part(self, message: Any) -> str:
        return "a"

    def build_part(self, part: str, state: Any) -> Any:
        raise NotImplementedError


def test_the_name_of_a_partitioned_sink_leaves_room_for_that_of_its_exchange() -> None:
    stream, sink = numbers(), Parts()
    with pytest.raises(PlanError, match="can have at most 58 characters"):
        stream.sink("x" * 59, sink)
    stream.sink("x" * 58, sink)


def test_a_partitioned_sink_is_written_behind_an_exchange_of_its_own() -> None:
    job = mp.Job("a")
    numbers(job).sink("out", Parts())
    assert [(step.name, step.kind) for step in job.plan().steps] == [
        ("numbers", "source"),
        ("out-parts", "key_by"),
        ("out", "sink"),
    ]
    with pytest.raises(PlanError, match=r"step 'out': pass an instance, Parts\(…\)"):
        numbers().sink("out", Parts)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
