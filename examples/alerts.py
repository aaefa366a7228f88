"""Separates readings that cannot be true, and prints one alert for each.

python -m examples.alerts          or          malstrom run examples.alerts
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import malstrom_py as mp
from malstrom_py import sinks, sources

READINGS = Path(__file__).parent / "input" / "readings-*.csv"
LOWEST, HIGHEST = -5.0, 40.0


def is_believable(reading: dict[str, Any]) -> bool:
    """Whether a temperature is possible at this place and season."""
    return reading["celsius"] is not None and LOWEST <= reading["celsius"] <= HIGHEST


def alert(reading: dict[str, Any]) -> str:
    """Return one line for the person on duty."""
    value = "no value" if reading["celsius"] is None else f"{reading['celsius']} °C"
    return f"ALERT {reading['sensor']} at {reading['time']:%H:%M}: {value}"


def job(readings: str = str(READINGS), out: str = "demo-out/alerts") -> mp.Job:
    """Believable readings -> Parquet files in ``out``, the others -> alerts on standard output."""
    job = mp.Job("alerts")
    rows = job.source("readings", sources.Files(readings, null_values=["NA"]))
    good, bad = rows.branch("believable", is_believable)
    good.sink("good", sinks.Files(out, format="parquet"))
    bad.map("alert", alert).sink("alerts", sinks.Stdout())
    return job


if __name__ == "__main__":
    print(mp.run(job()))
