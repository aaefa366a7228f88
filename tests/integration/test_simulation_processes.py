"""The same seed gives the same run in every process, independent of its hash seed."""

from __future__ import annotations

import pytest

from tests.integration.commands import python

PROGRAM = """
import malstrom_py as mp
from malstrom_py import sinks, sources

job, out = mp.Job("words", slots=16), sinks.Memory()
words = job.source("in", sources.Memory([f"w{n % 13}" for n in range(120)], parts=4)).key_by("word", str)
words.count("count").key_by("n", lambda n: f"n{n % 7}").collect("pairs", size=2).sink("out", out)
results = [mp.Simulation(workers=2, seed=seed, rescales=3).run(job) for seed in range(6)]
print([result.trace for result in results], [dict(result.hits) for result in results], out.items)
"""


@pytest.mark.long
@pytest.mark.timeout(120)
def test_p10_the_same_seed_gives_the_same_trace_in_other_processes() -> None:
    told = [python("-c", PROGRAM, PYTHONHASHSEED=seed) for seed in ("0", "1", "4711")]
    assert [done.returncode for done in told] == [0, 0, 0], told
    assert len({done.stdout for done in told}) == 1, told
