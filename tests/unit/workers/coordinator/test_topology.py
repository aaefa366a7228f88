"""What the coordinator must know of a plan: which exchanges each region and each source feeds."""

from __future__ import annotations

from typing import Any

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.workers.coordinator.topology import Topology, topology_of


def numbers(job: mp.Job, name: str = "in") -> mp.StreamBuilder[Any, Any]:
    return job.source(name, sources.Memory([1, 2, 3]))


def out(stream: mp.StreamBuilder[Any, Any], name: str = "out") -> None:
    stream.sink(name, sinks.Memory())


def test_r6_a_chain_of_exchanges() -> None:
    job = mp.Job("chain")
    out(numbers(job).key_by("a", abs).count("counted").key_by("b", abs).map("same", abs))
    assert topology_of(job.plan()) == Topology(("b", "a"), {"same": (), "counted": ("b",)}, {"in": ("a",)})


def test_a_source_that_feeds_no_exchange_has_nothing_to_wait_for() -> None:
    job = mp.Job("straight")
    out(numbers(job).map("same", abs))
    assert topology_of(job.plan()) == Topology((), {}, {"in": ()})


def test_r6_of_sources_in_one_region_each_waits_for_the_exchanges_that_it_feeds() -> None:
    job = mp.Job("two-sources")
    one, other = numbers(job, "one"), numbers(job, "other")
    out(one.key_by("of-one", abs), "one-out")
    out(one.union("both", other).key_by("of-both", abs), "both-out")
    out(numbers(job, "alone").key_by("of-alone", abs), "alone-out")
    topology = topology_of(job.plan())
    assert {name: set(exchanges) for name, exchanges in topology.sources.items()} == {
        "one": {"of-one", "of-both"},
        "other": {"of-both"},
        "alone": {"of-alone"},
    }
    assert set(topology.exchanges) == {"of-one", "of-both", "of-alone"}
    assert topology.regions == dict.fromkeys(("one-out", "both-out", "alone-out"), ())


def test_r6_both_sides_of_a_diamond_are_waited_for() -> None:
    job = mp.Job("diamond")
    even, odd = numbers(job).branch("parity", lambda n: n % 2 == 0)
    joined = even.key_by("even", abs).union("joined", odd.key_by("odd", abs))
    out(joined.count("count").key_by("last", abs))
    topology = topology_of(job.plan())
    assert {name: set(exchanges) for name, exchanges in topology.sources.items()} == {"in": {"even", "odd"}}
    assert topology.regions == {"out": (), "joined": ("last",)}


def test_an_exchange_that_nobody_reads_behind_is_none() -> None:
    job = mp.Job("unread")
    stream = numbers(job)
    stream.key_by("nowhere", abs)
    out(stream)
    assert topology_of(job.plan()) == Topology((), {}, {"in": ()})


def test_a_region_with_sources_of_its_own_behind_an_exchange_is_a_region_and_has_sources() -> None:
    """Dead letters of a keyed step and those of a source, put together, bring both into one region."""
    job = mp.Job("mixed")
    stream = job.source("in", sources.Memory([1, 2, 3]), on_error="dead-letter")
    other = job.source("other", sources.Memory([1, 2, 3]), on_error="dead-letter")
    keyed = stream.key_by("key", abs)
    out(keyed.map("may-fail", abs, on_error="dead-letter"))
    letters = job.dead_letters("may-fail").union("letters", job.dead_letters("other"))
    out(letters.key_by("by-step", lambda letter: letter.step), "dead")
    out(other, "other-out")
    topology = topology_of(job.plan())
    assert topology.sources == {"in": ("key",), "other": ("by-step",)}
    assert {name: exits for name, exits in topology.regions.items() if exits} == {"other": ("by-step",)}
