"""A job between two tables of a Spark Declarative Pipeline, as ``examples/pipeline`` has it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest

from tests.integration.spark.local_spark import spark_variables
from tests.tree import ROOT

_DEADLINE_S: Final = 360

ORDERS: Final = [("north", 2.5), ("south", 1.0), ("north", 4.0)]


@pytest.mark.long
@pytest.mark.only_classic
@pytest.mark.timeout(_DEADLINE_S + 10)
def test_a_job_fills_the_second_table_from_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "pipeline"
    shutil.copytree(ROOT / "examples" / "pipeline", folder)
    spec = folder / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/sales-pipeline", f"file://{tmp_path}/storage"))
    (folder / "landing").mkdir()
    lines = [f'{{"shop": "{shop}", "price": {price}}}\n' for shop, price in ORDERS]
    (folder / "landing" / "orders.json").write_text("".join(lines))
    (tmp_path / "conf").mkdir()
    environ = {**os.environ, **spark_variables("classic", tmp_path / "conf")}
    warehouse = tmp_path / "conf" / "warehouse"

    def run(*command: str) -> None:
        done = subprocess.run(
            command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=_DEADLINE_S / 3
        )
        assert done.returncode == 0, done.stdout + done.stderr

    pipelines = str(Path(sys.executable).with_name("spark-pipelines"))
    run(pipelines, "run", "--spec", str(spec), "--refresh", "orders")
    run(sys.executable, str(folder / "step.py"), str(warehouse / "orders"))
    run(pipelines, "run", "--spec", str(spec), "--refresh", "totals")

    rows = [row for file in (warehouse / "totals").glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    last = {shop: max(row["total"] for row in rows if row["shop"] == shop) for shop in ("north", "south")}
    assert (len(rows), last) == (3, {"north": 6.5, "south": 1.0})
