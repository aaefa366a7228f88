"""Taps in whole jobs: the same seed does the same with all of its steps tapped, and every record is counted once."""

from __future__ import annotations

from collections import Counter

from tests.simulation.jobs.runs import run
from tests.simulation.jobs.taps import run_tapped


def test_a_job_whose_steps_are_tapped_does_the_same_and_taps_count_every_record() -> None:
    hits = Counter[str]()
    for seed in range(64_003, 64_013):
        _, ran = run(seed, runtime=run_tapped)
        hits += ran.hits
        assert run(seed)[1].trace == ran.trace
    assert hits["tapped"] > 1_000
