"""What a step says of its former self: names that may be, and the names by which migrations are known."""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, sources, windows
from malstrom_py.builder.keyed_stream import KeyedStreamBuilder
from malstrom_py.builder.plan import Step
from malstrom_py.builder.state_migration import migration_of
from malstrom_py.builder.stream import KEYED_METHODS
from malstrom_py.errors import PlanError
from tests.ids import shown
from tests.unit.part_sink import PartSink


def in_cents(key: object, euros: int) -> int:
    return euros * 100


def update(key: Any, value: Any, state: Any) -> Any:
    return value, state


async def ask(key: Any) -> Any:
    return key


ARGUMENTS: dict[str, dict[str, Any]] = {
    "stateful_map": {"fn": update},
    "stateful_flat_map": {"fn": update},
    "ttl_map": {"fn": update, "ttl": 1},
    "stateful_op": {"logic": lambda message, state, output: state},
    "reduce": {"fn": max},
    "fold": {"fn": max, "default": int},
    "top_n": {"n": 1},
    "collect": {"size": 1},
    "aggregate": {"n": agg.count()},
    "enrich": {"async_fn": ask},
    "window": {"windows": windows.tumbling(10)},
    "join": {"window": windows.tumbling(10)},
    "join_table": {"wait": True},
    "join_interval": {"lower": 0, "upper": 1},
}


def keyed() -> KeyedStreamBuilder[int, int]:
    timed = mp.Job("a").source("numbers", sources.Memory([1, 2, 3])).assign_timestamps("at", lambda n: n)
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(1))
    return on_time.key_by("parity", lambda n: n % 2)


def step_of(job: mp.Job, name: str) -> Step:
    plan = job.plan()
    return plan.steps[plan.rank(name)]


@pytest.mark.parametrize("method", sorted(KEYED_METHODS - {"map_with_key", "flat"}))
def test_every_step_with_state_says_what_it_was(method: str) -> None:
    stream = keyed()
    sides = [stream] if method.startswith("join") else []
    made = getattr(stream, method)("it", *sides, **ARGUMENTS.get(method, {}), renamed_from="was", migrate=in_cents)
    made = made.count() if method == "window" else made
    made.sink("out", sinks.Memory())
    step = step_of(stream.job, "it")
    assert step.renamed_from == "was"
    assert step.migration is not None
    assert (step.migration.name, step.migration.function) == ("test_upgrades:in_cents", in_cents)


def test_sources_sinks_exchanges_and_epochs_say_what_they_were() -> None:
    job = mp.Job("a")
    timed = job.source("in", sources.Memory([1]), renamed_from="was-in").assign_timestamps("at", lambda n: n)
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(1), renamed_from="was-epochs")
    on_time.key_by("key", lambda n: n, renamed_from="was-key").sink("out", sinks.Memory(), renamed_from="was-out")
    assert {step.name: step.renamed_from for step in job.plan().steps} == {
        "in": "was-in",
        "at": None,
        "epochs": "was-epochs",
        "key": "was-key",
        "out": "was-out",
    }


def test_the_exchange_of_a_partitioned_sink_is_renamed_with_it() -> None:
    job = mp.Job("a")
    job.source("in", sources.Memory([1])).sink("out", PartSink(), renamed_from="old")
    assert step_of(job, "out").renamed_from == "old"
    assert step_of(job, "out-parts").renamed_from == "old-parts"


@pytest.mark.parametrize("name", ["", "a b", 7, "x" * 65])
def test_a_former_name_is_a_legal_one(name: Any) -> None:
    with pytest.raises(PlanError, match="step 'it': renamed_from is the former name of the step"):
        keyed().count("it", renamed_from=name)
    with pytest.raises(PlanError, match="step 'in': renamed_from is the former name of the step"):
        mp.Job("a").source("in", sources.Memory([1]), renamed_from=name)


def test_a_step_was_not_called_as_it_is() -> None:
    with pytest.raises(PlanError, match="not its present one"):
        keyed().count("it", renamed_from="it")


def test_the_state_of_a_step_that_is_there_is_its_own() -> None:
    stream = keyed()
    stream.count("one").sink("out", sinks.Memory())
    stream.count("two", renamed_from="one").sink("out-2", sinks.Memory())
    with pytest.raises(PlanError, match="step 'two': renamed_from='one', but the job still has a step 'one'"):
        stream.job.plan()


def test_only_one_step_is_the_heir_of_another() -> None:
    stream = keyed()
    stream.count("one", renamed_from="was").sink("out", sinks.Memory())
    stream.count("two", renamed_from="was").sink("out-2", sinks.Memory())
    with pytest.raises(PlanError, match="step 'two': renamed_from='was' is given to step 'one' already"):
        stream.job.plan()


def test_an_option_that_there_is_not_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="step 'it' got an unexpected keyword argument 'migrated'"):
        keyed().count("it", migrated=in_cents)  # type: ignore[call-arg]


@pytest.mark.parametrize("migrate", [lambda key, state: state, partial(in_cents), SimpleNamespace(), 7], ids=shown)
def test_a_migration_has_a_name_of_its_own(migrate: Any) -> None:
    with pytest.raises(PlanError, match=r"step 'it': (migrate needs a unique name|expected a function)"):
        keyed().count("it", migrate=migrate)


@pytest.mark.parametrize(
    ("module", "spec", "file", "expected"),
    [
        ("flights", None, None, "flights"),
        ("jobs.flights", None, None, "flights"),
        ("malstrom_job_flights", None, None, "flights"),
        ("__main__", None, "/somewhere/flights.py", "flights"),
        ("__main__", "jobs.flights", "/somewhere/jobs/flights.py", "flights"),
        ("__main__", None, None, "__main__"),
    ],
)
def test_a_migration_is_called_alike_however_the_program_is_started(
    module: str, spec: str | None, file: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType("__main__")
    main.__spec__ = None if spec is None else SimpleNamespace(name=spec)  # type: ignore[assignment]
    if file is not None:
        main.__file__ = file
    monkeypatch.setitem(sys.modules, "__main__", main)

    def to_cents(key: object, state: int) -> int:
        return state

    to_cents.__module__ = module
    to_cents.__qualname__ = "to_cents"
    migration = migration_of(to_cents, "it")
    assert migration is not None
    assert migration.name == f"{expected}:to_cents"
