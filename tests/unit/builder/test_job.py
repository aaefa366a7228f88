"""Jobs: names, slots, sources and dead letters are checked at the call that gets them wrong."""

from __future__ import annotations

from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources, windows
from malstrom_py.codec import Codec
from malstrom_py.connectors.kafka.records import KafkaRecord
from malstrom_py.data.messages import DeadLetter
from malstrom_py.errors import PlanError
from malstrom_py.windows import WindowResult


def numbers(job: mp.Job, name: str = "numbers") -> mp.StreamBuilder[None, int]:
    return job.source(name, sources.Memory([1, 0, 2]))


@pytest.mark.parametrize("name", ["", "a job", None, 7])
def test_the_name_of_a_job_is_checked(name: Any) -> None:
    with pytest.raises(PlanError, match="job"):
        mp.Job(name)


@pytest.mark.parametrize("slots", [0, -1, (1 << 20) + 1, 1.5, "8", None, True])
def test_slots_are_a_whole_number_in_bounds(slots: Any) -> None:
    with pytest.raises(PlanError, match="job 'a': slots must be a whole number from 1 to 1048576"):
        mp.Job("a", slots=slots)


def test_slots_are_1024_unless_told() -> None:
    assert (mp.Job("a").slots, mp.Job("a", slots=1).slots, mp.Job("a", 1 << 20).slots) == (1024, 1, 1 << 20)


def test_the_text_of_a_job_says_how_large_it_is() -> None:
    job = mp.Job("a")
    numbers(job).sink("out", sinks.Memory())
    assert repr(job) == "Job('a', 2 steps)"


def test_a_name_is_taken_once_in_a_job_whatever_the_kind() -> None:
    job = mp.Job("a")
    stream = numbers(job, "same")
    with pytest.raises(PlanError, match=r"job 'a' already has a step 'same' \(source\).*give this source another"):
        numbers(job, "same")
    with pytest.raises(PlanError, match=r"'same' \(source\).*give this map another"):
        stream.map("same", lambda n: n)
    with pytest.raises(PlanError, match=r"give this sink another"):
        stream.sink("same", sinks.Memory())
    assert numbers(mp.Job("b"), "same").ref.step == "same"


def test_dead_letters_of_a_step_that_is_not_there_names_those_that_are() -> None:
    job = mp.Job("a")
    with pytest.raises(PlanError, match="job 'a' has no step 'inverse'; its steps: none"):
        job.dead_letters("inverse")
    numbers(job).map("double", lambda n: n)
    with pytest.raises(PlanError, match="job 'a' has no step 'inverse'; its steps: numbers, double"):
        job.dead_letters("inverse")


def test_dead_letters_of_a_step_that_has_none_are_told_how_to_get_them() -> None:
    job = mp.Job("a")
    numbers(job).map("double", lambda n: n, on_error="skip")
    with pytest.raises(PlanError, match="step 'double' has no dead letters: give it on_error='dead-letter'"):
        job.dead_letters("double")


def test_dead_letters_are_a_stream_like_any_other() -> None:
    job, good, bad = mp.Job("a"), sinks.Memory(), sinks.Memory()
    numbers(job).map("inverse", lambda n: 1 / n, on_error="dead-letter").sink("good", good)
    job.dead_letters("inverse").map("value", lambda letter: letter.value).sink("bad", bad)
    result = mp.run(job)
    assert (good.items, bad.items) == ([1.0, 0.5], [0])
    assert (result.dead_letters, result.steps["inverse"].rows_out) == (1, 2)


def test_dead_letters_tell_step_key_value_time_and_error() -> None:
    job = mp.Job("a")
    timed = numbers(job).assign_timestamps("at", lambda n: n * 10).key_by("parity", lambda n: n % 2)
    timed.map("inverse", lambda n: 1 / n, on_error="dead-letter")
    assert mp.collect(job.dead_letters("inverse")) == [
        DeadLetter("inverse", 0, 0, 0, "ZeroDivisionError: division by zero")
    ]


def test_dead_letters_may_be_timed_and_split_in_the_source_region() -> None:
    job = mp.Job("a")
    numbers(job).key_by("inverse", lambda n: 1 // n, on_error="dead-letter")
    letters = job.dead_letters("inverse").assign_timestamps("at", lambda letter: letter.value)
    on_time, _ = letters.generate_epochs("epochs", mp.limit_out_of_orderness(0))
    assert [letter.value for letter in mp.collect(on_time)] == [0]


def test_t1_dead_letters_behind_generate_epochs_are_not_split_again() -> None:
    job = mp.Job("a")
    timed = numbers(job).assign_timestamps("at", lambda n: n)
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(5))
    on_time.map("inverse", lambda n: 1 // n, on_error="dead-letter")
    letters = job.dead_letters("inverse").assign_timestamps("again", lambda letter: letter.value)
    with pytest.raises(PlanError, match="step 'epochs-2': generate_epochs is upstream already"):
        letters.generate_epochs("epochs-2", mp.limit_out_of_orderness(5))


@pytest.mark.parametrize("keyed_steps", [1, 2])
def test_t1_dead_letters_of_a_key_by_behind_another_are_not_in_the_source_region(keyed_steps: int) -> None:
    job = mp.Job("a")
    stream = numbers(job).key_by("first", str)
    stream.key_by("second", lambda n: 1 // n, on_error="dead-letter")
    letters = job.dead_letters("second")
    if keyed_steps == 2:
        letters.key_by("third", lambda _: 1 // 0, on_error="dead-letter")
        letters = job.dead_letters("third").map("inner", lambda letter: letter.value)
    with pytest.raises(PlanError, match=r"generate_epochs is after key_by 'first'"):
        letters.assign_timestamps("at", lambda _: 1).generate_epochs("epochs", mp.limit_out_of_orderness(0))


def test_a_plan_to_a_stream_has_what_leads_there_and_a_sink_of_its_own() -> None:
    job = mp.Job("a")
    stream = numbers(job).map("double", lambda n: n * 2)
    stream.map("more", lambda n: n).sink("collected", sinks.Memory())
    plan = job.plan_to(stream, sinks.Memory())
    assert [step.name for step in plan.steps] == ["numbers", "double", "collected1"]
    assert [step.name for step in job.plan().steps] == ["numbers", "double", "more", "collected"]


def test_a_snapshot_can_store_the_rows_of_our_own_classes() -> None:
    """Sinks that keep rows in snapshots, and steps that keep them as state, need no ``register_type`` for these."""
    job = mp.Job("ours")
    numbers = job.source("in", sources.Memory([1]), on_error="fail")
    failing = numbers.map("fails", lambda n: n, on_error="dead-letter")
    keyed = failing.key_by("key", lambda n: n)
    job.dead_letters("fails").sink("letters", sinks.Memory())
    keyed.window("window", windows.count(1)).count().sink("windows", sinks.Memory())
    other = job.source("other", sources.Memory([1])).key_by("other-key", lambda n: n)
    keyed.join_table("join", other, how="left").sink("pairs", sinks.Memory())
    job.source("kafka", sources.Kafka("localhost", "topic", records=True)).sink("records", sinks.Memory())
    codec = Codec(job.plan().types)
    record = KafkaRecord(*range(len(KafkaRecord._fields)))
    for row in (mp.DeadLetter("s", 1, 2, 3, "e"), WindowResult(0, 1, 2), mp.Pair(1, 2), record):
        assert codec.decode_at_rest(codec.encode_at_rest(row, step="s")) == row
