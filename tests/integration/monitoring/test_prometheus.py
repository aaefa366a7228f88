"""A real Prometheus scrapes a real job: its rules fire, and every expression of the Grafana dashboard has an answer."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py.metrics import METRICS
from tests.integration.monitoring.conftest import PATIENCE_S, a_job, free_port, until
from tests.tree import ROOT

pytestmark = pytest.mark.needs_prometheus

FILES = ROOT / "examples" / "monitoring"


def promtool(*arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *arguments], cwd=FILES, capture_output=True, text=True, check=False, timeout=PATIENCE_S, **how
    )


def test_the_rules_are_valid_and_fire_when_they_should() -> None:
    for arguments in (("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")):
        done = promtool(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_exported_text_passes_the_checks_of_prometheus() -> None:
    port = free_port()
    handle = mp.InProcess(2, metrics=mp.Metrics(port=port)).start(a_job("docs-text"))
    until(lambda: handle.metrics().written, "it writes")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    handle.stop(timeout_s=PATIENCE_S)
    done = promtool("check", "metrics", input=text)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


class Prometheus:
    """A server on this machine, with its files in ``folder``, that scrapes ``port``."""

    def __init__(self, folder: Path, port: int) -> None:
        for name in ("prometheus.yml", "alerts.yml"):
            shutil.copy(FILES / name, folder / name)
        config = folder / "prometheus.yml"
        config.write_text(config.read_text().replace("9464", str(port)).replace(": 5s", ": 1s"))
        rules = folder / "alerts.yml"
        rules.write_text(rules.read_text().replace("for: 10m", "for: 1s").replace("[10m]", "[10s]"))
        self._port = free_port()
        self._log = (folder / "log").open("w")
        self._server = subprocess.Popen(
            [
                *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"),
                f"--web.listen-address=127.0.0.1:{self._port}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def ask(self, expression: str) -> list[Any]:
        """Return the result of an expression now; nothing while the server starts."""
        query = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/query?{query}", timeout=5) as answer:
                return list(json.load(answer)["data"]["result"])
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # it listens, and has not started completely
                return []
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        except OSError:
            return []

    def close(self) -> None:
        self._server.terminate()
        self._server.wait(PATIENCE_S)
        self._log.close()


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def prometheus(tmp_path: Path, port: int) -> Iterator[Prometheus]:
    folder = tmp_path / "prometheus"
    folder.mkdir()
    server = Prometheus(folder, port)
    yield server
    server.close()


def test_a_real_prometheus_scrapes_a_job_and_raises_an_alert(
    prometheus: Prometheus, port: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    runtime = mp.InProcess(2, metrics=mp.Metrics(port=port), snapshots=mp.Snapshots(tmp_path / "kept", interval_s=1))
    handle = runtime.start(a_job("docs-scraped"))
    request.addfinalizer(lambda: handle.stop(timeout_s=PATIENCE_S))
    until(lambda: prometheus.ask('up{job="malstrom"} == 1'), "it is scraped")
    handle.rescale(3)
    until(lambda: prometheus.ask('malstrom_job_workers{malstrom_job="docs-scraped"} == 3'), "it sees the rescale")
    until(lambda: prometheus.ask("malstrom_rescale_moved_keys_total > 0"), "it sees what moved")
    until(lambda: prometheus.ask("malstrom_snapshot_last_bytes > 0"), "it sees snapshots")
    until(lambda: prometheus.ask("rate(malstrom_source_read_rows_total[5s]) > 0"), "it has two samples")
    grafana = json.loads((FILES / "grafana.json").read_text())
    expressions = [target["expr"] for panel in grafana["panels"] for target in panel["targets"]]
    assert len(expressions) > 20

    def silent() -> list[str]:
        asked = {one: one.replace("$malstrom_job", ".*").replace("$__rate_interval", "10s") for one in expressions}
        return [expression for expression, query in asked.items() if not prometheus.ask(query)]

    until(lambda: not silent(), "each panel has an answer")
    named = {metric.exported for metric in METRICS if any(metric.exported in one for one in expressions)}
    unnamed = {metric.exported for metric in METRICS} - named
    assert unnamed == {
        *("malstrom_job_uptime_seconds", "malstrom_job_metrics_age_seconds", "malstrom_exchange_rows_total"),
        *("malstrom_step_out_rows_total", "malstrom_step_keys", "malstrom_step_watermark_timestamp_seconds"),
        *("malstrom_snapshots_total", "malstrom_rescales_total", "malstrom_rescale_duration_seconds_total"),
        *("malstrom_rescale_moved_slots_total", "malstrom_job_imbalance_ratio", "malstrom_exchange_hot_keys"),
        *("malstrom_autoscale_decided_rescales_total", "malstrom_autoscale_refused_rescales_total"),
        *("malstrom_autoscale_load_ratio", "malstrom_step_unmatched_rows_total", "malstrom_worker_state_bytes"),
        "malstrom_worker_state_lookup_keys_total",
    }
    # Half of all rows have one key; the rule waits a second here.
    until(lambda: prometheus.ask('ALERTS{alertname="MalstromHotKey", alertstate="firing"}'), "the alert fires")
