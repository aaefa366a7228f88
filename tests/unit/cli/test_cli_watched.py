"""The options of ``malstrom run`` that let others watch the job."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import malstrom_py as mp
from malstrom_py.cli.app import app
from malstrom_py.cli.watching import plain_text, watched_options
from malstrom_py.metrics import JobMetrics


@pytest.mark.parametrize(
    ("port", "host", "expected"),
    [
        (None, None, {}),
        (0, None, {"metrics": mp.Metrics(port=0)}),
        (9464, "0.0.0.0", {"metrics": mp.Metrics(port=9464, host="0.0.0.0")}),
    ],
)
def test_metrics_are_served_where_the_options_say(port: int | None, host: str | None, expected: object) -> None:
    assert watched_options(port, host, dashboard=False, history=None) == expected


def test_a_history_needs_the_dashboard() -> None:
    assert watched_options(None, None, dashboard=False, history=Path("runs")) == {
        "dashboard": mp.Dashboard(history=Path("runs"))
    }


def test_a_host_of_metrics_without_a_port_is_refused() -> None:
    done = CliRunner().invoke(app, ["run", "examples.word_count", "--metrics-host", "0.0.0.0"])
    assert (done.exit_code, "give --metrics-port too" in done.output) == (2, True)


@pytest.mark.parametrize(("state", "said"), [("failed", "error: no more"), ("stopped", "no more")])
def test_a_planned_stop_is_not_called_an_error(state: str, said: str) -> None:
    assert plain_text(JobMetrics("shop", state, "ended", error="no more")).splitlines()[-1] == said
