"""The commands ``malstrom run`` and ``malstrom explain``, and the loading of a user's job.

Exit codes: 0 done, 1 the job failed, 2 the command was wrong, 130 stopped by Ctrl-C, 143 by SIGTERM before the job
started, or by a second SIGTERM."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import json
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final

import cloudpickle
import typer

import malstrom_py as mp
from malstrom_py.builder.compiled_steps import why_text
from malstrom_py.builder.explain import as_plain as plain_plan
from malstrom_py.cli import options
from malstrom_py.cli import reload as cli_reload
from malstrom_py.cli import snapshots as cli_snapshots
from malstrom_py.cli import watching as cli_watching
from malstrom_py.cli.commands import examples
from malstrom_py.cli.output import (
    UserCodeFailed,
    WrongCommand,
    exit_text,
    print_json,
    print_out,
    print_result,
    print_stopped,
    reporting_errors,
    users_place,
)
from malstrom_py.clock import SystemClock
from malstrom_py.errors import pip_install
from malstrom_py.errors.text import describe_error, redacting
from malstrom_py.metrics import ENDED
from malstrom_py.workers.ray.runtime import is_amount
from malstrom_py.workers.runtime.run_options import RunKeywords

_LOOK_S: Final = 0.1


def ray_options(
    *,
    address: str | None = None,
    num_cpus: float | None = None,
    runtime_env: str | None = None,
    resources: Sequence[str] | None = None,
    detached: bool = False,
) -> dict[str, Any]:
    """Return the given options as arguments of `RayRuntime`. `WrongCommand` if one cannot be parsed."""
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
                raise WrongCommand(
                    f"--resources must be NAME=N with numbers of at least 0, got {amount!r} for {name!r}"
                )
    if detached:
        given["detached"] = True
    return given


def refuse_without_ray(options: dict[str, Any]) -> None:
    """Raise `WrongCommand` if an option of Ray was given for a job in this process."""
    for name in options:
        raise WrongCommand(f"--{name.replace('_', '-')} is for jobs on Ray: add --runtime ray, or leave it out")


def start_detached(
    runtime: mp.RayRuntime, job: mp.Job, *, address: str | None, quiet: bool, as_json: bool = False
) -> None:
    """Start a job that continues without this program; return once its workers run or the job has ended.

    Raises:
        MalstromError: the job failed during its start.
    """
    handle, clock = runtime.start(job, control=False), SystemClock()
    try:
        while (status := handle.status()).phase in {"opening", "recovering"}:
            clock.sleep_s(_LOOK_S)
    except KeyboardInterrupt as error:
        error.add_note(f"job {job.name!r} continues to run; `malstrom stop {job.name}{_at(address)}` ends it")
        raise
    if status.state in ENDED:
        try:
            print_result(handle.wait(), quiet=quiet, as_json=as_json)
        except mp.JobEnded as error:
            print_stopped(error, quiet=quiet, as_json=as_json)
        return
    if not quiet:
        typer.echo(
            f"job {job.name} runs on {status.workers} worker{'' if status.workers == 1 else 's'} and continues without "
            f"this program. To watch and to stop it:\n  malstrom status {job.name}{_at(address)}\n"
            f"  malstrom stop {job.name}{_at(address)}",
            err=True,
        )
    if as_json:
        print_json({"job": job.name, "state": status.state, "workers": status.workers})


def _at(address: str | None) -> str:
    return "" if address is None else f" --address {address}"


def _env(text: str) -> dict[str, Any]:
    """Read a ``runtime_env`` from JSON or from a file."""
    if text.lstrip().startswith("{"):
        return _object(text, "--runtime-env")
    file = Path(text).expanduser()
    try:
        content = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongCommand(
            f'--runtime-env is JSON, such as {{"working_dir": "."}}, or a JSON or YAML file; {file} cannot be read: '
            f"{error.strerror if isinstance(error, OSError) else error}"
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
            raise WrongCommand(f"--resources must be NAME=N, such as highmem=1, or JSON; got {text!r}") from None
    return amounts


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except ValueError as error:
        raise WrongCommand(f"{what} is not JSON: {error}") from None
    return _as_object(read, what)


def _as_object(read: object, what: str) -> dict[str, Any]:
    if not isinstance(read, dict):
        raise WrongCommand(f"{what} must be an object of names and values, got {type(read).__name__}")
    return read


_DEFAULT_NAME: Final = "job"


app = typer.Typer(rich_markup_mode=None)

JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="module:name or path/to/file.py:name. The name is a Job, or a function without arguments that returns "
        f"one; the default name is '{_DEFAULT_NAME}'.",
        show_default=False,
    ),
]


@app.command(
    epilog=examples(
        "malstrom run jobs.shop:job",
        "malstrom run path/to/shop.py -w 4 --snapshots snapshots --interval 30",
        "malstrom run jobs.shop --log-format json --json --quiet",
        "malstrom run jobs.shop --dashboard --metrics-port 9464",
        "malstrom run jobs.shop --runtime ray --address auto --detached",
        "malstrom run jobs.shop --runtime ray --autoscale 1:8 --target 0.6",
    )
)
def run(
    job: JobArgument,
    quiet: options.QuietOption = False,
    workers: options.WorkersOption = 1,
    autoscale: options.AutoscaleOption = None,
    target: options.TargetOption = None,
    batch_rows: options.BatchRowsOption = None,
    no_control: options.NoControlOption = False,
    runtime: options.RuntimeOption = None,
    address: options.ClusterOption = None,
    num_cpus: options.CpusOption = None,
    resources: options.ResourcesOption = None,
    runtime_env: options.RuntimeEnvOption = None,
    detached: options.DetachedOption = False,
    snapshots: cli_snapshots.SnapshotsOption = None,
    interval_s: cli_snapshots.IntervalOption = None,
    resume: cli_snapshots.ResumeOption = None,
    allow_dropped_state: cli_snapshots.AllowDroppedStateOption = False,
    reload: cli_reload.ReloadOption = False,
    metrics_port: cli_watching.MetricsPortOption = None,
    metrics_host: cli_watching.MetricsHostOption = None,
    dashboard: cli_watching.DashboardOption = False,
    history: cli_watching.HistoryOption = None,
    values: cli_watching.ValuesOption = False,
    stop_timeout_s: options.StopTimeoutOption = None,
    state_memory: options.StateMemoryOption = None,
    redact_errors: options.RedactErrorsOption = False,
    log_format: options.LogFormatOption = None,
    log_level: options.LogLevelOption = None,
    as_json: options.RunJsonOption = False,
    traceback: options.TracebackOption = False,
) -> None:
    """Run a job to its end.

    The job runs in this process, in several of this machine, or on Ray. Progress and a summary go to standard error.
    While it runs, the commands status, top, dashboard, events, rescale, reload and stop find it by its name, also from
    another terminal. With --snapshots a job that did not finish resumes from its newest snapshot.

    SIGTERM stops the job as the command stop does; the exit code is then 0, or 1 if the stop takes longer than
    --stop-timeout. A second SIGTERM, after more than a second, ends the program immediately with exit code 143.
    """
    with (
        redacting(redact_errors),
        reporting_errors(traceback, has_option=True),
        cli_reload.reloading(reload, no_control, detached) as reloads,
    ):
        options.configure_logs(log_format, log_level)
        limit_s = options.stop_timeout(stop_timeout_s, detached=detached)
        snapshots = reloads.snapshots(snapshots)
        kept = cli_snapshots.kept(snapshots, interval_s, resume, allow_dropped_state=allow_dropped_state)
        watched = cli_watching.watched_options(
            metrics_port, metrics_host, dashboard=dashboard, history=history, values=values
        )
        for_ray = ray_options(
            address=address, num_cpus=num_cpus, runtime_env=runtime_env, resources=resources, detached=detached
        )
        keywords: RunKeywords = {
            "batch": None if batch_rows is None else mp.Batching(rows_max=batch_rows),
            "progress": False if quiet else None,
            "autoscale": options.autoscale_of(autoscale, target),
            "redact_errors": redact_errors,
            "state": options.state_of(state_memory),
            **kept,
            **watched,
        }
        given = mp.RunOptions(**keywords)
        if runtime is options.Runtime.RAY:
            on_ray = mp.RayRuntime(workers, options=given, **for_ray)
            if detached:
                start_detached(on_ray, load_job(job), address=address, quiet=quiet, as_json=as_json)
                return
            running: mp.InProcess | mp.Processes | mp.RayRuntime = on_ray
        else:
            refuse_without_ray(for_ray)
            running = _on_this_machine(runtime, workers, given)
        loaded = load_job(job)
        reloads.watch(loaded, address)
        _run_to_end(running, loaded, control=not no_control, limit_s=limit_s, quiet=quiet, as_json=as_json)


def _on_this_machine(
    runtime: options.Runtime | None, workers: int, given: mp.RunOptions
) -> mp.InProcess | mp.Processes:
    most = workers if given.autoscale is None else max(workers, given.autoscale.max)
    in_processes = runtime is options.Runtime.PROCESSES or (runtime is None and 1 < most <= mp.Processes.processors())
    kind = mp.Processes if in_processes else mp.InProcess
    return kind(workers, options=given)


def _run_to_end(
    runtime: mp.InProcess | mp.Processes | mp.RayRuntime,
    job: mp.Job,
    *,
    control: bool,
    limit_s: float,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run ``job`` until it finishes or a planned stop ends it, and print which."""
    try:
        result = runtime.run(job, control=control, stop_on_sigterm=True, stop_timeout_s=limit_s)
    except mp.JobEnded as error:
        print_stopped(error, quiet=quiet, as_json=as_json)
    else:
        print_result(result, quiet=quiet, as_json=as_json)
        if not quiet:
            _warn_of_lost_rows(job)


