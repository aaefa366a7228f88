"""docs/ray.md: the manifest that it links to has room for the workers of its job; its table has every option."""

from __future__ import annotations

import inspect
import re

import yaml  # type: ignore[import-untyped]  # Ray brings it, without types

import malstrom_py as mp
from tests.tree import ROOT

PAGE = (ROOT / "docs" / "ray.md").read_text()


def test_the_manifest_has_room_for_the_workers_of_its_job() -> None:
    (path,) = set(re.findall(r"\]\(\.\./(\S+\.yaml)\)", PAGE))
    spec = yaml.safe_load((ROOT / path).read_text())["spec"]
    wanted = re.search(r"malstrom run \S+ .*--runtime ray --address auto -w (\d+)$", spec["entrypoint"])
    assert wanted is not None
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    cpus = int(group["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
    assert int(wanted[1]) <= group["replicas"] * cpus


def test_every_option_of_the_runtime_is_on_the_page() -> None:
    options = inspect.signature(mp.RayRuntime).parameters
    assert [name for name in options if not re.search(rf"\b{name}\b", PAGE)] == []
