"""A failed job is restarted from its last snapshot, as often as allowed, and only if that could help."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, cast

import pytest

from malstrom_py.errors import (
    CodecError,
    FencedError,
    JobEnded,
    MalstromError,
    OperatorError,
    PlanError,
    SnapshotError,
    lasting,
)
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.coordinator.command_queue import CommandQueue
from malstrom_py.workers.reports.commands import ReloadCommand
from malstrom_py.workers.reports.job_status import ReloadAction, SnapshotStatus
from malstrom_py.workers.reports.result import RunResult
from malstrom_py.workers.runtime.supervisor import Restart, RestartBudget, Supervisor, Trial

FINE = RunResult("job", {}, 1.0)


class Played:
    """A run that ends as the test asks."""

    def __init__(self, ends: list[MalstromError | RunResult], *, has_begun: bool = True) -> None:
        self._ends = ends
        self.has_begun = has_begun
        self.workers = 3
        self.trial: Trial | None = None

    def try_out(self, trial: Trial | None, passed: Callable[[], None]) -> None:
        self.trial = trial

    def execute(self) -> RunResult:
        end = self._ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    def result(self) -> RunResult:
        return FINE


class Runs:
    """Makes runs that end one after the other as ``ends`` say, and notes how they were asked for."""

    def __init__(self, *ends: MalstromError | RunResult, has_begun: bool = True) -> None:
        self._ends = list(ends)
        self._has_begun = has_begun
        self.asked: list[tuple[bool, int | None]] = []

    def __call__(self, again: bool, workers: int | None) -> Played:
        self.asked.append((again, workers))
        return Played(self._ends, has_begun=self._has_begun)


def attempts(make: Runs, restart: Restart | None = None) -> tuple[Supervisor[Played], VirtualClock]:
    clock = VirtualClock()
    return Supervisor(make, CommandQueue("job"), restart or Restart(max_restarts=3, backoff_s=1.0), clock), clock


def test_s6_a_run_that_fails_is_followed_by_one_from_the_last_snapshot_at_the_size_it_had() -> None:
    make = Runs(OperatorError("first"), OperatorError("second"), FINE)
    runs, clock = attempts(make)
    began_s = clock.monotonic_s()
    assert runs.execute() == FINE
    assert make.asked == [(False, None), (True, 3), (True, 3)]
    assert runs.restarts == 2
    assert clock.monotonic_s() - began_s == pytest.approx(3.0)


def test_the_last_failure_is_the_one_that_is_told_with_how_often_it_was_tried() -> None:
    runs, _ = attempts(Runs(*(OperatorError(str(number)) for number in range(9))))
    with pytest.raises(OperatorError, match="3") as raised:
        runs.execute()
    assert str(raised.value) == "3"
    assert "restarted 3 times" in raised.value.__notes__[0]


@pytest.mark.parametrize("error", [PlanError("no"), CodecError("no"), FencedError("no"), lasting(SnapshotError("no"))])
def test_what_cannot_go_otherwise_ends_at_once(error: MalstromError) -> None:
    make = Runs(error, FINE)
    runs, _ = attempts(make)
    with pytest.raises(type(error)):
        runs.execute()
    assert len(make.asked) == 1


def test_a_run_that_has_not_taken_over_the_job_is_not_followed_by_another() -> None:
    make = Runs(OperatorError("no"), FINE, has_begun=False)
    runs, _ = attempts(make)
    with pytest.raises(OperatorError):
        runs.execute()
    assert len(make.asked) == 1


def test_a_stop_without_drain_ends_the_job_in_the_pause_before_it_begins_again() -> None:
    make, commands = Runs(OperatorError("first"), FINE), CommandQueue("job")
    clock = Stopping(commands, drain=False)
    with pytest.raises(JobEnded, match="stopped without drain"):
        Supervisor(make, commands, Restart(backoff_s=1_000.0), clock).execute()
    assert len(make.asked) == 1
    assert clock.monotonic_s() < 1


def test_a_run_that_fails_while_it_is_stopped_ends_with_both_and_goes_back_to_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for failure, text in (
        (OperatorError("by zero"), "by zero"),
        (ZeroDivisionError("secret"), "an unexpected ZeroDivisionError: secret"),
    ):
        make, commands = Runs(failure, FINE), CommandQueue("job", kept=True)  # type: ignore[arg-type]
        commands.stop(drain=False)
        with pytest.raises(JobEnded, match=r"nothing was committed\. No last snapshot was made") as raised:
            Supervisor(make, commands, Restart(), VirtualClock()).execute()
        assert raised.value.__cause__ is failure
        assert raised.value.__notes__ == [f"the job failed while it was being stopped: {text}"]
        assert raised.value.snapshot == ""
        assert len(make.asked) == 1
        assert "goes back" not in caplog.text


def test_a_job_that_is_stopped_while_it_goes_back_ends_with_the_snapshot_it_goes_back_to() -> None:
    last = SnapshotId("20261122T042242123456Z-1a2b3c4d")
    commands = CommandQueue("job", kept=True)
    commands.note_snapshots(SnapshotStatus(last, 1.0, 1))
    with pytest.raises(JobEnded) as raised:
        Supervisor(Runs(OperatorError("first"), FINE), commands, Restart(), Stopping(commands, drain=False)).execute()
    assert str(raised.value) == f"job 'job' was stopped without drain: it can resume from snapshot {last}"
    assert raised.value.snapshot == last


def test_a_stop_with_drain_cuts_the_pause_short() -> None:
    make, commands = Runs(OperatorError("first"), FINE), CommandQueue("job")
    clock = Stopping(commands, drain=True)
    assert Supervisor(make, commands, Restart(backoff_s=1_000.0), clock).execute() == FINE
    assert clock.monotonic_s() < 1


class Stopping(VirtualClock):
    """A client stops the job as soon as time passes."""

    def __init__(self, commands: CommandQueue, *, drain: bool) -> None:
        super().__init__()
        self._commands = commands
        self._drain = drain

    def sleep_s(self, duration_s: float) -> None:
        super().sleep_s(duration_s)
        self._commands.stop(drain=self._drain)


def test_status_tells_that_it_recovers_and_how_often() -> None:
    make = Runs(OperatorError("first"), FINE)
    clock, commands = VirtualClock(), CommandQueue("job")
    runs = Supervisor(make, commands, Restart(backoff_s=0.0), clock)
    runs.execute()
    status = commands.known()
    assert (status.state, status.restarts) == ("recovering", 1)


class Reverted:
    """A reload that notes whether it was taken back."""

    is_back = False

    def prepare(self, step: str, texts: Mapping[str, str]) -> None:
        raise NotImplementedError

    def roll_back(self) -> None:
        self.is_back = True


@pytest.mark.parametrize(
    ("error", "is_back"), [(OperatorError("no"), True), (FencedError("a newer start"), False)], ids=["fails", "fenced"]
)
def test_a_failure_on_trial_takes_the_code_back_but_a_newer_start_ends_the_job(
    error: MalstromError, is_back: bool
) -> None:
    runs, reloads = Runs(error, FINE), Reverted()
    supervisor = Supervisor(runs, CommandQueue("job"), Restart(), VirtualClock(), reloads=cast(Any, reloads))
    supervisor.now.trial = Trial(ReloadCommand("step", 1.0, 1.0), None, "snapshot", 0.0)
    with nullcontext() if is_back else pytest.raises(FencedError):
        assert supervisor.execute() is FINE
    assert reloads.is_back is is_back
    assert supervisor.restarts == 0


@pytest.mark.parametrize("action", ["shadow", "drop"])
def test_of_a_shadow_that_failed_as_it_began_nothing_is_left(action: ReloadAction) -> None:
    commands = CommandQueue("job")
    supervisor = Supervisor(Runs(OperatorError("no"), FINE), commands, Restart(), VirtualClock(), reloads=Reverted())  # type: ignore[arg-type]
    commands.shadows.compare(["step"], "")
    supervisor.now.trial = Trial(ReloadCommand("step", 1.0, 1.0, action=action), None, "snapshot", 0.0)
    supervisor.execute()
    assert bool(commands.shadows.metrics()) == (action == "drop")


# Whether and when a failed run is restarted.


def test_pauses_double_up_to_the_longest() -> None:
    failures = RestartBudget(Restart(max_restarts=10, backoff_s=1.0, backoff_max_s=5.0))
    assert [failures.pause_s(float(second)) for second in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_one_failure_more_than_allowed_is_the_last() -> None:
    failures = RestartBudget(Restart(max_restarts=2))
    assert [failures.pause_s(0.0) is None for _ in range(3)] == [False, False, True]


def test_failures_that_are_long_ago_do_not_count() -> None:
    failures = RestartBudget(Restart(max_restarts=1, window_s=10.0, backoff_s=1.0))
    assert failures.pause_s(0.0) == 1.0
    assert failures.pause_s(5.0) is None
    assert failures.pause_s(10.5) == 1.0


@pytest.mark.parametrize(
    "options",
    [
        {"max_restarts": -1},
        {"max_restarts": 1.5},
        {"window_s": -1.0},
        {"backoff_s": "1"},
        {"backoff_max_s": float("inf")},
    ],
)
def test_numbers_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="restart: "):
        Restart(**options)
