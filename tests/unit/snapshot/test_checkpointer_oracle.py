"""The storage of snapshots passes every scenario of the oracle."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.snapshot.oracle import SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_s3_snapshots_hold(scenario: Callable[[], None]) -> None:
    scenario()
