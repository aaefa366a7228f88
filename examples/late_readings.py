"""Event time: the highest temperature of each sensor so far, and the readings that came too late to count.

Each file is one part: a reading is late only if the *same file* is already ahead by more than the bound.
python -m examples.late_readings          or          malstrom run examples.late_readings
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import malstrom_py as mp
from malstrom_py import sinks, sources

READINGS = Path(__file__).parent / "input" / "readings-*.csv"


def job(
    readings: str = str(READINGS), out: str = "demo-out/late_readings", bound: timedelta = timedelta(minutes=10)
) -> mp.Job:
    """Running maxima -> standard output, readings late by more than ``bound`` -> JSON lines in ``out``."""
    job = mp.Job("late-readings")
    rows = job.source("readings", sources.Files(readings, null_values=["NA"]))
    on_time, late = (
        rows.filter("measured", lambda reading: reading["celsius"] is not None)
        .assign_timestamps("time", lambda reading: reading["time"])
        .generate_epochs("epochs", mp.limit_out_of_orderness(bound))
    )
    on_time.key_by("sensor", "sensor").max("highest", by="celsius").sink("out", sinks.Stdout())
    late.sink("late", sinks.Files(out, format="json"))
    return job


if __name__ == "__main__":
    print(mp.run(job()))
