"""The table "What runs where" of docs/spark.md: who needs Spark and Java, and who does not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from tests.integration.processes.worker_pids import children_of
from tests.integration.spark.programs import told_by

WITHOUT_PYSPARK = """
import os, sys

sys.modules["pyspark"] = None

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import PlanError

for mode in ("append", "error"):
    job = mp.Job(f"alone-{mode}")
    job.source("in", sources.Memory([{"id": 1}])).sink("out", sinks.Spark(path=os.environ["OUT"] + mode, mode=mode))
    print(mp.run(job, progress=False).written)
for end in (sources.Spark(table="t"), sources.SparkCheckpoint("c")):
    try:
        list(end) if hasattr(end, "__iter__") else end.pin("job")
    except PlanError:
        print("needs Spark")
"""

WITHOUT_JAVA = """
import os

from pyspark.sql import SparkSession

import malstrom_py as mp
from malstrom_py import sources

spark = SparkSession.builder.remote(os.environ["SERVER"]).getOrCreate()
print(len(mp.collect(mp.Job("remote").source("in", sources.Spark(spark.range(3), staging=os.environ["STAGING"])))))
"""


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From now on no process that is started finds a Java."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))


@pytest.mark.usefixtures("no_java")
def test_workers_read_and_write_without_spark_and_without_java(spark: Any, tmp_path: Path) -> None:
    def seen(row: dict[str, Any]) -> dict[str, Any]:
        import os
        import sys

        loaded = sorted(sys.modules.keys() & {"pyspark", "py4j", "grpc"})
        return {"pid": os.getpid(), "loaded": ",".join(loaded), "children": len(children_of(os.getpid()))}

    job = mp.Job("where")
    source = sources.Spark(spark.range(0, 200, 1, 4), staging=tmp_path / "shared")
    job.source("in", source).map("seen", seen).sink("out", sinks.Spark(path=tmp_path / "out"))
    assert mp.Processes(2, progress=False).run(job).written == 200

    rows = spark.read.parquet(str(tmp_path / "out")).distinct().collect()
    assert {(row.loaded, row.children) for row in rows} == {("", 0)}
    assert os.getpid() not in {row.pid for row in rows}


def test_parquet_at_a_path_is_written_by_a_program_without_spark(tmp_path: Path) -> None:
    told = told_by(WITHOUT_PYSPARK, environ={"OUT": str(tmp_path / "out-")})
    assert told.split("\n") == ["1", "1", "needs Spark", "needs Spark", ""]


@pytest.mark.only_connect
@pytest.mark.usefixtures("no_java")
def test_over_connect_the_program_needs_no_java(spark: Any, tmp_path: Path) -> None:
    server = f"sc://{spark.client._builder.endpoint}"
    environ = {"SERVER": server, "STAGING": str(tmp_path / "shared"), "SPARK_LOCAL_REMOTE": "", "SPARK_TESTING": ""}
    assert told_by(WITHOUT_JAVA, environ=environ) == "3\n"
