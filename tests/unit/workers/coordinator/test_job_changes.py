"""The state that a changed job takes over from a snapshot, and the errors of misfits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import partitioners, sinks, sources
from malstrom_py.errors import SnapshotError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.manifest import Artefact, Manifest, PartImage, StepImage, artefact_path
from malstrom_py.workers.coordinator.recovery import RestorePoint, fitted, plan_image

ID = SnapshotId("20261122T042242123456Z-1a2b3c4d")


class Parts:
    def assign_part(self, message: Any) -> str:
        return "a"

    def build_part(self, part: str, state: Any) -> Any:
        raise NotImplementedError


def in_cents(key: object, euros: int) -> int:
    return euros * 100


def by_hand(key: int) -> int:
    return key % 4


def job(
    *,
    source: str = "orders",
    epochs: str = "epochs",
    key: str = "key",
    total: str = "total",
    sink: str = "out",
    slots: int = 8,
    **options: Mapping[str, Any],
) -> mp.Job:
    """A job of which each step can be given another name, and options: under ``source_``, ``total_`` and so on."""
    made = mp.Job("shop", slots)
    read = made.source(source, sources.Memory([1, 2, 3]), **options.get("source_", {}))
    timed = read.assign_timestamps("at", lambda n: n)
    on_time, _ = timed.generate_epochs(epochs, mp.limit_out_of_orderness(1), **options.get("epochs_", {}))
    keyed = on_time.key_by(key, lambda n: n % 2, **options.get("key_", {}))
    keyed.sum(total, **options.get("total_", {})).sink(sink, sinks.Memory(), **options.get("sink_", {}))
    return made


def artefact(operator: str, worker: int) -> Artefact:
    return Artefact(operator, worker, "full", ID, artefact_path(ID, operator, worker, "full"), 1, "0" * 64)


def snapshot(of: mp.Job, **fields: Any) -> Manifest:
    """A snapshot of the job that `job` makes, on two workers."""
    said: dict[str, Any] = {
        "job": of.name,
        "artefacts": [artefact("total", 0), artefact("total", 1)],
        "sources": {"orders": {"0": PartImage(2)}},
        "parts": {"epochs": {"orders/0": {"epoch": 7}}},
        "frontiers": {"key": 7},
        "sinks": {"out": (b"payload",)},
        "pins": {"orders": "pinned"},
    }
    return Manifest(
        id=ID,
        sequence=2,
        incarnation=1,
        created="2026-11-22T04:22:42Z",
        workers=2,
        plan=plan_image(of.plan()),
        **(said | fields),
    )


def fit(now: mp.Job, before: Manifest | None = None, **options: Any) -> RestorePoint:
    return fitted(snapshot(job()) if before is None else before, now.plan(), chain_max=10, **options)


def told(now: mp.Job, before: Manifest | None = None, **options: Any) -> str:
    with pytest.raises(SnapshotError) as raised:
        fit(now, before, **options)
    text = str(raised.value)
    assert text.startswith(f"job 'shop' cannot resume from snapshot {ID}, because the job changed:\n  - ")
    return text.split("\n  - ", 1)[1]


def test_an_image_tells_what_must_fit() -> None:
    made = job(total_={"migrate": in_cents}, key_={"partitioner": partitioners.index})
    image = plan_image(made.plan())
    assert image.slots == 8
    assert image.steps == {
        "orders": StepImage("source"),
        "at": StepImage("assign_timestamps"),
        "epochs": StepImage("generate_epochs"),
        "key": StepImage("key_by", keyed=True, partitioner="Index"),
        "total": StepImage("sum", True, True, "Index", "test_job_changes:in_cents"),
        "out": StepImage("sink", keyed=True, partitioner="Index"),
    }


def test_the_parts_of_a_sink_are_state() -> None:
    made = mp.Job("shop")
    made.source("orders", sources.Memory([1])).sink("out", Parts())
    image = plan_image(made.plan())
    assert image.steps["out"] == StepImage("sink", keyed=True, stateful=True, partitioner="StableHash")


def test_the_same_job_takes_over_everything() -> None:
    found = fit(job())
    before = snapshot(job())
    assert found.former == {name: name for name in ("orders", "at", "epochs", "key", "total", "out")}
    assert found.chains == {"total": {0: [artefact("total", 0)], 1: [artefact("total", 1)]}}
    assert (found.migrate, found.dropped) == ({}, ())
    assert (found.sources, found.parts, found.frontiers) == (before.sources, before.parts, before.frontiers)
    assert (found.sinks, found.pins) == (before.sinks, before.pins)


def test_renamed_steps_take_over_what_was_theirs() -> None:
    now = job(
        source="sales",
        source_={"renamed_from": "orders"},
        epochs="time",
        epochs_={"renamed_from": "epochs"},
        key="item",
        key_={"renamed_from": "key"},
        total="sum",
        total_={"renamed_from": "total"},
        sink="written",
        sink_={"renamed_from": "out"},
    )
    found = fit(now)
    assert found.former == {
        "sales": "orders",
        "at": "at",
        "time": "epochs",
        "item": "key",
        "sum": "total",
        "written": "out",
    }
    assert found.chains == {"sum": {0: [artefact("total", 0)], 1: [artefact("total", 1)]}}
    assert found.sources == {"sales": {"0": PartImage(2)}}
    assert found.parts == {"time": {"sales/0": {"epoch": 7}}}
    assert (found.frontiers, found.sinks, found.pins) == ({"item": 7}, {"written": (b"payload",)}, {"sales": "pinned"})


def test_what_was_renamed_once_is_found_by_its_name_ever_after() -> None:
    options: dict[str, Any] = {"total": "sum", "total_": {"renamed_from": "total"}}
    before = snapshot(job(**options), artefacts=[artefact("sum", 0)])
    assert fit(job(**options), before).chains == {"sum": {0: [artefact("sum", 0)]}}


def test_the_parts_of_a_partitioned_sink_go_on_under_another_name() -> None:
    def written(name: str, **options: Any) -> mp.Job:
        made = mp.Job("shop")
        made.source("orders", sources.Memory([1])).sink(name, Parts(), **options)
        return made

    before = snapshot(written("out"), artefacts=[artefact("out", 0)], parts={}, frontiers={"out-parts": 7}, sinks={})
    found = fit(written("files", renamed_from="out"), before)
    assert found.chains == {"files": {0: [artefact("out", 0)]}}
    assert found.frontiers == {"files-parts": 7}


def added(made: mp.Job) -> mp.Job:
    numbers = made.source("returns", sources.Memory([1])).map("double", lambda n: n * 2)
    numbers.key_by("other", lambda n: n).count("seen").sink("more", sinks.Memory())
    return made


def test_a_step_that_was_added_starts_empty() -> None:
    found = fit(added(job()))
    assert not {"returns", "double", "other", "seen", "more"} & set(found.former)
    assert set(found.chains) == {"total"}


def test_steps_without_state_come_and_go() -> None:
    without = mp.Job("shop", 8)
    read = without.source("orders", sources.Memory([1]))
    timed = read.assign_timestamps("at", lambda n: n).map("new", lambda n: n)
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(1))
    on_time.key_by("other-key", lambda n: n % 2).sum("total").sink("out", sinks.Memory())
    found = fit(without)
    assert "other-key" not in found.former
    assert found.frontiers == {}
    assert set(found.chains) == {"total"}


@pytest.mark.parametrize(
    ("now", "gone"),
    [
        (lambda: job(total="sum"), "step 'total' (sum, its keyed state)"),
        (lambda: job(source="sales"), "step 'orders' (source, how far it had read)"),
        (lambda: job(epochs="time"), "step 'epochs' (generate_epochs, the watermark of each partition)"),
        (lambda: job(sink="files"), "step 'out' (sink, its uncommitted output)"),
        (
            lambda: job(total="sum", source="sales"),
            "step 'orders' (source, how far it had read); step 'total' (sum, its keyed state)",
        ),
    ],
    ids=["state", "source", "epochs", "sink", "two"],
)
def test_what_would_be_lost_is_named_unless_that_is_allowed(now: Callable[[], mp.Job], gone: str) -> None:
    said = told(now())
    assert said.startswith(f"steps with state were removed: {gone}. Restore them, give renamed_from=")
    found = fit(now(), allow_dropped_state=True)
    assert found.dropped
    assert not set(found.dropped) & set(found.former.values())
    if "orders" in found.dropped:
        assert found.parts == {"epochs": {}}


def test_a_new_step_of_the_same_kind_is_perhaps_the_one_that_is_gone() -> None:
    assert told(job(total="sum")).endswith(
        "Step 'sum' is new and a sum like 'total': if it is the same step, give 'sum' renamed_from='total'"
    )


def test_a_sink_whose_output_is_visible_leaves_nothing_behind() -> None:
    assert fit(job(sink="files"), sinks_committed=True).sinks == {}
    empty = snapshot(job(), sinks={"out": ()})
    assert fit(job(sink="files"), empty).sinks == {}


def test_a_step_that_keeps_nothing_any_more_has_lost_its_state() -> None:
    now = mp.Job("shop", 8)
    timed = now.source("orders", sources.Memory([1])).assign_timestamps("at", lambda n: n)
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(1))
    on_time.key_by("key", lambda n: n % 2).map("total", lambda n: n).sink("out", sinks.Memory())
    assert "step 'total' (sum, its keyed state; now a map)" in told(now)
    found = fit(now, allow_dropped_state=True)
    assert (found.dropped, found.chains, found.former.get("total")) == (("total",), {}, None)


def test_slots_stay() -> None:
    assert told(job(slots=16)) == (
        "the snapshot has 8 slots, the job 16; the number of slots cannot change: use mp.Job('shop', slots=8)"
    )


def test_a_snapshot_of_another_job_is_none_of_this_one() -> None:
    assert "the snapshot is of job 'other'" in told(job(), snapshot(job(), job="other"))


def as_a_maximum(**options: Any) -> mp.Job:
    now = mp.Job("shop", 8)
    timed = now.source("orders", sources.Memory([1])).assign_timestamps("at", lambda n: n)
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(1))
    on_time.key_by("key", lambda n: n % 2).max("total", **options).sink("out", sinks.Memory())
    return now


def test_state_of_another_kind_of_step_has_to_be_migrated() -> None:
    assert told(as_a_maximum()).startswith(
        "step 'total' was a sum and is a max, whose state differs: give a function migrate="
    )
    assert fit(as_a_maximum(migrate=in_cents)).migrate == {"total": in_cents}


def test_a_migration_is_applied_once() -> None:
    now = job(total_={"migrate": in_cents})
    assert fit(now).migrate == {"total": in_cents}
    assert fit(now, snapshot(now)).migrate == {}

    def in_thousandths(key: object, cents: int) -> int:
        return cents * 10

    later = job(total_={"migrate": in_thousandths})
    assert fit(later, snapshot(now)).migrate == {"total": in_thousandths}


def test_a_migration_of_before_does_not_excuse_another_kind() -> None:
    now = as_a_maximum(migrate=in_cents)
    assert "was a sum and is a max" in told(now, snapshot(job(total_={"migrate": in_cents})))


def test_a_step_that_starts_empty_has_nothing_to_migrate() -> None:
    now = job(total="sum", total_={"migrate": in_cents})
    assert fit(now, allow_dropped_state=True).migrate == {}


@pytest.mark.parametrize(
    ("partitioner", "called"), [(partitioners.index, "Index"), (by_hand, "by_hand")], ids=["index", "function"]
)
def test_f3_keys_stay_in_their_slots(partitioner: Any, called: str) -> None:
    now = job(key_={"partitioner": partitioner})
    assert told(now).startswith(
        f"step 'total': its key_by had the partitioner StableHash and has {called}, which maps keys to other slots"
    )
    assert fit(now, snapshot(now)).chains
    assert fit(job(key_={"partitioner": partitioners.stable_hash})).chains, "which is the default"


def test_a_former_name_that_never_was_is_told() -> None:
    said = told(job(total="sum", total_={"renamed_from": "totals"}), allow_dropped_state=True)
    assert said == (
        "step 'sum': renamed_from='totals', but the snapshot knows neither name; its steps are "
        "orders, at, epochs, key, total, out"
    )


def two_totals(*names: str, **options: Any) -> mp.Job:
    made = mp.Job("shop", 8)
    keyed = made.source("orders", sources.Memory([1])).key_by("key", lambda n: n)
    for name in names:
        keyed.sum(name, **options).sink(f"{name}-out", sinks.Memory())
    return made


def test_one_step_does_not_go_on_from_two() -> None:
    nothing: dict[str, Any] = {"artefacts": [], "sources": {}, "parts": {}, "frontiers": {}, "sinks": {}, "pins": {}}
    before, now = snapshot(two_totals("a", "b"), **nothing), two_totals("b", renamed_from="a")
    for allowed in (False, True):
        said = told(now, before, allow_dropped_state=allowed)
        assert "step 'b': renamed_from='a', but the snapshot has a step 'b' as well" in said
    assert fit(now, snapshot(two_totals("a"), **nothing)).former["b"] == "a"
    assert fit(now, snapshot(now, **nothing)).former["b"] == "b", "it may be said for ever"


def test_all_that_is_wrong_is_told_at_once() -> None:
    now = job(slots=16, total="sum", total_={"renamed_from": "totals"}, source="sales")
    said = told(now)
    assert len(said.split("\n  - ")) == 3
    assert "16" in said
    assert "'totals'" in said
    assert "steps with state were removed" in said
