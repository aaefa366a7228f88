"""The machine of a run: a barrier is one event of the shell, and the planned stop goes one way. One snapshot at a time,
in the order of S3, and chains that hold all that is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import InternalError
from malstrom_py.rescale.moves.move_sizing import Pacing
from malstrom_py.rescale.moves.protocol import BarrierPassed, InjectBarrier, PackAhead, PackedAhead
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.manifest import Artefact, PlanImage, artefact_path
from malstrom_py.workers.coordinator import job_machine as sm
from malstrom_py.workers.coordinator import machine as ce
from malstrom_py.workers.coordinator.job_machine import STOPS, JobMachine, PlannedStop, topology_of
from malstrom_py.workers.coordinator.machine import BarrierBegun, CutMade, SnapshotWanted, Topology
from malstrom_py.workers.transport.messages import Saved


def two_workers() -> JobMachine:
    moves = ce.CoordinatorMachine(Topology((), {}, {}), members=(0, 1), table=(0, 1), parts={}, pacing=Pacing.fixed(1))
    return JobMachine(moves)


def saving() -> JobMachine:
    machine = two_workers()
    machine.snapshots = sm.SnapshotMachine("job", PlanImage(2), incarnation=1, sequence=1, chain_max=2)
    return machine


def one_saved(worker: int) -> Saved:
    return Saved("one", worker, (), {}, {}, {}, ())


def test_s3_a_snapshot_needs_no_event_of_the_shell_between_the_parts() -> None:
    machine, one = saving(), SnapshotId("one")
    orders = [ce.Send(worker, InjectBarrier("one", None, False)) for worker in (0, 1)]
    assert machine.handle(sm.SnapshotStarted(one)) == [ce.Send(worker, PackAhead("one")) for worker in (0, 1)]
    assert machine.handle(ce.ReportReceived(PackedAhead("one", 1))) == []
    packed = ce.ReportReceived(PackedAhead("one", 0))
    assert machine.handle(packed) == [ce.BarrierBegun("one", (0, 1)), *orders]
    assert machine.handle(one_saved(0)) == []
    assert machine.handle(ce.ReportReceived(BarrierPassed("one", 0))) == []
    assert machine.handle(ce.ReportReceived(BarrierPassed("one", 1))) == [ce.CutMade("one", 0.0)]
    (store,) = machine.handle(one_saved(1))
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


# Snapshots.

ONE, TWO, THREE, FOUR, FIVE = (SnapshotId(f"20261122T04224212345{number}Z-1a2b3c4d") for number in range(1, 6))


def machine(*, chain_max: int = 8) -> sm.SnapshotMachine:
    return sm.SnapshotMachine("job", PlanImage(16), incarnation=3, sequence=7, chain_max=chain_max)


def artefact(worker: int, snapshot: SnapshotId, kind: Literal["full", "delta"] = "full") -> Artefact:
    return Artefact("sum", worker, kind, snapshot, artefact_path(snapshot, "sum", worker, kind), 1, "0" * 64)


def saved(
    snapshot: SnapshotId,
    worker: int,
    kind: Literal["full", "delta"] | None = "full",
    *,
    frontiers: Mapping[str, int] | None = None,
    parts: Mapping[str, Any] | None = None,
) -> Saved:
    artefacts = () if kind is None else (artefact(worker, snapshot, kind),)
    sources = {"in": dict(parts or {str(worker): (worker, False)})}
    return Saved(snapshot, worker, artefacts, sources, {}, frontiers or {"by": 5}, ())


def begun(made: sm.SnapshotMachine, snapshot: SnapshotId, *members: int) -> list[sm.SnapshotEffect]:
    wanted = made.handle(sm.SnapshotStarted(snapshot))
    made.handle(BarrierBegun(snapshot, members))
    return wanted


def completed(made: sm.SnapshotMachine, snapshot: SnapshotId, *images: Saved) -> list[sm.SnapshotEffect]:
    """What comes of a whole snapshot: its manifest, and its end."""
    begun(made, snapshot, *(image.worker for image in images))
    made.handle(CutMade(snapshot, 0.0))
    stored = [effect for image in images for effect in made.handle(image)]
    made.handle(sm.ManifestStored())
    return [*stored, *made.handle(sm.SinksCommitted())]


def test_s3_a_manifest_is_written_when_all_have_saved_and_the_barrier_has_passed() -> None:
    made = machine()
    assert begun(made, ONE, 0, 1) == [SnapshotWanted(ONE, None, packs=True)]
    assert made.handle(saved(ONE, 0)) == []
    assert made.handle(saved(ONE, 1)) == []
    (stored,) = made.handle(CutMade(ONE, 0.0))
    assert isinstance(stored, sm.StoreManifest)
    manifest = stored.manifest
    assert (manifest.id, manifest.sequence, manifest.incarnation, manifest.workers) == (ONE, 7, 3, 2)
    assert manifest.artefacts == (artefact(0, ONE), artefact(1, ONE))
    assert manifest.frontiers == {"by": 5}


def test_s3_sinks_commit_behind_the_manifest_and_nothing_goes_before_they_have() -> None:
    made = machine()
    begun(made, ONE, 0)
    made.handle(CutMade(ONE, 0.0))
    made.handle(saved(ONE, 0))
    with pytest.raises(InternalError, match="sinks have committed is not expected"):
        made.handle(sm.SinksCommitted())
    assert made.handle(sm.ManifestStored()) == [sm.CommitSinks(ONE)]
    with pytest.raises(InternalError, match="wanted is not expected"):
        made.handle(sm.SnapshotStarted(TWO))
    assert made.handle(sm.SinksCommitted()) == [sm.Completed(ONE, ())]
    assert made.handle(sm.SnapshotStarted(TWO)) == [SnapshotWanted(TWO, ONE, packs=True)]


def test_s3_the_barrier_of_a_stop_is_the_last_and_no_batch_comes_before_it() -> None:
    assert machine().handle(sm.SnapshotStarted(ONE, last=True)) == [SnapshotWanted(ONE, None, last=True)]


def test_s2_what_was_packed_ahead_in_full_comes_before_its_changes_and_replaces_the_chain() -> None:
    made = machine()
    completed(made, ONE, saved(ONE, 0))
    both = replace(saved(TWO, 0), artefacts=(artefact(0, TWO), artefact(0, TWO, "delta")))
    (stored,) = (one for one in completed(made, TWO, both) if isinstance(one, sm.StoreManifest))
    assert stored.manifest.artefacts == both.artefacts


def test_s2_the_parent_is_the_last_that_stands() -> None:
    made = machine()
    begun(made, ONE, 0)
    assert made.parent is None
    made.handle(CutMade(ONE, 0.0))
    made.handle(saved(ONE, 0))
    assert made.parent is None, "it is unknown whether the manifest is durable"
    made.handle(sm.ManifestStored())
    assert made.parent == ONE


def test_s2_a_manifest_lists_whole_chains() -> None:
    made = machine(chain_max=1)
    completed(made, ONE, saved(ONE, 0), saved(ONE, 1))
    stored, ended = completed(made, TWO, saved(TWO, 0, "delta"), saved(TWO, 1, None))
    assert isinstance(stored, sm.StoreManifest)
    chain = (artefact(0, ONE), artefact(0, TWO, "delta"))
    assert stored.manifest.artefacts == (*chain, artefact(1, ONE)), "nothing of worker 1 has changed"
    assert (stored.manifest.parent, stored.manifest.sequence) == (ONE, 8)
    assert ended == sm.Completed(TWO, (chain,))
    assert made.paths() == {one.path for one in (*chain, artefact(1, ONE))}


def test_s2_a_full_artefact_begins_a_chain_anew() -> None:
    made = machine()
    completed(made, ONE, saved(ONE, 0))
    stored, _ = completed(made, TWO, saved(TWO, 0))
    assert isinstance(stored, sm.StoreManifest)
    assert stored.manifest.artefacts == (artefact(0, TWO),)


def test_s2_a_delta_needs_what_it_goes_by() -> None:
    with pytest.raises(InternalError, match="without the artefact before it"):
        completed(machine(), ONE, saved(ONE, 0, "delta"))


def test_r8_the_chains_of_those_that_have_left_are_in_no_manifest() -> None:
    made = machine()
    completed(made, ONE, saved(ONE, 0), saved(ONE, 1))
    stored, _ = completed(made, TWO, saved(TWO, 0, "delta"))
    assert isinstance(stored, sm.StoreManifest)
    assert {one.partition for one in stored.manifest.artefacts} == {0}


def test_s2_what_was_compacted_takes_the_place_of_its_chain_and_no_other() -> None:
    made, compacted = machine(), artefact(0, TWO)
    completed(made, ONE, saved(ONE, 0))
    completed(made, TWO, saved(TWO, 0, "delta"))
    chain = (artefact(0, ONE), artefact(0, TWO, "delta"))
    assert made.handle(sm.Compacted((artefact(0, THREE), *chain), compacted)) == []
    assert made.paths() == {one.path for one in chain}, "that chain has gone"
    assert made.handle(sm.Compacted(chain, compacted)) == []
    assert made.paths() == {compacted.path}
    stored, _ = completed(made, THREE, saved(THREE, 0, "delta"))
    assert isinstance(stored, sm.StoreManifest)
    assert stored.manifest.artefacts == (compacted, artefact(0, THREE, "delta"))


def test_s2_deltas_that_were_merged_take_their_place_in_the_chain() -> None:
    made = machine()
    completed(made, ONE, saved(ONE, 0))
    completed(made, TWO, saved(TWO, 0, "delta"))
    completed(made, THREE, saved(THREE, 0, "delta"))
    deltas = (artefact(0, TWO, "delta"), artefact(0, THREE, "delta"))
    path = artefact_path(THREE, "sum", 0, "delta", compacted=True)
    merged = replace(deltas[1], path=path)
    completed(made, FOUR, saved(FOUR, 0, "delta"))
    assert made.handle(sm.Compacted((*deltas, artefact(0, FIVE, "delta")), merged)) == []
    assert len(made.paths()) == 4, "that is not what follows them"
    assert made.handle(sm.Compacted(deltas, merged)) == []
    stored, _ = completed(made, FIVE, saved(FIVE, 0, "delta"))
    assert isinstance(stored, sm.StoreManifest)
    assert stored.manifest.artefacts == (artefact(0, ONE), merged, *(artefact(0, id, "delta") for id in (FOUR, FIVE)))
    replace(stored.manifest, created="2026-11-22T04:22:42+00:00").check()


@pytest.mark.parametrize(
    ("images", "why"),
    [
        ((saved(ONE, 0), saved(ONE, 0)), "saved it twice"),
        ((saved(ONE, 2),), "is not one of the snapshot"),
        ((saved(TWO, 0),), "was saved"),
        ((saved(ONE, 0), saved(ONE, 1, frontiers={"by": 6})), r"different epochs \(T3\)"),
        ((saved(ONE, 0), saved(ONE, 1, parts={"0": (1, False)})), "is at two workers"),
    ],
)
def test_s1_images_that_do_not_fit_each_other_are_no_snapshot(images: tuple[Saved, ...], why: str) -> None:
    made = machine()
    begun(made, ONE, 0, 1)
    made.handle(CutMade(ONE, 0.0))
    *fitting, last = images
    for image in fitting:
        made.handle(image)
    with pytest.raises(InternalError, match=why):
        made.handle(last)


def test_every_change_of_phase_is_in_the_table() -> None:
    assert {phase for phase, _ in sm.SNAPSHOTS} == set(sm.SNAPSHOTS.values()) == set(sm.SnapshotPhase)
