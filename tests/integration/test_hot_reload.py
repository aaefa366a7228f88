"""Hot reload: the code of a step is replaced at one cut, and a failure leaves code, state and output as they were."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import events
from malstrom_py.workers.processes.fork_server import HERE
from malstrom_py.workers.ray.coordinator_actor import PersistentReload
from malstrom_py.workers.remote.packed_plan import pack_plan, unpack_plan
from malstrom_py.workers.runtime.hot_reload import HotReload, watched_files
from tests.integration.job_module import JobModule, MakeModule
from tests.lives import check_lives

SHOP = """
import time
from dataclasses import dataclass

import malstrom_py as mp
from malstrom_py import sinks, sources

out = sinks.Memory()


def numbers(part, start):
    number = start
    while LIMIT is None or number < LIMIT:
        yield number
        number += 1
        if number % 50 == 0 and LIMIT is None:
            time.sleep(0.002)


LIMIT = None


@dataclass
class Count:
    n: int = 0


def total(key, number, state):
    return {"key": key, "seen": state.n + 1, "by": 1}, Count(state.n + 1)


class Twice(mp.KeyedLogic):
    def __init__(self, factor=2):
        self.factor = factor

    def on_data(self, message, key_state, output):
        output.send(message)
        return (key_state or 0) + self.factor


def key_of(number):
    return number % 20


def make():
    job = mp.Job("shop")
    keyed = job.source("in", sources.Generator(numbers, parts=2)).key_by("key", key_of)
    keyed.stateful_op("twice", Twice(3)).stateful_map("total", total, default=Count).sink("out", out)
    return job
