"""docs/ray.md: its manifest has the fields that KubeRay's API has, its table the options that `RayRuntime` has."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # Ray brings it, without types

import malstrom_py as mp
from tests.pages import blocks_of
from tests.tree import ROOT

PAGE = (ROOT / "docs" / "ray.md").read_text()

FIELDS = {
    "RayJobSpec": {
        "activeDeadlineSeconds", "backoffLimit", "clusterSelector", "deletionStrategy", "entrypoint",
        "entrypointNumCpus", "entrypointNumGpus", "entrypointResources", "jobId", "managedBy", "metadata",
        "rayClusterSpec", "runtimeEnvYAML", "shutdownAfterJobFinishes", "submissionMode", "submitterConfig",
        "submitterPodTemplate", "suspend", "ttlSecondsAfterFinished",
    },
    "RayClusterSpec": {
        "authOptions", "autoscalerOptions", "enableInTreeAutoscaling", "gcsFaultToleranceOptions", "headGroupSpec",
        "headServiceAnnotations", "managedBy", "rayVersion", "suspend", "workerGroupSpecs",
    },
    "HeadGroupSpec": {"enableIngress", "headService", "rayStartParams", "serviceType", "template"},
    "WorkerGroupSpec": {
        "groupName", "idleTimeoutSeconds", "maxReplicas", "minReplicas", "numOfHosts", "rayStartParams", "replicas",
        "scaleStrategy", "suspend", "template",
    },
}  # fmt: skip
"""The fields of ray.io/v1, as KubeRay 1.5 documents them."""


@pytest.fixture(scope="module")
def manifest() -> Any:
    (text,) = [block.text for block in blocks_of(PAGE) if block.info == "yaml"]
    return yaml.safe_load(text)


def test_the_manifest_has_only_fields_that_there_are(manifest: Any) -> None:
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayJob")
    spec = manifest["spec"]
    cluster = spec["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    for kind, found in {
        "RayJobSpec": spec,
        "RayClusterSpec": cluster,
        "HeadGroupSpec": cluster["headGroupSpec"],
        "WorkerGroupSpec": workers,
    }.items():
        assert set(found) <= FIELDS[kind], kind
    assert spec["submissionMode"] in {"K8sJobMode", "HTTPMode", "InteractiveMode"}
    assert cluster["authOptions"] == {"mode": "token"}
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]


def test_what_ray_start_is_given_is_text_and_each_mount_has_its_volume(manifest: Any) -> None:
    cluster = manifest["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert {"name", "image", "resources"} <= set(container)
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_the_manifest_has_room_for_the_workers_of_its_job(manifest: Any) -> None:
    spec = manifest["spec"]
    wanted = re.search(r"malstrom run \S+ --runtime ray --address auto -w (\d+)$", spec["entrypoint"])
    assert wanted is not None
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    cpus = int(group["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
    assert int(wanted[1]) <= group["replicas"] * cpus


def test_every_option_of_the_runtime_is_on_the_page() -> None:
    options = inspect.signature(mp.RayRuntime).parameters
    assert [name for name in options if not re.search(rf"\b{name}\b", PAGE)] == []
