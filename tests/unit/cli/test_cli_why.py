"""``malstrom why``: the inputs of a row that a job has written to a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import malstrom_py as mp
from malstrom_py.cli.app import app
from malstrom_py.cli.running import load_job

JOB = """
from datetime import timedelta
from pathlib import Path

import malstrom_py as mp
from malstrom_py import agg, sinks, sources, windows

HERE = Path(__file__).parent
ROWS = [{"article": "tea" if n % 3 else "jam", "at": n, "price": n * n} for n in range(60)]

job = mp.Job("shop")
timed = job.source("sales", sources.Memory(ROWS)).assign_timestamps("time", "at", unit="s")
on_time, late = timed.generate_epochs("epochs", mp.limit_out_of_orderness(0))
on_time.capture_into("seen", HERE / "seen")
articles = on_time.key_by("article", "article")
minutes = articles.window("tens", windows.tumbling(timedelta(seconds=10))).aggregate(total=agg.sum("price"))
minutes.sink("out", sinks.Files(HERE / "out", format="json"))
"""


@pytest.fixture
def spec(tmp_path: Path) -> str:
    """A job that has run."""
    path = tmp_path / "shop_why.py"
    path.write_text(JOB)
    mp.run(load_job(f"{path}:job"), 2, progress=False)
    return f"{path}:job"


def lines_of(*words: str, code: int = 0) -> list[str]:
    done = CliRunner().invoke(app, ["why", *words])
    assert done.exit_code == code, done.output
    return done.output.splitlines()


def test_a_line_of_the_output_is_explained_by_its_inputs(spec: str, tmp_path: Path) -> None:
    written = [line for path in sorted((tmp_path / "out").glob("*.json*")) for line in path.read_text().splitlines()]
    assert len(written) == 12
    for text in written:
        *inputs, said = lines_of(spec, text)
        row, records = json.loads(text), [json.loads(line) for line in inputs]
        assert {record["recording"] for record in records} == {"seen"}
        assert {record["value"]["article"] for record in records} == {row["article"]}
        assert sum(record["value"]["price"] for record in records) == row["total"]
        assert said.startswith(f"{len(records)} records of key {row['article']!r} in the window from ")


def test_a_key_and_a_window_do_and_a_wrong_row_or_step_is_an_error(spec: str) -> None:
    assert [json.loads(line)["time"] for line in lines_of(spec, '{"key": "jam", "start": 10}')[:-1]] == [12, 15, 18]
    assert "step 'tens' has not made this row" in lines_of(spec, '{"key": "rum"}', code=1)[0]
    assert "rows that are described so" in lines_of(spec, '{"key": "tea"}', "--step", "tens", code=1)[0]
    assert "has no step 'ten'" in lines_of(spec, "7", "--step", "ten", code=1)[0]
    assert "has not made this row" in lines_of(spec, "no json", code=1)[0]