def _warn_of_lost_rows(job: mp.Job) -> None:
    """Print a warning if ``job`` has written only to memory, which ends with this program."""
    steps = [step for step in job.plan().steps if step.kind == "sink"]
    given = [step.factory.keywords.get("sink") if isinstance(step.factory, partial) else None for step in steps]
    if given and all(isinstance(sink, mp.sinks.Memory) for sink in given):
        names = ", ".join(repr(step.name) for step in steps)
        typer.echo(
            f"rows written to {names} (sinks.Memory) are lost when this program ends: to see them, write to "
            f"sinks.Stdout() or sinks.Files(folder)",
            err=True,
        )


@app.command(
    epilog=examples(
        "malstrom explain jobs.shop:job",
        "malstrom explain path/to/shop.py --mermaid",
        "malstrom explain jobs.shop --json",
        "malstrom explain jobs.shop --why price",
    )
)
def explain(
    job: JobArgument,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flow chart.")] = False,
    why: Annotated[str | None, typer.Option(help="Print whether the functions of a step are compiled.")] = None,
    as_json: options.JsonOption = False,
    traceback: options.TracebackOption = False,
) -> None:
    """Print the steps of a job without running it."""
    with reporting_errors(traceback, has_option=True):
        if mermaid + as_json + (why is not None) > 1:
            raise WrongCommand("--mermaid, --json and --why print different things: give one of them")
        loaded = load_job(job)
        if why is not None:
            print_out(_why(loaded, why))
        elif as_json:
            print_json(plain_plan(loaded.plan()))
        else:
            print_out(loaded.to_mermaid() if mermaid else loaded.explain())


