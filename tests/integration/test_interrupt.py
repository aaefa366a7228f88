"""Ctrl-C for real: an endless job in a separate process gets SIGINT while it runs."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.commands import COMMAND, environment, started, until

ENDLESS = """

import malstrom_py as mp
from malstrom_py import sinks, sources
from tests.endless import endless_numbers

job = mp.Job("endless")
numbers = job.source("numbers", sources.Generator(endless_numbers))
numbers.map("row", lambda number: {"number": number}).sink("out", sinks.Files("out", format="csv"))

if __name__ == "__main__":
    mp.run(job)
"""
DEADLINE_S = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "endless.py").write_text(ENDLESS)
    return tmp_path


TERMINAL = {"COLUMNS": "120", "TERM": "xterm"}


def wait_until_written(folder: Path, process: Any) -> None:
    """Until a file is staged, and something is in it."""
    until(lambda: any(file.stat().st_size for file in (folder / "out").rglob("*.csv")), process)


def left_over(folder: Path) -> list[str]:
    """The files in the output folder, hidden or not."""
    return [str(path) for path in (folder / "out").rglob("*")]


def test_ctrl_c_on_the_command_line_prints_the_counts_and_leaves_nothing(folder: Path) -> None:
    with started(folder, *COMMAND, "run", "endless", **TERMINAL) as process:
        wait_until_written(folder, process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 130
    assert out == ""
    assert err.startswith("interrupted: stopped by the user; nothing was committed; so far job endless: ")
    assert "Traceback" not in err
    assert left_over(folder) == []


def test_ctrl_c_behind_the_progress_of_a_terminal_leaves_the_terminal_tidy(folder: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *COMMAND, "run", "endless"],
        cwd=folder,
        env=environment() | TERMINAL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        start_new_session=True,
    )
    os.close(theirs)
    seen = ""
    while "rows/s" not in seen:
        seen += os.read(ours, 65536).decode(errors="replace")
    process.send_signal(signal.SIGINT)
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # Linux raises it when the other end is closed.
            break
        if not chunk:
            break
        seen += chunk.decode(errors="replace")
    os.close(ours)
    assert process.wait(timeout=DEADLINE_S) == 130
    assert process.stdout is not None
    process.stdout.close()
    assert "interrupted: stopped by the user" in seen
    shown_cursor, hidden_cursor = "\x1b[?25h", "\x1b[?25l"
    assert seen.rfind(shown_cursor) > seen.rfind(hidden_cursor)
    assert left_over(folder) == []


def test_ctrl_c_in_a_script_prints_the_counts_and_ends_by_the_signal(folder: Path) -> None:
    with started(folder, "endless.py") as process:
        wait_until_written(folder, process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
    # Python ends itself by the signal, which a shell shows as 130.
    assert process.returncode == -signal.SIGINT
    assert "stopped by the user; nothing was committed; so far job endless: " in err
    assert left_over(folder) == []


def test_ctrl_c_before_the_job_runs_is_told_too(folder: Path) -> None:
    (folder / "slow.py").write_text("import time\nopen('started', 'w').close()\ntime.sleep(600)\n")
    with started(folder, *COMMAND, "run", "slow") as process:
        until((folder / "started").exists, process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, err) == (130, "interrupted: nothing had run yet\n")


WAITING = """
import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


@pytest.mark.long("blocks")
@pytest.mark.parametrize("what", WAITS)
def test_ctrl_c_ends_a_run_with_calls_under_way(what: str, tmp_path: Path) -> None:
    """The job ends, however the calls block, and its sinks commit nothing."""
    (tmp_path / "waiting.py").write_text(WAITING.format(wait=WAITS[what]))
    with started(tmp_path, "waiting.py") as process:
        until((tmp_path / "asked").exists, process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == -signal.SIGINT
    assert "stopped by the user; nothing was committed; so far job waiting: " in err
    assert (tmp_path / "closed").exists()
    assert (tmp_path / "ended").exists() is (what == "awaits")
    assert ("blocks the loop" in err) is (what == "blocks")
    assert left_over(tmp_path) == []
