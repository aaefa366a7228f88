"""Writes a file for each sensor, through a custom partitioned sink, on three workers.

python -m examples.file_per_sensor          or          malstrom run examples.file_per_sensor
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.data.batch import Batch

INPUT = Path(__file__).parent / "input"


class FilePerSensor:
    """The rows of a sensor go to one worker, which appends them to that sensor's file."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def assign_part(self, message: mp.DataMessage[Any, dict[str, Any]]) -> str:
        return str(message.value["sensor"])

    def build_part(self, part: str, state: int | None) -> SensorFile:
        self.folder.mkdir(parents=True, exist_ok=True)
        return SensorFile(self.folder / f"{part}.csv", state or 0)


class SensorFile:
    """One file. The position is its size; bytes after the position are cut off."""

    def __init__(self, path: Path, position: int) -> None:
        path.touch()
        self.file = path.open("r+b")
        self.file.truncate(self.file.seek(position))

    def write(self, batch: Batch) -> None:
        for row in batch.values:
            self.file.write(f"{row['time']:%H:%M},{row['celsius']}\n".encode())

    def snapshot(self) -> int:
        self.file.flush()
        return self.file.tell()

    def close(self) -> None:
        self.file.close()


def job(folder: str = str(INPUT), out: str = "demo-out/file_per_sensor") -> mp.Job:
    """The readings of two stations -> files ``<sensor>.csv`` in ``out``."""
    job = mp.Job("file-per-sensor")
    north, south = (job.source(name, sources.Files(f"{folder}/readings-{name}.csv")) for name in ("north", "south"))
    north.union("both", south).sink("files", FilePerSensor(out))
    return job


if __name__ == "__main__":
    print(mp.run(job(), workers=3))
