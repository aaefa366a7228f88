"""All laws hold with all state on disk between any two batches: moves, chains, deltas and restores."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import pytest

from malstrom_py.testing import check_operator
from malstrom_py.testing.laws.scenario import StepUnderTest
from tests.laws.test_all_operators import TABLE, Row

CHECKS = import_module("malstrom_py.testing.check_operator")

ROWS = [
    row
    for kind in ("stateful_map", "stateful_flat_map", "ttl_map", "fold", "sum", "aggregate", "distinct", "stateful_op")
    for row in [row for row in TABLE if row.step == kind][-2:]
]


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.step}-{number}" for number, row in enumerate(ROWS)])
def test_a_step_whose_state_is_on_disk_obeys_every_law(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CHECKS, "StepUnderTest", partial(StepUnderTest, on_disk=True))
    report: Any = check_operator(row.factory, max_examples=4, **row.options)
    assert report.cases["disk invariance"]
