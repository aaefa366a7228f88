"""How a job ended: what its process knows, and what others get."""

from __future__ import annotations

from typing import Any, cast

import pytest

from malstrom_py.errors import InternalError, JobEnded, MalstromError, OperatorError, PlanError
from malstrom_py.errors.text import redacting
from malstrom_py.workers.reports.job_status import (
    WORKERS_MAX,
    JobOutcome,
    JobStatus,
    Moving,
    SnapshotStatus,
    check_size,
    in_progress,
    still_running,
)
from malstrom_py.workers.reports.result import RunResult, StepCounts

COUNTS = RunResult("a", {}, 1.0)
STOPPED = JobEnded("job 'a' was stopped", job="a", how="stopped")


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (None, "finished"),
        (OperatorError("step 'a' failed"), "failed"),
        (JobEnded("another job has ended", how="finished"), "failed"),
        (STOPPED, "stopped"),
        (KeyboardInterrupt(), "stopped"),
        (SystemExit(3), "failed"),
        (RuntimeError("secret-4711"), "failed"),
    ],
    ids=repr,
)
def test_a_run_that_ends_by_an_error_has_failed_unless_it_was_stopped(error: BaseException | None, how: str) -> None:
    ending = JobOutcome.of(COUNTS, error)
    assert ending.how == how
    if error is None:
        assert ending.result() == COUNTS
        assert ending.public_error() is None
    else:
        with pytest.raises(type(error)):
            ending.result()
        assert isinstance(ending.public_error(), MalstromError)


@pytest.mark.parametrize(("redact", "said"), [(False, "RuntimeError: secret-4711"), (True, "RuntimeError")])
def test_what_a_foreign_error_says_is_told_unless_it_is_hidden(redact: bool, said: str) -> None:
    with redacting(redact):
        told = JobOutcome.of(COUNTS, RuntimeError("secret-4711")).public_error()
    assert isinstance(told, InternalError)
    assert str(told) == f"job 'a' failed by an unexpected {said}"


def test_what_was_noted_on_a_ctrl_c_is_told() -> None:
    error = KeyboardInterrupt()
    error.add_note("nothing was committed")
    told = JobOutcome.of(COUNTS, error).public_error()
    assert isinstance(told, JobEnded)
    assert (told.how, told.__notes__) == ("stopped", ["nothing was committed"])


def test_a_stop_is_content_with_the_end_it_was_to_lead_to_only() -> None:
    JobOutcome.of(COUNTS, None).stopped(drain=True)
    JobOutcome.of(COUNTS, STOPPED).stopped(drain=False)
    with pytest.raises(JobEnded, match="stopped without drain: it has finished, and its sinks have committed"):
        JobOutcome.of(COUNTS, None).stopped(drain=False)
    with pytest.raises(JobEnded, match="cannot be stopped with drain: it has been stopped"):
        JobOutcome.of(COUNTS, STOPPED).stopped(drain=True)
    for drain in (True, False):
        with pytest.raises(OperatorError):
            JobOutcome.of(COUNTS, OperatorError("step 'a' failed")).stopped(drain=drain)


def test_a_status_says_what_there_is_to_say() -> None:
    assert str(JobStatus("a", "running", 1, "steady", COUNTS, None)).startswith("job a: running, 1 worker (steady)\n")
    moving = str(JobStatus("a", "rescaling", 2, "moving", COUNTS, None, moving=Moving(3, 80, 512, 1_200, 2_500_000)))
    assert moving.startswith(
        "job a: rescaling, 2 workers "
        "(moving: move 3, 80 of 512 key groups moved, with 1,200 keys and 2.5 MB of state)\n"
    )
    failed = str(JobStatus("a", "failed", 2, "ended", COUNTS, "step 'b' failed", 1.25))
    assert failed.startswith("job a: failed, 2 workers (ended)\n")
    assert "error: step 'b' failed" in failed
    assert "1.2 s old" in failed


def test_a_planned_stop_is_not_called_an_error() -> None:
    text = str(JobStatus("a", "stopped", 2, "ended", COUNTS, "job 'a' was stopped without drain"))
    assert text.splitlines()[-1] == "job 'a' was stopped without drain"


def test_a_status_says_how_it_stands_with_snapshots_and_restarts() -> None:
    status = JobStatus("a", "running", 1, "steady", COUNTS, None, restarts=2, snapshots=SnapshotStatus(None, None, 1))
    assert str(status).splitlines()[2:] == ["1 snapshot, none to resume from yet", "2 restarts from a snapshot"]
    assert "snapshot" not in str(JobStatus("a", "running", 1, "steady", COUNTS, None))


def test_a_status_is_short_for_a_prompt_and_a_table_for_a_notebook() -> None:
    counts = RunResult("flights", {"<in>": StepCounts("source", 3_000, {"out": 3_000})}, 2.0)
    status = JobStatus("flights", "running", 2, "steady", counts, "it failed: <b>", restarts=1)
    assert repr(status) == "<JobStatus of job flights: running, 2 workers (steady)>"
    shown = cast(Any, status)._repr_html_()
    assert "job flights: running, 2 workers (steady)<br>job flights: 3,000 read" in shown
    left, right = (f'style="text-align:{side}"' for side in ("left", "right"))
    assert f"<tr><th {left}>&lt;in&gt;</th><td {left}>source</td><td {right}>3,000</td>" in shown
    assert f"<th {left}>kind</th><th {right}>rows in</th>" in shown
    assert "error: it failed: &lt;b&gt;" in shown
    assert (
        "<table>"
        not in cast(Any, JobStatus("new", "running", 0, "opening", RunResult("new", {}, 0.0), None))._repr_html_()
    )


@pytest.mark.parametrize("workers", [1, 2, WORKERS_MAX])
def test_a_number_of_workers_goes(workers: int) -> None:
    check_size(workers)


@pytest.mark.parametrize("workers", [0, -1, WORKERS_MAX + 1, 10**30, 2.0, "2", True, False, None, [2]], ids=repr)
def test_anything_else_is_refused_and_shown(workers: object) -> None:
    with pytest.raises(PlanError) as caught:
        check_size(workers)
    assert str(caught.value) == f"workers must be a whole number from 1 to {WORKERS_MAX}, got {workers!r}"


@pytest.mark.parametrize("operation", ["run", "rescale", "snapshot", "savepoint", "stop"])
def test_a_wait_that_ran_out_says_what_goes_on(operation: str) -> None:
    error = in_progress("a", operation, 1.5)
    assert (error.job, error.operation) == ("a", operation)
    assert "within 1.5 s" in str(error)


def test_an_interrupted_wait_says_that_the_job_goes_on() -> None:
    assert still_running("a").startswith("job 'a' continues")
