"""Jobs and plans: names, slots, dead letters; a job is checked as a whole, explained, and cut into regions."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources, windows
from malstrom_py.builder.plan import Region, Step
from malstrom_py.codec import Codec
from malstrom_py.connectors.kafka.records import KafkaRecord
from malstrom_py.data.messages import DeadLetter
from malstrom_py.errors import PlanError
from malstrom_py.windows import WindowResult


def numbers(job: mp.Job, name: str = "numbers") -> mp.StreamBuilder[None, int]:
    return job.source(name, sources.Memory([1, 2, 3]))


def names(steps: list[Step] | tuple[Step, ...]) -> list[str]:
    return [step.name for step in steps]


def branched() -> mp.Job:
    job = mp.Job("branched")
    stream = numbers(job)
    small, large = stream.branch("small", lambda n: n < 2)
    small.map("double", lambda n: n * 2).sink("out", sinks.Memory())
    large.map("unused", lambda n: n)
    return job


def test_an_empty_job_is_told_how_to_begin() -> None:
    with pytest.raises(PlanError, match=r"job 'nothing' is empty: start with job\.source\('name', …\)"):
        mp.Job("nothing").plan()


def test_a_source_that_leads_to_no_sink_is_named_with_the_remedy() -> None:
    job = mp.Job("two")
    numbers(job, "used").sink("out", sinks.Memory())
    numbers(job, "useless").map("double", lambda n: n * 2)
    with pytest.raises(PlanError, match=r"source 'useless'.*\.sink\('name', …\), or use mp\.collect\(stream\)"):
        job.plan()


def test_unused_branches_late_streams_and_dead_letters_are_allowed() -> None:
    assert names(branched().plan().steps) == ["numbers", "small", "double", "out", "unused"]


def test_a_plan_stays_as_it_is_when_the_job_goes_on() -> None:
    job = branched()
    plan = job.plan()
    assert (plan.job, plan.slots) == ("branched", 1024)
    numbers(job, "more").sink("more-out", sinks.Memory())
    assert len(plan.steps) == 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.slots = 7  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


# Explained


def flights() -> mp.Job:
    job = mp.Job("flights", slots=8)
    stream = job.source("flights", sources.Memory([(1, "UA")]), on_error="skip")
    timed = stream.assign_timestamps("departure", lambda flight: flight[0])
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(10))
    keyed = on_time.key_by("carrier", lambda flight: flight[1])
    keyed.map("end", lambda flight: flight[0], on_error="dead-letter").sum("sum").sink("out", sinks.Memory())
    job.dead_letters("end").sink("letters", sinks.Memory())
    return job


def test_the_text_has_a_line_per_step_with_inputs_details_and_policies() -> None:
    here = re.escape(__file__)
    lines = flights().explain().splitlines()
    expected = [
        r"job flights \(8 steps, 8 slots\)",
        r"   0  flights    source  \[Memory\(1 item\); on_error=skip\]",
        rf"   1  departure  assign_timestamps <- flights  \[flights\.<locals>\.<lambda> at {here}:\d+; compiled\]",
        r"   2  epochs     generate_epochs <- departure  \[limit_out_of_orderness\(10\)\]",
        rf"   3  carrier    key_by <- epochs\.on_time  \[.*{here}:\d+; compiled; exchange: a keyed region begins\]",
        rf"   4  end        map <- carrier  \[.*{here}:\d+; compiled; on_error=dead-letter\]",
        r"   5  sum        sum <- end",
        r"   6  out        sink <- sum  \[Memory\]",
        r"   7  letters    sink <- end\.dead_letters  \[Memory\]",
        r"  read by no step, counted only: epochs\.late",
    ]
    assert len(lines) == len(expected)
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern.replace("   ", " {3}", 1) if pattern.startswith("   ") else pattern, line), line


def test_a_column_name_is_shown_as_one() -> None:
    job = mp.Job("columns")
    job.source("rows", sources.Memory([{"shop": "a"}])).key_by("by-shop", "shop").sink("out", sinks.Memory())
    assert "key_by <- rows  [column 'shop'; exchange" in job.explain()


def test_the_chart_draws_every_step_and_edge_and_boxes_keyed_regions() -> None:
    assert flights().to_mermaid().splitlines() == [
        "flowchart LR",
        '  s0[("flights<br/><i>source</i>")]',
        '  s1["departure<br/><i>assign_timestamps</i>"]',
        '  s2["epochs<br/><i>generate_epochs</i>"]',
        '  s3{{"carrier<br/><i>key_by</i>"}}',
        '  subgraph region_s3["keyed by carrier"]',
        '    s4["end<br/><i>map</i>"]',
        '    s5["sum<br/><i>sum</i>"]',
        '    s6[("out<br/><i>sink</i>")]',
        '    s7[("letters<br/><i>sink</i>")]',
        "  end",
        "  s0 --> s1",
        "  s1 --> s2",
        "  s2 -->|on_time| s3",
        "  s3 --> s4",
        "  s4 --> s5",
        "  s5 --> s6",
        "  s4 -->|dead_letters| s7",
    ]


def test_no_value_of_a_source_is_shown() -> None:
    job = mp.Job("secrets")
    job.source("in", sources.Memory(["secret"])).sink("out", sinks.Memory())
    assert "secret'" not in job.explain() + job.to_mermaid()


def doubled(key: object, state: int) -> int:
    return state * 2


def test_what_a_step_was_is_told() -> None:
    job = mp.Job("a")
    numbers = job.source("in", sources.Memory([1]), renamed_from="numbers").key_by("key", lambda n: n)
    numbers.count("seen", renamed_from="count", migrate=doubled).sink("out", sinks.Memory())
    lines = job.explain().splitlines()
    assert lines[1].endswith("source  [Memory(1 item); renamed from numbers]")
    assert lines[3].endswith("count <- key  [renamed from count; migrate=test_plan:doubled]")


# Regions


Stream = mp.StreamBuilder[Any, Any]


def source(job: mp.Job, name: str = "in") -> Stream:
    return job.source(name, sources.Memory([1, 2, 3]))


def end(stream: Stream, name: str = "out") -> Stream:
    stream.sink(name, sinks.Memory())
    return stream


def regions(job: mp.Job) -> list[Region]:
    """The regions of a job, each exchange being an exit before it is an entry."""
    found = list(job.plan().regions)
    fed: set[str] = set()
    for region in found:
        assert fed.issuperset(region.exits), "a region comes before one that it feeds"
        fed.update(region.entries)
    steps = [name for region in found for name in region.steps]
    assert sorted(steps) == sorted(step.name for step in job.plan().steps), "each step is in one region"
    return found


def test_a_job_without_exchange_is_one_region() -> None:
    job = mp.Job("a")
    end(source(job).map("m", str))
    assert regions(job) == [Region(("in", "m", "out"), ("in",), (), ())]


def test_a_chain_is_cut_at_its_exchanges() -> None:
    job = mp.Job("a")
    end(source(job).key_by("k1", str).count("c").key_by("k2", str).count("d"))
    assert regions(job) == [
        Region(("d", "out"), (), ("k2",), ()),
        Region(("c", "k2"), (), ("k1",), ("k2",)),
        Region(("in", "k1"), ("in",), (), ("k1",)),
    ]


def test_a_step_added_late_does_not_bring_its_region_to_the_front() -> None:
    job = mp.Job("a")
    stream = source(job)
    end(stream.key_by("k", str).count("c"), "counts")
    end(stream.map("m", str), "all")
    assert [region.steps for region in regions(job)] == [("c", "counts"), ("in", "k", "m", "all")]


def test_a_diamond_of_exchanges_is_one_region_with_two_entries() -> None:
    job = mp.Job("a")
    stream = source(job)
    end(stream.key_by("left", str).union("both", stream.key_by("right", str)).count("c"))
    assert regions(job) == [
        Region(("both", "c", "out"), (), ("left", "right"), ()),
        Region(("in", "left", "right"), ("in",), (), ("left", "right")),
    ]


def test_two_keyed_streams_of_two_sources_meet_in_one_region() -> None:
    job = mp.Job("a")
    left, right = source(job, "l").key_by("kl", str), source(job, "r").key_by("kr", str)
    end(left.union("both", right).count("c"))
    assert regions(job) == [
        Region(("both", "c", "out"), (), ("kl", "kr"), ()),
        Region(("r", "kr"), ("r",), (), ("kr",)),
        Region(("l", "kl"), ("l",), (), ("kl",)),
    ]


def test_a_union_of_sources_is_one_source_region() -> None:
    job = mp.Job("a")
    end(source(job, "l").union("both", source(job, "r")))
    assert regions(job) == [Region(("l", "r", "both", "out"), ("l", "r"), (), ())]


def test_the_dead_letters_of_a_key_by_stay_on_its_near_side() -> None:
    job = mp.Job("a")
    end(source(job).key_by("k", str, on_error="dead-letter").count("c"))
    end(job.dead_letters("k"), "letters")
    assert regions(job) == [
        Region(("c", "out"), (), ("k",), ()),
        Region(("in", "k", "letters"), ("in",), (), ("k",)),
    ]


def test_the_dead_letters_of_a_keyed_step_stay_in_its_region() -> None:
    job = mp.Job("a")
    end(source(job).key_by("k", str).reduce("c", max, on_error="dead-letter"))
    end(job.dead_letters("c"), "letters")
    assert regions(job)[0] == Region(("c", "out", "letters"), (), ("k",), ())


def test_a_key_by_that_nothing_reads_is_no_exchange() -> None:
    job = mp.Job("a")
    stream = end(source(job))
    stream.key_by("unread", str)
    stream.key_by("letters-only", str, on_error="dead-letter")
    end(job.dead_letters("letters-only"), "letters")
    assert regions(job) == [Region(("in", "out", "unread", "letters-only", "letters"), ("in",), (), ())]
    assert mp.run(job, 3).written == 3


def loop_over_one_exchange(job: mp.Job) -> None:
    keyed = source(job).key_by("first", str)
    end(keyed.union("harmless", keyed.map("m", str)).union("closing", keyed.key_by("second", str)))


def loop_of_dead_letters(job: mp.Job) -> None:
    before = source(job).map("m", str, on_error="dead-letter")
    end(before.key_by("second", str).reduce("r", max, on_error="dead-letter"))
    end(job.dead_letters("m").union("closing", job.dead_letters("r")), "letters")


def loop_over_two_exchanges(job: mp.Job) -> None:
    a, c = source(job, "a-in").key_by("a", str), source(job, "c-in").key_by("c", str)
    b, d = a.key_by("second", str), c.key_by("third", str)
    end(a.union("harmless", d), "ad")
    end(b.union("closing", c), "bc")


@pytest.mark.parametrize("build", [loop_over_one_exchange, loop_of_dead_letters, loop_over_two_exchanges])
def test_a_region_that_feeds_itself_is_refused_naming_the_union_that_closes_the_loop(build: Any) -> None:
    """It would be fed only while its own exchange has no backlog, so a full one would stop the job forever (F2)."""
    job = mp.Job("a")
    build(job)
    around = "'third', 'second'" if build is loop_over_two_exchanges else "'second'"
    with pytest.raises(PlanError, match=rf"step 'closing': this union joins .*exchange \({around}\)") as caught:
        job.plan()
    assert "give each stream its own sink" in str(caught.value)
    with pytest.raises(PlanError, match="step 'closing'"):
        mp.run(job)


def test_collecting_a_stream_before_the_loop_is_allowed() -> None:
    job = mp.Job("a")
    keyed = source(job).key_by("first", str)
    looped = keyed.union("closing", keyed.key_by("second", str))
    assert mp.collect(keyed) == [1, 2, 3]
    with pytest.raises(PlanError, match="step 'closing'"):
        mp.collect(looped)


# Jobs


def with_zero(job: mp.Job, name: str = "numbers") -> mp.StreamBuilder[None, int]:
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
    with_zero(job).sink("out", sinks.Memory())
    assert repr(job) == "Job('a', 2 steps)"


def test_a_name_is_taken_once_in_a_job_whatever_the_kind() -> None:
    job = mp.Job("a")
    stream = with_zero(job, "same")
    with pytest.raises(PlanError, match=r"job 'a' already has a step 'same' \(source\).*give this source another"):
        with_zero(job, "same")
    with pytest.raises(PlanError, match=r"'same' \(source\).*give this map another"):
        stream.map("same", lambda n: n)
    with pytest.raises(PlanError, match=r"give this sink another"):
        stream.sink("same", sinks.Memory())
    assert with_zero(mp.Job("b"), "same").ref.step == "same"


def test_dead_letters_of_a_step_that_is_not_there_names_those_that_are() -> None:
    job = mp.Job("a")
    with pytest.raises(PlanError, match="job 'a' has no step 'inverse'; its steps: none"):
        job.dead_letters("inverse")
    with_zero(job).map("double", lambda n: n)
    with pytest.raises(PlanError, match="job 'a' has no step 'inverse'; its steps: numbers, double"):
        job.dead_letters("inverse")


def test_dead_letters_of_a_step_that_has_none_are_told_how_to_get_them() -> None:
    job = mp.Job("a")
    with_zero(job).map("double", lambda n: n, on_error="skip")
    with pytest.raises(PlanError, match="step 'double' has no dead letters: give it on_error='dead-letter'"):
        job.dead_letters("double")


def test_dead_letters_tell_step_key_value_time_and_error() -> None:
    job = mp.Job("a")
    timed = with_zero(job).assign_timestamps("at", lambda n: n * 10).key_by("parity", lambda n: n % 2)
    timed.map("inverse", lambda n: 1 / n, on_error="dead-letter")
    assert mp.collect(job.dead_letters("inverse")) == [
        DeadLetter("inverse", 0, 0, 0, "ZeroDivisionError: division by zero")
    ]


def test_dead_letters_may_be_timed_and_split_in_the_source_region() -> None:
    job = mp.Job("a")
    with_zero(job).key_by("inverse", lambda n: 1 // n, on_error="dead-letter")
    letters = job.dead_letters("inverse").assign_timestamps("at", lambda letter: letter.value)
    on_time, _ = letters.generate_epochs("epochs", mp.limit_out_of_orderness(0))
    assert [letter.value for letter in mp.collect(on_time)] == [0]


def test_t1_dead_letters_behind_generate_epochs_are_not_split_again() -> None:
    job = mp.Job("a")
    timed = with_zero(job).assign_timestamps("at", lambda n: n)
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(5))
    on_time.map("inverse", lambda n: 1 // n, on_error="dead-letter")
    letters = job.dead_letters("inverse").assign_timestamps("again", lambda letter: letter.value)
    with pytest.raises(PlanError, match="step 'epochs-2': generate_epochs is upstream already"):
        letters.generate_epochs("epochs-2", mp.limit_out_of_orderness(5))


@pytest.mark.parametrize("keyed_steps", [1, 2])
def test_t1_dead_letters_of_a_key_by_behind_another_are_not_in_the_source_region(keyed_steps: int) -> None:
    job = mp.Job("a")
    stream = with_zero(job).key_by("first", str)
    stream.key_by("second", lambda n: 1 // n, on_error="dead-letter")
    letters = job.dead_letters("second")
    if keyed_steps == 2:
        letters.key_by("third", lambda _: 1 // 0, on_error="dead-letter")
        letters = job.dead_letters("third").map("inner", lambda letter: letter.value)
    with pytest.raises(PlanError, match=r"generate_epochs is after key_by 'first'"):
        letters.assign_timestamps("at", lambda _: 1).generate_epochs("epochs", mp.limit_out_of_orderness(0))


def test_a_plan_to_a_stream_has_what_leads_there_and_a_sink_of_its_own() -> None:
    job = mp.Job("a")
    stream = with_zero(job).map("double", lambda n: n * 2)
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
