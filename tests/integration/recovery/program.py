"""A program that a test starts again and again, and kills: ``program.py FOLDER WORKERS``."""

from __future__ import annotations

import sys
from pathlib import Path

import malstrom_py as mp
from tests.integration.recovery.jobs import Row, numbered

ROWS = 24_000


class Slow:
    """Lets a batch take a while, so that there is time to be killed."""

    def __call__(self, row: Row) -> Row:
        sum(range(300))
        return row


def main(folder: str, workers: int) -> None:
    place = Path(folder)
    snapshots = mp.Snapshots(str(place / "kept"), interval_s=0.05, chain_max=2)
    print("up", flush=True)
    mp.run(
        numbered(str(place / "out"), rows=ROWS, each=Slow()),
        workers,
        batch=mp.Batching(rows_max=50),
        snapshots=snapshots,
        progress=False,
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
