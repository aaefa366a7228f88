"""The jobs of the demo: running statistics of departure delays, by carrier and by plane; and who would be late."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl

import malstrom_py as mp
from examples.flights.pace import Paced
from malstrom_py import agg, sinks, sources


class Flight(msgspec.Struct, frozen=True, gc=False):
    """What the jobs read of a flight: the other columns of the files are not parsed."""

    carrier: str
    tailnum: str | None
    dep_delay: int | None
    time_hour: datetime


class Delays(NamedTuple):
    """What is kept per carrier and per plane: counts, and mean and spread of the delays in minutes (Welford)."""

    flights: int = 0
    departed: int = 0
    mean: float = 0.0
    squares: float = 0.0
    worst: int | None = None


def add(_: str, flight: Flight, seen: Delays) -> tuple[dict[str, Any], Delays]:
    """One flight more. A cancelled one has no delay, but it was a flight."""
    flights, departed, mean, squares, worst = seen
    delay = flight.dep_delay
    if delay is not None:
        departed += 1
        distance = delay - mean
        mean += distance / departed
        squares += distance * (delay - mean)
        worst = delay if worst is None or delay > worst else worst
    state = Delays(flights + 1, departed, mean, squares, worst)
    return statistics(state), state


def statistics(delays: Delays) -> dict[str, Any]:
    """A row of the output; the sink puts the key in front."""
    departed = delays.departed
    return {
        "flights": delays.flights,
        "departed": departed,
        "mean": delays.mean if departed else None,
        "std": sqrt(delays.squares / departed) if departed else None,
        "worst": delays.worst,
    }


def delays_job(files: str, out: Path, *, rows_per_s: float | None = None) -> mp.Job:
    """Running statistics of each carrier and of each plane, one row per flight, to Parquet files below ``out``.

    ``rows_per_s``: how many rows each of the files gives in a second; None for as many as can be read.
    """
    job = mp.Job("flights")
    on_time, _ = timed_flights(job, files, rows_per_s).generate_epochs(
        "epochs", mp.limit_out_of_orderness(timedelta(hours=24))
    )
    (
        on_time.key_by("carrier", "carrier")
        .stateful_map("carrier-delays", add, default=Delays)
        .sink("carriers", sinks.Files(out / "carriers", format="parquet"))
    )
    (
        on_time.filter("has-tail-number", pl.col("tailnum").is_not_null())
        .key_by("plane", "tailnum")
        .stateful_map("plane-delays", add, default=Delays)
        .sink("planes", sinks.Files(out / "planes", format="parquet"))
    )
    return job


def lateness_job(files: str, out: Path, *, bound: timedelta) -> mp.Job:
    """The flights that are more than ``bound`` late by an earlier line of their file, to Parquet files in ``out``."""
    job = mp.Job("lateness")
    _, late = timed_flights(job, files).generate_epochs("epochs", mp.limit_out_of_orderness(bound))
    late.map("short", lambda flight: {"carrier": flight.carrier, "time_hour": flight.time_hour}).sink(
        "late", sinks.Files(out, format="parquet")
    )
    return job


def late_job(files: str, *, compile: bool = True) -> tuple[mp.Job, sinks.Memory]:
    """The flights to each airport that left late, and the minutes, by plain functions of dicts; and the sink.

    ``compile``: whether the functions are computed on columns, or called for each row.
    """
    job, found = mp.Job("late", compile=compile), sinks.Memory()
    flights: mp.StreamBuilder[None, dict[str, Any]] = job.source("flights", sources.Files(files, null_values=["NA"]))
    late = flights.filter("late", lambda flight: flight["dep_delay"] is not None and flight["dep_delay"] >= 15)
    short = late.map("short", lambda flight: {"to": flight["dest"].lower(), "minutes": flight["dep_delay"] - 15})
    sums = short.key_by("to", lambda row: row["to"]).aggregate("sums", n=agg.count(), minutes=agg.sum("minutes"))
    sums.final("ended").sink("found", found)
    return job, found


def timed_flights(job: mp.Job, files: str, rows_per_s: float | None = None) -> mp.StreamBuilder[None, Flight]:
    """The flights with the hour of their planned departure as event time, in milliseconds."""
    source = sources.Files(files, null_values=["NA"], rows=Flight)
    flights = job.source("flights", source if rows_per_s is None else Paced(source, rows_per_s))
    return flights.assign_timestamps("departure", "time_hour", unit="ms")
