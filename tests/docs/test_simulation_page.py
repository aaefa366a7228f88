"""docs/simulation.md names hard cases that a simulated run may meet."""

from __future__ import annotations

import re

from malstrom_py.workers.simulator.coverage import HARD_CASES, SNAPSHOT_CASES
from tests.tree import ROOT


def test_the_page_names_hits_of_the_simulator() -> None:
    page = (ROOT / "docs" / "simulation.md").read_text()
    rows = re.search(r"\| look for \|.*?\n\n", page, re.DOTALL)
    assert rows is not None
    named = re.findall(r"`([^`]+)`", " ".join(row.split("|")[1] for row in rows.group().strip().splitlines()))
    assert len(named) > 10
    assert set(named) <= {*HARD_CASES, *SNAPSHOT_CASES}
