"""What a worker on Ray is said to need, and what Ray is to bring to it."""

from __future__ import annotations

import json as some_module
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py.errors import PlanError
from malstrom_py.workers.ray.cluster import describe_needs
from malstrom_py.workers.ray.runtime import split_env, worker_options

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
