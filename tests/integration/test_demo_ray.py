"""The flights demo on Ray: rescaled while it runs, its output and its exit code; the pace and the view of it."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from examples.flights.pace import AT_ONCE_S, BEHIND_S, Paced
from examples.flights.view import Rescale
from malstrom_py import sources
from malstrom_py.testing.contracts import check_source
from tests.tree import ROOT


@pytest.mark.long
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


def test_a_rescale_that_the_end_of_the_job_overtook_has_no_report() -> None:
    future = Future[mp.RescaleReport]()
    future.set_exception(mp.JobEnded("job 'flights' cannot be rescaled to 2: it has finished", job="flights"))
    assert Rescale(0.5, 4, 2, future).report is None
