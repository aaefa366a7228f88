"""The machine of a run: a barrier is one event of the shell, and the planned stop goes one way."""

from __future__ import annotations

import pytest

from malstrom_py.errors import InternalError
from malstrom_py.rescale.moves.move_sizing import Pacing
from malstrom_py.rescale.moves.protocol import BarrierPassed, InjectBarrier, PackAhead, PackedAhead
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.manifest import PlanImage
from malstrom_py.workers.coordinator import machine as ce
from malstrom_py.workers.coordinator import snapshot_machine as sm
from malstrom_py.workers.coordinator.job_machine import STOPS, JobMachine, PlannedStop
from malstrom_py.workers.coordinator.topology import Topology
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
