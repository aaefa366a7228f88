"""A parameter of a job on Ray: set by a handle that finds it, and the same after a rescale and a stop."""

from __future__ import annotations

from pathlib import Path

import malstrom_py as mp
from tests.integration.processes.test_parameters import check_rows, rows_in, until, valued


def test_a_value_on_ray_is_set_at_one_cut_and_outlives_a_rescale(tidy: None, tmp_path: Path) -> None:
    out = tmp_path / "out"
    snapshots = mp.Snapshots(tmp_path / "kept", interval_s=0.3)
    runtime = mp.RayRuntime(2, num_cpus=0.2, snapshots=snapshots)
    handle = runtime.start(valued("valued-on-ray", out), control=False)
    until(lambda: rows_in(out))
    mp.JobHandle.attach("valued-on-ray").set("step", 2)
    handle.rescale(3)
    until(lambda: any(row["after"] == 2 for row in rows_in(out)))
    handle.stop()
    handle = runtime.start(valued("valued-on-ray", out), control=False)
    before = len(rows_in(out))
    until(lambda: len(rows_in(out)) > before)
    handle.stop()
    check_rows(rows_in(out), [1, 2])
