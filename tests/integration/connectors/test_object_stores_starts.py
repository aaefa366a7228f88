"""Two starts of one job at the same moment: one wins, the other gets a clear error; each row is visible once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.sources.base import Part
from tests.integration.connectors.buckets import new_bucket


class Meeting(sources.Memory[int]):
    """Its parts are listed once both starts are there: both have claimed the job then."""

    def __init__(self, meet: threading.Barrier) -> None:
        super().__init__(range(10))
        self.meet = meet

    def list_parts(self) -> Sequence[Part]:
        self.meet.wait(60)
        return super().list_parts()


@pytest.mark.parametrize("place", ["folder", "s3"])
def test_of_two_starts_at_the_same_moment_one_wins(place: str, s3: str, tmp_path: Path) -> None:
    options: dict[str, str] = {}
    root = str(tmp_path)
    if place == "s3":
        bucket = new_bucket(s3)
        root, options = bucket.url, bucket.options
    store_options: dict[str, Any] = {"store_options": options} if options else {}
    meet = threading.Barrier(2)
    results: list[Any] = []

    def start() -> None:
        job = mp.Job("orders")
        job.source("in", Meeting(meet)).sink("out", sinks.Files(f"{root}/out", format="json", **store_options))
        try:
            results.append(mp.run(job, snapshots=mp.Snapshots(f"{root}/snapshots", options=options)))
        except mp.MalstromError as error:
            results.append(error)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    (won,) = [one for one in results if isinstance(one, mp.RunResult)]
    (lost,) = [one for one in results if isinstance(one, mp.MalstromError)]
    assert won.written == 10
    assert isinstance(lost, mp.FencedError)
    rows = sources.Files(f"{root}/out/*.json", **store_options)
    job = mp.Job("read")
    seen = sinks.Memory()
    job.source("in", rows).sink("seen", seen)
    mp.run(job)
    assert sorted(row["value"] for row in seen.items) == list(range(10))
