"""Prints the mean temperature of each sensor, leaving out readings without a value.

python -m examples.sensor_means          or          malstrom run examples.sensor_means
"""

from __future__ import annotations

from pathlib import Path

import malstrom_py as mp
from malstrom_py import sinks, sources

READINGS = Path(__file__).parent / "input" / "readings-*.csv"


def job(readings: str = str(READINGS)) -> mp.Job:
    """Readings -> one line per sensor on standard output, at the end."""
    job = mp.Job("sensor-means")
    rows = job.source("readings", sources.Files(readings, null_values=["NA"])).key_by("sensor", "sensor")
    means = rows.mean("mean", by="celsius", skip_nulls=True).final()
    means.map_with_key("line", lambda sensor, mean: f"{sensor}: {mean:.2f} °C").sink("out", sinks.Stdout())
    return job


if __name__ == "__main__":
    print(mp.run(job()))
