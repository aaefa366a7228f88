"""Jobs that read and write tables: failed, stopped, resumed and rescaled, with each row once."""

from __future__ import annotations

from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py.errors import JobEnded, SinkError
from malstrom_py.sources.base import Part
from tests.integration.connectors.lakes import Lake, read_all
from tests.integration.recovery.jobs import Numbered

PARTS, ROWS = 4, 600


class Failing:
    """Raises at some records, once each."""

    def __init__(self, *numbers: int) -> None:
        self._left = set(numbers)

    def __call__(self, row: Any) -> dict[str, Any]:
        part, number = row
        if part == "part-1" and number in self._left:
            self._left.remove(number)
            raise RuntimeError("as the test wants it")
        return {"part": part, "number": number}


class Gated(Numbered):
    """Gives no more than half of the rows until a file exists."""

    def __init__(self, gate: Path) -> None:
        super().__init__(PARTS, ROWS)
        self._gate = gate

    def build_part(self, part: Part, state: Any) -> Any:
        opened: Any = super().build_part(part, state)
        poll = opened.poll
        opened.poll = lambda rows: poll(rows) if self._gate.exists() or opened.snapshot() < ROWS // 2 else []
        return opened


def numbered(lake: Lake, gate: Path, *failures: int) -> mp.Job:
    job = mp.Job("numbered")
    rows = job.source("in", Gated(gate)).map("row", Failing(*failures))
    rows.sink("out", lake.sink(partition_by="part"))
    return job


def check(lake: Lake) -> None:
    found = sorted(lake.frame().select("part", "number").rows())
    assert found == [(f"part-{part}", number) for part in range(PARTS) for number in range(ROWS)]
    assert lake.staged() == []
    assert sorted((row["part"], row["number"]) for row in read_all(lake.source())) == found


@pytest.mark.long("iceberg-s3")
def test_s7_a_job_that_fails_and_resumes_at_another_scale_writes_each_row_once(
    lake_anywhere: Lake, tmp_path: Path
) -> None:
    lake = lake_anywhere
    kept = mp.Snapshots(tmp_path / "kept", interval_s=0.1)
    if lake.bucket is not None and lake.rest is None:  # a bucket of tables takes nothing else
        kept = mp.Snapshots(f"{lake.bucket.url}/kept", options=lake.bucket.options, interval_s=0.1)
    batch = mp.Batching(rows_max=50)
    restart = mp.Restart(max_restarts=5, backoff_s=0.0)
    gate = tmp_path / "gate"
    job = numbered(lake, gate, 200)
    handle = mp.InProcess(2, batch=batch, snapshots=kept, restart=restart).start(job, control=False)
    until_s = monotonic() + 60.0
    while handle.status().restarts == 0:
        assert monotonic() < until_s
        sleep(0.01)
    handle.rescale(3)
    handle.snapshot()
    handle.stop(drain=False)
    with pytest.raises(JobEnded, match="can resume from snapshot"):
        handle.wait()
    gate.touch()
    mp.run(numbered(lake, gate), 1, batch=batch, snapshots=kept, progress=False)
    check(lake)


def test_a_table_goes_through_a_job_into_another(lake: Lake, tmp_path: Path) -> None:
    mp.run(numbered(lake, tmp_path), 2, progress=False)
    check(lake)
    other = Lake("iceberg" if lake.form == "delta" else "delta", tmp_path / "other")
    job = mp.Job("copied")
    source = lake.source()
    numbers = job.source("in", source).key_by("part", "part").count("n").final("last")
    numbers.sink("out", other.sink())
    mp.run(job, 2, progress=False)
    assert sorted(other.frame().select("key", "value").rows()) == [(f"part-{part}", ROWS) for part in range(PARTS)]


def test_columns_go_through_without_rows(lake: Lake, tmp_path: Path) -> None:
    lake.write([{"value": number, "name": "x" * (number % 5)} for number in range(1_000)], 1)
    other = Lake(lake.form, tmp_path / "other")
    job = mp.Job("copied")
    job.source("in", lake.source(columns=["value"])).sink("out", other.sink())
    mp.run(job, progress=False)
    assert other.frame().columns == ["value"]
    assert other.values() == list(range(1_000))


def test_a_second_run_appends(lake: Lake) -> None:
    for _ in range(2):
        mp.run(_unpartitioned(lake), progress=False)
    assert len(lake.frame()) == 20


def test_rows_that_do_not_fit_end_the_job_and_show_nothing(lake: Lake) -> None:
    lake.write([{"part": 1, "number": 2}], 1)
    with pytest.raises(SinkError, match="'part' holds string, which is not the type in"):
        mp.run(_unpartitioned(lake), progress=False)
    assert len(lake.frame()) == 1
    assert lake.staged() == []


def _unpartitioned(lake: Lake) -> mp.Job:
    job = mp.Job("other")
    job.source("in", Numbered(1, 10)).map("row", Failing()).sink("out", lake.sink())
    return job
