"""Queries for the state of a job on Ray: from its driver, and from a handle that finds it."""

from __future__ import annotations

from pathlib import Path

import malstrom_py as mp
from tests.integration.processes.test_state_queries import check_sums, counting


def test_the_state_of_a_job_on_ray_is_read_from_its_snapshots(tidy: None, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    runtime = mp.RayRuntime(2, num_cpus=0.2, snapshots=mp.Snapshots(kept, interval_s=0.2))
    handle = runtime.start(counting("asked-on-ray"), control=False)
    check_sums(handle, kept, fresh=True)
    handle.rescale(3)
    check_sums(mp.JobHandle.attach("asked-on-ray"), kept)
    assert check_sums(mp.JobHandle.attach("asked-on-ray"), kept, fresh=True) > ""
    handle.stop()
