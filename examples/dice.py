"""A source of your own from a generator function: dice that are thrown at two tables, and how often each face came.

python -m examples.dice          or          malstrom run examples.dice
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import malstrom_py as mp
from malstrom_py import sinks, sources

THROWS = 300


def throws(table: int, start: int) -> Iterator[tuple[int, int]]:
    """The throws at ``table`` from number ``start`` on. The same number always shows the same face.

    So the source can be read again: ``start`` is its whole position.
    """
    for number in range(start, THROWS):
        yield table, random.Random(f"{table}/{number}").randint(1, 6)


def job() -> mp.Job:
    """Throws at two tables -> the count of each face at each table, every fiftieth time it came."""
    job = mp.Job("dice")
    thrown = job.source("throws", sources.Generator(throws, parts=2))
    (
        thrown.key_by("face", lambda throw: throw)
        .stateful_map("count", lambda face, _, seen: ((face, seen + 1), seen + 1), default=int)
        .filter("fiftieth", lambda counted: counted[1] % 50 == 0)
        .sink("out", sinks.Stdout(format=lambda counted: "table {0[0]}: {0[1]} came {1} times".format(*counted)))
    )
    return job


if __name__ == "__main__":
    print(mp.run(job()))