"""


@pytest.fixture
def shop(job_module: MakeModule) -> JobModule:
    return job_module(SHOP)


NEW = ('"by": 1', '"by": 2')
WRONG = ("    return {", "    raise ValueError\n    return {")


def started(shop: JobModule, tmp_path: Path, **options: Any) -> mp.JobHandle:
    snapshots = mp.Snapshots(tmp_path / "kept", interval_s=0.1)
    return mp.InProcess(2, snapshots=snapshots, **options).start(shop.module.make(), control=False)


def check(rows: list[dict[str, int]]) -> dict[int, list[int]]:
    """Check that each record was processed once and in order, and return the versions of the code by key."""
    seen, by = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for row in rows:
        seen[row["key"]].append(row["seen"])
        by[row["key"]].append(row["by"])
    assert all(values == list(range(1, len(values) + 1)) for values in seen.values())
    return by


def ended(handle: mp.JobHandle, *, sources: str = "in") -> list[events.AnyEvent]:
    handle.stop(drain=True, timeout_s=60)
    seen = list(handle.events())
    check_lives(seen, sources=[sources])
    return seen


def test_all_workers_have_the_new_code_from_one_cut_on_and_no_record_is_lost(shop: JobModule, tmp_path: Path) -> None:
    handle = started(shop, tmp_path)
    handle.snapshot()
    shop.write(NEW)
    report = handle.reload("total", probation_s=0.1)
    assert (report.step, report.modules) == ("total", (shop.name,))
    handle.snapshot()
    seen = ended(handle)
    versions = check(shop.items)
    assert all(set(by) == {1, 2} and by == sorted(by) for by in versions.values())
    assert events.Reload("total", report.snapshot) in seen
    assert sum(isinstance(event, events.Stop) and event.cause is events.StopCause.RELOAD for event in seen) == 2
    assert handle.status().restarts == 0


def test_new_code_that_fails_on_trial_is_rolled_back_on_all_workers(shop: JobModule, tmp_path: Path) -> None:
    handle = started(shop, tmp_path)
    handle.snapshot()
    shop.write(WRONG)
    with pytest.raises(mp.ReloadError, match=r"'total' was not reloaded, because its new code has failed") as refused:
        handle.reload("total", probation_s=5)
    assert isinstance(refused.value.__cause__, mp.OperatorError)
    handle.snapshot()
    shop.write(NEW)
    handle.reload("total", probation_s=0.1)  # it can be tried again
    seen = ended(handle)
    check(shop.items)
    assert events.Error(str(refused.value)) in seen
    assert handle.status().restarts == 0  # that is not a failure of the job


def test_what_cannot_be_imported_leaves_the_job_running(shop: JobModule, tmp_path: Path) -> None:
    handle = started(shop, tmp_path)
    before = sys.modules[shop.name]
    wrongs = (
        ("(", "SyntaxError"),
        ("import no_such_module_here", "ModuleNotFoundError"),
        ("raise SystemExit(3)", "Exit"),
    )
    for wrong, why in wrongs:
        shop.path.write_text(wrong)
        with pytest.raises(mp.ReloadError, match=why) as refused:
            handle.reload("total")
        assert "The job continues unchanged" in str(refused.value)
    assert sys.modules[shop.name] is before
    seen = ended(handle)
    check(shop.items)
    assert not [event for event in seen if isinstance(event, events.Reload)]
    assert sum(isinstance(event, events.Error) for event in seen) == 3


@pytest.mark.parametrize("keeps_the_job", [True, False])
def test_plain_state_is_migrated(keeps_the_job: bool, shop: JobModule, tmp_path: Path) -> None:
    plain = ("default=Count", "default=int"), ("Count(state.n + 1)", "state + 1"), ("state.n + 1", "state + 1")
    shop.write(*plain)
    shop.import_again()
    handle = started(shop, tmp_path)
    while handle.status().counts.read < 200:  # all keys have state
        time.sleep(0.01)
    handle.snapshot()
    shop.write(
        ("default=Count", "default=dict, migrate=as_dict"),
        ("Count(state.n + 1)", '{"n": state["n"] + 1}'),
        ("state.n + 1", 'state["n"] + 1'),
        NEW,
        ("def key_of", 'def as_dict(key, state):\n    return {"n": state}\n\n\ndef key_of'),
        *([("    return job\n", "    return job\n\n\njob = make()\n")] if keeps_the_job else []),
    )
    handle.reload("total", probation_s=0.1)
    handle.snapshot()
    ended(handle)
    assert all(set(by) == {1, 2} for by in check(shop.items).values())


def test_a_migration_that_fails_gives_back_code_and_state(shop: JobModule, tmp_path: Path) -> None:
    handle = started(shop, tmp_path)
    handle.snapshot()
    shop.write(
        ("default=Count)", "default=Count, migrate=wrong)"),
        NEW,
        ("def key_of", "def wrong(key, state):\n    return 1 / 0\n\n\ndef key_of"),
        ("    return job\n", "    return job\n\n\njob = make()\n"),
    )
    with pytest.raises(mp.ReloadError, match="ZeroDivisionError in wrong at"):
        handle.reload("total", probation_s=5)
    ended(handle)
    assert {by for versions in check(shop.items).values() for by in versions} == {1}


def test_reloads_at_any_moment_beside_rescales_lose_nothing(shop: JobModule, tmp_path: Path) -> None:
    rng = random.Random(7)
    handle = started(shop, tmp_path)
    for version in range(2, 6):
        handle.rescale(rng.randint(1, 3), wait=rng.random() < 0.5)
        time.sleep(rng.random() * 0.05)
        shop.write(WRONG if version % 3 == 0 else ('"by": 1', f'"by": {version}'))
        try:
            handle.reload("total", probation_s=rng.choice((0.0, 0.05)))
        except mp.ReloadError:
            assert version % 3 == 0
    ended(handle)
    for by in check(shop.items).values():
        assert by == sorted(by)


def test_a_stop_with_drain_beside_a_reload_waits_for_its_cut(shop: JobModule, tmp_path: Path) -> None:
    for number in range(6):
        handle = started(shop, tmp_path / str(number))
        handle.snapshot()
        shop.write(NEW)
        reload = threading.Thread(target=lambda handle=handle: _reload_or_end(handle))
        reload.start()
        time.sleep(number * 0.004)
        handle.stop(drain=True, timeout_s=60)
        reload.join(30)
        check_lives(list(handle.events()), sources=["in"], run_failures=0)
        shop.write()
        shop.import_again()


def _reload_or_end(handle: mp.JobHandle) -> None:
    try:
        handle.reload("total", probation_s=0.05)
    except (mp.JobEnded, mp.OperationInProgress):
        """The stop was first."""


def test_a_job_that_ends_on_trial_has_passed_it(shop: JobModule, tmp_path: Path) -> None:
    handle = started(shop, tmp_path)
    handle.snapshot()
    shop.write(NEW)
    reports: list[mp.ReloadReport] = []
    waiting = threading.Thread(target=lambda: reports.append(handle.reload("total", probation_s=50)))
    waiting.start()
    reader = handle.events()
    while not isinstance(next(reader), events.Reload):
        pass
    handle.stop(drain=True, timeout_s=30)
    waiting.join(30)
    assert [report.step for report in reports] == ["total"]
    assert all(set(by) <= {1, 2} for by in check(shop.items).values())


def test_a_reload_needs_snapshots_a_step_and_one_at_a_time(shop: JobModule, tmp_path: Path) -> None:
    bare = mp.InProcess().start(shop.module.make(), control=False)
    with pytest.raises(mp.SnapshotError, match="runs without snapshots"):
        bare.reload("total")
    with pytest.raises(mp.PlanError, match="no step 'totals': its steps are"):
        bare.reload("totals")
    bare.stop()
    handle = started(shop, tmp_path)
    with pytest.raises(mp.PlanError, match=r"no step 'totals': its steps are 'in', 'key', 'twice', 'total', 'out'"):
        handle.reload("totals")
    with pytest.raises(mp.PlanError, match="name"):
        handle.reload("no name")
    with pytest.raises(mp.ReloadError, match="'out' cannot be reloaded: it has no function or class of a module"):
        handle.reload("out")
    handle.stop(drain=True)


# The new plan.


def prepared(shop: JobModule, step: str, *changes: tuple[str, str], plan: mp.Plan | None = None) -> mp.Plan:
    shop.write(*changes)
    new: mp.Plan = HotReload(plan or shop.module.make().plan()).prepare(step, {}).plan
    return new


def keywords(plan: mp.Plan, step: str) -> dict[str, Any]:
    factory: Any = plan.steps[plan.rank(step)].factory
    return dict(factory.keywords)


def test_functions_classes_and_objects_of_the_module_are_exchanged_and_ends_stay(shop: JobModule) -> None:
    plan = shop.module.make().plan()
    new = prepared(shop, "total", NEW, ("+ self.factor", "+ 10 * self.factor"), plan=plan)
    assert keywords(new, "total")["fn"]("k", 1, shop.module.Count(0))[0]["by"] == 2
    assert keywords(new, "total")["default"] is not shop.module.Count
    assert keywords(new, "key")["fn"] is not shop.module.key_of
    logic = keywords(new, "twice")["logic"]
    assert logic.factor == 3  # as it was made
    assert type(logic) is not shop.module.Twice
    assert type(keywords(plan, "twice")["logic"]) is shop.module.Twice
    assert keywords(new, "out")["sink"] is shop.module.out
    assert keywords(new, "in")["source"] is keywords(plan, "in")["source"]


@pytest.mark.parametrize("kind", ["NamedTuple", "list"])
def test_an_object_that_is_a_list_or_a_tuple_gets_its_new_class_also_in_a_method(shop: JobModule, kind: str) -> None:
    limit = f"class Limit({kind}):\n    n: int = 20\n\n    def of(self, number):\n        return number % self.n\n\n\n"
    given = [
        ("import time\n", "import time\nfrom functools import partial\nfrom typing import NamedTuple\n"),
        ("def key_of(number)", f"{limit}def limited(limit, number)"),
        ("return number % 20", "return limit.of(number)"),
        ('key_by("key", key_of)', 'key_by("key", partial(limited, (Limit(),)[0])).map("m", Limit().of)'),
    ]
    shop.write(*given)
    plan = shop.import_again().make().plan()
    new = prepared(shop, "key", *given, ("return number % self.n", "return -number"), plan=plan)
    assert [keywords(each, "key")["fn"](21) for each in (plan, new)] == [1, -21]
    for step in ("key", "m"):  # each is known to be of that module
        new = prepared(shop, step, *given, ("return number % self.n", "return -number"), plan=plan)
        assert [keywords(each, "m")["fn"](21) for each in (plan, new)] == [1, -21]


def test_the_functions_in_named_tuples_are_exchanged_and_those_in_other_lists_stay(shop: JobModule) -> None:
    given = [
        (
            "import time\n",
            "import time\nfrom functools import partial\nfrom tests.integration.held import Held, Pair\n",
        ),
        ("def key_of(number)", "def first(held, number):\n    return held[0](number)\n\n\ndef key_of(number)"),
        (
            'key_by("key", key_of)',
            'key_by("key", partial(first, Pair(key_of, 2))).map("m", partial(first, Held(key_of)))',
        ),
    ]
    shop.write(*given)
    plan = shop.import_again().make().plan()
    new = prepared(shop, "key", *given, ("return number % 20", "return -number"), plan=plan)
    assert keywords(new, "key")["fn"](21) == -21
    assert keywords(new, "m")["fn"](21) == 1


def test_a_class_that_cannot_be_that_of_its_object_is_refused(shop: JobModule) -> None:
    with pytest.raises(mp.ReloadError, match="cannot have its new class"):
        prepared(shop, "twice", ("class Twice(mp.KeyedLogic):", "class Twice(mp.KeyedLogic, int):"))


def test_a_lambda_is_found_where_the_module_keeps_the_job_or_the_command_line_knows_its_maker(
    shop: JobModule,
) -> None:
    shop.write(('stateful_map("total", total', 'stateful_map("total", lambda k, n, s: (n, s)'))
    module = shop.import_again()
    job = module.make()
    with pytest.raises(mp.ReloadError, match=r"has no make.<locals>.<lambda> at its top level"):
        prepared(shop, "total", plan=job.plan())
    job.made_by = f"{module.__name__}:make"
    other = ('stateful_map("total", total', 'stateful_map("total", lambda k, n, s: (9, s)')
    changed = prepared(shop, "total", other, plan=job.plan())
    assert keywords(changed, "total")["fn"]("k", 1, 0) == (9, 0)
    assert changed.made_by == job.made_by
    assert keywords(changed, "out")["sink"] is module.out


def test_another_graph_is_refused(shop: JobModule) -> None:
    kept = ("    return job\n", "    return job\n\n\njob = make()\n")
    with pytest.raises(mp.ReloadError, match=r"the graph of the job has changed \(twice, total, more\)"):
        prepared(shop, "total", kept, ('stateful_op("twice", Twice(3))', 'map("more", lambda n: n)'))
    with pytest.raises(mp.ReloadError, match="already has a step"):
        prepared(shop, "total", kept, ('stateful_op("twice"', 'stateful_op("key"'))


def test_a_new_migration_is_found_where_a_function_makes_the_job(shop: JobModule) -> None:
    plan = shop.module.make().plan()
    migrate = ('"total", total, default=Count', '"total", total, default=Count, migrate=halved')
    halved = ("def key_of", "def halved(key, state):\n    return Count(state.n // 2)\n\n\ndef key_of")
    new = prepared(shop, "total", migrate, halved, plan=plan)
    migration = new.steps[new.rank("total")].migration
    assert migration is not None
    assert migration.name.endswith(f"{shop.path.stem}:halved")
    assert migration.function("k", shop.module.Count(8)).n == 4
    assert [step.name for step in new.steps if step.migration is not None] == ["total"]
    again = prepared(shop, "total", migrate, halved, NEW, plan=new)  # it stays, and has the new function
    assert again.steps[again.rank("total")].migration != migration
    gone = prepared(shop, "total", ('"total", total, default=Count', '"total", total, migrate=None'), plan=new)
    assert gone.steps[gone.rank("total")].migration is None


def test_a_new_migration_that_cannot_be_found_is_refused(shop: JobModule) -> None:
    migrate = ('"total", total, default=Count', '"total", total, default=Count, migrate=nowhere[0]')
    with pytest.raises(mp.ReloadError, match=r"gives it migrate=nowhere\[0\], which is not at its top level"):
        prepared(shop, "total", migrate)


def test_code_that_cannot_be_copied_to_the_processes_of_workers_is_refused(shop: JobModule) -> None:
    locked = ("LIMIT = None", "LIMIT = None\nLOCK = __import__('threading').Lock()"), ("{", "LOCK.locked() and {")
    names = f"{shop.name}.LOCK. step 'total' .* mp.per_worker"
    plan = shop.module.make().plan()
    shop.write(*locked)
    for action in ("reload", "shadow"):
        with pytest.raises(mp.ReloadError, match=f"the new code cannot be copied, because of {names}"):
            HotReload(plan, pack=pack_plan).prepare("key", {}, action)
    plan = shop.import_again().make().plan()
    shop.write()
    with pytest.raises(mp.ReloadError, match=f"the present code cannot be copied, because of {names}"):
        HotReload(plan, pack=pack_plan).prepare("key", {})


def test_who_replaces_the_coordinator_on_ray_has_the_former_code_until_the_new_is_confirmed(shop: JobModule) -> None:
    packed: list[bytes] = []
    journal: Any = SimpleNamespace(reloaded=packed.append)
    reloads = PersistentReload(shop.module.make().plan(), journal, {})
    shop.write(NEW)
    reloads.install(reloads.prepare("total", {}))
    reloads.confirm()
    shop.path.write_text("(")
    del sys.modules[shop.name]
    plans = [unpack_plan(one, "shop", HERE) for one in packed]
    assert [keywords(plan, "total")["fn"]("k", 1, shop.module.Count(0))[0]["by"] for plan in plans] == [1, 2]


def test_a_name_that_is_gone_is_refused(shop: JobModule) -> None:
    with pytest.raises(mp.ReloadError, match="has no total at its top level"):
        prepared(shop, "total", ("def total(", "def sums("), ('map("total", total', 'map("total", sums'))


def test_the_program_itself_cannot_be_imported_again(shop: JobModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shop.module.total, "__module__", "__main__")
    with pytest.raises(mp.ReloadError, match="in the program itself"):
        HotReload(shop.module.make().plan()).prepare("total", {})


def test_the_text_of_a_file_may_be_given(shop: JobModule) -> None:
    plan = shop.module.make().plan()
    text = SHOP.replace(*NEW)
    new = HotReload(plan).prepare("total", {str(shop.path): text}).plan
    assert keywords(new, "total")["fn"]("k", 1, shop.module.Count(0))[0]["by"] == 2


def test_the_files_of_a_job_are_found(shop: JobModule) -> None:
    assert watched_files(shop.module.make().plan()) == {str(shop.path): "key"}
