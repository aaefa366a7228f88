"""A program that a test starts again and again, and kills: ``program.py FOLDER WORKERS``. It does not hurry until there
is a file ``FOLDER/hurry``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from time import sleep

import malstrom_py as mp
from tests.integration.recovery.jobs import Row, numbered

ROWS = 24_000


class Slow:
    """Takes its time, so that there is some to be killed, until there is a file ``hurry``."""

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
