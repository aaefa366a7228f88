"""Calls to sources while a job runs: one at a time, errors are warnings, and only the newest positions matter."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.errors import SourceError
from malstrom_py.sources.base import Part, SourcePart
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.coordinator.machine import PartsFound
from malstrom_py.workers.coordinator.source_calls import SourceCalls
from malstrom_py.workers.engine.background import Done
from malstrom_py.workers.engine.graph_builder import build_sources


class Held:
    """Runs tasks when it is asked to."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Callable[[], Any], Done]] = []
        self.ended: list[tuple[Done, Any]] = []
        self.is_closed = False

    @property
    def pending(self) -> int:
        return len(self.tasks) + len(self.ended)

    def submit(self, work: Callable[[], Any], done: Done, *, urgent: bool = True) -> None:
        self.tasks.append((work, done))

    def run(self) -> None:
        work, done = self.tasks.pop(0)
        try:
            self.ended.append((done, work()))
        except Exception as error:
            self.ended.append((done, error))

    def turn(self) -> bool:
        ended, self.ended = self.ended, []
        for done, result in ended:
            done(result)
        return bool(ended)

    def close(self) -> None:
        self.is_closed = True


class Folder:
    """A source of parts that come and go."""

    lists_again_every_s: Any = 5.0

    def __init__(self, *parts: str) -> None:
        self.parts: list[Any] = list(parts)
        self.acknowledged: list[Mapping[Part, Any]] = []
        self.fails: Exception | None = None

    def list_parts(self) -> Sequence[Part]:
        if self.fails is not None:
            raise self.fails
        return list(self.parts)

    def new_part_position(self, part: Part) -> Any:
        return f"start of {part}"

    def build_part(self, part: Part, state: Any) -> SourcePart[int]:
        raise NotImplementedError

    def acknowledge(self, job: str, positions: Mapping[Part, Any]) -> None:
        if self.fails is not None:
            raise self.fails
        self.acknowledged.append(positions)


def calls(
    *folders: Folder, known: Mapping[str, Sequence[Part]] | None = None
) -> tuple[SourceCalls, VirtualClock, list[Held]]:
    job, clock, made = mp.Job("folders"), VirtualClock(), list[Held]()
    for number, folder in enumerate(folders):
        job.source(f"in-{number}", folder).sink(f"out-{number}", sinks.Memory())

    def background() -> Held:
        made.append(Held())
        return made[-1]

    parts = {"in-0": [Part("a")]} if known is None else known
    return SourceCalls(job.name, build_sources(job.plan(), clock), clock, parts, background=background), clock, made


def test_r13_a_source_is_listed_again_when_it_is_due_and_not_during_a_listing() -> None:
    folder = Folder("a", "b")
    made, clock, [listing, _] = calls(folder)
    assert made.turn(may_list=True) == []
    clock.sleep_s(5.0)
    assert made.turn(may_list=True) == []
    clock.sleep_s(50.0)
    made.turn(may_list=True)
    assert len(listing.tasks) == 1
    listing.run()
    assert made.turn(may_list=True) == [PartsFound("in-0", (("b", "start of b"),))]
    assert made.due_s == clock.monotonic_s() + 5.0


