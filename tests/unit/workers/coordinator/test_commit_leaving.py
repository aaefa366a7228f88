"""The commit at the end of a job whose workers came and went: what leavers have written is part of it (R8)."""

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
from malstrom_py.workers.coordinator.sink_commits import SinkCommits, pre_committed
from tests.unit.workers.harness import Journal, Ledger, PlainSink, Running


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


def test_r8_a_leaver_pre_commits_at_once_and_is_visible_with_all_the_others() -> None:
    a, b = Ledger(), Ledger()
    stayer = write(writers(0, a=a, b=b), 1)
    commit = SinkCommits("job", stayer, 0.0)
    leaver = write(writers(1, a=a, b=b), 2)
    leave(commit, leaver)
    assert [call for _, call in a.calls if call == "pre_commit"] == ["pre_commit"]
    assert (a.visible, len(a.staged)) == ([], 1)
    for sink in leaver:
        sink.close()
    leave(commit, stayer)
    commit.commit()
    assert [sorted(ledger.visible) for ledger in (a, b)] == [[1, 2], [1, 2]]
    assert [ledger.calls.count((1, "pre_commit")) for ledger in (a, b)] == [1, 1]


def test_r8_what_everybody_has_written_is_visible_once() -> None:
    ledger = Ledger()
    stayer = write(writers(0, a=ledger), 1)
    commit = SinkCommits("job", stayer, 0.0)
    for worker in (1, 2, 3):
        sinks = write(writers(worker, a=ledger), worker * 10)
        leave(commit, sinks)
    leave(commit, stayer)
    commit.commit()
    assert ledger.visible == [1, 10, 20, 30]
    assert {worker: ledger.calls.count((worker, "pre_commit")) for worker in range(4)} == dict.fromkeys(range(4), 1)


def test_s6_what_leavers_have_left_is_discarded_with_all_the_rest() -> None:
    ledger = Ledger()
    stayer = write(writers(0, a=ledger), 1)
    commit = SinkCommits("job", stayer, 0.0)
    leaver = write(writers(1, a=ledger), 2)
    leave(commit, leaver)
    assert commit.abort() == []
    assert (ledger.staged, ledger.visible) == ({}, [])


def test_a_leaver_that_cannot_pre_commit_is_named_and_nothing_of_it_counts() -> None:
    fine, failing = Ledger(), Ledger(failing={1: "pre_commit"})
    commit = SinkCommits("job", write(writers(0, a=fine, b=failing), 1), 0.0)
    leaver = write(writers(1, a=fine, b=failing), 2)
    with pytest.raises(SinkError, match="sink 'b' could not pre-commit"):
        leave(commit, leaver)
    commit.abort()
    assert (fine.staged, fine.visible, failing.staged) == ({}, [], {})


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
    elsewhere = SinkCommits("job", [sink for sink in writing if sink.sink is there], 5.0)
    elsewhere.take_over(commit.snapshot, commit.to_deliver())
    assert elsewhere.contexts["there"] == commit.contexts["there"]
    assert commit.abort() == []
    assert (here.staged, there.staged) == ({}, {})
