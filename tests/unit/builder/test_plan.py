"""Plans: a job is checked as a whole, and every message names what is wrong and what to do."""

from __future__ import annotations

import dataclasses

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.builder.plan import Step, StreamRef, ancestors
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
