"""Changes at the cut of a snapshot: values of parameters wait for each other, for reloads and for the next run."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from malstrom_py.errors import JobEnded
from malstrom_py.events import StopCause
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.workers.coordinator.changes import ChangeDue
from malstrom_py.workers.coordinator.command_queue import CommandQueue
from malstrom_py.workers.reports.commands import ReloadCommand, SetCommand
from malstrom_py.workers.reports.job_status import ReloadReport, SnapshotStatus
from tests.unit.workers.coordinator.test_command_queue import ID, NOTHING, Saving, finished, obey


@pytest.fixture
def saving() -> Saving:
    return Saving()


@pytest.fixture
def commands() -> CommandQueue:
    made = CommandQueue("a", kept=True)
    made.enter("opening", NOTHING, 1)
    made.loop()
    return made


def set_to(commands: CommandQueue, value: int) -> Future[Any]:
    return commands.submit(SetCommand("threshold", value, 1.0))


def made(commands: CommandQueue, saving: Saving) -> ChangeDue:
    """Let the workers of a run stop at the cut of a change, and return what is due then."""
    obey(commands, saving)
    saving.suspended = True
    with pytest.raises(ChangeDue) as due:
        obey(commands, saving)
    saving.suspended = False
    commands.recover(NOTHING, 1, times=0)
    return due.value


def test_values_are_set_one_after_the_other(commands: CommandQueue, saving: Saving) -> None:
    first, second = set_to(commands, 1), set_to(commands, 2)
    saving.snapshots = SnapshotStatus(ID, 1.5, 1)
    assert made(commands, saving).prepared == 1
    commands.tried(SnapshotId(ID))
    assert (first.result(timeout=0), second.done()) == (ID, False)
    commands.loop()
    assert commands.pending
    assert made(commands, saving).prepared == 2
    commands.tried(SnapshotId(ID))
    assert second.result(timeout=0) == ID
    assert saving.told == ["set threshold", "suspend"] * 2


def test_a_value_waits_for_the_trial_of_a_reload(commands: CommandQueue, saving: Saving) -> None:
    commands.prepare = lambda step, texts, action: "code"
    saving.snapshots = SnapshotStatus(ID, 1.5, 1)
    reload = commands.submit(ReloadCommand("step", 1.0, 1.0))
    assert made(commands, saving).cause is StopCause.RELOAD
    asked = set_to(commands, 1)
    commands.loop()
    obey(commands, saving)
    obey(commands, saving)
    assert not asked.done()
    commands.tried(ReloadReport("step", (), ID, 0.0))
    assert reload.result(timeout=0).step == "step"
    assert commands.pending
    due = made(commands, saving)
    assert (due.cause, due.prepared) == (StopCause.PARAMETER, 1)
    commands.end(finished())
    with pytest.raises(JobEnded, match="cannot be given another value for parameter 'threshold'"):
        asked.result(timeout=0)


def test_a_value_whose_run_fails_before_the_cut_is_set_in_the_next(commands: CommandQueue, saving: Saving) -> None:
    saving.snapshots = SnapshotStatus(ID, 1.5, 1)
    asked = set_to(commands, 1)
    obey(commands, saving)
    commands.recover(NOTHING, 1)
    assert commands.wants_change
    commands.loop()
    assert made(commands, saving).prepared == 1
    assert not asked.done()


def test_a_stop_waits_for_the_cut_of_a_value_which_is_in_the_last_snapshot(
    commands: CommandQueue, saving: Saving
) -> None:
    saving.snapshots = SnapshotStatus(ID, 1.5, 1)
    asked = set_to(commands, 1)
    obey(commands, saving)
    ended = commands.stop(drain=False)
    assert made(commands, saving).prepared == 1
    commands.tried(SnapshotId(ID))
    assert (asked.result(timeout=0), ended.done()) == (ID, False)
    commands.loop()
    obey(commands, saving)
    saving.suspended = True
    with pytest.raises(JobEnded, match="was stopped without drain"):
        obey(commands, saving)


def promoted(commands: CommandQueue, saving: Saving) -> Future[Any]:
    """Let a shadow be promoted, and pass its trial."""
    commands.prepare = lambda step, texts, action: "code"
    saving.snapshots = SnapshotStatus(ID, 1.5, 1)
    promote = commands.submit(ReloadCommand("step", 1.0, 1.0, action="promote"))
    made(commands, saving)
    commands.loop()
    commands.tried(ReloadReport("step", (), ID, 0.0, "promote"))
    return promote


def test_a_promoted_shadow_is_in_a_snapshot_before_the_answer_also_of_a_later_run(
    commands: CommandQueue, saving: Saving
) -> None:
    promote = promoted(commands, saving)
    obey(commands, saving)
    assert saving.told == ["suspend", "snapshot"]
    commands.recover(NOTHING, 1)
    assert not commands.wants_change
    commands.loop()
    obey(commands, saving)
    assert saving.told == ["suspend", "snapshot", "snapshot"]
    assert not promote.done()
    saving.answer()  # of the run before
    assert not promote.done()
    saving.answer()
    assert promote.result(timeout=0) == ReloadReport("step", (), ID, 0.0, "promote")


def test_a_promoted_shadow_is_in_the_snapshot_of_a_finished_job(commands: CommandQueue, saving: Saving) -> None:
    promote = promoted(commands, saving)
    commands.end(finished())
    assert promote.result(timeout=0).action == "promote"
