"""The machine of a run: a barrier is one event of the shell, and the planned stop goes one way."""

from __future__ import annotations

from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import InternalError
from malstrom_py.rescale.moves.move_sizing import Pacing
from malstrom_py.rescale.moves.protocol import BarrierPassed, InjectBarrier, PackAhead, PackedAhead
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.manifest import PlanImage
from malstrom_py.workers.coordinator import machine as ce
from malstrom_py.workers.coordinator import snapshot_machine as sm
from malstrom_py.workers.coordinator.job_machine import STOPS, JobMachine, PlannedStop, topology_of
from malstrom_py.workers.coordinator.machine import Topology
from malstrom_py.workers.transport.messages import Saved


def two_workers() -> JobMachine:
    moves = ce.CoordinatorMachine(Topology((), {}, {}), members=(0, 1), table=(0, 1), parts={}, pacing=Pacing.fixed(1))
    return JobMachine(moves)


def saving() -> JobMachine:
    machine = two_workers()
    machine.snapshots = sm.SnapshotMachine("job", PlanImage(2), incarnation=1, sequence=1, chain_max=2)
    return machine


def saved(worker: int) -> Saved:
    return Saved("one", worker, (), {}, {}, {}, ())


def test_s3_a_snapshot_needs_no_event_of_the_shell_between_the_parts() -> None:
    machine, one = saving(), SnapshotId("one")
    orders = [ce.Send(worker, InjectBarrier("one", None, False)) for worker in (0, 1)]
    assert machine.handle(sm.SnapshotStarted(one)) == [ce.Send(worker, PackAhead("one")) for worker in (0, 1)]
    assert machine.handle(ce.ReportReceived(PackedAhead("one", 1))) == []
    packed = ce.ReportReceived(PackedAhead("one", 0))
    assert machine.handle(packed) == [ce.BarrierBegun("one", (0, 1)), *orders]
    assert machine.handle(saved(0)) == []
    assert machine.handle(ce.ReportReceived(BarrierPassed("one", 0))) == []
    assert machine.handle(ce.ReportReceived(BarrierPassed("one", 1))) == [ce.CutMade("one", 0.0)]
    (store,) = machine.handle(saved(1))
    assert isinstance(store, sm.StoreManifest)
    assert machine.handle(sm.ManifestStored()) == [sm.CommitSinks(one)]
    assert machine.handle(sm.SinksCommitted()) == [sm.Completed(one, ())]


def test_a_job_without_snapshots_starts_none() -> None:
    with pytest.raises(InternalError, match="SnapshotStarted in a job without snapshots"):
        two_workers().handle(sm.SnapshotStarted(SnapshotId("one")))


@pytest.mark.parametrize("stop", PlannedStop)
@pytest.mark.parametrize("what", ["drain", "suspend", "finish", "begin", "done"])
def test_the_planned_stop_changes_by_its_table_only(stop: PlannedStop, what: str) -> None:
    machine = two_workers()
    machine.stop = stop
    if (stop, what) in STOPS:
        machine.stop_to(what)
        assert machine.stop is STOPS[stop, what]
    else:
        with pytest.raises(InternalError, match="is not expected"):
            machine.stop_to(what)


# What the machine must know of a plan: which exchanges each region and each source feeds.


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
