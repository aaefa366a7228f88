"""A fault of a user's checkpointer is an immediate `SnapshotError`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from malstrom_py.errors import FencedError, PlanError, SnapshotError
from malstrom_py.errors.text import redacting
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import Checkpointer, StoreCheckpointer
from malstrom_py.snapshot.log import JobStart, LogEntry
from malstrom_py.snapshot.manifest import Artefact
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.snapshot.user_checkpointer import CheckedCheckpointer, methods
from malstrom_py.testing.contracts import check_checkpointer
from tests.unit.snapshot.taken import JOB, Start
from tests.unit.snapshot.taken import manifest as manifest_of

ID = SnapshotId("20261122T042242123456Z-1a2b3c4d")

CALLS: dict[str, Callable[[Checkpointer], Any]] = {
    "claim": lambda one: one.claim(0.0),
    "delete_checkpoint": lambda one: one.delete_checkpoint(ID),
    "entries": lambda one: one.entries(),
    "files": lambda one: one.files(),
    "latest_hint": lambda one: one.latest_hint(),
    "list_checkpoints": lambda one: one.list_checkpoints(),
    "load_artifact": lambda one: one.load_artifact("artefacts/a"),
    "load_manifest": lambda one: one.load_manifest(ID),
    "next_id": lambda one: one.next_id(0.0),
    "note_sinks_committed": lambda one: one.note_sinks_committed(ID),
    "prune": lambda one: one.prune(3, 0.0, 0.0),
    "read_latest": lambda one: one.read_latest(),
    "save_compacted": lambda one: one.save_compacted(ID, "totals", 0, b"all"),
    "save_delta": lambda one: one.save_delta(ID, "totals", 0, b"all"),
    "save_manifest": lambda one: one.save_manifest(Start(StoreCheckpointer(MemoryStore(), JOB)).take(b"one")),
    "save_snapshot": lambda one: one.save_snapshot(ID, "totals", 0, b"all"),
    "sinks_committed": lambda one: one.sinks_committed(ID),
    "update_latest": lambda one: one.update_latest(ID),
}


def broken(method: str, error: Exception) -> Checkpointer:
    """Return a checkpointer whose ``method`` raises."""

    def fails(*arguments: Any, **named: Any) -> Any:
        raise error

    made: Any = StoreCheckpointer(MemoryStore(), JOB)
    setattr(made, method, fails)
    return CheckedCheckpointer(made, JOB)


def test_what_it_guards_keeps_the_contract() -> None:
    check_checkpointer(
        lambda: CheckedCheckpointer(StoreCheckpointer(MemoryStore(), JOB), JOB), job=JOB, again=lambda guarded: guarded
    )


def test_every_method_is_called_here() -> None:
    assert sorted(CALLS) == methods()


@pytest.mark.parametrize("method", sorted(CALLS))
def test_what_a_method_raises_is_an_error_of_snapshots_that_names_it(method: str) -> None:
    with pytest.raises(SnapshotError, match=rf"^job 'orders': StoreCheckpointer: {method} failed with OSError: no$"):
        CALLS[method](broken(method, OSError("no")))


@pytest.mark.parametrize("method", sorted(CALLS))
def test_errors_of_ours_pass(method: str) -> None:
    with pytest.raises(FencedError, match=r"^fenced off$"):
        CALLS[method](broken(method, FencedError("fenced off")))


def test_the_text_of_an_error_is_shown_unless_texts_are_hidden() -> None:
    with pytest.raises(SnapshotError, match=r"files failed with ValueError: INSERT ... 'a value'$"):
        broken("files", ValueError("INSERT ... 'a value'")).files()
    with redacting(True), pytest.raises(SnapshotError, match=r"files failed with ValueError$") as raised:
        broken("files", ValueError("INSERT ... 'a value'")).files()
    assert isinstance(raised.value.__cause__, ValueError)


def test_a_digest_that_does_not_fit_is_told_when_it_saves() -> None:
    made: Any = StoreCheckpointer(MemoryStore(), JOB)
    made.save_delta = lambda *arguments: "0" * 64
    with pytest.raises(SnapshotError, match="save_delta of step 'totals' on worker 3 returned a digest that is not"):
        CheckedCheckpointer(made, JOB).save_delta(ID, "totals", 3, b"changed")


def giving(method: str, given: Any) -> Checkpointer:
    """Return a checkpointer with a snapshot whose ``method`` returns ``given``."""
    start = Start(StoreCheckpointer(MemoryStore(), JOB))
    start.take(b"one")
    made: Any = start.checkpointer
    setattr(made, method, lambda *arguments, **named: given)
    return CheckedCheckpointer(made, JOB)


WRONG: list[tuple[str, Any, str]] = [
    ("claim", None, "NoneType"),
    ("claim", JobStart("1", 2), "a JobStart with incarnation of type str"),  # type: ignore[arg-type]
    ("claim", JobStart(1, None), "a JobStart with sequence of type NoneType"),  # type: ignore[arg-type]
    ("entries", None, "NoneType"),
    ("entries", iter(()), "tuple_iterator"),
    ("entries", [1], "one with an item of type int"),
    ("entries", [LogEntry(1, {})], "an entry with a content of type dict"),  # type: ignore[arg-type]
    ("entries", [LogEntry("1", None, "gone")], "an entry with a sequence of type str"),  # type: ignore[arg-type]
    ("files", None, "NoneType"),
    ("files", "artefacts", "str"),
    ("files", [b"artefacts"], "one with an item of type bytes"),
    ("latest_hint", b"x", "bytes"),
    ("list_checkpoints", None, "NoneType"),
    ("list_checkpoints", [None], "one with an item of type NoneType"),
    ("load_artifact", None, "NoneType"),
    ("load_artifact", "text", "str"),
    ("load_manifest", None, "NoneType"),
    ("next_id", "x", "str that does not have the form of an id"),
    ("next_id", None, "NoneType"),
    ("prune", None, "NoneType"),
    ("read_latest", 3, "int"),
    ("save_delta", None, "NoneType"),
    ("sinks_committed", None, "NoneType"),
]


@pytest.mark.parametrize(("method", "given", "found"), WRONG, ids=[f"{m}-{type(g).__name__}" for m, g, _ in WRONG])
def test_what_a_method_returns_that_it_should_not_is_an_error_of_snapshots(method: str, given: Any, found: str) -> None:
    with pytest.raises(SnapshotError, match=rf"^job 'orders': StoreCheckpointer: {method} returns .*, got {found}$"):
        CALLS[method](giving(method, given))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_an_artefact_may_come_as_databases_give_it(kind: Callable[[bytes], Any]) -> None:
    loaded = giving("load_artifact", kind(b"state")).load_artifact("artefacts/a")
    assert (loaded, type(loaded)) == (b"state", bytes)


def test_a_tuple_is_a_list_and_a_number_of_a_database_is_a_flag() -> None:
    assert giving("files", ("b", "c")).files() == ["b", "c"]
    assert giving("list_checkpoints", (ID,)).list_checkpoints() == [ID]
    assert giving("sinks_committed", 1).sinks_committed(ID) is True


def test_a_manifest_that_is_not_kept_is_told_before_sinks_commit() -> None:
    start = Start(StoreCheckpointer(MemoryStore(), JOB))
    made: Any = start.checkpointer
    manifest = manifest_of(start.new_id(), start.claim, start.sequence + 1)
    made.save_manifest = lambda manifest: None
    with pytest.raises(SnapshotError, match=f"has no snapshot {manifest.id}"):
        CheckedCheckpointer(made, JOB).save_manifest(manifest)
    made.load_manifest = lambda id: replace(manifest, workers=7)
    with pytest.raises(SnapshotError, match=f"save_manifest has changed snapshot {manifest.id}"):
        CheckedCheckpointer(made, JOB).save_manifest(manifest)


def test_a_manifest_that_cannot_be_is_not_passed_on() -> None:
    start = Start(StoreCheckpointer(MemoryStore(), JOB))
    wrong = replace(start.take(b"one"), artefacts=(Artefact("totals", 0, "full", ID, "elsewhere", 0, ""),))
    with pytest.raises(SnapshotError, match="is not committed: the artefact of 'totals' has a wrong path"):
        CheckedCheckpointer(start.checkpointer, JOB).save_manifest(wrong)


def test_one_for_another_job_is_refused_before_that_is_fenced_off() -> None:
    start = Start(StoreCheckpointer(MemoryStore(), JOB))
    start.take(b"one")
    with pytest.raises(SnapshotError, match="keeps snapshots of job 'orders': a checkpointer is for one job"):
        Snapshots(checkpointer=start.checkpointer).checkpointer("other").claim(0.0)
    start.take(b"two")


def test_an_instance_a_function_and_a_class_are_taken() -> None:
    store = MemoryStore()

    class Mine(StoreCheckpointer):
        def __init__(self, job: str) -> None:
            super().__init__(store, job)

    for given in (Mine(JOB), Mine, lambda job: StoreCheckpointer(store, job)):
        Snapshots(checkpointer=given).checkpointer(JOB).claim(0.0)
    assert len(Mine(JOB).entries()) == 3
    assert repr(Snapshots(checkpointer=Mine).checkpointer(JOB)).endswith("Mine")


@pytest.mark.parametrize("given", ["/data", 3, object()], ids=["path", "number", "object"])
def test_what_is_no_checkpointer_is_told_at_once(given: Any) -> None:
    with pytest.raises(
        PlanError, match=r"checkpointer must be an mp\.Checkpointer, or a function .*, which lacks claim, "
    ):
        Snapshots(checkpointer=given)


@pytest.mark.parametrize("options", [{"uri": "/data"}, {"options": {"region": "eu"}}], ids=["uri", "options"])
def test_there_is_one_place(options: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="not both"):
        Snapshots(checkpointer=lambda job: StoreCheckpointer(MemoryStore(), job), **options)


def test_there_is_a_place() -> None:
    with pytest.raises(PlanError, match=r"snapshots: give the place of the snapshots, mp\.Snapshots\(uri\)"):
        Snapshots()
    with pytest.raises(PlanError, match="but this call needs a uri"):
        Snapshots(checkpointer=lambda job: StoreCheckpointer(MemoryStore(), job)).store()


def test_a_function_that_makes_none_or_raises_is_told_with_the_job() -> None:
    made: Any = lambda job: None  # noqa: E731
    with pytest.raises(PlanError, match="got NoneType, which lacks claim"):
        Snapshots(checkpointer=made).checkpointer(JOB)
    with pytest.raises(
        SnapshotError, match=r"job 'orders': .*<lambda> failed to make a checkpointer: it raised ZeroDivisionError: .*"
    ):
        Snapshots(checkpointer=lambda job: 1 // 0).checkpointer(JOB)  # type: ignore[arg-type, return-value]
