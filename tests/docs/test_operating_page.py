"""docs/operating.md: its metrics are those of the code, and what it deploys is valid."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]  # Ray brings it, without types

from malstrom_py.cli.commands import loaded
from malstrom_py.errors import EXTRAS
from tests.docs import metrics_table
from tests.pages import blocks_of
from tests.tree import ROOT

PAGE = (ROOT / "docs" / "operating.md").read_text()
DEPLOYMENT = ROOT / "examples" / "deployment"

MARGIN_S = 10
"""How much longer than ``--stop-timeout`` a supervisor must wait: the job has 5 s more to end without a snapshot."""

KUBERNETES = "1.37"

RAY_JOB = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"entrypoint", "submissionMode", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "rayClusterSpec"},
    "spec.rayClusterSpec": {
        *("rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"),
        *("enableInTreeAutoscaling", "autoscalerOptions"),
    },
    "spec.rayClusterSpec.authOptions": {"mode"},
    "spec.rayClusterSpec.autoscalerOptions": {"version", "idleTimeoutSeconds", "resources"},
    "spec.rayClusterSpec.headGroupSpec": {"rayStartParams", "template"},
    "worker group": {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"},
}
"""Fields of KubeRay's API 1.5 that the manifests use, by where they are."""

MANIFESTS = ("kuberay.yaml", "kuberay-cluster.yaml")


def manifest(name: str = "kuberay.yaml") -> Any:
    return yaml.safe_load((DEPLOYMENT / name).read_text())


def cluster_of(name: str) -> Any:
    """The cluster that a manifest describes: that of a job, or itself."""
    spec = manifest(name)["spec"]
    return spec.get("rayClusterSpec", spec)


def pod_templates(name: str = "kuberay.yaml") -> dict[str, Any]:
    cluster = cluster_of(name)
    return {"head": cluster["headGroupSpec"]["template"], "workers": cluster["workerGroupSpecs"][0]["template"]}


