"""The message of a wait that ran out."""

from __future__ import annotations

import pytest

from malstrom_py.workers.reports.job_status import in_progress, still_running


@pytest.mark.parametrize("operation", ["run", "rescale", "snapshot", "savepoint", "stop"])
def test_a_wait_that_ran_out_says_what_goes_on(operation: str) -> None:
    error = in_progress("a", operation, 1.5)
    assert (error.job, error.operation) == ("a", operation)
    assert "within 1.5 s" in str(error)


def test_an_interrupted_wait_says_that_the_job_goes_on() -> None:
    assert still_running("a").startswith("job 'a' continues")
