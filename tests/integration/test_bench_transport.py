"""The benchmark of ways between processes measures each of them at each size. How fast one was is not asserted."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from bench.micro import transport
from tests.tree import ROOT


@pytest.mark.parametrize("name", transport.NAMES)
def test_a_way_between_processes_is_measured_at_each_size(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.micro.transport", "--n", "0.001", "--trips", "3", "--reps", "1", "--only", name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall(rf"^\| {name} ", done.stdout, flags=re.MULTILINE)) == len(transport.SIZES)
