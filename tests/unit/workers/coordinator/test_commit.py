"""The end of a job: all sinks pre-commit before any sink commits, and a failure leaves no output."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.data.batch import Batch
from malstrom_py.errors import SinkError
from malstrom_py.operators.base import StepContext
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.sinks.files import Files
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.coordinator.sink_commits import SinkCommits, pre_committed
from tests.unit.workers.harness import Journal, JournalSink, Ledger, PlainSink, Running


def run_into(*sinks: JournalSink | PlainSink) -> mp.RunResult:
    job = mp.Job("job")
    stream = job.source("numbers", sources.Memory([1, 2, 3]))
    for sink in sinks:
        stream.sink(sink.name, sink)
    return mp.run(job, clock=VirtualClock(start_s=1_000_000.0))


def two(failing: str = "", error: BaseException | None = None) -> tuple[Journal, JournalSink, JournalSink]:
    """Two sinks of one journal; the second one fails."""
    journal = Journal()
    return journal, JournalSink("a", journal), JournalSink("b", journal, failing, error)


def test_all_pre_commit_before_any_commits_and_all_commit_before_any_closes() -> None:
    journal, first, second = two()
    run_into(first, second)
    steps = ["recover", "open", "write", "pre_commit", "commit", "close"]
    assert journal.entries == [f"{name}: {call}" for call in steps for name in ("a", "b")]
    assert first.visible == second.visible == [1, 2, 3]


@pytest.mark.parametrize("point", ["recover", "open", "write", "pre_commit"])
def test_a_failure_before_the_commits_shows_nothing_anywhere(point: str) -> None:
    journal, first, second = two(point)
    with pytest.raises(SinkError, match=r"sink 'b' could not .*No space left on device") as caught:
        run_into(first, second)
    assert caught.value.__cause__ is second.error
    assert first.visible == second.visible == []
    assert first.staged == second.staged == {}
    assert "a: commit" not in journal.entries
    assert journal.calls("a").count("abort") == journal.calls("b").count("abort") == 1


@pytest.mark.parametrize("point", ["open", "write", "pre_commit", "commit", "abort", "close", "write abort close"])
def test_every_writer_that_was_opened_is_closed_exactly_once(point: str) -> None:
    journal, first, second = two(point)
    try:
        run_into(first, second)
    except SinkError:
        assert point != "abort"
    assert journal.calls("a").count("close") == 1
    assert journal.calls("b").count("close") == (0 if point == "open" else 1)


def test_a_failing_commit_tells_what_is_visible_already_and_discards_the_rest() -> None:
    journal, first, second = two("commit")
    third = JournalSink("c", journal)
    with pytest.raises(SinkError, match="sink 'b' could not commit; already visible: a"):
        run_into(first, second, third)
    assert (first.visible, second.visible, third.visible) == ([1, 2, 3], [], [])
    assert [name for name in "abc" if "abort" in journal.calls(name)] == ["b", "c"]
    assert second.staged == third.staged == {}


def test_the_first_error_is_told_and_later_ones_are_noted_on_it() -> None:
    _, first, second = two("write abort close")
    with pytest.raises(SinkError, match="'b' could not write") as caught:
        run_into(first, second)
    notes = caught.value.__notes__
    assert any("sink 'b' could not discard" in note for note in notes)
    assert any("sink 'b' could not be closed" in note for note in notes)


def test_a_failure_to_close_after_the_commit_takes_nothing_back() -> None:
    journal, first, second = two("close")
    with pytest.raises(SinkError, match="'b' could not be closed"):
        run_into(first, second)
    assert first.visible == second.visible == [1, 2, 3]
    assert "abort" not in journal.calls("a") + journal.calls("b")


@pytest.mark.parametrize("point", ["open", "write", "pre_commit"])
def test_an_interrupt_discards_what_is_not_committed(point: str) -> None:
    _, first, second = two(point, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt) as caught:
        run_into(first, second)
    assert first.visible == second.visible == []
    assert first.staged == second.staged == {}
    (note,) = caught.value.__notes__
    assert note.startswith("stopped by the user; nothing was committed; so far job job: ")


def test_an_interrupt_between_two_commits_tells_what_is_visible() -> None:
    _, first, second = two("commit", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt) as caught:
        run_into(first, second)
    assert (first.visible, second.visible) == ([1, 2, 3], [])
    (note,) = caught.value.__notes__
    assert note.startswith("stopped by the user; sink 'a' had committed; so far ")


def test_contexts_share_one_fresh_id_and_name_job_and_step() -> None:
    journal, first, second = two()
    run_into(first, second)
    assert {(context.job, context.step) for context in journal.contexts} == {("job", "a"), ("job", "b")}
    assert len({context.snapshot for context in journal.contexts}) == 1
    before = journal.contexts[0]
    run_into(first)
    assert journal.contexts[-1].snapshot != before.snapshot


def test_sinks_without_transactions_show_what_they_wrote_and_are_closed() -> None:
    journal = Journal()
    plain, failing = PlainSink("p", journal), JournalSink("t", journal, "pre_commit")
    with pytest.raises(SinkError):
        run_into(plain, failing)
    assert plain.visible == [1, 2, 3]
    assert journal.calls("p") == ["build", "write", "close"]


@pytest.mark.parametrize("point", ["build", "write", "close"])
def test_a_sink_without_transactions_fails_by_name(point: str) -> None:
    journal = Journal()
    transactional = JournalSink("t", journal)
    with pytest.raises(SinkError, match="sink 'p' could not"):
        run_into(transactional, PlainSink("p", journal, point))
    assert transactional.visible == []


# Workers that came and went: what leavers have written is part of the commit (R8).


def writers(worker: int, **ledgers: Ledger | PlainSink) -> list[WriteSink]:
    """The opened sink steps of one worker."""
    sinks = [WriteSink(StepContext("job", name, worker), sink=sink) for name, sink in ledgers.items()]
    for sink in sinks:
        sink.open()
    return sinks


def leave(commit: SinkCommits, sinks: list[WriteSink]) -> None:
    commit.add(pre_committed(sinks, commit.contexts))


def write(sinks: list[WriteSink], *values: int) -> list[WriteSink]:
    for sink in sinks:
        assert sink.writer is not None
        sink.writer.write(Batch(list(values)))
    return sinks


def test_sinks_without_transactions_have_nothing_to_leave() -> None:
    journal = Journal()
    plain = PlainSink("p", journal)
    stayer = writers(0, p=plain)
    commit = SinkCommits("job", stayer, 0.0)
    leaver = writers(1, p=plain)
    leave(commit, leaver)
    leave(commit, stayer)
    commit.commit()
    assert (commit.committed, journal.calls("p")) == ([], ["build", "build"])


def test_all_workers_commit_under_one_context_per_step() -> None:
    ledger = Ledger()
    stayer = write(writers(0, a=ledger), 1)
    commit = SinkCommits("job", stayer, 0.0)
    leaver = write(writers(1, a=ledger), 2)
    leave(commit, leaver)
    leave(commit, stayer)
    assert len({payload.decode().rpartition("-")[0] for payload in ledger.staged}) == 1


class Kept(Ledger):
    """A sink that records what is held for the commit, and what is released."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[bytes] = []

    def hold(self, context: CommitContext, payloads: list[bytes]) -> Callable[[], None]:
        [payload] = payloads
        self.held.append(payload)
        return lambda: self.held.remove(payload)


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_what_a_leaver_has_pre_committed_is_held_until_it_is_committed_or_discarded(end: str) -> None:
    ledger = Kept()
    stayer = write(writers(0, a=ledger), 1)
    commit = SinkCommits("job", stayer, 0.0)
    leaver = write(writers(1, a=ledger), 2)
    leave(commit, leaver)
    assert len(ledger.held) == 1
    for sink in leaver:
        sink.close()
    leave(commit, stayer)
    assert len(ledger.held) == 2
    getattr(commit, end)()
    assert ledger.held == []


