"""What pages say of the code: the names on them exist, and nothing of a list of the code is missing on its page."""

from __future__ import annotations

import inspect
import re
from ast import literal_eval
from dataclasses import fields

import pytest
import yaml  # type: ignore[import-untyped]  # Ray brings it, without types

import malstrom_py as mp
from malstrom_py.operators.logic import HOOKS
from malstrom_py.testing import LAWS
from malstrom_py.workers.ray.runtime import RayKeywords
from malstrom_py.workers.simulator.coverage import HARD_CASES, SNAPSHOT_CASES
from tests.tree import ROOT

STATIC = ROOT / "workers" / "monitoring" / "static"


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


@pytest.mark.parametrize("name", ["migrating-from-bytewax", "migrating-from-spark"])
def test_the_steps_to_which_users_of_others_are_sent_exist(name: str) -> None:
    linked = re.findall(r"\[`(\w+)`\]\((?:operators/\w+|joins|enrich)\.md(?:#\w+)?\)", page(name))
    assert len(linked) > 15
    assert [step for step in linked if not hasattr(mp.KeyedStreamBuilder, step)] == []


def test_the_table_has_the_laws_in_their_order() -> None:
    table = page("custom-operators").partition("| law | says |\n|---|---|\n")[2].partition("\n\n")[0]
    assert [line.split(" | ")[0].strip("| ") for line in table.splitlines()] == [law.name for law in LAWS]


def test_the_hooks_of_logics_and_the_options_of_ray_are_on_their_pages() -> None:
    assert [hook for hook in HOOKS if not re.search(rf"^\| `{hook}\(", page("api"), flags=re.MULTILINE)] == []
    options = {*inspect.signature(mp.RayRuntime).parameters, *RayKeywords.__annotations__} - {"keywords"}
    assert [name for name in options if not re.search(rf"\b{name}\b", page("ray"))] == []


def test_the_options_of_a_job_are_in_their_table_with_their_defaults() -> None:
    table = page("api").partition("### Options of a job\n")[2].partition("\n## ")[0]
    cells = " ".join(line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `"))
    shown = {name: literal_eval(default or "None") for name, default in re.findall(r"`(\w+)=([^`]*)`", cells)}
    assert shown == {field.name: field.default for field in fields(mp.RunOptions)}


def test_the_page_of_the_simulator_names_its_hits() -> None:
    rows = re.search(r"\| look for \|.*?\n\n", page("simulation"), re.DOTALL)
    assert rows is not None
    named = re.findall(r"`([^`]+)`", " ".join(row.split("|")[1] for row in rows.group().strip().splitlines()))
    assert len(named) > 10
    assert set(named) <= {*HARD_CASES, *SNAPSHOT_CASES}


def test_every_area_of_the_dashboard_is_explained() -> None:
    html = (STATIC / "index.html").read_text()
    areas = re.findall(r'<section class="card".*?<h2 [^>]*>([^<]+)</h2>', html, flags=re.DOTALL)
    areas += re.findall(r"data-opens=\S+>([^<]+)</button>", html)
    assert len(areas) > 5
    assert [area for area in areas if f"**{area}**" not in page("dashboard")] == []


def test_the_libraries_of_the_dashboard_are_listed_with_their_versions() -> None:
    licences = (STATIC / "vendor" / "LICENSES.txt").read_text()
    named = set(re.findall(r"^(?:@dagrejs/)?(uPlot|dagre|graphlib) ([\d.]+)", licences, flags=re.MULTILINE))
    assert set(re.findall(r"^\| (\w+) ([\d.]+) \| MIT \|", page("dependencies"), flags=re.MULTILINE)) == named


def test_the_manifest_has_room_for_the_workers_of_its_job() -> None:
    path = "examples/deployment/kuberay.yaml"
    assert f"](../{path})" in page("ray")
    spec = yaml.safe_load((ROOT / path).read_text())["spec"]
    wanted = re.search(r"malstrom run \S+ .*--runtime ray --address auto -w (\d+)$", spec["entrypoint"])
    assert wanted is not None
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    cpus = int(group["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
    assert int(wanted[1]) <= group["replicas"] * cpus
