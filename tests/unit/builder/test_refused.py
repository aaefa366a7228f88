"""What a builder refuses: each wrong argument at the call that has it, with the name of the step and what to do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, sources
from malstrom_py.builder.stream import KEYED_METHODS
from malstrom_py.errors import PlanError
from tests.unit.part_sink import PartSink

BOUND = mp.limit_out_of_orderness(5)

Case = tuple[Callable[[], Any], str, tuple[Any, ...], dict[str, Any], str]
"""Stream, method, arguments, options, what the error says."""


def numbers() -> Any:
    return mp.Job("a").source("numbers", sources.Memory([1, 2, 3]))


def job() -> Any:
    return mp.Job("a")


def keyed() -> Any:
    return numbers().key_by("key", lambda n: n % 2)


def timed() -> Any:
    return numbers().assign_timestamps("at", lambda n: n)


def on_time() -> Any:
    return timed().generate_epochs("epochs", BOUND)[0].key_by("key", lambda n: n)


class Batches(mp.KeyedLogic[Any, Any, Any, Any]):
    def on_batch(self, keys: Any, values: Any, timestamps: Any, state: Any, output: Any) -> None:
        """Emit nothing."""


class Misspelt(Batches):
    on_epoc = id


class Waking(mp.KeyedLogic[Any, Any, Any, Any]):
    def on_data(self, message: Any, key_state: Any, output: Any) -> Any:
        return key_state

    def on_timer(self, key: Any, time: int, key_state: Any, output: Any) -> Any:
        return key_state


class Near:
    """A stateless logic with a hook of keyed ones."""

    def on_data(self, message: Any, output: Any) -> None:
        """Emit nothing."""

    def on_timer(self, key: Any, time: int, output: Any) -> None:
        """Emit nothing."""


class Plain:
    """A class whose values cannot be stored."""


def update(key: Any, value: Any, state: Any) -> tuple[Any, Any]:
    return value, state


def failing() -> int:
    raise ValueError


def refused(says: str, on: Callable[[], Any], method: str, *arguments: Any, **options: Any) -> Case:
    return on, method, arguments, options, says


FUNCTIONS = ["map", "filter", "filter_map", "flat_map", "inspect", "branch", "key_by", "key_local", "assign_timestamps"]
BY = ["sum", "min", "max", "mean", "distinct"]
STATEFUL = sorted(KEYED_METHODS - {"aggregate", "enrich"})

NAME = r"(step|job|source) name .* is not legal|the name of a (step|job) must be a str"
NO_SINKS: tuple[Any, ...] = (None, [], print, sources.Memory([1]))
NO_PARTITIONERS: tuple[Any, ...] = (7, "index", [], {"a": 1})
NO_DEFAULTS: tuple[Any, ...] = (0, [], "int")
NAMES = ("a b", "", 7, None, len)
FUNCTION = "step 'it': expected a function.*, got"
POLICY = "step 'it': on_error must be 'fail', 'skip' or 'dead-letter', got"
NUMBER = r"step 'it': (n|size) must be a whole number of at least 1, got"
NO_EPOCHS = "runs on event time, but the stream has no watermarks.*on-time"
NO_SINK = r"step 'it': .* is not a sink: (it has neither build\(worker\) nor open\(worker\)|write sinks\.)"
NO_PARTITIONER = r"step 'it': partitioner must be one of malstrom_py\.partitioners or a function"
NO_KEYS = "keeps state per key, but stream 'numbers' has no keys.*key_by"
NO_GENERATOR = r"step 'it': pass a generator, for instance mp\.limit_out_of_orderness"
NO_SPAN = "step 'it': ttl must be a timedelta, or an int in the stream's unit, got"
NO_AGGREGATE = r"step 'it': total must be an aggregate, which agg\.count\(\) or"
WHOLE_BATCHES = "step 'it': on_batch takes whole batches, so on_error=.*override on_data"
LATE = "step 'it': timestamps cannot change after generate_epochs.*before it"
DEFAULT = "step 'it': default must be a function that makes a state, such as default=l"

CASES: list[Case] = [
    # Names come first, then functions, numbers and policies.
    *(refused(NAME, numbers, method, name, "double") for method in FUNCTIONS for name in NAMES),
    *(refused(NAME, numbers, "split", name, 0, "no function") for name in NAMES),
    *(refused(NAME, numbers, "cloned", name, 0) for name in NAMES),
    *(refused(NAME, numbers, "union", name, 7) for name in NAMES),
    *(refused(NAME, numbers, "stateless_op", name, lambda message, output: None) for name in NAMES),
    *(refused(NAME, keyed, method, name, 7) for method in ("stateful_map", "stateful_op", "reduce") for name in NAMES),
    *(refused(NAME, keyed, "sum", name, by=7) for name in NAMES),
    *(refused(NAME, job, "source", name, sources.Memory([1])) for name in NAMES),
    *(refused(FUNCTION, numbers, method, "it", fn) for method in FUNCTIONS for fn in (None, 7, [len])),
    *(refused(FUNCTION, keyed, method, "it", fn) for method in ("stateful_map", "reduce") for fn in (None, 7, "n")),
    refused(FUNCTION, numbers, "split", "it", 2, 7),
    *(refused("step 'it': expected a function or the name of a column", keyed, by, "it", by=7) for by in BY),
    refused("step 'it': expected a function or the name of a column", keyed, "top_n", "it", 1, by=7),
    *(
        refused(POLICY, numbers, method, "it", *(() if method == "flatten" else (str,)), on_error=policy)
        for method in [*FUNCTIONS, "flatten"]
        for policy in ("ignore", None)
    ),
    *(refused(POLICY, keyed, method, "it", update, on_error="ignore") for method in ("stateful_map", "reduce")),
    refused(POLICY, keyed, "stateful_op", "it", Waking.on_data, on_error="ignore"),
    *(refused(POLICY, keyed, method, "it", on_error="ignore") for method in BY),
    *(
        refused(POLICY, job, "source", "it", sources.Memory([1]), on_error=policy)
        for policy in ("ignore", None, "FAIL", "dead_letter")
    ),
    *(refused(NUMBER, numbers, "split", "it", n, lambda value: [0]) for n in (0, -1, 1.0, "2", None, True)),
    *(refused(NUMBER, numbers, "cloned", "it", n) for n in (0, -1, 1.0, "2", None, True)),
    *(refused(NUMBER, keyed, "top_n", "it", n) for n in (0, -1, 1.5, "3", True)),
    *(refused(NUMBER, keyed, "collect", "it", size=n) for n in (0, -1, 1.5, "3", True)),
    # Sources, sinks, unions, partitioners.
    *(refused("step 'it'", job, "source", "it", source) for source in (None, [1, 2], sinks.Memory())),
    refused(r"step 'it': pass an instance, Memory\(…\), not the class itself", job, "source", "it", sources.Memory),
    *(refused(NO_SINK, numbers, "sink", "it", sink) for sink in NO_SINKS),
    refused(r"step 'it': pass an instance, Memory\(…\), not the class itself", numbers, "sink", "it", sinks.Memory),
    refused(r"step 'it': pass an instance, PartSink\(…\)", numbers, "sink", "it", PartSink),
    refused("can have at most 58 characters", numbers, "sink", "x" * 59, PartSink()),
    refused("step 'it': a union takes streams of one job only", numbers, "union", "it", numbers()),
    refused("step 'it': a union takes streams, got list", numbers, "union", "it", [numbers()]),
    *(
        refused(NO_PARTITIONER, numbers, method, "it", str, partitioner=one)
        for method in ("key_by", "key_distribute")
        for one in NO_PARTITIONERS
    ),
    # Keys.
    *(refused(f"step 'it': {method} {NO_KEYS}", numbers, method, "it", default=int) for method in STATEFUL),
    refused("has no keys", numbers, "aggregate", "it", n=agg.count()),
    # Event time.
    *(refused("step 'it': unit", numbers, "assign_timestamps", "it", int, unit=unit) for unit in ("m", "", None)),
    refused(LATE, on_time, "assign_timestamps", "it", int),
    *(
        refused(NO_GENERATOR, timed, "generate_epochs", "it", generator)
        for generator in (None, 5, mp.limit_out_of_orderness)
    ),
    *(
        refused("step 'it': ttl must be positive", on_time, "ttl_map", "it", update, ttl=ttl)
        for ttl in (0, -1, timedelta(0))
    ),
    *(refused(NO_SPAN, on_time, "ttl_map", "it", update, ttl=ttl) for ttl in ("5s", 1.5, None, True)),
    # State.
    *(
        refused(DEFAULT, keyed, method, "it", update, default=default)
        for method in ("stateful_map", "stateful_op", "fold")
        for default in NO_DEFAULTS
    ),
    refused("step 'it': default raised ValueError", keyed, "stateful_map", "it", update, default=failing),
    refused("step 'it': collect needs size= or every=: without either it emits nothing", keyed, "collect", "it"),
    *(
        refused("step 'it': every must be a timedelta above 0, got", keyed, "collect", "it", every=every)
        for every in (0, 3, 1.5, "3s", timedelta(0), timedelta(seconds=-1))
    ),
    *(
        refused(WHOLE_BATCHES, keyed, "stateful_op", "it", Batches(), on_error=policy)
        for policy in ("skip", "dead-letter")
    ),
    refused(r"step 'it': .*pass an instance, Batches\(…\)", keyed, "stateful_op", "it", Batches),
    refused(r"step 'it': .*did you mean 'on_epoch'\?", keyed, "stateful_op", "it", Misspelt()),
    refused("step 'it': .*has neither on_data nor on_batch", keyed, "stateful_op", "it", None),
    refused("step 'it': .*on_timer is not a hook of", numbers, "stateless_op", "it", Near()),
    refused("step 'it': .*pass an instance", numbers, "stateless_op", "it", Near),
    refused("step 'it': .*has no on_data", numbers, "stateless_op", "it", 7),
    *(
        refused(says, numbers, "stateless_op", "it", lambda message, output: None, sides=sides)
        for sides, says in [
            ("odd", "step 'it': sides must be a list of names, got 'odd'"),
            ({"odd"}, "step 'it': sides must be a list of names"),
            ([7], "the name of a side output must be a str"),
            (["a b"], "side output name 'a b' is not legal"),
            (["odd", "odd"], "step 'it': side output 'odd' is given twice"),
            (["out"], "step 'it': side output 'out' is an output that every step may have"),
            (["dead_letters"], "step 'it': side output 'dead_letters' is an output that every step may have"),
        ]
    ),
    # Aggregates, and classes of states.
    refused("step 'it': name at least one aggregate", keyed, "aggregate", "it"),
    *(
        refused(NO_AGGREGATE, keyed, "aggregate", "it", n=agg.count(), total=wrong)
        for wrong in (agg.count, agg.Aggregation, sum, "price", None)
    ),
    refused(r"step 'it': .* raised ValueError", keyed, "aggregate", "it", own=agg.custom(failing, max, max, int)),
    refused("on_error must be", keyed, "aggregate", "it", n=agg.count(), on_error="ignore"),
    *(
        refused(
            r"job\.register_type takes dataclasses, msgspec.Structs, NamedTuples and Enums, got",
            job,
            "register_type",
            kind,
        )
        for kind in (Plain, int, dict, 7, "Plain", None)
    ),
]


@pytest.mark.parametrize(
    ("on", "method", "arguments", "options", "says"), CASES, ids=[f"{case[1]}-{n}" for n, case in enumerate(CASES)]
)
def test_a_wrong_argument_is_refused_at_the_call(
    on: Callable[[], Any], method: str, arguments: tuple[Any, ...], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(PlanError, match=says):
        getattr(on(), method)(*arguments, **options)


@pytest.mark.parametrize("method", STATEFUL)
@pytest.mark.parametrize("between", [lambda s: s, lambda s: s.map("m", str), lambda s: s.union("u", s)])
def test_r11_a_stateful_step_behind_key_local_is_refused_with_the_remedy(method: str, between: Any) -> None:
    says = rf"step 'it': {method} keeps state per key, but key_local .*\.key_by"
    for stream in (numbers(), keyed()):
        with pytest.raises(PlanError, match=says):
            getattr(between(stream.key_local("local", lambda n: n % 2)), method)("it", lambda *_: 1)


@pytest.mark.parametrize("on", ["untimed", "timed", "late"])
def test_t1_ttl_map_needs_epochs_and_the_late_stream_has_none(on: str) -> None:
    """Its records are below the frontier: a timer for them would fire immediately, or at the end."""
    streams = {"untimed": numbers(), "timed": timed(), "late": timed().generate_epochs("epochs", BOUND)[1]}
    stream = streams[on].key_by("key", lambda n: n)
    says = "runs on event time, but this is the late stream of step 'epochs'" if on == "late" else NO_EPOCHS
    with pytest.raises(PlanError, match=f"step 'it': ttl_map {says}"):
        stream.ttl_map("it", update, ttl=5)


def test_t1_the_place_of_generate_epochs_is_checked_and_lateness_is_decided_once() -> None:
    after_key_by = timed().key_by("parity", lambda n: n % 2).map("same", lambda n: n)
    again = [stream.map(f"m{stream.ref.port}", abs) for stream in timed().generate_epochs("first", BOUND)]
    for stream, says in [
        (after_key_by, r"generate_epochs is after key_by 'parity'.*between the source and the"),
        (numbers(), "the stream has no timestamps: put assign_timestamps before it"),
        *((stream, "generate_epochs is upstream already") for stream in again),
    ]:
        with pytest.raises(PlanError, match=f"step 'epochs': {says}"):
            stream.generate_epochs("epochs", BOUND)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"idle_after": 5}, "idle_after must be a timedelta above 0, got 5"),
        ({"idle_after": timedelta(0)}, r"idle_after must be a timedelta above 0, got datetime\.timedelta\(0\)"),
        ({"max_ahead": 1.5}, r"max_ahead must be a timedelta, or an int in the stream's unit, got 1\.5"),
        ({"max_ahead": -1}, "max_ahead cannot be negative, got -1"),
    ],
)
def test_t2_t4_wrong_limits_of_epochs_are_refused_at_the_call(limits: Any, message: str) -> None:
    with pytest.raises(PlanError, match=f"step 'epochs': {message}"):
        timed().generate_epochs("epochs", BOUND, **limits)


def test_a_refused_step_leaves_the_job_as_it_was() -> None:
    stream = numbers()
    with pytest.raises(PlanError):
        stream.map("double", lambda n: n, on_error="ignore")
    stream.map("double", lambda n: n).sink("out", sinks.Memory())
    assert len(stream.job.plan().steps) == 3