def test_a_sink_that_cannot_hold_what_was_pre_committed_is_named_and_it_is_discarded() -> None:
    class Unkept(Ledger):
        def hold(self, context: CommitContext, payloads: list[bytes]) -> Callable[[], None]:
            raise OSError(24, "Too many open files")

    ledger = Unkept()
    stayer = write(writers(0, a=ledger), 1)
    commit = SinkCommits("job", stayer, 0.0)
    with pytest.raises(SinkError, match="sink 'a' could not keep its pre-committed output"):
        leave(commit, stayer)
    commit.abort()
    assert ledger.staged == {}


def into_files(folder: Path, rows: list[Any]) -> mp.Job:
    job = mp.Job("into-files")
    by = job.source("in", sources.Memory(rows, parts=2)).key_by("by", lambda row: row["n"])
    by.map("same", lambda row: row).sink("out", Files(folder, format="json"))
    return job


def numbers(folder: Path) -> list[int]:
    lines = [line for file in folder.glob("*.json") for line in file.read_text().splitlines()]
    return sorted(json.loads(line)["n"] for line in lines)


def staged(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "_staging" in path.parts]


def test_a_second_run_of_the_job_leaves_alone_what_leavers_of_the_first_have_pre_committed(tmp_path: Path) -> None:
    first = Running(into_files(tmp_path, [{"n": n} for n in range(100)]), workers=2, rows_max=10)
    first.step(20).ask(1).settle()
    left = [path for path in staged(tmp_path) if not path.name.startswith("open-")]
    assert left
    mp.run(into_files(tmp_path, [{"n": 1000}]), progress=False)
    assert all(path.exists() for path in left)
    first.finish()
    assert numbers(tmp_path) == [*range(100), 1000]
    assert not (tmp_path / "_staging").exists()
    Files(tmp_path, format="json").recover(CommitContext("into-files", "out", SnapshotId("s9"), incarnation=1), [])
    assert numbers(tmp_path) == [*range(100), 1000]


def test_what_leavers_of_a_run_that_is_over_have_left_is_cleared_by_the_next(tmp_path: Path) -> None:
    first = Running(into_files(tmp_path, [{"n": n} for n in range(100)]), workers=2, rows_max=10)
    first.step(20).ask(1).settle()
    assert staged(tmp_path)
    del first  # as if its process were gone: nothing was committed, nothing discarded
    gc.collect()
    mp.run(into_files(tmp_path, [{"n": 1000}]), progress=False)
    assert (staged(tmp_path), numbers(tmp_path)) == ([], [1000])


class Delivered(Ledger):
    """A ledger whose commit is made elsewhere."""

    commits_in_driver = True


def test_what_is_committed_elsewhere_is_kept_for_it_and_discarded_if_the_job_fails() -> None:
    here, there = Ledger(), Delivered()
    writing = write(writers(0, here=here, there=there), 1)
    commit = SinkCommits("job", writing, 0.0, deliver=True)
    leave(commit, writing)
    assert [step for step, _ in commit.to_deliver()] == ["there"]
    elsewhere = SinkCommits("job", [sink for sink in writing if sink.context.step == "there"], 5.0)
    elsewhere.take_over(commit.snapshot, commit.to_deliver())
    assert elsewhere.contexts["there"] == commit.contexts["there"]
    assert commit.abort() == []
    assert (here.staged, there.staged) == ({}, {})
