"""Hypothesis drives jobs in the simulator. CI runs the same cases each time, ``EXAMPLES=2000`` others, of each machine.

A failure prints the program that led to it, and a blob: `replayed` runs it again, and so does pytest with the blob in
the environment: ``BLOB='…' pytest tests/simulation -k "test_what_hypothesis_does and Chain"``.
"""

from __future__ import annotations

import os
import re

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, reproduce_failure, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.simulation.jobs.machine import MACHINES, MET, Machine, Union
from tests.simulation.jobs.verdicts import Violation

EXAMPLES = int(os.environ.get("EXAMPLES", "0"))
SETTINGS = settings(
    max_examples=EXAMPLES or 15,
    derandomize=not EXAMPLES,
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

HARD_CASES = (
    "slot held",
    "epoch held",
    "Shipped waited for",
    "keys moved",
    "empty slots shipped",
    "slot in several parcels",
    "parcel before a marker",
    "part moved",
    "finished part moved",
    "part waiting for release",
    "credit at zero",
    "marker in a backlog",
    "Bye taken",
    "rescale coalesced",
    "request with nothing flowing",
    "request under back-pressure",
    "worker crash",
    "worker crash inside a rescale",
    "coordinator crash",
    "coordinator crash inside a rescale",
    "stale frame dropped",
    "stale letter dropped",
    "late record",
    "window fired",
    "snapshot completed",
    "snapshot inside a rescale",
    "crash with a snapshot in flight",
    "restored at more workers",
    "restored at fewer workers",
    "part restored on another worker",
)
"""What they must have met together, each at least once. `test_restoring` restores timers in each of its jobs."""


def drive(machine: type[Machine], how: settings = SETTINGS, blob: str = "") -> None:
    """Let Hypothesis drive, or do again just what ``blob`` says."""
    if blob:
        again = type(machine.__name__, (machine,), {})
        reproduce_failure(hypothesis.__version__, blob.encode())(again)
        machine = again
    run_state_machine_as_test(machine, settings=how)


@pytest.mark.long(but=("Chain", "Kept"))
@pytest.mark.timeout(120 + EXAMPLES)
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__)
def test_what_hypothesis_does_to_a_job_ends_without_a_violation(machine: type[Machine]) -> None:
    drive(machine, blob=os.environ.get("BLOB", ""))


def test_hypothesis_has_met_every_hard_case() -> None:
    for machine in MACHINES:
        if machine.__name__ not in MET and not all(MET[case] for case in HARD_CASES):
            drive(machine)  # no other test has
    assert [case for case in HARD_CASES if not MET[case]] == []


class Fragile(Union):
    """Breaks when a worker has left."""

    def teardown(self) -> None:
        super().teardown()
        if self.feds and self.driven.coverage.hits["Bye taken"]:
            raise Violation("a worker has left")


def test_a_failure_can_be_run_again() -> None:
    unshrunk = settings(SETTINGS, phases=[Phase.generate])
    with pytest.raises(Violation) as failed:
        drive(Fragile, unshrunk)
    printed = "\n".join(failed.value.__notes__)
    assert "state.start(" in printed, "the program itself is shown"
    (blob,) = re.findall(r"reproduce_failure\('[^']+', b'([^']+)'\)", printed)
    with pytest.raises(Violation, match="a worker has left"):
        drive(Fragile, unshrunk, blob)