def _why(job: mp.Job, name: str) -> str:
    steps = {step.name: step for step in job.plan().steps}
    if name not in steps:
        raise WrongCommand(f"job {job.name!r} has no step {name!r}; its steps: {', '.join(steps)}")
    return why_text(steps[name])


def load_job(spec: str) -> mp.Job:
    """Load the job that ``spec`` names, ``module:name`` or ``path/to/file.py:name``.

    The working directory is importable, and for a file also its folder.

    Raises:
        WrongCommand: there is no such job.
        UserCodeFailed: the user's code raised.
        MalstromError: the user's code called this package wrongly.
    """
    target, _, name = spec.rpartition(":") if ":" in spec else (spec, "", _DEFAULT_NAME)
    if not target or not name:
        raise WrongCommand(f"{spec!r} does not name a job: write module:name or path/to/file.py:name")
    is_file = target.endswith(".py") or "/" in target
    module = _load_file(Path(target)) if is_file else _load_module(target)
    try:
        found = getattr(module, name)
    except AttributeError:
        raise WrongCommand(_no_such_name(module, target, name)) from None
    job = _as_job(found, f"{target}:{name}")
    job.made_by = f"{module.__name__}:{name}"
    return job


def _load_module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if not all(part.isidentifier() for part in name.split(".")):
        raise WrongCommand(f"{name!r} is not a module name: write module:name, or path/to/file.py:name for a file")
    try:
        with _users_code(f"importing {name}"):
            return importlib.import_module(name)
    except UserCodeFailed as failure:
        error = failure.__cause__
        missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
        # The module itself is missing only if no line of the user's code was running.
        if missing and f"{name}.".startswith(f"{missing}.") and users_place(error) is None:
            raise WrongCommand(_no_such_module(name, missing)) from None
        raise


