"""The options of a job: once, for all runtimes and the command line."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py.workers.ray.runtime import RayKeywords
from malstrom_py.workers.runtime.run_options import RunKeywords, SimulatedKeywords, restart_of
from malstrom_py.workers.runtime.supervisor import NEVER

RUNTIMES: list[Callable[..., Any]] = [mp.run, mp.InProcess, mp.Processes, mp.RayRuntime, mp.Simulation]
SNAPSHOTS = mp.Snapshots("kept")


def as_any(thing: object) -> Any:
    return thing


def test_the_keywords_of_runtimes_are_the_fields_of_the_options() -> None:
    options = {field.name: field.type for field in fields(mp.RunOptions)}
    keywords = {name: kind.__forward_arg__ for name, kind in RunKeywords.__annotations__.items()}
    assert keywords == options
    assert RayKeywords.__annotations__.keys() == {*options, "streams"}
    assert SimulatedKeywords.__annotations__.keys() < options.keys()


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.__name__)
def test_a_runtime_has_few_parameters_of_its_own(runtime: Callable[..., Any]) -> None:
    parameters = inspect.signature(runtime).parameters
    assert len(parameters.keys() - {"options", "keywords"}) <= 12
    assert not parameters.keys() & (RunKeywords.__annotations__.keys() - {"checks", "snapshots"})


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.__name__)
def test_an_unknown_option_is_named_with_the_nearest(runtime: Callable[..., Any]) -> None:
    given = {"job": mp.Job("empty")} if runtime is mp.run else {}
    with pytest.raises(mp.PlanError, match=f"{runtime.__name__} has no option 'on_evnt', did you mean 'on_event'"):
        runtime(**given, on_evnt=print, workrs=2, zzz=1)  # the first in the order of the call


def test_the_options_are_a_value() -> None:
    options = mp.RunOptions(snapshots=SNAPSHOTS, restart=mp.Restart(max_restarts=1), batch=mp.Batching(rows_max=3))
    assert pickle.loads(pickle.dumps(options)) == copy.deepcopy(options) == options != mp.RunOptions()
    with pytest.raises(FrozenInstanceError):
        options.checks = True  # type: ignore[misc]


def test_an_option_of_other_runtimes_is_refused() -> None:
    others: list[tuple[Callable[..., Any], str]] = [
        (mp.Processes, "clock"),
        (mp.Simulation, "restart"),
        (mp.InProcess, "num_cpus"),
    ]
    for runtime, option in others:
        with pytest.raises(mp.PlanError, match=f"{runtime.__name__} has no option '{option}'"):
            runtime(**{option: None})


def test_a_keyword_wins_over_the_options() -> None:
    job, seen = mp.Job("empty"), list[str]()
    job.source("in", mp.sources.Memory([1])).sink("out", mp.sinks.Memory())
    options = mp.RunOptions(on_event=lambda event: seen.append("options"), progress=False)
    mp.run(job, options=options)
    assert {*seen} == {"options"}
    seen.clear()
    mp.run(job, options=options, on_event=lambda event: seen.append("keyword"))
    assert {*seen} == {"keyword"}
    with pytest.raises(mp.PlanError, match=r"options must be an mp.RunOptions\(…\), got dict"):
        mp.InProcess(options={"progress": False})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"batch": 100}, r"batch must be an mp.Batching\(rows_max=…\), got int"),
        ({"progress": "yes"}, "progress must be True or False, got 'yes'"),
        ({"checks": 1}, "checks must be True or False, got 1"),
        ({"snapshots": "/data"}, r"snapshots must be mp.Snapshots\(uri\), got str"),
        ({"resume": "yesterday"}, 'resume must be "latest", "none" or the id of a snapshot'),
        ({"resume": "20261122T042242123456Z-1a2b3c4d"}, "names a snapshot, but the job has no snapshots"),
        ({"restart": "always"}, 'restart must be "never" or mp.Restart'),
        ({"restart": mp.Restart()}, "needs a snapshot to resume from"),
        ({"allow_dropped_state": None}, "allow_dropped_state must be True or False, got None"),
        ({"on_event": 3}, "on_event must be a function of one event, got int"),
        ({"metrics": 9464}, r"metrics must be an mp.Metrics\(port=…\), got int"),
        ({"dashboard": mp.Metrics()}, r"dashboard must be True or an mp.Dashboard\(port=…\), got Metrics"),
        ({"dashboard": None}, r"dashboard must be True or an mp.Dashboard\(port=…\), got NoneType"),
        ({"autoscale": 4}, r"autoscale must be an mp.Autoscale\(min=…, max=…\), got int"),
        ({"state": "4GB"}, r'state must be an mp.State\("4GB"\), got str'),
        ({"redact_errors": "yes"}, "redact_errors must be True or False, got 'yes'"),
    ],
)
def test_a_wrong_value_is_refused_wherever_it_is_given(options: dict[str, Any], reported: str) -> None:
    for taking in (mp.RunOptions, mp.InProcess, mp.Processes, mp.RayRuntime):
        with pytest.raises(mp.PlanError, match=reported):
            taking(**options)


def test_by_default_a_job_restarts_only_where_it_has_snapshots() -> None:
    assert restart_of(mp.RunOptions()) == NEVER
    assert restart_of(mp.RunOptions(snapshots=SNAPSHOTS)) == mp.Restart()
    assert restart_of(mp.RunOptions(snapshots=SNAPSHOTS, restart="never")) == NEVER
    assert restart_of(mp.RunOptions(restart=mp.Restart(max_restarts=0))) == mp.Restart(max_restarts=0)
