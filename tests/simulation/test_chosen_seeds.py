"""The chosen seeds of each kind end without a violation, and meet every hard case. `make soak` runs any number."""

from __future__ import annotations

import json

import pytest

from tests.groups import PATIENCE_S
from tests.simulation.soak import CHOSEN, KINDS, run_batch

SEEDS = json.loads(CHOSEN.read_text())


@pytest.mark.timeout(PATIENCE_S)  # many runs in one test: a life that hangs ends long before
@pytest.mark.parametrize("kind", SEEDS)
def test_the_chosen_seeds_meet_every_hard_case_and_end_as_they_should(kind: str) -> None:
    report = run_batch(KINDS[kind], SEEDS[kind])
    assert not report.failures, str(report)
    assert not report.never_met, f"choose again: python -m tests.simulation.choosing\n{report}"
