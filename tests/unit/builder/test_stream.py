"""Stream builders: fan-out, arguments checked at the call, and steps in the wrong place."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import partitioners, sinks, sources
from malstrom_py.errors import PlanError
from tests.unit.part_sink import PartSink


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


def test_a_method_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="StreamBuilder has no method 'mapp'"):
        numbers().mapp  # type: ignore[attr-defined]  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


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


def test_a_partitioned_sink_is_written_behind_an_exchange_of_its_own() -> None:
    job = mp.Job("a")
    numbers(job).sink("out", PartSink())
    assert [(step.name, step.kind) for step in job.plan().steps] == [
        ("numbers", "source"),
        ("out-parts", "key_by"),
        ("out", "sink"),
    ]


# Event time


def test_a_plan_tells_the_limits_of_epochs() -> None:
    on_time, _ = timed().generate_epochs("epochs", BOUND, idle_after=timedelta(seconds=90), max_ahead=7)
    on_time.sink("out", sinks.Memory())
    assert "limit_out_of_orderness(5), idle_after=0:01:30, max_ahead=7" in on_time.job.explain()
