"""The commit at the end of a job whose workers came and went: what leavers have written is part of it (R8)."""

from __future__ import annotations

import pytest

from malstrom_py.batches import Batch
from malstrom_py.errors import SinkError
from malstrom_py.operators.base import StepContext
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.workers.commit import FinalCommit
from tests.unit.workers.journal import Journal, PlainSink
from tests.unit.workers.rescaling import Ledger


def writers(worker: int, **ledgers: Ledger | PlainSink) -> list[WriteSink]:
    """The opened sink steps of one worker."""
    sinks = [WriteSink(StepContext("job", name, worker), sink=sink) for name, sink in ledgers.items()]
    for sink in sinks:
        sink.open()
    return sinks


def write(sinks: list[WriteSink], *values: int) -> list[WriteSink]:
    for sink in sinks:
        assert sink.writer is not None
        sink.writer.write(Batch(list(values)))
    return sinks


def test_r8_a_leaver_pre_commits_at_once_and_is_visible_with_all_the_others() -> None:
    a, b = Ledger(), Ledger()
    commit = FinalCommit("job", write(writers(0, a=a, b=b), 1), 0.0)
    leaver = write(writers(1, a=a, b=b), 2)
    commit.join(leaver)
    commit.leave(leaver)
    assert [call for _, call in a.calls if call == "pre_commit"] == ["pre_commit"]
    assert (a.visible, len(a.staged)) == ([], 1)
    for sink in leaver:
        sink.close()
    commit.pre_commit()
    commit.commit()
    assert [sorted(ledger.visible) for ledger in (a, b)] == [[1, 2], [1, 2]]
    assert [ledger.calls.count((1, "pre_commit")) for ledger in (a, b)] == [1, 1]


def test_r8_who_has_left_is_not_asked_again_and_who_joined_is() -> None:
    ledger = Ledger()
    commit = FinalCommit("job", write(writers(0, a=ledger), 1), 0.0)
    for worker in (1, 2, 3):
        sinks = write(writers(worker, a=ledger), worker * 10)
        commit.join(sinks)
        if worker != 3:
            commit.leave(sinks)
    commit.pre_commit()
    commit.commit()
    assert ledger.visible == [1, 10, 20, 30]
    assert {worker: ledger.calls.count((worker, "pre_commit")) for worker in range(4)} == dict.fromkeys(range(4), 1)


def test_s6_what_leavers_have_left_is_discarded_with_all_the_rest() -> None:
    ledger = Ledger()
    commit = FinalCommit("job", write(writers(0, a=ledger), 1), 0.0)
    leaver = write(writers(1, a=ledger), 2)
    commit.join(leaver)
    commit.leave(leaver)
    assert commit.abort() == []
    assert (ledger.staged, ledger.visible) == ({}, [])


def test_a_leaver_that_cannot_pre_commit_is_named_and_nothing_of_it_counts() -> None:
    fine, failing = Ledger(), Ledger(failing={1: "pre_commit"})
    commit = FinalCommit("job", write(writers(0, a=fine, b=failing), 1), 0.0)
    leaver = write(writers(1, a=fine, b=failing), 2)
    commit.join(leaver)
    with pytest.raises(SinkError, match="sink 'b' could not pre-commit"):
        commit.leave(leaver)
    commit.abort()
    assert (fine.staged, fine.visible, failing.staged) == ({}, [], {})


def test_sinks_without_transactions_have_nothing_to_leave() -> None:
    journal = Journal()
    plain = PlainSink("p", journal)
    commit = FinalCommit("job", writers(0, p=plain), 0.0)
    leaver = writers(1, p=plain)
    commit.join(leaver)
    commit.leave(leaver)
    commit.pre_commit()
    commit.commit()
    assert (commit.committed, journal.calls("p")) == ([], ["build", "build"])


def test_all_workers_commit_under_one_context_per_step() -> None:
    ledger = Ledger()
    commit = FinalCommit("job", write(writers(0, a=ledger), 1), 0.0)
    leaver = write(writers(1, a=ledger), 2)
    commit.join(leaver)
    commit.leave(leaver)
    commit.pre_commit()
    assert len({payload.decode().rpartition("-")[0] for payload in ledger.staged}) == 1
