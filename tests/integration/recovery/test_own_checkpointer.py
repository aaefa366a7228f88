"""Jobs whose snapshots the user's own checkpointer stores: stopped, failed, resumed at other scales."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from time import sleep

import pytest

import malstrom_py as mp
from malstrom_py.sinks.base import SnapshotId
from tests.integration.recovery.jobs import check_written, numbered
from tests.integration.recovery.test_going_on import Slow, small, until_read
from tests.unit.snapshot.in_sqlite import SqliteCheckpointer


def kept_in(folder: Path, *, interval_s: float | None = 0.02) -> mp.Snapshots:
    folder.mkdir(exist_ok=True)
    return mp.Snapshots(checkpointer=partial(SqliteCheckpointer, folder), interval_s=interval_s, chain_max=2)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
def test_s5_a_job_that_was_stopped_goes_on_at_another_size(before: int, after: int, tmp_path: Path) -> None:
    out, kept = tmp_path / "out", kept_in(tmp_path / "kept")
    handle = mp.InProcess(before, batch=small(), snapshots=kept).start(
        numbered(str(out), rows=5_000, each=Slow(500)), control=False
    )
    until_read(handle, 1)  # else a fast stop leaves all rows to the next run
    stood = handle.snapshot()
    handle.stop(drain=False)
    last = kept.checkpointer("numbered").list_checkpoints()[-1]
    assert last >= stood
    result = mp.run(numbered(str(out), rows=5_000), after, snapshots=kept, progress=False)
    assert result.read < 4 * 5_000, "the job resumes where it was stopped"
    check_written(out, rows=5_000)
    again = mp.run(numbered(str(out), rows=5_000), snapshots=kept, progress=False)
    assert (again.read, again.written) == (result.read, result.written)
    assert len(kept.checkpointer("numbered").list_checkpoints()) == kept.keep


def test_a_savepoint_of_it_is_in_a_folder_and_another_job_goes_on_from_there(tmp_path: Path) -> None:
    kept = kept_in(tmp_path / "kept", interval_s=None)
    job = numbered(str(tmp_path / "out"), rows=20_000, each=Slow(500))
    handle = mp.InProcess(2, batch=small(), snapshots=kept).start(job, control=False)
    copied = handle.savepoint(str(tmp_path / "copy"))
    handle.stop(drain=False)
    saved = mp.Snapshots(tmp_path / "copy")
    assert saved.checkpointer("numbered").list_checkpoints() == [copied]
    result = mp.run(numbered(str(tmp_path / "other"), rows=20_000), 3, snapshots=saved, progress=False)
    assert result.snapshots >= 1


class SlowToTidy(SqliteCheckpointer):
    """Records the snapshots whose state is saved, and takes longer to tidy than the next snapshot is away."""

    saved: list[SnapshotId]

    def save_snapshot(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        self.saved.append(id)
        return super().save_snapshot(id, operator, partition, data)

    def save_delta(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        self.saved.append(id)
        return super().save_delta(id, operator, partition, data)

    def note_sinks_committed(self, id: SnapshotId) -> None:
        super().note_sinks_committed(id)
        sleep(0.1)


def test_no_snapshot_follows_the_one_with_the_result(tmp_path: Path) -> None:
    SlowToTidy.saved = []
    kept = mp.Snapshots(checkpointer=partial(SlowToTidy, tmp_path), interval_s=0.01)
    first = mp.run(numbered(str(tmp_path / "out")), snapshots=kept, progress=False)
    assert max(SlowToTidy.saved) <= kept.checkpointer("numbered").list_checkpoints()[-1]
    assert mp.run(numbered(str(tmp_path / "out")), snapshots=kept, progress=False) == first


class AwayOnce(SqliteCheckpointer):
    """Is unreachable at times, like a database that restarts."""

    calls = 0

    def save_snapshot(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        AwayOnce.calls += 1
        if AwayOnce.calls % 2:
            raise ConnectionError("the database is away")
        return super().save_snapshot(id, operator, partition, data)


def test_what_it_raises_is_tried_again(tmp_path: Path) -> None:
    kept = mp.Snapshots(checkpointer=partial(AwayOnce, tmp_path), interval_s=None)
    mp.run(numbered(str(tmp_path / "out")), 2, snapshots=kept, restart="never", progress=False)
    assert AwayOnce.calls >= 2
    check_written(tmp_path / "out")


class Full(SqliteCheckpointer):
    def save_snapshot(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        raise OSError("no space left")


def test_what_it_raises_again_and_again_ends_the_job_and_names_the_method(tmp_path: Path) -> None:
    kept = mp.Snapshots(checkpointer=partial(Full, tmp_path), interval_s=None)
    with pytest.raises(mp.SnapshotError, match="job 'numbered': Full: save_snapshot failed with OSError: no space"):
        mp.run(numbered(str(tmp_path / "out"), rows=100), snapshots=kept, restart="never", progress=False)


def test_the_simulator_says_that_it_takes_stores_alone(tmp_path: Path) -> None:
    with pytest.raises(mp.PlanError, match="Simulation: snapshots must be kept in a store"):
        mp.Simulation(snapshots=kept_in(tmp_path))
