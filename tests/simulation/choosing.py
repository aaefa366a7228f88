"""Chooses the seeds of ``make test``: ``python -m tests.simulation.choosing``, after a change of what seeds draw.

It runs the first seeds of each kind, notes which hard cases each one hits, and takes seeds until every case is hit
three times, or as often as it was met: those first that hit the rarest cases in the least time. Others fill the list,
so that what no case names is drawn too.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from time import process_time
from typing import Final

from tests.simulation.soak import CHOSEN, KINDS, Kind
from tests.tree import ROOT

KINDS_CHOSEN: Final = ("model", "jobs", "commits")

TIMES: Final = 3
"""How often a case is hit."""


@dataclass(frozen=True, slots=True)
class Run:
    """A seed, the hard cases it hits, and the processor time it takes."""

    seed: int
    hits: frozenset[str]
    cpu_s: float


def run(kind: Kind, seed: int) -> Run:
    """Run one seed."""
    began_s = process_time()
    hits = kind.hits(seed)
    met = frozenset(case for case in kind.hard_cases if hits.get(case))
    return Run(seed, met, process_time() - began_s)


def chosen(runs: Sequence[Run], fill_to: int) -> list[int]:
    """Return the seeds to keep, in order.

    >>> chosen([Run(1, frozenset("a"), 1.0), Run(2, frozenset("ab"), 1.0), Run(3, frozenset(), 1.0)], 0)
    [1, 2]
    """
    found = Counter(case for run in runs for case in run.hits)
    missing = {case: min(TIMES, count) for case, count in found.items()}
    left, kept = list(runs), []
    while any(missing.values()):
        worth = {one: sum(1 / found[case] for case in one.hits if missing[case]) / max(one.cpu_s, 1e-3) for one in left}
        best = max(left, key=worth.__getitem__)
        left.remove(best)
        kept.append(best.seed)
        for case in best.hits:
            missing[case] = max(0, missing[case] - 1)
    return sorted([*kept, *(one.seed for one in left[: max(0, fill_to - len(kept))])])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.choosing", description=__doc__)
    parser.add_argument("kinds", nargs="*", default=KINDS_CHOSEN, help="by default all; the others stay")
    parser.add_argument("--seeds", type=int, default=5_000, help="how many of each kind are run")
    parser.add_argument("--keep", type=int, default=90, help="how many of each kind are kept at least")
    given = parser.parse_args()
    lists: dict[str, list[int]] = json.loads(CHOSEN.read_text())
    for name in given.kinds:
        kind = KINDS[name]
        with kind.ready(kind.hits), mp.get_context("spawn").Pool() as pool:
            runs = pool.map(partial(run, kind), range(given.seeds), chunksize=20)
        lists[name] = chosen(runs, given.keep)
        never = set(kind.hard_cases).difference(*(one.hits for one in runs))
        print(f"{name}: {len(lists[name])} seeds of {given.seeds}; never met: {', '.join(sorted(never)) or 'none'}")
    CHOSEN.write_text(json.dumps(lists) + "\n")
    print(CHOSEN.relative_to(ROOT))


if __name__ == "__main__":
    main()
