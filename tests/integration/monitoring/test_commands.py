"""The commands that watch a job: top, metrics, dashboard, ``status --watch``, and the options of ``run`` for that."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import malstrom_py as mp
from malstrom_py.cli import watching
from malstrom_py.metrics import JobMetrics
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.monitoring import prometheus
from malstrom_py.workers.reports.commands import Command
from tests.integration.commands import COMMAND, malstrom, started
from tests.integration.monitoring.conftest import PATIENCE_S, TOKEN, Server, a_job, free_port, until

JOB = "docs-watched"


@pytest.fixture
def handle() -> Iterator[mp.JobHandle]:
    started = mp.InProcess(2).start(a_job(JOB))
    until(lambda: started.metrics().written, "it writes")
    yield started
    if started.status().state == "running":
        started.stop(timeout_s=PATIENCE_S)


def test_top_prints_the_figures_once_where_there_is_no_terminal(handle: mp.JobHandle, tmp_path: Path) -> None:
    done = malstrom(tmp_path, "top", JOB)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"job {JOB}: running, 2 workers, ")
    cells = {line.split()[0]: line.split() for line in lines if line.split()}
    assert cells["seen"][1] == "count"
    assert cells["step"][:4] == ["step", "kind", "in/s", "out/s"]
    assert [line.split()[0] for line in lines if "█" in line or "·" in line] == ["0", "1"]


def test_top_and_metrics_as_json_are_the_metrics_of_the_job(handle: mp.JobHandle, tmp_path: Path) -> None:
    for command in (("top", JOB, "--once", "--json"), ("metrics", JOB, "--json")):
        found = json.loads(malstrom(tmp_path, *command).stdout)
        assert (found["job"], found["state"]) == (JOB, "running")
        assert found["steps"]["numbers"]["rows_in"] > 0


def test_tap_shows_records_that_pass_or_their_rate(handle: mp.JobHandle, tmp_path: Path) -> None:
    done = malstrom(tmp_path, "tap", JOB, "seen", "--count", "3")
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines)) == (0, 3), done.stderr
    assert re.fullmatch(r"worker [01]  time \d+  key \d+  \d+", lines[0])
    assert re.fullmatch(r"sampled: [\d,]+ records passed, 3 shown\n", done.stderr)
    done = malstrom(tmp_path, "tap", JOB, "out", "--key", "7", "--count", "2", "--json", "--save", "seen")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(record["key"], record["output"]) for record in found] == [(7, "")] * 2
    kept = [json.loads(line) for line in malstrom(tmp_path, "replay", "seen").stdout.splitlines()]
    assert kept == [{"key": one["key"], "time": one["timestamp"], "value": one["value"]} for one in found]
    assert malstrom(tmp_path, "capture", "check", "seen", "out").returncode == 0
    assert malstrom(tmp_path, "tap", JOB, "out", "--save", "seen").returncode == 2
    done = malstrom(tmp_path, "tap", JOB, "seen", "--rate", "--count", "1")
    assert re.fullmatch(r"[\d,]+ records/s\n", done.stdout), done
    found = json.loads(malstrom(tmp_path, "tap", JOB, "seen", "--rate", "--count", "1", "--json").stdout)
    assert found["passed"] >= found["rows_per_s"] / 2 > 0


def test_a_tap_of_a_wrong_step_lists_the_steps_and_ctrl_c_ends_one(handle: mp.JobHandle, tmp_path: Path) -> None:
    done = malstrom(tmp_path, "tap", JOB, "nope")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: job {JOB!r} has no step 'nope' to tap: its steps are 'numbers', 'at', ")
    assert "have no keys. Tap it without a key" in malstrom(tmp_path, "tap", JOB, "odd", "--key", "1").stderr
    assert malstrom(tmp_path, "tap", "no-such-job", "odd").returncode == 2
    with started(tmp_path, *COMMAND, "tap", JOB, "seen") as tapping:
        assert tapping.stdout is not None
        assert tapping.stdout.readline()
        tapping.send_signal(2)
        _, said = tapping.communicate(timeout=PATIENCE_S)
    assert (tapping.returncode, said.split(":")[0]) == (0, "sampled")


def test_metrics_are_printed_for_prometheus_or_served_until_the_job_ends(handle: mp.JobHandle, tmp_path: Path) -> None:
    assert f'malstrom_job_workers{{malstrom_job="{JOB}"}} 2.0' in malstrom(tmp_path, "metrics", JOB).stdout
    port = free_port()
    with started(tmp_path, *COMMAND, "metrics", JOB, "--port", str(port)) as serving:
        until(lambda: _answers(port), "it serves")
        handle.stop(timeout_s=PATIENCE_S)
        _, told = serving.communicate(timeout=PATIENCE_S)
    assert serving.returncode == 0, told
    assert told == f"metrics of job {JOB}: http://127.0.0.1:{port}/metrics\n"


def test_the_dashboard_of_a_terminal_finds_jobs_as_they_begin_and_ends_by_ctrl_c(tmp_path: Path) -> None:
    server = Server(free_port())
    options = ("--port", str(server.port), "--token", TOKEN, "--history", str(tmp_path), "--values")
    with started(tmp_path, *COMMAND, "dashboard", *options) as serving:
        until(lambda: _answers(server.port, "/"), "it serves")
        handle = mp.InProcess(2).start(a_job(JOB))
        until(lambda: JOB in [line["job"] for line in server.get("/api/jobs")["jobs"]], "it shows the job")
        until(lambda: server.get(f"/api/jobs/{JOB}/tap/seen")["passed"], "it shows records")
        assert server.post(f"/api/jobs/{JOB}/rescale", {"workers": 3})["ok"]
        until(lambda: handle.status().workers == 3, "the job is rescaled")
        handle.stop(timeout_s=PATIENCE_S)
        until(lambda: server.view(JOB)["state"] == "finished", "the page shows the end")
        serving.send_signal(2)
        printed, _ = serving.communicate(timeout=PATIENCE_S)
    assert serving.returncode == 0
    assert printed == f"dashboard: http://127.0.0.1:{server.port}/?token={TOKEN}\n"
    assert list(tmp_path.glob(f"{JOB}-*.view.json")), "the page is kept"


def test_status_is_printed_until_the_job_ends(tmp_path: Path) -> None:
    handle = mp.InProcess().start(a_job(JOB))
    with started(tmp_path, *COMMAND, "status", JOB, "--watch", "--json") as watching:
        assert watching.stdout is not None
        first = json.loads(watching.stdout.readline())
        handle.stop(timeout_s=PATIENCE_S)
        watching.communicate(timeout=PATIENCE_S)
    assert (first["job"], first["state"], watching.returncode) == (JOB, "running", 0)
    wrong = malstrom(tmp_path, "status", "--watch")
    assert (wrong.returncode, wrong.stderr.splitlines()[0][:28]) == (2, "error: --watch is for one jo")


def test_a_job_that_does_not_run_is_named_by_each_command(tmp_path: Path) -> None:
    for command in ("top", "metrics", "dashboard"):
        done = malstrom(tmp_path, command, "docs-nowhere")
        assert done.returncode == 2
        assert done.stderr.startswith("error: no job 'docs-nowhere' can be reached")


def test_run_serves_metrics_and_the_page_and_says_where(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import malstrom_py as mp\n"
        "from malstrom_py import sinks, sources\n"
        "job = mp.Job('shop')\n"
        "job.source('in', sources.Memory(range(10))).sink('out', sinks.Stdout())\n"
    )
    port = free_port()
    options = ("--quiet", "--dashboard", "--history", "kept", "--metrics-port", str(port))
    done = malstrom(tmp_path, "run", "shop", *options)
    assert done.returncode == 0, done.stderr
    assert f"metrics of job shop: http://127.0.0.1:{port}/metrics" in done.stderr
    assert "dashboard of job shop: http://127.0.0.1:" in done.stderr
    (view,) = (tmp_path / "kept").glob("*.view.json")
    assert json.loads(view.read_text())["state"] == "finished"


def _answers(port: int, path: str = "/metrics") -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5):
            return True
    except OSError:
        return False


class Gone:
    """A job that has ended."""

    name = JOB

    def ask(self, command: object) -> None:
        raise mp.JobEnded("it has ended", job=JOB)


def test_top_of_a_job_that_has_ended_meanwhile_draws_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    watching._draw(Gone(), 1.0)
    assert JOB not in capsys.readouterr().out


class Blocked:
    """A job whose thread does not answer."""

    name = JOB

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock

    def ask(self, command: Command) -> JobMetrics:
        self.clock.advance(command.timeout_s or 0.0)
        return JobMetrics(JOB, "running", "steady")


def test_blocked_jobs_do_not_add_up_in_a_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    monkeypatch.setattr(prometheus, "monotonic", clock.monotonic_s)
    jobs = [Blocked(clock) for _ in range(3)]
    options = mp.Metrics(port=free_port())
    endpoint, *_ = [prometheus.MetricsEndpoint.join(job, options) for job in jobs]
    began_s = clock.monotonic_s()
    list(endpoint.collect())
    for job in jobs:
        endpoint.leave(job)
    assert clock.monotonic_s() - began_s == pytest.approx(prometheus.SCRAPE_S)
