"""docs/ray.md: its manifest starts as many workers as it has room for; its table has every option."""

from __future__ import annotations

import inspect
import re

import yaml  # type: ignore[import-untyped]  # Ray brings it, without types

import malstrom_py as mp
from tests.pages import blocks_of
from tests.tree import ROOT

PAGE = (ROOT / "docs" / "ray.md").read_text()


def test_the_manifest_has_room_for_the_workers_of_its_job() -> None:
    (text,) = [block.text for block in blocks_of(PAGE) if block.info == "yaml"]
    spec = yaml.safe_load(text)["spec"]
    wanted = re.search(r"malstrom run \S+ .*--runtime ray --address auto -w (\d+)$", spec["entrypoint"])
    assert wanted is not None
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    cpus = int(group["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
    assert int(wanted[1]) <= group["replicas"] * cpus


def test_every_option_of_the_runtime_is_on_the_page() -> None:
    options = inspect.signature(mp.RayRuntime).parameters
    assert [name for name in options if not re.search(rf"\b{name}\b", PAGE)] == []
