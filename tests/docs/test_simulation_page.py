"""docs/simulation.md says what each hard case is that a simulated run may meet."""

from __future__ import annotations

import re

from malstrom_py.workers.simulator.coverage import HARD_CASES, SNAPSHOT_CASES
from tests.tree import ROOT


def test_the_page_explains_every_hit() -> None:
    page = (ROOT / "docs" / "simulation.md").read_text()
    rows = re.search(r"\| hit \|.*?\n\n", page, re.DOTALL)
    assert rows is not None
    told = re.findall(r"`([^`]+)`", " ".join(row.split("|")[1] for row in rows.group().strip().splitlines()))
    assert sorted(told) == sorted([*HARD_CASES, *SNAPSHOT_CASES])
