"""``python -m bench.chart --bytewax PYTHON``: the chart of the front page, `docs/images/ratios.svg`.

Each workload runs as a plain Python loop, as a job of malstrom-py, and as a dataflow of bytewax, in turn, round by
round, with the same user functions over the same rows. The chart shows the median speed relative to the loop of the
same round, by processor time, so that other programs on the machine matter little. All results are compared. PYTHON is
the interpreter of an environment with bytewax 0.21.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import process_time
from typing import Any, Final, NamedTuple

from bench.micro import machine
from bench.micro.timing import Spread, WrongResult, interleave, ratios, spread
from bench.micro.workloads import WORKLOADS, Check, Workload
from examples import svg
from tests.tree import ROOT

SHOWN: Final = {"W1 uniform": "sum per key", "q1 map": "map", "q2 filter": "filter"}
"""Workload of `bench.micro` -> its name in the chart."""


class Measured(NamedTuple):
    """The speed of one system on one workload, relative to the loop of the same round."""

    workload: str
    system: str
    of_loop: Spread


def bytewax_run(python: str, workload: Workload, rows: int) -> tuple[Check, float]:
    """What bytewax computes, and the processor time from its first batch to its last."""
    command = [python, "-m", "bench.chart_bytewax", workload.name, str(rows)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return (answer["rows"], answer["total"]), answer["seconds"]


def measure(workload: Workload, rows: int, reps: int, python: str) -> Iterator[Measured]:
    """Run ``workload`` ``reps`` times on each system."""
    data = workload.make(rows)
    expected = workload.loop(data)
    bytewax_s: list[float] = []

    def run_bytewax() -> None:
        check, seconds = bytewax_run(python, workload, rows)
        if check != expected:
            raise WrongResult(f"bytewax gave {check}, but the loop gave {expected}")
        bytewax_s.append(seconds)

    variants: dict[str, Callable[[Any], object]] = {"loop": workload.loop, "job": workload.job}
    seconds = interleave(variants, data, reps=reps, fresh=workload.fresh, each_round=run_bytewax, clock=process_time)
    yield Measured(workload.name, "malstrom-py", ratios(seconds["loop"], seconds["job"]))
    yield Measured(workload.name, "bytewax", spread([a / b for a, b in zip(seconds["loop"], bytewax_s, strict=True)]))


WIDTH, LEFT, ROW, TOP = 860, 130, 26, 76


def draw(measured: Sequence[Measured], described: str) -> str:
    """A bar per system and workload, with a line where the loop is."""
    scale = (WIDTH - LEFT - 50) / max(1.0, *(one.of_loop.median for one in measured))
    systems = list(dict.fromkeys(one.system for one in measured))
    height = TOP + ROW * len(measured) + 12 * len(SHOWN) + 34
    pieces = [
        svg.text(16, 22, "Rows per second of processor time, relative to a plain Python loop", size=16, bold=True),
        *(
            svg.text(16, 40 + 15 * number, words, size=11, colour=svg.MUTED)
            for number, words in enumerate(described.splitlines())
        ),
    ]
    for place, system in enumerate(systems):
        pieces.append(svg.rectangle((WIDTH - 120, 14 + 18 * place), 10, 10, colour=svg.COLOURS[place]))
        pieces.append(svg.text(WIDTH - 104, 23 + 18 * place, system))
    y = float(TOP)
    for name, label in SHOWN.items():
        pieces.append(svg.text(LEFT - 12, y + ROW, label, anchor="end", bold=True))
        for one in (one for one in measured if one.workload == name):
            wide = one.of_loop.median * scale
            pieces.append(
                svg.rectangle((LEFT, y + 3), max(wide, 1.0), ROW - 6, colour=svg.COLOURS[systems.index(one.system)])
            )
            inside = wide > 60
            x, anchor = LEFT + wide + (-8 if inside else 6), "end" if inside else "start"
            number = f"{one.of_loop.median:.2f}"
            ink = "white" if inside else svg.INK
            pieces.append(svg.text(x, y + ROW / 2 + 5, number, colour=ink, anchor=anchor, bold=True))
            y += ROW
        y += 12
    pieces.append(svg.line((LEFT + scale, TOP - 4), (LEFT + scale, y), colour=svg.INK))
    pieces.append(svg.text(LEFT + scale, y + 14, "1.0: the loop", colour=svg.INK, anchor="middle"))
    return svg.document(WIDTH, height, pieces)


def version_of(python: str) -> str:
    """The version of bytewax that ``python`` has."""
    program = "from importlib.metadata import version; print(version('bytewax'))"
    return subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(prog="python -m bench.chart", description=__doc__)
    parser.add_argument("--bytewax", required=True, metavar="PYTHON", help="interpreter of an environment with bytewax")
    parser.add_argument("--n", type=int, default=1_000_000, help="rows of each workload")
    parser.add_argument("--reps", type=int, default=5, help="rounds")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "ratios.svg", help="the file to write")
    given = parser.parse_args(arguments)
    described = (
        f"{machine.describe()}, bytewax {version_of(given.bytewax)}; {given.n:,} rows, median of {given.reps} rounds"
    )
    measured: list[Measured] = []
    for workload in WORKLOADS:
        if workload.name in SHOWN:
            measured += measure(workload, given.n, given.reps, given.bytewax)
    print(described)
    for one in measured:
        print(f"{one.workload}, {one.system}: {one.of_loop.show()} of the loop")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(draw(measured, described))
    return 0


if __name__ == "__main__":
    sys.exit(main())
