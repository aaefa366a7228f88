"""Every example does what it says: its output is compared with what it should be, computed in another way."""

from __future__ import annotations

import csv
import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from datetime import UTC, datetime, timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import malstrom_py as mp
from examples import (
    alerts,
    csv_to_parquet,
    dead_letters,
    dice,
    enrich,
    file_per_sensor,
    late_readings,
    picture,
    sensor_means,
    sessions,
    silence,
    word_count,
)
from examples.flights import jobs
from malstrom_py.data.batch import Batch
from malstrom_py.testing import check_operator
from tests.tree import ROOT

EXAMPLES = ROOT / "examples"
INPUT = EXAMPLES / "input"
MODULES = [
    *(alerts, csv_to_parquet, dead_letters, dice, enrich, file_per_sensor, late_readings),
    *(sensor_means, sessions, silence, word_count),
]


def csv_rows(folder: Path) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for file in sorted(folder.glob("*.csv")):
        with file.open(newline="") as lines:
            rows.extend(csv.DictReader(lines))
    return rows


def json_rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.glob("*.json*")) for line in file.read_text().splitlines()]


PROGRAMS = {"dashboard_pictures.py", "picture.py", "ray_data.py", "spark_to_ray.py", "svg.py"}
"""Programs and their drawing rather than jobs; test_demo_spark.py runs the one with Spark, ray/test_ray_data.py
the one with Ray Data, monitoring/test_pictures.py the one with Chromium."""


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


def test_dead_letters_keep_what_is_broken_and_say_why(tmp_path: Path) -> None:
    result = mp.run(dead_letters.job(out=str(tmp_path)))
    assert (result.read, result.dead_letters) == (8, 4)
    assert [(row["order"], float(row["total"])) for row in csv_rows(tmp_path / "orders")] == [
        ("1", 39.0),
        ("2", 196.0),
        ("5", 180.0),
        ("8", 18.0),
    ]
    broken = json_rows(tmp_path / "broken")
    assert sorted(row["step"] for row in broken) == ["lines", "lines", "total", "total"]
    values = [row["value"] for row in broken]
    assert '["order", 7]' in values
    assert {"order": 6, "item": "chair", "pieces": 2} in values
    assert any("KeyError: 'price'" in row["error"] for row in broken)


def test_sensor_means_prints_one_mean_per_sensor(capsys: pytest.CaptureFixture[str]) -> None:
    mp.run(sensor_means.job())
    assert sorted(capsys.readouterr().out.splitlines()) == ["n1: 19.62 °C", "n2: 12.47 °C", "s1: 9.55 °C"]


def test_alerts_tells_the_unbelievable_from_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mp.run(alerts.job(out=str(tmp_path)))
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "ALERT n1 at 06:30: 41.0 °C",
        "ALERT n2 at 06:10: no value",
        "ALERT s1 at 06:30: -9.0 °C",
    ]
    good = pl.read_parquet(tmp_path / "*.parquet")
    assert good.height == 9
    assert good["celsius"].is_between(alerts.LOWEST, alerts.HIGHEST).all()


def test_late_readings_are_those_too_far_behind_their_own_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = mp.run(late_readings.job(out=str(tmp_path)))
    # The northern reading is 15 minutes later than its file, the southern one 13; the bound is 10.
    assert sorted((row["sensor"], row["celsius"]) for row in json_rows(tmp_path)) == [("n2", 12.4), ("s1", 15.2)]
    assert result.late == 2
    assert "17.0" in capsys.readouterr().out.splitlines()


