"""``python -m bench.micro``: the speed of one in-process worker, as ratios against loops written by hand.

It always prints what it measured, and whether a budget was missed; only a wrong result makes it fail.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Final

from bench.micro import machine
from bench.micro.changes import measure_changes
from bench.micro.column_state import measure_column_state
from bench.micro.dag import measure_dag
from bench.micro.exchange import measure_exchange, measure_workers
from bench.micro.executor_cost import BUDGET_US, node_cost_us
from bench.micro.peers import Peers, find_peers
from bench.micro.small_jobs import measure_small_jobs
from bench.micro.state import measure_state
from bench.micro.timing import Spread, WrongResult, interleave, ratios, spread
from bench.micro.workloads import WORKLOADS, Workload

UNTOUCHED = (0, 10_000)
HEADER = ("workload", "records/s", "loop records/s", "of the loop", "budget", "")
PEER_HEADER = ("peer_bare records/s", "of peer_bare")


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [*(workload.name for workload in WORKLOADS), *OTHERS]
    parser = argparse.ArgumentParser(prog="python -m bench.micro", description=__doc__)
    parser.add_argument("--n", type=int, default=2_000_000, help="records of W1; half as many keys of state, 0.46 bids")
    parser.add_argument("--reps", type=int, default=3, help="rounds, interleaved; medians are printed")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    return parser.parse_args(arguments)


def verdict(reached: bool) -> str:
    return "hit" if reached else "MISS"


def measure(workload: Workload, n: int, reps: int, peers: Peers | None) -> list[str]:
    """One workload as a row of the table."""
    peer = workload.peer if peers else None
    rows = peers.rows(peer) if peers and peer else workload.make(n)
    bare: list[float] = []

    def run_peer() -> None:
        if peers and peer:
            peers.check(peer, workload.job(rows))
            bare.append(peers.bare(peer))

    variants = {"loop": workload.loop, "job": workload.job}
    seconds = interleave(variants, rows, reps=reps, fresh=workload.fresh, each_round=run_peer)
    ratio = ratios(seconds["loop"], seconds["job"])
    budget = workload.budget
    cells = [
        workload.name,
        rate(spread([len(rows) / s for s in seconds["job"]])),
        rate(spread([len(rows) / s for s in seconds["loop"]])),
        ratio.show(),
        "" if budget is None else f">= {budget:.2f}",
        "" if budget is None else verdict(ratio.median >= budget),
    ]
    if peers:
        ours = [len(rows) / s for s in seconds["job"]]
        cells += [rate(spread(bare)), ratios(ours, bare).show()] if bare else ["", ""]
    return cells


def rate(figures: Spread) -> str:
    return f"{figures.median:,.0f}"


def measure_executor(n: int, reps: int) -> list[str]:
    """The executor's cost, in lines of text."""
    batches, lines = max(1, n // 1000), []
    for untouched in UNTOUCHED:
        cost = node_cost_us(untouched, batches=batches, reps=reps)
        what = f"executor, per node and 1-row batch, {untouched:,} untouched nodes beside"
        lines.append(f"{what}: {cost.show()} µs, budget <= {BUDGET_US:.0f} µs, {verdict(cost.median <= BUDGET_US)}")
    return lines


OTHERS: Final[dict[str, Callable[[int, int], list[str]]]] = {
    "executor": measure_executor,
    "small": measure_small_jobs,
    "dag": measure_dag,
    "exchange": measure_exchange,
    "workers": measure_workers,
    "state": lambda n, reps: measure_state(max(1, n // 2), reps),
    "changes": lambda n, reps: measure_changes(max(1, n // 4), reps),
    "column-state": lambda n, reps: measure_column_state(reps),
}
"""What is printed in lines below the table, of a number of records and of rounds."""


def show(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that reads well as text and as Markdown."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return "| " + " | ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]) + " |"

    rule = "|" + "|".join("-" * (width + 1) + (":" if column else "-") for column, width in enumerate(widths)) + "|"
    return "\n".join([line(header), rule, *map(line, rows)])


def main(arguments: Sequence[str] | None = None) -> int:
    asked = options(arguments)
    wanted = asked.only or [*(workload.name for workload in WORKLOADS), *OTHERS]
    chosen = [workload for workload in WORKLOADS if workload.name in wanted]
    peers = find_peers(asked.n) if any(workload.peer for workload in chosen) else None
    print(machine.describe())
    print(
        f"{asked.n:,} records, {asked.reps} interleaved rounds, medians (smallest-largest), input frozen for the gc\n"
    )
    try:
        rows = [measure(workload, asked.n, asked.reps, peers) for workload in chosen]
        if rows:
            print(show([*HEADER, *PEER_HEADER] if peers else HEADER, rows))
        for name in [name for name in OTHERS if name in wanted]:
            print("", *OTHERS[name](asked.n, asked.reps), sep="\n", flush=True)
    except WrongResult as error:
        print(f"WRONG RESULT: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
