"""What the coordinator on Ray logs of a job's end."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from malstrom_py.errors import JobEnded, OperatorError
from malstrom_py.rescale.autoscaling import Autoscale
from malstrom_py.workers.coordinator.command_queue import CommandQueue
from malstrom_py.workers.ray.coordinator_actor import CoordinatorActor, JournalEntry
from malstrom_py.workers.reports.result import RunResult


class Raising:
    """A run that ends by ``error``."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def execute(self) -> RunResult:
        raise self._error

    def result(self) -> RunResult:
        return RunResult("job", {}, 0.0)


def logged(error: Exception, caplog: pytest.LogCaptureFixture) -> list[str]:
    actor: Any = CoordinatorActor.__new__(CoordinatorActor)
    actor._controls = CommandQueue("job", kept=True)
    actor._run_to_end(Raising(error))
    return [record.levelname for record in caplog.records]


def test_a_stop_that_was_asked_for_is_not_logged_as_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(JobEnded("it was stopped", job="job", how="stopped"), caplog) == []


@pytest.mark.parametrize("error", [OperatorError("broken"), JobEnded("no", job="job", how="failed"), ValueError("no")])
def test_a_failure_is_logged_as_one(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    assert logged(error, caplog) == ["ERROR"]


def test_a_replacement_finds_the_options_of_the_autoscaler() -> None:
    class Setup:
        autoscale = Autoscale(max=3)

    setup: Any = Setup()
    changed = Autoscale(min=2, max=5)
    assert JournalEntry().autoscale_of(setup) == Autoscale(max=3)
    assert JournalEntry(autoscale=asdict(changed)).autoscale_of(setup) == changed
    assert JournalEntry(autoscale=False).autoscale_of(setup) is None
