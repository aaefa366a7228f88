"""The same seed gives the same run in every process, independent of its hash seed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import malstrom_py as mp
from malstrom_py import sinks, sources

job, out = mp.Job("words", slots=16), sinks.Memory()
words = job.source("in", sources.Memory([f"w{n % 13}" for n in range(120)], parts=4)).key_by("word", str)
words.count("count").key_by("n", lambda n: f"n{n % 7}").collect("pairs", size=2).sink("out", out)
results = [mp.Simulation(workers=2, seed=seed, rescales=3).run(job) for seed in range(6)]
print([result.trace for result in results], [dict(result.hits) for result in results], out.items)
"""


@pytest.mark.timeout(120)
def test_p10_the_same_seed_gives_the_same_trace_in_other_processes() -> None:
    told = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(told) == 1, told
