"""What a worker was at work on can be read when its process is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.clock import SystemClock
from malstrom_py.codec import Codec
from malstrom_py.errors import OperatorError
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.engine.graph_builder import Membership, deal_parts
from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.remote.worker_server import BlackBox, read_black_box, watch


def until_it_fails(worker: Worker) -> None:
    while True:
        worker.step()


def test_it_names_the_step_the_part_and_up_to_where_it_was_read(tmp_path: Path) -> None:
    said: list[str] = []
    box = BlackBox(tmp_path / "box")

    def parse(number: int) -> int:
        said.append(read_black_box(tmp_path / "box"))
        if number == 3:
            raise LookupError("three")
        return number

    job = mp.Job("docs")
    job.source("in", sources.Memory([1, 2, 3])).map("parse", parse).sink("out", sinks.Memory())
    plan = job.plan()
    member = Membership(0, (0,), (0,) * plan.slots)
    worker = Worker(plan, member, batching=Batching(), clock=SystemClock(), codec=Codec(plan.types))
    watch(worker.operators, box)
    worker.open_sinks()
    worker.open_sources(deal_parts(plan, [0], SystemClock()).parts[0])
    with pytest.raises(OperatorError):
        until_it_fails(worker)
    worker.close()
    assert said[0].startswith("step 'parse' was at work on")
    assert "partition '0' of source 'in', which ended at position" in said[0]
    assert read_black_box(tmp_path / "box") == said[-1]


def test_what_is_noted_outlives_the_process(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from malstrom_py.workers.remote.worker_server import BlackBox; "
        "BlackBox(Path(sys.argv[1])).note('first'); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "box")], check=False)
    assert read_black_box(tmp_path / "box") == "first"


def test_a_shorter_note_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    box = BlackBox(tmp_path / "box")
    box.note("something long")
    box.note("short")
    assert read_black_box(tmp_path / "box") == "short"
    box.note("x" * 10_000)
    assert len(read_black_box(tmp_path / "box")) < 10_000
    box.close()
    assert not (tmp_path / "box").exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("secret")
    (tmp_path / "box").symlink_to(tmp_path / "other")
    assert read_black_box(tmp_path / "box") == ""
    with pytest.raises(FileExistsError):
        BlackBox(tmp_path / "box")
