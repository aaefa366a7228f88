"""Prints the running mean temperature of each sensor, leaving out readings without a value.

python -m examples.sensor_means          or          malstrom run examples.sensor_means
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import malstrom_py as mp
from malstrom_py import sinks, sources

READINGS = Path(__file__).parent / "input" / "readings-*.csv"


@dataclass(frozen=True)
class Mean:
    """The state of a sensor. A dataclass that is the ``default=`` can be stored in snapshots; a plain class cannot."""

    readings: int = 0
    total: float = 0.0


def update(sensor: str, reading: dict[str, Any], mean: Mean) -> tuple[str, Mean]:
    """One line of output, and the new state."""
    new = Mean(mean.readings + 1, mean.total + reading["celsius"])
    return f"{sensor}: {new.total / new.readings:.2f} °C after {new.readings} readings", new


def job(readings: str = str(READINGS)) -> mp.Job:
    """Readings -> one line per reading on standard output."""
    job = mp.Job("sensor-means")
    rows = job.source("readings", sources.Files(readings, null_values=["NA"]))
    (
        rows.filter("measured", lambda reading: reading["celsius"] is not None)
        .key_by("sensor", "sensor")
        .stateful_map("mean", update, default=Mean)
        .sink("out", sinks.Stdout())
    )
    return job


if __name__ == "__main__":
    print(mp.run(job()))
