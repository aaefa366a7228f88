"""What is asked of a Ray cluster before a job starts there."""

from __future__ import annotations

from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py.errors import PlanError
from malstrom_py.workers.ray import cluster
from malstrom_py.workers.ray.cluster import check_fields, check_room, check_version, room_in


@pytest.mark.parametrize("version", ["2.52.0", "2.60.1", "3.0.0", "2.100.0rc1"])
def test_a_ray_that_is_new_enough_passes(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["2.51.9", "2.9.3", "1.13.0", "unknown"])
def test_an_old_ray_is_refused_with_what_to_install(version: str) -> None:
    with pytest.raises(PlanError, match=r"too old.*ray>=2\.52"):
        check_version(version)


@pytest.mark.parametrize(
    ("nodes", "needs", "room"),
    [
        ([{"CPU": 2.0}], {"CPU": 1.0}, 2),
        ([{"CPU": 1.5}, {"CPU": 1.5}], {"CPU": 1.0}, 2),
        ([{"CPU": 0.3}], {"CPU": 0.1}, 3),
        ([{"CPU": 8.0, "disk": 1.0}, {"CPU": 8.0}], {"CPU": 1.0, "disk": 0.5}, 2),
        ([{"CPU": 8.0}], {"CPU": 1.0, "GPU": 1.0}, 0),
        ([], {"CPU": 1.0}, 0),
        ([], {"CPU": 0.0}, 0),
    ],
)
def test_room_is_counted_node_by_node(nodes: list[dict[str, float]], needs: dict[str, float], room: int) -> None:
    assert room_in(nodes, needs) == room


def test_workers_that_need_nothing_always_have_room() -> None:
    assert room_in([{"CPU": 1.0}], {"CPU": 0.0}) > 1_000


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 0},
        {"num_cpus": -1},
        {"num_cpus": True},
        {"resources": {"disk": -1.0}},
        {"resources": ["disk"]},
        {"streams": "carrier pigeon"},
        {"ports": (0, 10)},
        {"ports": (20, 10)},
        {"ports": 8000},
        {"start_timeout_s": "soon"},
        {"batch": 100},
    ],
)
def test_an_option_that_cannot_be_is_refused_before_ray_is_asked(options: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        mp.RayRuntime(**options)


def test_a_cluster_without_room_is_told_with_the_option_of_python_and_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "_nodes", lambda but: [{"CPU": 0.5, "GPU": 1.0}])
    says = r"^1 worker of 1 CPU each .* RayRuntime\(num_cpus=0\.5\), or --num-cpus 0\.5 on the command line$"
    with pytest.raises(PlanError, match=says):
        check_room(1, {"CPU": 1.0})
    with pytest.raises(PlanError, match=r"2 workers of .* or ask for fewer workers$"):
        check_room(2, {"CPU": 0.0, "GPU": 1.0})


def test_a_field_of_a_runtime_env_that_ray_does_not_know_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_RUNTIME_ENV_PLUGINS", raising=False)
    check_fields({"working_dir": ".", "env_vars": {"A": "1"}, "pip": [], "py_modules": []})
    with pytest.raises(PlanError, match=r"runtime_env has nonsense, which Ray does not know: it knows .*working_dir"):
        check_fields({"working_dir": ".", "nonsense": 1})
    monkeypatch.setenv("RAY_RUNTIME_ENV_PLUGINS", '[{"class": "mine.Plugin"}]')
    check_fields({"nonsense": 1})
