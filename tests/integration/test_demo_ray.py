"""The flights demo on Ray: rescaled while it runs, its output and its exit code; the pace and the view of it."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import malstrom_py as mp
from examples.flights.jobs import delays_job
from examples.flights.pace import AT_ONCE_S, BEHIND_S, Paced
from examples.flights.view import Rescale, View
from malstrom_py import sources
from malstrom_py.testing.contracts import check_source
from malstrom_py.workers.reports.job_status import Moving
from malstrom_py.workers.reports.result import StepCounts
from tests.tree import ROOT


@pytest.mark.timeout(500)
def test_the_demo_goes_from_two_workers_to_four_and_back_and_polars_finds_the_same(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.flights.on_ray", "--out", str(tmp_path), "--seconds", "25"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=480)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "336,776 read" in done.stdout
    assert done.stdout.count("\nEQUAL to Polars") == 2
    rescales = re.findall(r"^ (\d -> \d) .* s  +(\d+)  +(\d+)  +(\d+)  +[\d,]+  +\d+ kB $", done.stdout, re.MULTILINE)
    assert [(sizes, slots, files) for sizes, _, slots, files in rescales] == [
        ("2 -> 4", "512", "6"),
        ("4 -> 2", "512", "6"),
    ]
    assert done.stderr == ""


def test_a_paced_source_gives_what_its_time_allows_and_goes_on_where_it_was() -> None:
    now = [100.0]
    paced = Paced(sources.Memory(range(1000)), 100.0, lambda: now[0])
    part: Any = paced.build_part(paced.list_parts()[0], None)
    assert part.poll(500) is None, "no time has passed"
    now[0] += 2 * AT_ONCE_S
    assert list(part.poll(500)) == list(range(20))
    assert part.poll(500) is None
    now[0] += 60 * BEHIND_S
    assert list(part.poll(30)) == list(range(20, 50))
    assert list(part.poll(500)) == list(range(50, 120)), "no more than a second is caught up with"
    again: Any = paced.build_part(paced.list_parts()[0], part.snapshot())
    now[0] += 2 * AT_ONCE_S
    assert list(again.poll(500)) == list(range(120, 140))
    assert not again.is_finished()


def test_a_paced_source_keeps_the_contract_of_sources() -> None:
    seconds = count()
    check_source(Paced(sources.Memory(range(40), parts=2), 10.0, lambda: float(next(seconds))))


def test_the_job_is_the_same_at_any_pace(tmp_path: Path) -> None:
    fast, paced = delays_job("a.csv", tmp_path), delays_job("a.csv", tmp_path, rows_per_s=10.0)
    assert [step.name for step in paced.plan().steps] == [step.name for step in fast.plan().steps]


def test_the_view_has_workers_rates_and_how_far_a_rescale_has_come() -> None:
    view, console = View(), Console(width=120, record=True, file=io.StringIO())

    def status(at_s: float, rows: int, moving: Moving | None = None) -> mp.JobStatus:
        steps = {"flights": StepCounts("source", rows, {"out": rows}), "plane": StepCounts("key_by", rows, {}, keys=7)}
        return mp.JobStatus(
            "flights", "rescaling", 4, "moving", mp.RunResult("flights", steps, at_s), None, 0.0, moving
        )

    future = Future[mp.RescaleReport]()
    view.rescales.append(Rescale(0.5, 2, 4, future))
    console.print(view.draw(status(1.0, 1_000)))
    console.print(view.draw(status(2.0, 3_000, Moving(2, slots=16, of_slots=512, keys=1_600, bytes=2_000_000))))
    drawn = console.export_text(clear=True)
    assert "rescaling ■ ■ ■ ■ 4 workers, 2.0 s" in drawn
    assert re.search(r"flights +3,000 +2,000 ", drawn)
    assert re.search(r"2 -> 4 +0\.5 s +moving +2 +16 of 512 +1,600 +2,000 kB", drawn)

    future.set_result(mp.RescaleReport((0, 1, 2, 3), 4, 3, 512, 6, 1.5, keys=4_000, bytes=5_000))
    console.print(view.moves())
    assert re.search(r"2 -> 4 +0\.5 s +1\.50 s +3 +512 +6 +4,000 +5 kB", console.export_text())


def test_a_rescale_that_the_end_of_the_job_overtook_has_no_report() -> None:
    future = Future[mp.RescaleReport]()
    future.set_exception(mp.JobEnded("job 'flights' cannot be rescaled to 2: it has finished", job="flights"))
    assert Rescale(0.5, 4, 2, future).report is None