def service() -> configparser.ConfigParser:
    """The unit; lines that end in a backslash are joined first, as systemd does."""
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DEPLOYMENT / "malstrom.service").read_text().replace("\\\n", " "))
    return parser


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, in order: each with its arguments."""
    text = "\n".join(
        line for line in (DEPLOYMENT / "Dockerfile").read_text().splitlines() if not line.startswith("#")
    ).replace("\\\n", " ")
    pairs = (line.split(maxsplit=1) for line in text.splitlines() if line.strip())
    return [(name, arguments) for name, arguments in pairs]


def one(name: str) -> str:
    (arguments,) = [arguments for each, arguments in instructions() if each == name]
    return arguments


COMMANDS: dict[str, Callable[[], list[str]]] = {
    "malstrom.service": lambda: shlex.split(service()["Service"]["ExecStart"]),
    "Dockerfile": lambda: json.loads(one("CMD")),
    "kuberay.yaml": lambda: shlex.split(manifest()["spec"]["entrypoint"]),
}


def parsed(command: list[str]) -> dict[str, Any]:
    """The options of a ``malstrom run``, as the command line reads them; it refuses those that it does not have."""
    assert Path(command[0]).name == "malstrom"
    assert command[1] == "run"
    return dict(loaded("run").make_context("run", command[2:]).params)


def test_the_table_of_metrics_is_that_of_the_code() -> None:
    assert metrics_table.cut()[1] == metrics_table.table(), "write it: python -m tests.docs.metrics_table"


def test_metrics_that_the_page_names_exist() -> None:
    exported = set(re.findall(r"^\| `(malstrom_\w+)`", metrics_table.table(), flags=re.MULTILINE))
    named = set(re.findall(r"\bmalstrom_[a-z_]+", PAGE)) - {"malstrom_job", "malstrom_py"}
    assert named - exported == set()


@pytest.mark.parametrize("name", sorted({*COMMANDS, *MANIFESTS}))
def test_the_page_links_to_the_file(name: str) -> None:
    assert f"(../examples/deployment/{name})" in PAGE


def test_the_yaml_of_the_page_on_ray_is_the_file() -> None:
    shown = [block.text for block in blocks_of((ROOT / "docs" / "ray.md").read_text()) if block.info == "yaml"]
    assert set(shown) <= {(DEPLOYMENT / "kuberay.yaml").read_text()}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_of_a_file_is_one(name: str) -> None:
    given = parsed(COMMANDS[name]())
    assert (given["metrics_port"], given["log_format"].value, given["interval_s"]) == (9464, "json", 30)


def test_supervisors_wait_longer_than_a_stop_may_take() -> None:
    waits = {
        "malstrom.service": {int(service()["Service"]["TimeoutStopSec"])},
        "Dockerfile": {int(found) for found in re.findall(r"docker run .*--stop-timeout (\d+)", PAGE)},
        "kuberay.yaml": {pod["spec"]["terminationGracePeriodSeconds"] for pod in pod_templates().values()},
    }
    assert all(waits.values())
    for name, found in waits.items():
        assert min(found) >= parsed(COMMANDS[name]())["stop_timeout_s"] + MARGIN_S, name


def test_the_service_ends_the_job_by_a_planned_stop() -> None:
    unit = service()["Service"]
    # SIGTERM to the processes of a group would reach what the job has started, too.
    assert (unit["KillSignal"], unit["KillMode"], unit["Restart"]) == ("SIGTERM", "mixed", "on-failure")
    assert unit["User"] != "root"
    assert unit["Environment"] == f"XDG_RUNTIME_DIR=/run/{unit['RuntimeDirectory']}"


@pytest.mark.parametrize("program", [found] if (found := shutil.which("systemd-analyze")) else [])
def test_systemd_accepts_the_service(program: str, tmp_path: Path) -> None:
    text = (DEPLOYMENT / "malstrom.service").read_text().replace("/srv/visits/.venv/bin/malstrom", "/bin/true")
    (tmp_path / "visits.service").write_text(text)
    command = [program, "verify", "--man=no", str(tmp_path / "visits.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "visits.service" in line]) == (0, [])


def test_the_image_is_made_as_the_page_says() -> None:
    names = [name for name, _ in instructions()]
    assert names[0] == "FROM"
    known = {"FROM", "RUN", "COPY", "WORKDIR", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "CMD"}
    assert set(names) <= known
    assert one("STOPSIGNAL") == "SIGTERM"
    assert one("USER") not in {"root", "0"}
    assert names.index("USER") < names.index("CMD")
    (extras,) = re.findall(r"pip install .*'/src/clone\[([a-z,]+)\]'", "\n".join(a for _, a in instructions()))
    assert set(extras.split(",")) <= set(EXTRAS)
    _, _, check = one("HEALTHCHECK").partition("CMD ")
    port = parsed(COMMANDS["Dockerfile"]())["metrics_port"]
    assert f"127.0.0.1:{port}/healthz" in json.loads(check)[2]
    assert int(one("EXPOSE")) == port


@pytest.mark.parametrize("name", MANIFESTS)
@pytest.mark.parametrize("group", ["head", "workers"])
def test_the_pods_are_valid(group: str, name: str) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": group}, "spec": pod_templates(name)[group]["spec"]}
    assert kubernetes_validate.validate(pod, KUBERNETES, strict=True) == KUBERNETES
    broken = {**pod, "spec": {**pod["spec"], "terminationGracePeriodSeconds": "long"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, KUBERNETES, strict=True)


def test_the_manifest_has_fields_of_kuberay() -> None:
    found = manifest()
    assert (found["apiVersion"], found["kind"]) == ("ray.io/v1", "RayJob")
    assert set(found) == RAY_JOB[""]
    assert set(found["spec"]) <= RAY_JOB["spec"]
    assert found["spec"]["submissionMode"] == "K8sJobMode"


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_cluster_has_fields_of_kuberay(name: str) -> None:
    cluster = cluster_of(name)
    (group,) = cluster["workerGroupSpecs"]
    assert set(cluster) <= RAY_JOB["spec.rayClusterSpec"]
    assert set(cluster["authOptions"]) <= RAY_JOB["spec.rayClusterSpec.authOptions"]
    assert set(cluster["headGroupSpec"]) <= RAY_JOB["spec.rayClusterSpec.headGroupSpec"]
    assert set(group) <= RAY_JOB["worker group"]
    assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    assert cluster["authOptions"] == {"mode": "token"}
    # KubeRay takes the parameters of `ray start` as text.
    assert all(type(value) is str for value in cluster["headGroupSpec"]["rayStartParams"].values())


def test_the_cluster_grows_and_shrinks() -> None:
    found, other = manifest("kuberay-cluster.yaml"), cluster_of("kuberay.yaml")
    assert (found["apiVersion"], found["kind"]) == ("ray.io/v1", "RayCluster")
    assert set(found) == RAY_JOB[""]
    cluster, (group,) = found["spec"], found["spec"]["workerGroupSpecs"]
    assert cluster["enableInTreeAutoscaling"] is True
    assert set(cluster["autoscalerOptions"]) <= RAY_JOB["spec.rayClusterSpec.autoscalerOptions"]
    assert group["minReplicas"] < group["maxReplicas"]
    assert (cluster["rayVersion"], cluster["authOptions"]) == (other["rayVersion"], other["authOptions"])


@pytest.mark.parametrize("group", ["head", "workers"])
def test_what_runs_before_a_pod_stops_is_shell_and_ends_in_time(group: str) -> None:
    spec = pod_templates()[group]["spec"]
    shell, flag, script = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert flag == "-c"
    assert subprocess.run([shell, "-n", flag, script], check=False, timeout=10).returncode == 0
    (limit_s,) = map(int, re.findall(r"(?:--timeout|^timeout) (\d+)", script))
    assert limit_s + MARGIN_S <= spec["terminationGracePeriodSeconds"]
