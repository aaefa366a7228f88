"""Adds the place of the sensor to each reading: asks a slow directory, many questions at the same time.

python -m examples.enrich          or          malstrom run examples.enrich
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import malstrom_py as mp
from malstrom_py import sinks, sources

READINGS = Path(__file__).parent / "input" / "readings-*.csv"
HOUR = timedelta(hours=1)
PLACES = {"n1": "the north ridge", "n2": "the mill"}


class Directory:
    """A fake client of a remote service: slow, overloaded at first, and without an answer for some sensors."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    async def place_of(self, sensor: str) -> str:
        """Return the place of ``sensor``. KeyError if it is unknown."""
        await asyncio.sleep(0.002)
        if sensor not in self.asked:
            self.asked.add(sensor)
            raise ConnectionError("too many questions: ask again")
        return PLACES[sensor]

    async def aclose(self) -> None:
        """Close the connection."""


directory = mp.per_worker(Directory)


async def place_of(sensor: str) -> str:
    """Ask the directory of this worker."""
    return await directory().place_of(sensor)


def line(reading: dict[str, Any], place: str) -> str:
    """Return one line of output."""
    return f"{reading['time']:%H:%M} at {place}: {reading['celsius']} °C"


def job(readings: str = str(READINGS)) -> mp.Job:
    """Readings -> one line per reading on standard output, or an apology where the place is unknown."""
    job = mp.Job("enrich")
    by_sensor = job.source("readings", sources.Files(readings, null_values=["NA"])).key_by("sensor", "sensor")
    placed = by_sensor.enrich("place", place_of, cache=HOUR, retries=2, combine=line, on_error="dead-letter")
    placed.sink("out", sinks.Stdout())
    regrets = job.dead_letters("place").map("regret", lambda letter: f"unknown place: {letter.key}")
    regrets.sink("regrets", sinks.Stdout())
    return job


if __name__ == "__main__":
    print(mp.run(job(), workers=2))
