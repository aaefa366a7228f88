"""The demo with Spark at both ends: rescaled while it runs, its output and exit code, what it says without Java."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from examples.flights.pace import Paced
from examples.spark_to_ray import add
from malstrom_py import sources
from tests.tree import ROOT

DEADLINE_S = 480
"""It starts a Ray and a Spark, one after the other."""


@pytest.mark.long
@pytest.mark.timeout(DEADLINE_S + 10)
def test_a_job_on_ray_between_two_ends_of_spark_finds_what_spark_alone_does(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.spark_to_ray", "--seconds", "25"],
        cwd=ROOT,
        # Paths of Ray must be short.
        env={**os.environ, "TMPDIR": str(tmp_path), "RAY_TMPDIR": tempfile.gettempdir(), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "279,971 read, 279,971 written" in done.stdout
    assert re.findall(r"^ (\d -> \d) ", done.stdout, flags=re.MULTILINE) == ["2 -> 4", "4 -> 2"]
    assert "\nEQUAL to Spark alone: 3,333 planes" in done.stdout
    assert list(tmp_path.glob("demo-spark-*")) == [], "input, staged files and table are gone with the demo"


@pytest.fixture
def no_java(tmp_path: Path) -> dict[str, str]:
    """An environment in which no Java is found."""
    return {"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path), "HOME": str(tmp_path)}


def test_without_java_the_demo_says_what_to_do_before_anything_is_installed(
    tmp_path: Path, no_java: dict[str, str]
) -> None:
    make = shutil.which("make")
    assert make is not None
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    command = [make, "demo-spark", f"VENV={venv}"]
    done = subprocess.run(command, cwd=ROOT, env=no_java, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert "No Java for Spark: JAVA_HOME (" in done.stderr
    assert "Spark needs Java 17 or 21" in done.stderr
    assert "Installing" not in done.stdout


def test_a_plane_is_told_with_each_flight_how_many_it_had() -> None:
    flight = {"airline": "United", "tailnum": "N1", "manufacturer": "BOEING", "dep_delay": -3}
    first, seen = add("United N1", flight, (0, 0, None))
    second, seen = add("United N1", flight | {"dep_delay": 10}, seen)
    assert seen == (2, 7, 10)
    plane = {name: flight[name] for name in ("airline", "tailnum", "manufacturer")}
    assert first == plane | {"flights": 1, "minutes": -3, "worst": -3}
    assert second == plane | {"flights": 2, "minutes": 7, "worst": 10}


def test_a_paced_source_is_pinned_as_what_it_paces_is() -> None:
    class Pinned(sources.Memory[int]):
        pins = 0

        def pin(self, job: str, record: Any = None) -> None:
            self.pins += 1

        def pin_record(self) -> Any:
            return self.pins

        def unpin(self, *, keep: bool = False) -> None:
            self.pins -= 1

    source = Pinned([1])
    paced = Paced(source, 1.0)
    paced.pin("job")
    assert source.pins == paced.pin_record() == 1
    paced.unpin()
    assert source.pins == 0
