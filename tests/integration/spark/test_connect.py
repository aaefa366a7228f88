"""What reads and writes with a classic session does so with one of Spark Connect."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.tree import ROOT

_DEADLINE_S: Final = 900

FILES: Final = ("test_source.py", "test_sink_error_mode.py")
"""Where a session itself is at work. ``MALSTROM_SPARK=connect pytest tests/integration/spark`` runs the others too."""


@pytest.mark.only_classic
@pytest.mark.timeout(_DEADLINE_S + 30)
def test_what_reads_and_writes_does_so_over_connect() -> None:
    here = Path(__file__).parent.relative_to(ROOT)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(here / file) for file in FILES)],
        cwd=ROOT,
        env={**os.environ, "MALSTROM_SPARK": "connect"},
        capture_output=True,
        text=True,
        check=False,
        timeout=_DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout
    assert int(passed[1]) > 0