def test_late_readings_under_a_wide_bound_has_none(tmp_path: Path) -> None:
    assert mp.run(late_readings.job(out=str(tmp_path), bound=timedelta(hours=1))).late == 0
    assert json_rows(tmp_path) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_enrich_says_where_each_sensor_stands_in_the_order_of_its_readings(
    workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    result = mp.run(enrich.job(), workers, checks=True)
    told = capsys.readouterr().out.splitlines()
    readings = pl.read_csv(INPUT / "readings-*.csv", try_parse_dates=True, null_values=["NA"])
    for sensor, place in enrich.PLACES.items():
        own = readings.filter(pl.col("sensor") == sensor)
        expected = [f"{time:%H:%M} at {place}: {celsius} °C" for time, celsius in own.select("time", "celsius").rows()]
        assert [line for line in told if f" at {place}: " in line] == expected
    unknown = readings.filter(pl.col("sensor") == "s1").height
    assert told.count("unknown place: s1") == result.dead_letters == unknown > 0
    assert len(told) == readings.height


def test_sessions_end_where_a_user_is_silent_for_a_minute(tmp_path: Path) -> None:
    result = mp.run(sessions.job(out=str(tmp_path)))
    assert sorted((row["key"], int(row["start"]), row["pages"]) for row in csv_rows(tmp_path)) == [
        ("ann", 10, "home shop cart"),
        ("ann", 500, "home"),
        ("bob", 12, "home"),
        ("bob", 190, "shop help"),
        ("cid", 520, "home"),
    ]
    assert result.steps["sessions"].keys == 0, "a user without open clicks is forgotten"


def test_sessions_are_what_a_list_with_an_end_gives_whatever_comes_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "GAP_S", 8)

    def click(message: mp.DataMessage[Any, int], output: mp.Output[Any, Any]) -> None:
        output.emit(message.key, {"second": message.timestamp, "page": str(message.value)}, message.timestamp)

    def by_hand(rows: list[mp.DataMessage[Any, int]]) -> list[dict[str, Any]]:
        found: list[list[tuple[int, str]]] = []
        for second, page in sorted((row.timestamp or 0, str(row.value)) for row in rows):
            if found and second - found[-1][-1][0] < 8:
                found[-1].append((second, page))
            else:
                found.append([(second, page)])
        return [{"start": clicks[0][0], "pages": " ".join(page for _, page in clicks)} for clicks in found]

    def step(stream: mp.KeyedStreamBuilder[Any, Any]) -> Any:
        return stream.stateless_op("click", click).stateful_op("sessions", sessions.Sessions())

    assert check_operator(step, timed=True, oracle=by_hand).cases["oracle"] > 0


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


def test_csv_to_parquet_keeps_values_and_types(tmp_path: Path) -> None:
    mp.run(csv_to_parquet.job(out=str(tmp_path)))
    written = pl.read_parquet(tmp_path / "*.parquet").sort("sensor", "time", "celsius")
    read = pl.read_csv(INPUT / "readings-*.csv", null_values=["NA"], try_parse_dates=True)
    assert written["celsius"].to_list() == read.sort("sensor", "time", "celsius")["celsius"].to_list()
    assert written.schema["time"] == pl.Datetime("us", "UTC")


def test_csv_to_parquet_leaves_malformed_lines_out(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a,b\n1,2\n3\n4,5\n")
    result = mp.run(csv_to_parquet.job(files=str(tmp_path / "in.csv"), out=str(tmp_path / "out")))
    assert (result.written, result.skipped) == (2, 1)
    assert pl.read_parquet(tmp_path / "out" / "*.parquet").rows() == [(1, 2), (4, 5)]


def test_dice_counts_every_throw_and_starts_again_where_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    result = mp.run(dice.job())
    thrown = Counter(throw for table in (0, 1) for throw in dice.throws(table, 0))
    assert result.read == sum(thrown.values()) == 2 * dice.THROWS
    told = [tuple(map(int, re.findall(r"\d+", line))) for line in capsys.readouterr().out.splitlines()]
    assert {(table, face) for table, face, _ in told} == {throw for throw, times in thrown.items() if times >= 50}
    assert list(dice.throws(1, 200)) == list(dice.throws(1, 0))[200:]


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
def test_an_example_says_how_it_is_run(module: Any) -> None:
    name = Path(module.__file__).stem
    assert f"python -m examples.{name} " in (module.__doc__ or "")
    assert f"malstrom run examples.{name}\n" in (module.__doc__ or "")
    assert isinstance(module.job(), mp.Job)


@pytest.mark.parametrize(
    ("checks", "kept", "workers"),
    [(False, False, 2), (True, False, 1), (False, True, 1), (True, True, 2)],
    ids=["plain", "checked", "kept", "checked and kept"],
)
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_an_example_runs_in_test_mode_and_with_snapshots_as_it_runs_without(
    module: Any, checks: bool, kept: bool, workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(run: str, **options: Any) -> tuple[list[str], set[str], int]:
        """The output of a run, the lines of its text files, both in any order, and the number of rows that it wrote."""
        out = tmp_path / run
        where = {"out": str(out)} if "out" in signature(module.job).parameters else {}
        result = mp.run(module.job(**where), **options)
        found = (file for ending in ("csv", "json*") for file in out.rglob(f"*.{ending}"))
        files = (file for file in found if "_malstrom" not in file.parts)
        lines = {line for file in files for line in file.read_text().splitlines()}
        return sorted(capsys.readouterr().out.splitlines()), lines, result.written

    # A barrier after each record, so that the state of each step is stored each time.
    snapshots = mp.Snapshots(tmp_path / "snapshots", interval_s=0.001) if kept else None
    batch = mp.Batching(rows_max=1)
    options = {"workers": workers, "checks": checks, "snapshots": snapshots, "batch": batch, "progress": False}
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
