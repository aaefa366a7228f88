"""What is asked of a Ray cluster before a job starts there."""

from __future__ import annotations

import json as some_module
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py.errors import PlanError
from malstrom_py.workers.ray import cluster
from malstrom_py.workers.ray.cluster import check_fields, check_room, check_version, describe_needs, room_in
from malstrom_py.workers.ray.runtime import split_env, worker_options


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


# What a worker needs, and what Ray is to bring to it.


DEFAULTS: dict[str, Any] = {
    "num_cpus": 1.0, "num_gpus": 0.0, "memory": 0, "resources": None, "runtime_env": None, "placement": "spread",
}  # fmt: skip


def test_what_ray_counts() -> None:
    options = worker_options(**{**DEFAULTS, "num_gpus": 0.5, "memory": 2 << 30, "resources": {"disk": 1.0}})
    assert options.needs == {"CPU": 1.0, "GPU": 0.5, "memory": 2 << 30, "disk": 1.0}
    assert describe_needs(options.needs) == "1 CPU, 0.5 GPU, 2.14748 GB memory, 1 disk"


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"num_cpus": -1}, "num_cpus must be a number of at least 0, got -1"),
        ({"num_cpus": True}, "num_cpus must be a number of at least 0, got True"),
        ({"resources": {"disk": -1.0}}, "resources maps names to amounts, as for an actor of Ray"),
        ({"resources": ["disk"]}, "resources maps names to amounts, as for an actor of Ray"),
        ({"streams": "ray"}, "streams='ray' is gone, workers connect directly: leave it out, and open ports"),
        ({"ports": (0, 10)}, "ports must be the first and the last port"),
        ({"ports": (20, 10)}, "ports must be the first and the last port"),
        ({"ports": 8000}, "ports must be the first and the last port"),
        ({"start_timeout_s": "soon"}, "start_timeout_s must be a number of at least 0"),
        ({"num_gpus": -1}, "num_gpus must be a number of at least 0, got -1"),
        ({"num_gpus": float("nan")}, "num_gpus must be a number of at least 0"),
        ({"memory": 1.5}, "memory must be a whole number of bytes"),
        ({"memory": -1}, "memory must be a whole number of bytes"),
        ({"memory": "2 GB"}, "memory must be a whole number of bytes"),
        ({"placement": "strict_pack"}, "placement must be one of spread, pack, got 'strict_pack'"),
        ({"resources": {"GPU": 1.0}}, "not 'GPU': give num_gpus= instead"),
        ({"resources": {"memory": 1.0}}, "not 'memory': give memory= instead"),
        ({"runtime_env": ["pip"]}, "runtime_env must be a dict"),
        ({"runtime_env": "pip"}, "runtime_env must be a dict"),
        ({"detached": "no"}, "True or False"),
        ({"runtime_env": {1: 2}}, "runtime_env must be a dict"),
        ({"runtime_env": {"working_dir": "/no/such/folder"}}, "/no/such/folder, but no such folder exists"),
        ({"runtime_env": {"working_dir": "/no/such.zip"}}, "/no/such.zip, but no such file exists"),
        ({"runtime_env": {"py_modules": "shapes"}}, "py_modules in runtime_env must be a list of paths, got str"),
        ({"runtime_env": {"py_modules": ["/no/such"]}}, "py_modules in runtime_env names /no/such"),
    ],
)
def test_an_option_that_cannot_be_is_refused_before_ray_is_asked(options: dict[str, Any], reported: str) -> None:
    with pytest.raises(PlanError, match=reported):
        mp.RayRuntime(1, **options)


def test_local_paths_are_for_the_whole_program_and_the_rest_for_each_actor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shapes").mkdir()
    env = {"working_dir": ".", "excludes": ["*.csv"], "py_modules": [Path("shapes")], "env_vars": {"A": "1"}}
    for_program, for_actors = split_env(env)
    assert for_program == {
        "working_dir": str(tmp_path), "excludes": ["*.csv"], "py_modules": [str(tmp_path / "shapes")],
    }  # fmt: skip
    assert for_actors == {"env_vars": {"A": "1"}}


def test_what_ray_fetches_itself_goes_with_each_actor() -> None:
    env = {"working_dir": "s3://bucket/code.zip", "excludes": ["*.csv"]}
    assert split_env(env) == ({}, env)


def test_a_module_itself_can_be_brought() -> None:
    assert split_env({"py_modules": [some_module]}) == ({"py_modules": [some_module]}, None)


def test_nothing_is_nothing() -> None:
    assert split_env(None) == ({}, None)
    assert split_env({}) == ({}, None)
