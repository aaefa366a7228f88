"""Ctrl-C while calls are in flight: the job ends, however the calls block, and its sinks commit nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tree import ROOT

DEADLINE_S = 60

WAITING = """
import asyncio
import time
from pathlib import Path

import malstrom_py as mp
from malstrom_py import sinks, sources


async def ask(key):
    try:
        Path("asked").touch()
        {wait}
    finally:
        Path("ended").touch()


def closed(client):
    Path("closed").touch()


client = mp.per_worker(list, closed)
job = mp.Job("waiting")
numbers = job.source("numbers", sources.Memory(range(100))).key_by("key", lambda number: number)
numbers.map("row", lambda number: (client(), {{"number": number}})[1]).enrich("e", ask).sink("out", sinks.Files("out"))

if __name__ == "__main__":
    mp.run(job)
"""

WAITS = {
    "awaits": "await asyncio.sleep(600)",
    "blocks": "time.sleep(600)",
}


@pytest.mark.parametrize("what", WAITS)
def test_ctrl_c_ends_a_run_with_calls_under_way(what: str, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING.format(wait=WAITS[what]))
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen(
        [sys.executable, "waiting.py"], cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True
    )
    deadline_s = time.monotonic() + DEADLINE_S
    while not (tmp_path / "asked").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == -signal.SIGINT
    assert "stopped by the user; nothing was committed; so far job waiting: " in err
    assert (tmp_path / "closed").exists()
    assert (tmp_path / "ended").exists() is (what == "awaits")
    assert ("blocks the loop" in err) is (what == "blocks")
    assert [str(path) for path in (tmp_path / "out").rglob("*")] == []
