"""Plans: a job is checked as a whole, explained, and cut into regions at its exchanges."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.builder.plan import Step, StreamRef, ancestors
from malstrom_py.builder.regions import Region, is_exchanged, regions_of
from malstrom_py.errors import PlanError


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


def test_ancestors_are_what_leads_there_and_nothing_else() -> None:
    steps = branched().plan().steps
    assert names(ancestors(steps, {"double"})) == ["numbers", "small", "double"]
    assert names(ancestors(steps, {"numbers"})) == ["numbers"]
    assert names(ancestors(steps, set())) == []


def test_the_port_of_dead_letters_is_the_last_one() -> None:
    job = mp.Job("letters")
    stream = numbers(job)
    stream.branch("even", lambda n: n % 2, on_error="dead-letter")
    stream.map("skip", lambda n: n, on_error="skip").sink("out", sinks.Memory())
    ports = {step.name: step.dead_letter_port for step in job.plan().steps}
    assert ports == {"numbers": None, "even": 2, "skip": None, "out": None}


def test_edges_name_stream_and_reader() -> None:
    edges = [(ref, step.name) for ref, step in branched().plan().edges()]
    assert edges == [
        (StreamRef("numbers"), "small"),
        (StreamRef("small", 0), "double"),
        (StreamRef("double"), "out"),
        (StreamRef("small", 1), "unused"),
    ]


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
        r"   0  flights    source  \[Memory\(1 items in 1 parts\); on_error=skip\]",
        rf"   1  departure  assign_timestamps <- flights  \[flights\.<locals>\.<lambda> at {here}:\d+\]",
        r"   2  epochs     generate_epochs <- departure  \[limit_out_of_orderness\(10\)\]",
        rf"   3  carrier    key_by <- epochs\.on_time  \[.*{here}:\d+; exchange: a keyed region begins\]",
        rf"   4  end        map <- carrier  \[.*{here}:\d+; on_error=dead-letter\]",
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
    assert lines[1].endswith("source  [Memory(1 items in 1 parts); renamed from numbers]")
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
    found = regions_of(job.plan())
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


def test_only_the_first_port_of_a_key_by_is_exchanged() -> None:
    job = mp.Job("a")
    end(source(job).key_by("k", str, on_error="dead-letter"))
    end(job.dead_letters("k"), "letters")
    plan = job.plan()
    assert {step.name: is_exchanged(plan.steps[plan.rank(ref.step)], ref) for ref, step in plan.edges()} == {
        "k": False,
        "out": True,
        "letters": False,
    }


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