def test_r13_once_a_stop_is_planned_sources_are_not_listed_again() -> None:
    folder = Folder("a", "b")
    made, clock, [listing, _] = calls(folder)
    clock.sleep_s(5.0)
    made.turn(may_list=False)
    assert listing.tasks == []
    made.turn(may_list=True)
    listing.run()
    assert made.turn(may_list=False) == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("postgresql://user:secret@host"), "postgresql://user:secret@host. Correct it"),
        (SourceError("the topic is gone: create it"), "the topic is gone: create it"),
    ],
    ids=["foreign", "ours"],
)
def test_r13_a_listing_that_fails_is_a_warning_and_is_repeated(
    error: Exception, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Folder("a", "b")
    made, clock, [listing, _] = calls(folder)
    folder.fails = error
    clock.sleep_s(5.0)
    made.turn(may_list=True)
    listing.run()
    with caplog.at_level(logging.WARNING):
        assert made.turn(may_list=True) == []
    assert said in caplog.text
    folder.fails = None
    clock.sleep_s(5.0)
    made.turn(may_list=True)
    listing.run()
    assert made.turn(may_list=True) == [PartsFound("in-0", (("b", "start of b"),))]


def test_r13_a_wrong_list_of_parts_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    folder = Folder("a")
    made, clock, [listing, _] = calls(folder)
    for wrong in (["b", "b"], [3]):
        folder.parts = wrong
        clock.sleep_s(5.0)
        made.turn(may_list=True)
        listing.run()
        assert made.turn(may_list=True) == []
    assert "twice" in caplog.text
    assert "of type int" in caplog.text


def test_acknowledgements_are_coalesced_and_one_at_a_time() -> None:
    folder = Folder("a")
    made, _, [_, acknowledging] = calls(folder)
    for position in range(5):
        made.committed({"in-0": {Part("a"): position}})
    assert len(acknowledging.tasks) == 1
    acknowledging.run()
    made.turn(may_list=True)
    acknowledging.run()
    made.turn(may_list=True)
    assert acknowledging.tasks == []
    assert folder.acknowledged == [{"a": 0}, {"a": 4}]


def test_an_acknowledgement_that_fails_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    folder = Folder("a")
    made, _, [_, acknowledging] = calls(folder)
    folder.fails = RuntimeError("password=secret")
    made.committed({"in-0": {Part("a"): 1}})
    acknowledging.run()
    made.turn(may_list=True)
    assert "source in-0: its system has not acknowledged" in caplog.text
    assert "an unexpected RuntimeError: password=secret" in caplog.text
    folder.fails = None
    made.committed({"in-0": {Part("a"): 2}})
    acknowledging.run()
    assert folder.acknowledged == [{"a": 2}]


def test_a_source_that_two_steps_read_is_not_acknowledged(caplog: pytest.LogCaptureFixture) -> None:
    folder = Folder("a")
    made, _, _ = calls(folder, folder)
    assert list(made.acknowledging) == []
    assert "it is read by the steps 'in-0', 'in-1'" in caplog.text


def test_a_run_does_not_call_a_source_while_an_earlier_run_does() -> None:
    folder = Folder("a", "b")
    first, second = calls(folder), calls(folder)
    outer = folder.list_parts

    def during() -> Sequence[Part]:
        folder.list_parts = outer  # type: ignore[method-assign]
        second[1].sleep_s(5.0)
        second[0].turn(may_list=True)
        second[2][0].run()
        assert second[0].turn(may_list=True) == []
        return outer()

    folder.list_parts = during  # type: ignore[method-assign]
    first[1].sleep_s(5.0)
    first[0].turn(may_list=True)
    first[2][0].run()
    assert first[0].turn(may_list=True) == [PartsFound("in-0", (("b", "start of b"),))]


def test_r13_listings_in_vain_are_counted_from_the_last_part_that_was_found() -> None:
    folder = Folder("a")
    made, clock, [listing, _] = calls(folder)
    for parts, in_vain in ((["a"], 1), (["a", "b"], 0), (["a", "b"], 1)):
        folder.parts = list(parts)
        clock.sleep_s(5.0)
        made.turn(may_list=True)
        listing.run()
        made.turn(may_list=True)
        assert made.in_vain == in_vain


def test_the_end_waits_for_acknowledgements_and_a_late_one_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("malstrom_py.workers.coordinator.source_calls.ACKNOWLEDGE_S", 0.0)
    made, _, backgrounds = calls(Folder("a"))
    made.committed({"in-0": {Part("a"): 1}})
    made.close(wait=True)
    assert "has not acknowledged within 0 s what the job has committed" in caplog.text
    assert all(background.is_closed for background in backgrounds)
