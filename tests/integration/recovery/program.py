"""A program that a test restarts and kills: ``program.py FOLDER WORKERS``. It is slow until ``FOLDER/hurry`` exists."""

from __future__ import annotations

import sys
from pathlib import Path
from time import sleep

import malstrom_py as mp
from tests.integration.recovery.jobs import Row, numbered

ROWS = 24_000


class Slow:
    """Delays records until the file ``hurry`` exists, so that the test has time to kill the program."""

    def __init__(self, hurry: Path) -> None:
        self._hurry = hurry

    def __call__(self, row: Row) -> Row:
        if row[1] % 50 == 0 and not self._hurry.exists():
            sleep(0.005)
        return row


def main(folder: str, workers: int) -> None:
    place = Path(folder)
    snapshots = mp.Snapshots(str(place / "kept"), interval_s=0.05, chain_max=2)
    print("up", flush=True)
    mp.run(
        numbered(str(place / "out"), rows=ROWS, each=Slow(place / "hurry")),
        workers,
        batch=mp.Batching(rows_max=50),
        snapshots=snapshots,
        progress=False,
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
