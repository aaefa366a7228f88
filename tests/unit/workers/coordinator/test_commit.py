"""The end of a job: all sinks pre-commit before any sink commits, and a failure leaves no output."""

from __future__ import annotations

import pytest

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.errors import SinkError
from malstrom_py.testing import VirtualClock
from tests.unit.workers.harness import Journal, JournalSink, PlainSink


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
