"""The flights demo, whole: its output, its exit code, and that its checks would notice."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import polars as pl
import pytest

from examples.flights.__main__ import demo
from examples.flights.check import by_polars, differences
from examples.flights.data import FLIGHTS
from tests.integration.commands import python


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def done(out: Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "examples.flights", "--out", out)


def test_the_demo_rescales_and_prints_what_it_found(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert "336,776 read" in done.stdout
    assert done.stdout.count("\nEQUAL to Polars") == 2
    assert re.search(
        r"^EQUAL by plain functions of dicts: [\d,]+ rows/s called .* [\d,]+ on columns$", done.stdout, re.MULTILINE
    )
    assert "Out of order by at most 24 h: 0 of 336,776 flights late (0%)" in done.stdout
    assert "Out of order by at most 2 h: 230,196 of 336,776 flights late (68%)" in done.stdout
    assert "UA United Air Lines Inc." in done.stdout
    assert re.findall(r"^ (\d -> \d) ", done.stdout, flags=re.MULTILINE) == ["2 -> 4", "4 -> 2"]
    assert done.stderr == ""


def test_the_demo_accounts_for_every_flight(done: subprocess.CompletedProcess[str]) -> None:
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.endswith(" yes ")}
    assert rows["carriers"] == ["336,776", "336,776", "0", "0", "0", "0", "yes"]
    assert rows["planes"] == ["336,776", "334,264", "2,512", "0", "0", "0", "yes"]


def test_the_demo_cuts_twelve_months_and_draws_a_plot(done: subprocess.CompletedProcess[str], out: Path) -> None:
    files = sorted((out / "input").iterdir())
    assert [file.name for file in files] == [f"flights-2013-{month:02}.csv" for month in range(1, 13)]
    assert sum(len(file.read_bytes().splitlines()) - 1 for file in files) == FLIGHTS
    assert (out / "flights.svg").read_text().rstrip().endswith("</svg>")


def test_a_lost_flight_is_noticed(
    done: subprocess.CompletedProcess[str], out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "input").mkdir()
    month = (out / "input" / "flights-2013-02.csv").read_text().splitlines(keepends=True)[:-1]
    (tmp_path / "input" / "flights-2013-02.csv").write_text("".join(month))
    assert not demo(tmp_path)
    assert f"{len(month) - 1:,} read" in capsys.readouterr().out


def test_differences_are_found_and_named(done: subprocess.CompletedProcess[str], out: Path) -> None:
    right = by_polars(str(out / "input" / "flights-*.csv"), "carrier")
    assert differences(right, right) == []
    assert differences(right.head(5), right) == ["5 keys here, 16 there, and not the same"]
    one = pl.col("key") == "UA"
    for column, change in {"worst": 1, "departed": -1, "mean": 1e-6, "std": 1e-6}.items():
        wrong = right.with_columns(pl.when(one).then(pl.col(column) + change).otherwise(pl.col(column)).alias(column))
        assert differences(wrong, right) == [f"{column} differs for 1 keys, the first is UA"]
    missing = right.with_columns(pl.when(one).then(None).otherwise(pl.col("mean")).alias("mean"))
    assert differences(missing, right) == ["mean differs for 1 keys, the first is UA"]
    close = right.with_columns(pl.col("mean") * (1 + 1e-13))
    assert differences(close, right) == []
