"""The options of ``malstrom run`` that are about Ray, and a job on Ray that goes on without its program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

import malstrom_py as mp
from malstrom_py.cli_telling import WrongCommand, tell_result, tell_stopped
from malstrom_py.clock import SystemClock
from malstrom_py.extras import pip_install
from malstrom_py.workers.on_ray.options import is_amount

RuntimeEnvOption = Annotated[
    str | None,
    typer.Option(
        "--runtime-env",
        metavar="JSON|FILE",
        help='What Ray is to bring to each worker, such as {"working_dir": "."}: as JSON, or in a JSON or YAML file.',
        show_default=False,
    ),
]
ResourcesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--resources",
        metavar="NAME=N|JSON",
        help="What each worker on Ray needs of the cluster's own resources; may be repeated.",
        show_default=False,
    ),
]
DetachedOption = Annotated[
    bool,
    typer.Option("--detached", help="Return once the job runs on Ray: it goes on until it ends or is stopped."),
]

_LOOK_S: Final = 0.1


def ray_options(
    *,
    address: str | None = None,
    num_cpus: float | None = None,
    runtime_env: str | None = None,
    resources: Sequence[str] | None = None,
    detached: bool = False,
) -> dict[str, Any]:
    """Return these options as `RayRuntime` takes them, those that were given. `WrongCommand` if one cannot be read."""
    given: dict[str, Any] = {}
    if address is not None:
        given["address"] = address
    if num_cpus is not None:
        given["num_cpus"] = num_cpus
    if runtime_env is not None:
        given["runtime_env"] = _env(runtime_env)
    if resources:
        given["resources"] = {name: amount for text in resources for name, amount in _resources(text).items()}
        for name, amount in given["resources"].items():
            if not name or not is_amount(amount):
                raise WrongCommand(f"--resources is NAME=N with numbers of at least 0, got {amount!r} for {name!r}")
    if detached:
        given["detached"] = True
    return given


def refuse_without_ray(options: dict[str, Any]) -> None:
    """`WrongCommand` if there are any, for a job in this process."""
    for name in options:
        raise WrongCommand(f"--{name.replace('_', '-')} is for jobs on Ray: add --runtime ray, or leave it out")


def start_detached(runtime: mp.RayRuntime, job: mp.Job, *, address: str | None, quiet: bool) -> None:
    """Start a job that goes on without this program, and return once its workers are at work, or it has ended.

    Raises:
        MalstromError: it has failed before.
    """
    handle, clock = runtime.start(job, control=False), SystemClock()
    try:
        while (status := handle.status()).phase in {"opening", "recovering"}:
            clock.sleep_s(_LOOK_S)
    except KeyboardInterrupt as error:
        error.add_note(f"job {job.name!r} goes on; `malstrom stop {job.name}{_at(address)}` ends it")
        raise
    if status.state in {"finished", "failed", "stopped"}:
        try:
            tell_result(handle.wait(), quiet=quiet)
        except mp.JobEnded as error:
            tell_stopped(error, quiet=quiet)
    elif not quiet:
        typer.echo(
            f"job {job.name} runs on {status.workers} worker{'' if status.workers == 1 else 's'}, and goes on without "
            f"this program. To watch it, and to end it:\n  malstrom status {job.name}{_at(address)}\n"
            f"  malstrom stop {job.name}{_at(address)}",
            err=True,
        )


def _at(address: str | None) -> str:
    return "" if address is None else f" --address {address}"


def _env(text: str) -> dict[str, Any]:
    """A ``runtime_env`` from JSON, or from a file with it."""
    if text.lstrip().startswith("{"):
        return _object(text, "--runtime-env")
    file = Path(text).expanduser()
    try:
        content = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongCommand(
            f'--runtime-env is JSON, such as {{"working_dir": "."}}, or a file with it; {file} cannot be read: {error}'
        ) from None
    if file.suffix not in {".yaml", ".yml"}:
        return _object(content, f"--runtime-env {file}")
    try:
        import yaml  # type: ignore[import-untyped]  # Ray brings it, without types
    except ImportError:
        raise WrongCommand(f"--runtime-env with a YAML file needs Ray: {pip_install('ray')}") from None
    try:
        read = yaml.safe_load(content)
    except yaml.YAMLError as error:
        raise WrongCommand(f"--runtime-env {file} is not YAML: {error}") from None
    return _as_object(read, f"--runtime-env {file}")


def _resources(text: str) -> dict[str, float]:
    if text.lstrip().startswith("{"):
        return _object(text, "--resources")
    amounts: dict[str, float] = {}
    for pair in text.split(","):
        name, _, amount = pair.partition("=")
        try:
            amounts[name.strip()] = float(amount)
        except ValueError:
            raise WrongCommand(f"--resources is NAME=N, such as highmem=1, or JSON; got {text!r}") from None
    return amounts


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except ValueError as error:
        raise WrongCommand(f"{what} is not JSON: {error}") from None
    return _as_object(read, what)


def _as_object(read: object, what: str) -> dict[str, Any]:
    if not isinstance(read, dict):
        raise WrongCommand(f"{what} is an object of names and values, got {type(read).__name__}")
    return read
