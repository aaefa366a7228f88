"""Plans that go to other processes: whole, or refused with the step that cannot go."""

from __future__ import annotations

import sys
import threading
import types
from dataclasses import replace
from typing import Any, NewType

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import PlanError
from malstrom_py.workers.processes.fork_server import HERE
from malstrom_py.workers.ray.cluster import ON_NODES
from malstrom_py.workers.remote.packed_plan import pack_plan, unpack_plan


def test_a_plan_comes_with_all_its_functions() -> None:
    limit = 3
    job, out = mp.Job("shipped"), sinks.Memory()
    numbers = job.source("in", sources.Memory(range(5))).filter("small", lambda n: n < limit)
    numbers.key_by("parity", lambda n: n % 2).sum("total").sink("out", out)
    plan = unpack_plan(pack_plan(job.plan()), "shipped", HERE)
    assert [step.name for step in plan.steps] == [step.name for step in job.plan().steps]
    assert plan.job == "shipped"


def test_functions_that_travel_by_value_keep_their_file_for_errors() -> None:
    wanted = {"ten"}

    def number(text: str) -> int:
        return min(int(part) for part in [text] if part not in wanted)

    job = mp.Job("shipped")
    job.source("in", sources.Memory(["x"])).map("number", number).sink("out", sinks.Memory())
    packed = pack_plan(job.plan())
    assert __file__.encode() in packed
    assert b"dynamic-code" not in packed


def test_a_step_that_holds_on_to_what_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()
    job = mp.Job("refused")
    fine = job.source("in", sources.Memory(range(5))).map("fine", lambda n: n)
    fine.map("guarded", lambda n: (lock, n)).sink("out", sinks.Memory())
    with pytest.raises(PlanError, match=r"step 'guarded' .*lock.*mp\.per_worker") as caught:
        pack_plan(job.plan())
    assert caught.value.__cause__ is not None


def test_a_source_and_a_partitioner_are_named_too() -> None:
    job = mp.Job("refused")
    job.source("in", sources.Memory([threading.Lock()])).sink("out", sinks.Memory())
    with pytest.raises(PlanError, match="step 'in'"):
        pack_plan(job.plan())
    lock = threading.Lock()
    other = mp.Job("refused")
    keyed = other.source("in", sources.Memory([1])).key_by(
        "by", lambda n: n, partitioner=lambda key: int(lock.locked())
    )
    keyed.sum("total").sink("out", sinks.Memory())
    with pytest.raises(PlanError, match="step 'by'"):
        pack_plan(other.plan())


def test_a_module_that_is_missing_there_is_named_with_what_to_do() -> None:
    module = types.ModuleType("only_at_home")
    exec("def double(n): return 2 * n", module.__dict__)
    sys.modules["only_at_home"] = module
    try:
        job = mp.Job("homesick")
        job.source("in", sources.Memory([1])).map("double", module.double).sink("out", sinks.Memory())
        packed = pack_plan(job.plan())
    finally:
        del sys.modules["only_at_home"]
    with pytest.raises(PlanError, match=r"job 'homesick' uses module 'only_at_home'.*runtime_env"):
        unpack_plan(packed, "homesick", ON_NODES)
    with pytest.raises(PlanError, match=r"job 'homesick' uses module 'only_at_home'.*sys\.path.*register_pickle"):
        unpack_plan(packed, "homesick", HERE)


def test_what_is_no_plan_is_refused() -> None:
    with pytest.raises(PlanError, match="same versions of Python"):
        unpack_plan(b"\x80\x05nonsense", "job", ON_NODES)
    with pytest.raises(PlanError, match="copied to another process"):
        unpack_plan(b"\x80\x05nonsense", "job", HERE)


def test_modules_that_go_by_value_are_not_imported_there_and_stay_as_they_are_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = types.ModuleType("changed_since")
    monkeypatch.setitem(sys.modules, "changed_since", module)
    code = "import functools\n@functools.lru_cache(5)\ndef fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)\n"
    code += "class Pair:\n    @functools.cached_property\n    def sum(self): return fib(10)\n"
    code += "Sum = __import__('typing').NewType('Sum', int)\n"
    exec(f"{code}def double(n): return Sum(Pair().sum + fib(n))", module.__dict__)
    job = mp.Job("shipped")
    job.source("in", sources.Memory([1])).map("double", module.double).sink("out", sinks.Memory())
    plan, by_name = replace(job.plan(), by_value=frozenset({"changed_since"})), pack_plan(job.plan())
    packed = pack_plan(plan)
    assert pack_plan(job.plan()) == by_name, "another job of the program is packed as before"
    monkeypatch.delitem(sys.modules, "changed_since")
    copied = unpack_plan(packed, "shipped", HERE)
    factory: Any = copied.steps[copied.rank("double")].factory
    assert factory.keywords["fn"](10) == 110
    assert factory.keywords["fn"].__globals__["fib"].cache_parameters() == {"maxsize": 5, "typed": False}
    assert copied.by_value == plan.by_value


def test_new_types_of_other_modules_are_the_same_there(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("installed")
    monkeypatch.setitem(sys.modules, "installed", module)
    exec("UserId = __import__('typing').NewType('UserId', int)", module.__dict__)
    own = NewType("own", int)
    parsers = {module.UserId: "user", own: "own"}
    job = mp.Job("typed")
    job.source("in", sources.Memory([1])).map("parse", lambda n: (module.UserId, parsers)).sink("out", sinks.Memory())
    copied = unpack_plan(pack_plan(job.plan()), "typed", HERE)
    factory: Any = copied.steps[copied.rank("parse")].factory
    kind, there = factory.keywords["fn"](1)
    assert kind is module.UserId
    assert there[kind] == "user"
    assert [str(one) for one in there] == ["installed.UserId", f"{__name__}.own"]
