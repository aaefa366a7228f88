"""Regions: the steps between exchanges, which exchanges feed it and which it feeds, downstream first."""

from __future__ import annotations

from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.builder.regions import Region, is_exchanged, regions_of
from malstrom_py.errors import PlanError

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
