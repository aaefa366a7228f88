"""Every example does what it says: its output is compared with what it should be, computed in another way."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ET
import zipfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import malstrom_py as mp
from examples import delays, file_per_sensor, picture, sessions, silence, weather, word_count
from examples.flights import jobs
from examples.flights.data import package_data
from malstrom_py.data.batch import Batch
from malstrom_py.testing import check_operator
from tests.tree import ROOT

EXAMPLES = ROOT / "examples"
INPUT = EXAMPLES / "input"
MODULES = [delays, file_per_sensor, sessions, silence, weather, word_count]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Three days of the flights, the weather of these days, and a few of the flights: the name of each file."""
    folder = tmp_path_factory.mktemp("real")
    with zipfile.ZipFile(package_data() / "flights.csv.zip") as archive:
        lines = archive.read("flights.csv").decode().splitlines()[: 1 + 842 + 943 + 914]
    observed = (package_data() / "weather.csv").read_text().splitlines()
    days = [line for line in observed[1:] if line.split(",")[2] == "1" and int(line.split(",")[3]) <= 3]
    content = {"flights": lines, "few": lines[:1] + lines[1::90], "weather": [observed[0], *days]}
    for name, rows in content.items():
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")
    return {name: str(folder / f"{name}.csv") for name in content}


def frame(file: str) -> pl.DataFrame:
    return pl.read_csv(file, null_values=["NA"], try_parse_dates=True)


def csv_rows(folder: Path) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for file in sorted(folder.glob("*.csv")):
        with file.open(newline="") as lines:
            rows.extend(csv.DictReader(lines))
    return rows


PROGRAMS = {
    "capture_recv.py",
    "capture_send.py",
    "dashboard_pictures.py",
    "mirror.py",
    "picture.py",
    "ray_data.py",
    "spark_to_ray.py",
    "svg.py",
}
"""Programs and their drawing rather than jobs; test_demo_spark.py runs the one with Spark, ray/test_ray_data.py
the one with Ray Data, monitoring/test_pictures.py the one with Chromium, test_capture_streams.py those that capture,
connectors/test_postgres_mirror.py the one that mirrors a table."""


def test_every_example_is_tested_and_short() -> None:
    jobs = {file.name: file for file in EXAMPLES.glob("*.py") if file.name not in PROGRAMS}
    assert {Path(module.__file__ or "").name for module in MODULES} == set(jobs)
    assert [name for name, file in jobs.items() if len(file.read_text().splitlines()) > 64] == []


def test_the_picture_shows_a_run_that_was_rescaled_and_lost_nothing() -> None:
    recorded = picture.run(mp.InProcess(2, progress=False), 500, plan=((0.2, 4), (0.5, 2)), end_s=2.0)
    assert recorded.is_right
    assert [rescale.workers for rescale in recorded.rescales] == [4, 2]
    ET.fromstring(picture.draw(recorded))


def test_word_count_counts_every_word(tmp_path: Path) -> None:
    mp.run(word_count.job(out=str(tmp_path)))
    words = Counter(re.findall(r"[a-z]+", " ".join(file.read_text().lower() for file in INPUT.glob("*.txt"))))
    rows = csv_rows(tmp_path)
    assert {row["key"]: int(row["count"]) for row in rows} == words
    assert len(rows) == len(words)


def test_delays_are_those_of_each_airline_and_day(real: dict[str, str], tmp_path: Path) -> None:
    result = mp.run(delays.job(real["flights"], str(tmp_path)), 2, checks=True)
    departed = frame(real["flights"]).drop_nulls("dep_delay").with_columns(day=pl.col("time_hour").dt.date())
    expected = departed.group_by("carrier", "day").agg(
        flights=pl.len(), mean=pl.col("dep_delay").mean(), worst=pl.col("dep_delay").max()
    )
    named = expected.join(frame(str(package_data() / "airlines.csv")), "carrier").sort("name", "day")
    written = pl.read_parquet(tmp_path / "*.parquet").sort("airline", "day")
    assert written.select("airline", "day", "flights", "mean", "worst").rows() == [
        (row["name"], row["day"], row["flights"], pytest.approx(row["mean"]), row["worst"])
        for row in named.iter_rows(named=True)
    ]
    assert (result.late, written.height > 40) == (0, True)


