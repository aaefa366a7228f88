"""A job over far more data than it may hold in memory: its process reports its largest resident size."""

from __future__ import annotations

import pytest

from tests.integration.commands import python

LIMIT_MB = 150

SHAPES = {
    "one record becomes a thousand": """
numbers = job.source("in", sources.Memory(range(400)))
stream = numbers.flat_map("many", lambda i: (f"{i}-{j}".ljust(1000) for j in range(1000)))
stream.sink("out", sinks.Callable(len))
""",
    "one record becomes a thousand, sent to another region": """
numbers = job.source("in", sources.Memory(range(400)))
stream = numbers.flat_map("many", lambda i: (f"{i}-{j}".ljust(1000) for j in range(1000)))
stream.key_by("key", lambda text: text[:4].strip()).map("length", len).sink("out", sinks.Callable(abs))
""",
    "records of a mebibyte": """
big = sources.Generator(lambda part, start: (str(i).ljust(1 << 20) for i in range(start, 400)))
job.source("in", big).sink("out", sinks.Callable(len))
""",
}

PROGRAM = """
import re, sys
import malstrom_py as mp
from malstrom_py import sinks, sources
job = mp.Job("memory")
{shape}
result = mp.run(job, {workers}, progress=False)
assert result.written in (400, 400_000), result
print(int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) // 1024)
"""


@pytest.mark.long(but=("one record becomes a thousand, sent to another region-3", "records of a mebibyte-3"))
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_four_hundred_megabytes_pass_through_less_than_half_of_that(shape: str, workers: int) -> None:
    done = python("-c", PROGRAM.format(shape=SHAPES[shape], workers=workers))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < LIMIT_MB