def _load_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise WrongCommand(f"file {path} does not exist: check the path and the working directory")
    # Use the file's name as module name, as if its folder were the working directory, unless the name is taken.
    name = path.stem if path.stem not in sys.modules else f"malstrom_job_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise WrongCommand(f"{path} is not a Python file: its name must end with .py")
    module = importlib.util.module_from_spec(spec)
    sys.path[:0] = [folder for folder in (str(path.parent), str(Path.cwd())) if folder not in sys.path]
    sys.modules[name] = module
    try:
        with _users_code(f"running {path}"):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    cloudpickle.register_pickle_by_value(module)  # workers in other processes cannot import it by its name
    return module


def _as_job(found: object, where: str) -> mp.Job:
    made: object = found
    if callable(found):
        made = _call(found, where)
        if inspect.iscoroutine(made):
            made.close()
            raise WrongCommand(f"{where} is an asynchronous function: name an ordinary one that returns a job")
    if isinstance(made, mp.Job):
        return made
    verb = "returns" if callable(found) else "is"
    raise WrongCommand(
        f"{where} {verb} {_kind(made)} instead of a job: name a malstrom_py.Job, or a function without arguments that "
        f"returns one"
    )


def _call(function: Callable[..., Any], where: str) -> object:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise WrongCommand(f"{where} cannot be called without arguments: {error}") from None
    except ValueError:
        pass  # A builtin without a signature: the call itself shows whether it works.
    with _users_code(f"calling {where}"):
        return function()


@contextmanager
def _users_code(doing: str) -> Iterator[None]:
    """Convert errors of the user's code inside to `UserCodeFailed`; errors of this package pass unchanged."""
    try:
        yield
    except mp.MalstromError:
        raise
    except SystemExit as error:
        raise UserCodeFailed(
            f"{doing} ended the program ({exit_text(error)}), so no job was returned. Put that call under "
            f"if __name__ == '__main__'"
        ) from error
    except Exception as error:
        raise UserCodeFailed(f"{doing} failed: {describe_error(error)}") from error


def _no_such_module(name: str, missing: str) -> str:
    parent, _, last = missing.rpartition(".")
    if hasattr(sys.modules.get(parent), last):
        return f"{parent!r} is a module with {last!r} in it: write {parent}:{last}"
    folders = list(getattr(sys.modules.get(parent), "__path__", ())) if parent else [str(Path.cwd())]
    near = difflib.get_close_matches(last, [module.name for module in pkgutil.iter_modules(folders)], n=1)
    suggestion = ".".join(filter(None, (parent, near[0], name[len(missing) + 1 :]))) if near else ""
    hint = f"did you mean {suggestion!r}?" if near else "check its name and the working directory"
    return f"module {missing!r} was not found (looked in {', '.join(folders)} and where Python looks): {hint}"


def _no_such_name(module: ModuleType, target: str, name: str) -> str:
    public = {key: value for key, value in vars(module).items() if not key.startswith("_")}
    jobs = [key for key, value in public.items() if isinstance(value, mp.Job)]
    makers = [key for key, value in public.items() if getattr(value, "__module__", None) == module.__name__]
    near = difflib.get_close_matches(name, [*jobs, *makers], n=1)
    if near:
        hint = f"did you mean {target}:{near[0]}?"
    else:
        hint = f"run for instance {target}:{jobs[0]}" if jobs else "there is no job in it"
    return f"{target} has no {name!r}: {hint}"


def _kind(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
