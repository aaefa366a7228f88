"""How many workers a job may have: whole numbers from 1 on, and not any other thing."""

from __future__ import annotations

import pytest

from malstrom_py.errors import PlanError
from malstrom_py.workers.reports.job_status import WORKERS_MAX, check_size


@pytest.mark.parametrize("workers", [1, 2, WORKERS_MAX])
def test_a_number_of_workers_goes(workers: int) -> None:
    check_size(workers)


@pytest.mark.parametrize("workers", [0, -1, WORKERS_MAX + 1, 10**30, 2.0, "2", True, False, None, [2]], ids=repr)
def test_anything_else_is_refused_and_shown(workers: object) -> None:
    with pytest.raises(PlanError) as caught:
        check_size(workers)
    assert str(caught.value) == f"workers must be a whole number from 1 to {WORKERS_MAX}, got {workers!r}"
