"""Spark reads the snapshots of a job: which there are, how far sources had read, and state without its classes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.spark import register

# That Python data sources work over Connect too, test_data_source.py shows.
pytestmark = pytest.mark.only_classic


@dataclass
class Stats:
    count: int
    total: float


def update(key: str, value: float, stats: Stats) -> tuple[float, Stats]:
    stats = Stats(stats.count + 1, stats.total + value)
    return stats.total / stats.count, stats


def made(name: str = "prices") -> mp.Job:
    job = mp.Job(name)
    prices = job.source("prices", sources.Memory([("lamp", 20.0), ("bed", 300.0), ("lamp", 30.0)], parts=2))
    by_item = prices.key_by("item", lambda price: price[0]).map("price", lambda price: price[1])
    by_item.stateful_map("mean", update, default=lambda: Stats(0, 0.0)).sink("means", sinks.Memory())
    by_item.count("seen").sink("counts", sinks.Memory())
    pairs = prices.key_by("pair", lambda price: (price[0], int(price[1])))
    pairs.map("whole", lambda price: [price[1]]).reduce("latest", lambda before, now: now).sink("last", sinks.Memory())
    return job


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two runs of a job on two workers, and one of another, have left snapshots."""
    folder = tmp_path_factory.mktemp("snapshots")
    for job, resume in (("prices", "none"), ("prices", "none"), ("others", "none")):
        mp.InProcess(2, snapshots=mp.Snapshots(folder), resume=resume).run(made(job))
    return folder


@pytest.fixture(scope="module")
def reads(spark: Any) -> Any:
    register(spark)
    return spark


def load(reads: Any, folder: Path, **options: str) -> Any:
    given = {"snapshots": str(folder), "job": "prices"} | options
    return reads.read.format("malstrom").options(**given).load()


def rows(frame: Any, by: str) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.orderBy(by).collect()]


def test_there_is_a_row_for_each_snapshot(reads: Any, folder: Path) -> None:
    found = rows(load(reads, folder), "snapshot")
    assert len(found) == 2
    assert {row["job"] for row in found} == {"prices"}
    assert [(row["workers"], row["finished"], row["slots"]) for row in found] == [(2, True, 1024)] * 2
    assert found[0]["snapshot"] < found[1]["snapshot"]
    assert found[0]["made_at"] < found[1]["made_at"]
    by_path = reads.read.format("malstrom").option("job", "prices").load(str(folder))
    assert by_path.count() == 2
    (one,) = rows(load(reads, folder, snapshot=found[0]["snapshot"]), "snapshot")
    assert one["snapshot"] == found[0]["snapshot"]


def test_positions_are_told_by_part(reads: Any, folder: Path) -> None:
    found = rows(load(reads, folder, read="positions"), "part")
    assert [(row["step"], row["part"], json.loads(row["position"]), row["finished"]) for row in found] == [
        ("prices", "0", 2, True),
        ("prices", "1", 1, True),
    ]


def test_state_has_a_column_for_each_field_of_a_class_that_spark_does_not_know(reads: Any, folder: Path) -> None:
    frame = load(reads, folder, read="state", step="mean")
    assert frame.schema.simpleString() == "struct<key:string,count:bigint,total:double>"
    assert rows(frame, "key") == [
        {"key": "bed", "count": 1, "total": 300.0},
        {"key": "lamp", "count": 2, "total": 50.0},
    ]
    assert rows(frame.where("count > 1").select("total"), "total") == [{"total": 50.0}]


def test_state_of_one_type_is_a_column_and_other_state_is_json(reads: Any, folder: Path) -> None:
    counts = load(reads, folder, read="state", step="seen")
    assert rows(counts, "key") == [{"key": "bed", "state": 1}, {"key": "lamp", "state": 2}]
    latest = load(reads, folder, read="state", step="latest")
    assert latest.schema.simpleString() == "struct<key:string,state:string>"
    assert rows(latest, "key") == [
        {"key": '["bed", 300]', "state": "[300.0]"},
        {"key": '["lamp", 20]', "state": "[20.0]"},
        {"key": '["lamp", 30]', "state": "[30.0]"},
    ]


def test_a_schema_that_is_given_leaves_columns_out(reads: Any, folder: Path) -> None:
    reader = reads.read.format("malstrom").schema("total double")
    frame = reader.options(snapshots=str(folder), job="prices", read="state", step="mean").load()
    assert rows(frame, "total") == [{"total": 50.0}, {"total": 300.0}]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"read": "state"}, "several steps keep state; choose one with option step: mean, seen, latest"),
        ({"read": "state", "step": "item"}, "no step 'item' keeps state"),
        ({"read": "positions", "step": "mean"}, "option step selects state"),
        ({"read": "all"}, "option read must be 'snapshots', 'positions' or 'state'"),
        ({"snapshot": "yesterday"}, "option snapshot must be a snapshot's id"),
        ({"snapshot": "20261122T042242123456Z-1a2b3c4d"}, "no snapshot 20261122T042242123456Z-1a2b3c4d"),
        ({"jobs": "prices"}, "unknown option jobs"),
        ({"job": "absent"}, "has no snapshot of job 'absent'; it has snapshots of others, prices"),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else "",
)
def test_what_is_not_there_is_told(reads: Any, folder: Path, options: dict[str, str], said: str) -> None:
    with pytest.raises((AnalysisException, PythonException)) as raised:
        load(reads, folder, **options).collect()
    assert said in str(raised.value)


def test_s4_damaged_state_is_not_read(reads: Any, tmp_path: Path) -> None:
    mp.InProcess(snapshots=mp.Snapshots(tmp_path)).run(made())
    frame = load(reads, tmp_path, read="state", step="mean")
    (artefact,) = (tmp_path / "prices" / "artefacts").glob("*/mean-0.full")
    artefact.write_bytes(artefact.read_bytes()[:-1] + b"x")
    with pytest.raises((AnalysisException, PythonException), match="is damaged: its digest does not match"):
        frame.collect()
