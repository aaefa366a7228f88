"""``malstrom stop`` of a job that makes a savepoint."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from malstrom_py.cli import jobs as cli_jobs
from malstrom_py.cli.app import app
from malstrom_py.clock import SystemClock
from malstrom_py.errors import OperationInProgress

LAST = "20261122T042242123456Z-1a2b3c4d"


class Busy:
    """A job that refuses to stop so many ``times``, for it makes a savepoint."""

    snapshots = True

    def __init__(self, times: int, operation: str = "savepoint") -> None:
        self.left = times
        self._operation = operation
        self.waits: list[float] = []

    def status(self) -> Busy:
        return self

    def stop(self, *, drain: bool, wait: bool, timeout_s: float) -> str:
        self.waits.append(timeout_s)
        if self.left:
            self.left -= 1
            raise OperationInProgress("job 'busy' is making a savepoint", job="busy", operation=self._operation)
        return LAST


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes only in `sleep_s`."""
    now = [0.0]
    monkeypatch.setattr(SystemClock, "monotonic_s", lambda self: now[0])
    monkeypatch.setattr(SystemClock, "sleep_s", lambda self, duration_s: now.__setitem__(0, now[0] + duration_s))


def stopped(monkeypatch: pytest.MonkeyPatch, busy: Busy, *options: str) -> Any:
    monkeypatch.setattr(cli_jobs, "_attached", lambda job, address: busy)
    return CliRunner().invoke(app, ["stop", "busy", *options])


def test_it_waits_for_a_savepoint(monkeypatch: pytest.MonkeyPatch, passing: None) -> None:
    busy = Busy(4)
    done = stopped(monkeypatch, busy)
    assert (done.exit_code, done.stdout) == (0, f"job busy has stopped; it can resume from snapshot {LAST}\n")
    assert busy.waits == pytest.approx([120.0, 119.9, 119.8, 119.7, 119.6])


@pytest.mark.parametrize("options", [("--timeout", "1"), ("--no-wait",)])
def test_it_waits_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch, passing: None, options: Any) -> None:
    busy = Busy(1_000)
    done = stopped(monkeypatch, busy, *options)
    assert done.exit_code == 1
    assert "is making a savepoint" in done.stderr
    assert len(busy.waits) == (1 if options == ("--no-wait",) else 12)


def test_another_stop_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, passing: None) -> None:
    busy = Busy(1, "stop")
    assert stopped(monkeypatch, busy).exit_code == 1
    assert len(busy.waits) == 1
