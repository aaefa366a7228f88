"""What a worker on Ray needs, and what Ray is to bring to it, as a user says it.

Rule: what Ray brings to a whole program only (a local ``working_dir``, ``py_modules``) is set where Ray is joined; all
else goes with each actor.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any, Final, get_args

from malstrom_py.errors import PlanError
from malstrom_py.workers.on_ray.setup import Placement, WorkerOptions

_SIZES: Final = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


def worker_options(
    *,
    num_cpus: float,
    num_gpus: float,
    memory: int,
    resources: Mapping[str, float] | None,
    runtime_env: Mapping[str, Any] | None,
    placement: Placement,
) -> WorkerOptions:
    """The options of a worker, checked. `PlanError` for one that cannot be."""
    for name, value in (("num_cpus", num_cpus), ("num_gpus", num_gpus)):
        if not is_amount(value):
            raise PlanError(f"RayRuntime: {name} is a number of at least 0, got {value!r}")
    if type(memory) is not int or memory < 0:
        raise PlanError(f"RayRuntime: memory is a whole number of bytes per worker, such as 2 << 30, got {memory!r}")
    named = resources if isinstance(resources, Mapping) else {} if resources is None else {"": None}
    if not all(isinstance(name, str) and name and is_amount(amount) for name, amount in named.items()):
        raise PlanError(f"RayRuntime: resources maps names to amounts, as for an actor of Ray, got {resources!r}")
    for name in _SIZES.keys() & named.keys():
        raise PlanError(
            f"RayRuntime: resources are those that a cluster defines itself, not {name!r}: for that there is "
            f"{_SIZES[name]}="
        )
    if placement not in get_args(Placement):
        raise PlanError(f"RayRuntime: placement is one of {', '.join(get_args(Placement))}, got {placement!r}")
    for_program, for_actors = split_env(runtime_env)
    return WorkerOptions(
        num_cpus, dict(resources or {}), for_actors, num_gpus, memory, placement, for_program=for_program
    )


def split_env(env: object) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A ``runtime_env``: what of it a whole program has, with paths in full, and what each actor has.

    >>> split_env({"py_modules": ["s3://bucket/shapes.zip"], "env_vars": {"A": "1"}})
    ({}, {'py_modules': ['s3://bucket/shapes.zip'], 'env_vars': {'A': '1'}})
    """
    if env is None:
        return {}, None
    if not isinstance(env, Mapping) or not all(isinstance(name, str) for name in env):
        raise PlanError(f"RayRuntime: runtime_env is a dict, as for an actor of Ray, got {type(env).__name__}")
    for_program: dict[str, Any] = {}
    if _is_local(folder := env.get("working_dir")):
        for_program["working_dir"] = _found("working_dir", folder)
    modules = env.get("py_modules")
    if modules is not None and (isinstance(modules, str | Path) or not isinstance(modules, Sequence)):
        raise PlanError(f"RayRuntime: py_modules in runtime_env is a list of paths, got {type(modules).__name__}")
    if any(map(_is_local, modules or ())):
        for_program["py_modules"] = [_found("py_modules", module) for module in modules or ()]
    if for_program and "excludes" in env:
        for_program["excludes"] = env["excludes"]
    for_actors = {name: value for name, value in env.items() if name not in for_program}
    return for_program, for_actors or None


def is_amount(value: object) -> bool:
    """Whether it is a number of at least 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value >= 0


def _is_local(what: object) -> bool:
    return isinstance(what, os.PathLike | ModuleType) or (isinstance(what, str) and "://" not in what)


def _found(name: str, what: Any) -> Any:
    """A local path in full; anything else as it is. `PlanError` if there is nothing at the path."""
    if not isinstance(what, str | os.PathLike) or "://" in os.fspath(what):
        return what
    path = Path(what).expanduser().absolute()
    is_file = path.suffix in {".zip", ".jar"} or (name == "py_modules" and path.suffix in {".py", ".whl"})
    if not (path.is_file() if is_file else path.is_dir()):
        kind = "file" if is_file else "folder"
        raise PlanError(f"RayRuntime: {name} in runtime_env names {path}, and there is no such {kind}")
    return str(path)
