"""Sources are pinned once per start of a job, before their parts are asked for, and unpinned however it ends."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import OperatorError, SourceError
from malstrom_py.sources.base import Part
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.coordinator.recovery import PinnedInputs
from malstrom_py.workers.runtime.job_handle import JobHandle
from malstrom_py.workers.runtime.source_pinning import SourcePins


class Held(sources.Memory[int]):
    """A source that writes down what is asked of it."""

    def __init__(self, items: Sequence[int] = range(10), *, told: list[str] | None = None, broken: str = "") -> None:
        super().__init__(items, parts=2)
        self.told = [] if told is None else told
        self._broken = broken

    def pin(self, job: str, record: Any = None) -> None:
        self.told.append(f"pin {job}" if record is None else f"pin {job} as {record}")
        if self._broken == "pin":
            raise SourceError("there is no such table")

    def pin_record(self) -> Any:
        return {"read": len(self.told)}

    def unpin(self, *, keep: bool = False) -> None:
        self.told.append("unpin, kept" if keep else "unpin")
        if self._broken == "unpin":
            raise SourceError("the folder cannot be removed")

    def list_parts(self) -> Sequence[Part]:
        self.told.append("list")
        return super().list_parts()


def job_over(*held: Held, name: str = "pins") -> mp.Job:
    job = mp.Job(name)
    for number, source in enumerate(held):
        job.source(f"in{number}", source).sink(f"out{number}", sinks.Memory())
    return job


def failing(value: int) -> int:
    raise ValueError(value)


WHOLE_RUN = ["pin pins", "list", "unpin"]


def test_a_run_pins_before_it_lists_the_parts_and_unpins_at_its_end() -> None:
    held = Held()
    mp.run(job_over(held))
    assert held.told == WHOLE_RUN


def test_collect_does_the_same_also_where_it_ends_early() -> None:
    held = Held()
    assert mp.collect(mp.Job("pins").source("in", held), count=1) == [0]
    assert (held.told[0], held.told[-1], held.told.count("unpin")) == ("pin pins", "unpin", 1)


def test_the_simulator_pins_afresh_in_each_incarnation() -> None:
    held = Held(range(200))
    job = mp.Job("pins")
    job.source("in", held).key_by("key", lambda n: n % 7).count("n").sink("out", sinks.Memory())
    result = mp.Simulation(workers=2, seed=3, crashes=2, snapshots=False).run(job)
    assert result.incarnations == 3
    assert held.told.count("pin pins") == held.told.count("unpin") == held.told.count("list") == 3
    assert held.told[-1] == "unpin"


def test_a_source_that_two_steps_read_is_pinned_once() -> None:
    held = Held()
    mp.run(job_over(held, held))
    assert (held.told[0], held.told.count("pin pins"), held.told.count("unpin")) == ("pin pins", 1, 1)


def test_a_job_that_fails_unpins() -> None:
    held, job = Held(), mp.Job("pins")
    job.source("in", held).map("bad", failing).sink("out", sinks.Memory())
    with pytest.raises(OperatorError):
        mp.run(job)
    assert held.told[-1] == "unpin"


def test_a_source_that_cannot_be_pinned_is_told_by_its_step_and_those_before_it_are_unpinned() -> None:
    told: list[str] = []
    with pytest.raises(SourceError, match="source 'in1': there is no such table"):
        mp.run(job_over(Held(told=told), Held(told=told, broken="pin")))
    assert told == ["pin pins", "pin pins", "unpin"]


def test_what_cannot_be_unpinned_is_told_and_the_others_are() -> None:
    told: list[str] = []
    with pytest.raises(SourceError, match="source 'in1': the folder cannot be removed"):
        mp.run(job_over(Held(told=told), Held(told=told, broken="unpin")))
    assert told.count("unpin") == 2


def test_the_error_of_the_job_is_told_with_that_of_unpinning_as_a_note() -> None:
    job = mp.Job("pins")
    job.source("in", Held(broken="unpin")).map("bad", failing).sink("out", sinks.Memory())
    with pytest.raises(OperatorError) as raised:
        mp.run(job)
    assert any("cannot be removed" in note for note in raised.value.__notes__)


def test_unpinning_again_does_nothing() -> None:
    held = Held()
    pins = SourcePins(job_over(held).plan(), VirtualClock())
    assert pins.any
    pins.pin()
    pins.unpin()
    pins.unpin()
    assert held.told == ["pin pins", "unpin"]


def test_other_sources_are_left_alone() -> None:
    job = mp.Job("pins")
    job.source("in", sources.Memory([1])).sink("out", sinks.Memory())
    assert not SourcePins(job.plan(), VirtualClock()).any


def test_a_job_that_goes_on_pins_what_it_had_pinned_and_new_sources_behind_that() -> None:
    told: list[str] = []
    new, old = Held(told=told), Held(told=told)
    pins = SourcePins(job_over(new, old, old).plan(), VirtualClock())
    pins.pin(PinnedInputs({"in2": "pin-7", "in9": "of a step that is gone"}))
    assert told == ["pin pins as pin-7", "pin pins"]
    assert pins.records() == {name: {"read": 2} for name in ("in0", "in1", "in2")}
    pins.unpin()
    assert pins.records() == {}


def test_what_a_job_that_is_to_go_on_has_staged_is_kept() -> None:
    held = Held()
    with SourcePins(job_over(held).plan(), VirtualClock()) as pins:
        pins.pin()
        pins.keep = True
    assert held.told[-1] == "unpin, kept"
    pins.pin()
    pins.unpin(keep=True)
    assert held.told[-1] == "unpin, kept"


class Grows(Held):
    """One that reads what is new in later runs."""

    reads_new = True

    def list_parts_after(self, known: Mapping[Part, Any]) -> Sequence[Part]:
        return self.list_parts()

    def has_read(self, position: Any) -> bool:
        return False


@pytest.mark.parametrize("kept", [False, True])
def test_what_a_drained_job_has_not_read_is_kept_for_the_next_run_only_where_that_knows_of_it(
    kept: bool, tmp_path: Path
) -> None:
    held, snapshots = Grows(range(100_000)), mp.Snapshots(tmp_path, interval_s=None) if kept else None
    job, asked = mp.Job("pins"), threading.Event()
    job.source("in", held).filter("waits", lambda _: asked.wait(60)).sink("out", sinks.Memory())
    handle: JobHandle = mp.InProcess(snapshots=snapshots).start(job, control=False)
    handle.stop(drain=True, wait=False)
    asked.set()
    assert handle.wait().read < 100_000
    assert held.told[-1] == ("unpin, kept" if kept else "unpin")
