"""Runs an installed malstrom-py on two workers, by the command line, and against the laws: ``python wheel_program.py``.

``--pure`` expects a wheel without compiled parts.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import malstrom_py as mp
from malstrom_py import accelerator, sinks, sources
from malstrom_py.testing import check_operator

counts = sinks.Memory()
job = mp.Job("words")
words = job.source("words", sources.Memory(["a", "b", "a"] * 100, parts=2)).key_by("word", lambda word: word)
words.count("count").sink("out", counts)


def total(message: mp.DataMessage[str, int], state: int | None, output: mp.Output[Any, Any]) -> int:
    """Keep the sum of a key's values, and send it."""
    state = (state or 0) + message.value
    output.emit(message.key, state, message.timestamp)
    return state


def main() -> None:
    assert "site-packages" in str(mp.__file__), f"this is not an installed package: {mp.__file__}"
    mp.InProcess(workers=2).run(job)
    assert max(counts.items) == 200, counts.items
    check_operator(lambda stream: stream.stateful_op("total", total), values=[1, 2, 3], keys=["a", "b"])
    command = [str(Path(sys.executable).with_name("malstrom")), "run", f"{__file__}:job", "--workers", "2"]
    subprocess.run(command, check=True, timeout=120)
    loaded = [part is not None for part in (accelerator.library(), accelerator.rows())]
    assert loaded == ["--pure" not in sys.argv] * 2, f"compiled parts loaded: {loaded}"


if __name__ == "__main__":
    main()