@pytest.mark.parametrize("workers", [1, 3])
def test_weather_is_that_of_the_hour_at_the_airport(
    workers: int, real: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    mp.run(weather.job(real["flights"], real["weather"]), workers)
    flights = frame(real["flights"]).drop_nulls("dep_delay").sort("time_hour")
    observed = (
        frame(real["weather"]).drop_nulls("wind_speed").sort("time_hour").select("origin", "time_hour", "wind_speed")
    )
    speed = pl.col("wind_speed")
    wind = pl.when(speed < 10).then(pl.lit("calm")).when(speed < 20).then(pl.lit("fresh")).otherwise(pl.lit("strong"))
    joined = flights.join_asof(observed, on="time_hour", by="origin", tolerance="3h").drop_nulls("wind_speed")
    means = joined.group_by(wind=wind).agg(flights=pl.len(), minutes=pl.col("dep_delay").mean())
    expected = [weather.line(row["wind"], row) for row in means.iter_rows(named=True)]
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(expected)
    assert len(expected) > 1


def test_sessions_end_where_a_user_is_silent_for_a_minute(tmp_path: Path) -> None:
    result = mp.run(sessions.job(out=str(tmp_path)), 2)
    rows = pl.read_parquet(tmp_path / "*.parquet").sort("user", "window_start")
    shown = [f"{row['user']} {row['window_start']:%H:%M:%S} {row['window_end']:%H:%M:%S}" for row in rows.to_dicts()]
    assert shown == [
        "ann 09:00:10 09:01:31",
        "ann 09:08:20 09:09:20",
        "bob 09:00:12 09:01:12",
        "bob 09:03:10 09:04:20",
        "cid 09:08:40 09:09:40",
    ]
    assert rows.select("clicks", "landed", "left").rows()[:4:3] == [(3, "home", "cart"), (2, "shop", "help")]
    assert result.late == 0


def test_silence_is_where_the_next_reading_is_too_far_whatever_comes_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE_S", 8)

    def by_hand(rows: list[mp.DataMessage[Any, Any]]) -> list[mp.DataMessage[Any, str]]:
        times = sorted({row.timestamp or 0 for row in rows})
        silent = [time for time, after in zip(times, [*times[1:], 1_000_000], strict=True) if after - time > 8]
        said = "{key}: silent for 0 minutes since {hour:02}:{minute:02}"
        return [
            mp.DataMessage(row.key, said.format(key=row.key, hour=time // 3600, minute=time // 60), time + 8)
            for row, time in ((rows[0], time) for time in silent)
        ]

    step = silence.Silence()
    assert check_operator(lambda s: s.stateful_op("silence", step), timed=True, oracle=by_hand).cases["oracle"] > 0


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_silence_is_told_where_a_sensor_says_nothing_for_twelve_minutes(
    workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    mp.run(silence.job(), workers=workers, checks=True)
    readings = pl.read_csv(INPUT / "readings-*.csv", try_parse_dates=True).sort("time")
    gaps = readings.with_columns(gap=pl.col("time").shift(-1).over("sensor") - pl.col("time"))
    silent = gaps.filter(pl.col("gap").is_null() | (pl.col("gap") > timedelta(seconds=silence.SILENCE_S)))
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(
        f"{sensor}: silent for 12 minutes since {time:%H:%M}" for sensor, time in silent.select("sensor", "time").rows()
    )
    assert silent.height == 5


@pytest.mark.parametrize("workers", [1, 3])
def test_a_file_per_sensor_holds_its_readings_in_the_order_of_its_station(workers: int, tmp_path: Path) -> None:
    mp.run(file_per_sensor.job(out=str(tmp_path)), workers=workers)
    read = [line.split(",") for file in INPUT.glob("readings-*.csv") for line in file.read_text().splitlines()[1:]]
    expected: dict[str, list[str]] = {}
    for sensor, time, celsius in read:
        expected.setdefault(sensor, []).append(f"{time[11:16]},{celsius}")
    assert {file.stem: file.read_text().splitlines() for file in tmp_path.iterdir()} == expected


def test_the_files_per_sensor_go_on_where_a_position_says(tmp_path: Path) -> None:
    sink = file_per_sensor.FilePerSensor(str(tmp_path))
    batch = Batch([{"sensor": "n1", "time": datetime(2024, 5, 1, 6, tzinfo=UTC), "celsius": 1.5}])
    first = sink.build_part("n1", None)
    first.write(batch)
    position = first.snapshot()
    first.write(batch)
    first.close()
    again = sink.build_part("n1", position)
    again.write(batch)
    again.close()
    assert (tmp_path / "n1.csv").read_text() == "06:00,1.5\n" * 2


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_an_example_says_how_it_is_run(module: Any, real: dict[str, str]) -> None:
    name = Path(module.__file__).stem
    assert f"python -m examples.{name} " in (module.__doc__ or "")
    assert f"malstrom run examples.{name}\n" in (module.__doc__ or "")
    assert isinstance(module.job(**of_few(module, real)), mp.Job)


def of_few(module: Any, real: dict[str, str]) -> dict[str, str]:
    """Return the arguments of an example of real data with which it reads little."""
    few = {"flights": real["few"], "weather": real["weather"]}
    return {name: file for name, file in few.items() if name in signature(module.job).parameters}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_an_example_runs_in_test_mode_with_snapshots_as_it_runs_without(
    module: Any, tmp_path: Path, real: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    def said(run: str, **options: Any) -> tuple[list[str], set[str], int]:
        """The output of a run, the rows of its files, both in any order, and the number of rows that it wrote."""
        out = tmp_path / run
        where = {"out": str(out)} if "out" in signature(module.job).parameters else {}
        result = mp.run(module.job(**of_few(module, real), **where), **options)
        rows = {line for file in out.rglob("*.csv") for line in file.read_text().splitlines()}
        rows |= {str(row) for file in out.rglob("*.parquet") for row in pl.read_parquet(file).rows()}
        return sorted(capsys.readouterr().out.splitlines()), rows, result.written

    # A barrier after each record, so that the state of each step is stored each time.
    snapshots, batch = mp.Snapshots(tmp_path / "snapshots", interval_s=0.001), mp.Batching(rows_max=1)
    options = {"workers": 2, "checks": True, "snapshots": snapshots, "batch": batch, "progress": False}
    assert said("again", **options) == said("plain", progress=False)


def test_the_jobs_of_the_flights_demo_run_in_test_mode_with_snapshots(tmp_path: Path) -> None:
    flights = tmp_path / "flights.csv"
    lines = [f"2013-01-01T{hour:02}:00:00Z,UA,N{hour % 3},{hour}" for hour in range(24)]
    flights.write_text(
        "\n".join(["time_hour,carrier,tailnum,dep_delay", *lines, "2013-01-01T00:00:00Z,UA,NA,NA"]) + "\n"
    )
    snapshots = mp.Snapshots(tmp_path / "snapshots", interval_s=0.001)
    options: dict[str, Any] = {"checks": True, "snapshots": snapshots, "batch": mp.Batching(rows_max=1)}
    result = mp.run(jobs.delays_job(str(flights), tmp_path / "out"), 2, progress=False, **options)
    assert (result.read, result.written) == (25, 49)
    late = mp.run(jobs.lateness_job(str(flights), tmp_path / "late", bound=timedelta(hours=1)), 2, **options)
    assert (late.read, late.written) == (25, 1)
