"""Programs of other people beside ours: ``peer_bare.py``, unchanged, on data that ``gen.py`` made.

``BENCH_PEERS`` names the folder that holds both, ``BENCH_DATA`` where the data is or shall be (a temporary folder
if it is not set). gen.py needs duckdb, numpy and polars in this environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.micro.timing import WrongResult

COLUMNS = {
    "bids": ["auction", "bidder", "price", "channel", "url", "ts", "extra"],
    "w1_uniform": ["key", "value"],
    "w1_zipf": ["key", "value"],
}


class Peers:
    """The peers' folder and their data."""

    def __init__(self, folder: Path, data: Path) -> None:
        self._folder = folder
        self._data = data
        self._reference: dict[str, Any] = json.loads((data / "reference.json").read_text())

    def rows(self, work: str) -> list[Any]:
        """The input of ``work``, as the tuples that our own generator makes."""
        import pyarrow as pa

        name = work if work in COLUMNS else "bids"
        with pa.OSFile(str(self._data / f"{name}.arrow")) as file:
            table = pa.ipc.open_file(file).read_all()
        return list(zip(*(table.column(column).to_pylist() for column in COLUMNS[name]), strict=True))

    def check(self, work: str, result: tuple[int, int]) -> None:
        """`WrongResult` unless two batch engines found ``result`` too, when the data was made."""
        if list(result) != self._reference[work]:
            raise WrongResult(f"{work}: {result}, but the reference is {self._reference[work]}")

    def bare(self, work: str) -> float:
        """Records per second of ``peer_bare.py``, which loops without our functions, run once."""
        program = [sys.executable, str(self._folder / "peer_bare.py"), "--work", work, "--mode", "call"]
        done = _run([*program, "--data", str(self._data)])
        told = json.loads(done.splitlines()[-1])
        self.check(work, tuple(told["check"]))
        return float(told["n_in"] / told["secs"])


def find_peers(n: int) -> Peers | None:
    """The peers, with data of ``n`` records, which is made now if it is not there; None without ``BENCH_PEERS``."""
    folder = os.environ.get("BENCH_PEERS")
    if not folder:
        return None
    data = Path(os.environ.get("BENCH_DATA") or tempfile.mkdtemp(prefix="bench-data-"))
    if not _holds(data, n):
        _run([sys.executable, str(Path(folder) / "gen.py"), "--data", str(data), "--n", str(n)])
    return Peers(Path(folder), data)


def _holds(data: Path, n: int) -> bool:
    reference = data / "reference.json"
    return reference.is_file() and json.loads(reference.read_text())["n_in"]["w1_uniform"] == n


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout
