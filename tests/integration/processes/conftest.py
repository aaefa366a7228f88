"""Fixtures: a test leaves no process, thread or file of its jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from malstrom_py.workers.processes.worker_process import FORKS
from malstrom_py.workers.runtime import job_thread
from tests.integration.processes.worker_pids import worker_pids
from tests.integration.ray.leftovers import check_nothing_left, things, until


@pytest.fixture
def tidy() -> Iterator[None]:
    """Check that the test leaves nothing."""
    FORKS.warm_up()
    before = things(with_ray=False)
    yield
    try:
        until(lambda: not worker_pids())
        check_nothing_left(before, with_ray=False)
    finally:
        job_thread._leave_all()  # a job that a failed test has left would fail the next ones
