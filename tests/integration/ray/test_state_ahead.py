"""State goes ahead of the moves of a job on Ray (R12)."""

from __future__ import annotations

from pathlib import Path

import malstrom_py as mp
from malstrom_py import sinks
from tests.integration.test_state_ahead import large, travelled


def test_r12_on_ray_most_state_goes_ahead_of_its_moves(tidy: None, out: sinks.Memory, tmp_path: Path) -> None:
    snapshots = mp.Snapshots(str(tmp_path / "snapshots"), interval_s=0.5)
    handle = mp.RayRuntime(1, num_cpus=0.2, snapshots=snapshots).start(large("ahead-on-ray", out), control=False)
    (report,) = travelled(handle, out, 2)
    assert report.bytes > 5_000_000
    assert report.bytes_ahead > report.bytes / 2
