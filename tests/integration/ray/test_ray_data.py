"""Ray Data at both ends of a job: each row of a dataset is read once, and each committed row is in a dataset."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import malstrom_py as mp
from examples import ray_data
from malstrom_py import sinks, sources
from malstrom_py.connectors.ray_data.blocks import NAMESPACE
from malstrom_py.errors import SinkError, SourceError
from malstrom_py.testing.contracts import check_source
from malstrom_py.workers.ray.ray_job import check_detached
from tests.integration.ray.leftovers import actors, pids, until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")
"""Ray Data warns of what it calls itself."""


@pytest.fixture(autouse=True)
def data(tidy: None) -> Iterator[Any]:
    """Return Ray Data, without its messages."""
    import ray.data

    context = ray.data.DataContext.get_current()
    before = context.enable_progress_bars, context.execution_options.preserve_order
    context.enable_progress_bars, context.execution_options.preserve_order = False, True
    yield ray.data
    context.enable_progress_bars, context.execution_options.preserve_order = before
    for folder in Path(tempfile.gettempdir()).glob("malstrom-ray-data-*"):
        shutil.rmtree(folder)  # it would stay until this program ends
    assert not [name for name in ray.util.list_named_actors(all_namespaces=True) if name["namespace"] == NAMESPACE]


def numbers(data: Any, count: int = 2_000) -> Any:
    return data.range(count, override_num_blocks=4)


def slowed(source: Any, folder: Path, sink: Any) -> mp.Job:
    """Return a job over ``source`` that takes its time as long as there is a file ``slow``."""
    slow = folder / "slow"

    def wait(row: dict[str, Any]) -> dict[str, Any]:
        if slow.exists():
            time.sleep(0.002)
        return row

    job = mp.Job("numbers")
    job.source("in", source).map("wait", wait).sink("out", sink)
    return job


def on_ray(folder: Path, **options: Any) -> mp.RayRuntime:
    kept = mp.Snapshots(folder / "kept", interval_s=0.3)
    return mp.RayRuntime(2, num_cpus=0.2, batch=mp.Batching(rows_max=20), snapshots=kept, **options)


def read_back(out: sinks.RayDataset) -> list[int]:
    return sorted(row["id"] for row in out.dataset().take_all())


@pytest.mark.timeout(300)
def test_the_example_scores_all_rows_of_a_dataset_into_a_dataset(data: Any) -> None:
    scored = ray_data.score(ray_data.flowers(300)).take_all()
    assert sorted(row["id"] for row in scored) == list(range(300))
    assert all(row["is_large"] == (row["probability"] > 0.5) for row in scored)
    assert {row["id"] % 2 == 1 for row in scored if row["is_large"]} == {True}


@pytest.mark.timeout(300)
def test_s7_a_worker_is_killed_and_workers_are_added_and_each_row_is_there_once(data: Any, tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    out = sinks.RayDataset()
    ds = numbers(data, 20_000).map_batches(lambda rows: {"id": rows["id"]})
    handle = on_ray(tmp_path).start(slowed(sources.RayDataset(ds), tmp_path, out))
    until(lambda: handle.status().counts.read > 100)
    handle.rescale(3)
    handle.snapshot()
    os.kill(pids("WorkerActor")[0], signal.SIGKILL)
    until(lambda: handle.status().restarts == 1 and handle.status().phase == "steady")
    (tmp_path / "slow").unlink()
    handle.wait()
    assert read_back(out) == list(range(20_000))


@pytest.mark.long
def test_s7_staged_rows_are_read_by_another_source_object_after_a_stop(data: Any, tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    staging, out = tmp_path / "staging", tmp_path / "out"

    def source(ds: Any) -> sources.RayDataset:
        return sources.RayDataset(ds, staging=staging)

    handle = on_ray(tmp_path).start(slowed(source(numbers(data)), tmp_path, sinks.RayDataset(out)))
    until(lambda: handle.status().counts.written > 100)
    handle.stop(drain=False)
    (tmp_path / "slow").unlink()
    [folder] = staging.glob("numbers/pin-*")
    assert 0 < len(read_back(sinks.RayDataset(out))) < 2_000
    # Another dataset is given, and not computed: the rows are those of the first start.
    mp.run(
        slowed(source(data.from_items([{"id": -1}])), tmp_path, sinks.RayDataset(out)),
        snapshots=mp.Snapshots(tmp_path / "kept", interval_s=None),
    )
    assert read_back(sinks.RayDataset(out)) == list(range(2_000))
    assert not folder.exists()


@pytest.mark.long
def test_rows_that_were_not_staged_are_resumed_by_the_same_source_alone(data: Any, tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    source, out = sources.RayDataset(numbers(data)), sinks.RayDataset(tmp_path / "out")
    kept = mp.Snapshots(tmp_path / "kept", interval_s=None)

    def stopped(source: Any, sink: Any) -> None:
        handle = mp.InProcess(2, snapshots=kept, batch=mp.Batching(rows_max=20)).start(slowed(source, tmp_path, sink))
        until(lambda: handle.status().counts.read > 100)
        handle.stop(drain=False)

    stopped(source, out)
    with pytest.raises(SourceError, match=r"rows of the dataset are lost: .*with staging=, a folder"):
        mp.run(slowed(sources.RayDataset(numbers(data)), tmp_path, out), snapshots=kept)
    with pytest.raises(SinkError, match=r"temporary folder of another program: give sinks.RayDataset a folder"):
        mp.run(slowed(source, tmp_path, sinks.RayDataset()), snapshots=kept)
    (tmp_path / "slow").unlink()
    mp.run(slowed(source, tmp_path, out), snapshots=kept)
    assert read_back(out) == list(range(2_000))


def test_a_source_keeps_the_contract_and_sees_rows_that_have_changed(data: Any, tmp_path: Path) -> None:
    for staging in (None, tmp_path):
        source = sources.RayDataset(numbers(data, 40), parts=3, staging=staging)
        source.pin("contract")
        check_source(source)
        assert len(source.list_parts()) == 3
        source.unpin()
    source = sources.RayDataset(numbers(data, 40), staging=tmp_path)
    source.pin("changed")
    [first, *_] = sorted(tmp_path.glob("changed/pin-*/rows/*"))
    first.write_bytes(first.read_bytes()[:-8] + b"\0" * 8 + b"!")
    with pytest.raises(SourceError, match="no longer the file that was pinned"):
        source.build_part(source.list_parts()[0], None).poll(10)
    source.unpin()


def test_blocks_that_ray_computes_again_are_compared(data: Any, tmp_path: Path) -> None:
    """A function that is not deterministic gives other rows; the pin knows the digest of the first."""
    source = sources.RayDataset(data.range(10).map_batches(lambda rows: {"id": [uuid4().hex for _ in rows["id"]]}))
    source.pin("first")
    other = sources.RayDataset(source._ds)
    other.pin("second")
    source._blocks, other._blocks = other._blocks, source._blocks
    part = source.build_part(source.list_parts()[0], None)

    def polled() -> bool:
        return part.poll(10) is not None

    with pytest.raises(SourceError, match="has other rows now"):
        until(polled)
    source.unpin()
    other.unpin()


def test_types_of_ray_data_become_plain_or_are_refused(data: Any) -> None:
    import numpy as np
    import pandas as pd  # type: ignore[import-untyped]  # it has no types

    kinds = pd.Categorical(["a", "b"])
    days = pd.to_datetime(["2020-01-01", "2020-01-02"])
    frame = pd.DataFrame({"kind": kinds, "day": days, "empty": [None, None]})
    rows = mp.collect(mp.Job("types").source("in", sources.RayDataset(data.from_pandas(frame))))
    assert [(row["kind"], row["day"].year, row["empty"]) for row in rows] == [("a", 2020, None), ("b", 2020, None)]
    vectors = mp.collect(mp.Job("vectors").source("in", sources.RayDataset(data.from_numpy(np.eye(2)))))
    assert vectors == [{"data": [1.0, 0.0]}, {"data": [0.0, 1.0]}]
    assert mp.collect(mp.Job("none").source("in", sources.RayDataset(data.from_items([])))) == []
    with pytest.raises(SourceError, match=r"column 'data' of the dataset has the type .*map_batches"):
        mp.collect(mp.Job("images").source("in", sources.RayDataset(data.from_numpy(np.zeros((2, 3, 3))))))
    with pytest.raises(SourceError, match=r"Ray cannot compute the dataset: .*no such luck"):
        mp.collect(mp.Job("fails").source("in", sources.RayDataset(numbers(data).map_batches(fail))))
    with pytest.raises(SourceError, match=r"Ray cannot compute the dataset: .*no such column"):
        mp.collect(mp.Job("sorts").source("in", sources.RayDataset(numbers(data).sort("none"))))
    ragged = data.from_items([{"v": np.array([1, 2])}, {"v": np.array([3])}], override_num_blocks=1)
    assert mp.collect(mp.Job("ragged").source("in", sources.RayDataset(ragged))) == [{"v": [1, 2]}, {"v": [3]}]


def fail(rows: Any) -> Any:
    raise ValueError("no such luck")


@pytest.mark.long
def test_a_sink_joins_files_of_different_columns_and_says_when_there_are_none(data: Any) -> None:
    out = sinks.RayDataset()
    with pytest.raises(SinkError, match="no job has committed to"):
        out.dataset()
    job = mp.Job("joined")
    rows = job.source("in", sources.Memory([{"n": 1, "a": "x"}, {"n": 2.5}], parts=2))
    rows.sink("out", out)
    mp.run(job, workers=2)
    assert sorted((row["n"], row["a"]) for row in out.dataset().take_all()) == [(1.0, "x"), (2.5, None)]
    job = mp.Job("empty")
    job.source("in", sources.Memory([])).sink("out", out := sinks.RayDataset())
    mp.run(job)
    assert out.dataset().take_all() == []


def test_a_detached_job_needs_staged_rows(data: Any) -> None:
    job = mp.Job("detached")
    job.source("in", sources.RayDataset(numbers(data))).sink("out", sinks.RayDataset())
    with pytest.raises(mp.PlanError, match=r"source 'in' reads rows that end with .*a sources\.RayDataset staging="):
        mp.RayRuntime(1, detached=True).start(job)
    assert actors() == []


def test_a_detached_job_needs_a_folder_that_outlives_the_program(tmp_path: Path) -> None:
    job = mp.Job("detached")
    rows = job.source("in", sources.Memory([1]))
    rows.sink("kept", sinks.RayDataset(tmp_path))
    check_detached(job.plan())
    rows.sink("gone", sinks.RayDataset())
    with pytest.raises(mp.PlanError, match=r"sink 'gone' writes to a temporary folder .* a folder$"):
        check_detached(job.plan())
