"""The oracle finds every error in making snapshots and in resuming from them, and no error in correct runs."""

from __future__ import annotations

import pytest

from tests.simulation.jobs.wrong_snapshots import WRONG, shown

SEEDS_MAX = 25
"""After a change of what seeds draw, another of so many may show it."""


@pytest.mark.long("workers continue after the last barrier")
@pytest.mark.parametrize("what", WRONG)
def test_what_is_done_wrong_is_seen(what: str) -> None:
    wrong = WRONG[what]
    assert any(wrong.seen(seed) for seed in (wrong.seed, *range(SEEDS_MAX))), f"{what}, and the oracle has not found it"


@pytest.mark.parametrize("what", WRONG)
def test_what_is_done_right_is_not(what: str) -> None:
    assert shown(WRONG[what].shape, WRONG[what].seed) == ""
