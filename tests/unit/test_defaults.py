"""Sources and sinks by plain classes, completed with the defaults of their contract, and by classes that inherit it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.batch import Batch
from malstrom_py.errors import PlanError
from malstrom_py.sinks.base import Target, as_sink, as_writer, target_of
from malstrom_py.sources.base import Part, acknowledges, as_part, as_source, pins


class Numbers:
    """A plain source, with the optional members that a test gives it."""

    def __init__(self, **members: Any) -> None:
        self.__dict__ |= members

    def list_parts(self) -> list[Part]:
        return [Part("a")]

    def build_part(self, part: Part, state: Any) -> sources.SourcePart[int]:
        return sources.Memory([1, 2]).build_part(Part("0"), state)


class Inheriting(sources.BaseSource[int]):
    """The same source by inheritance."""

    def list_parts(self) -> list[Part]:
        return [Part("a")]

    def build_part(self, part: Part, state: Any) -> sources.SourcePart[int]:
        return sources.Memory([1, 2]).build_part(Part("0"), state)


@pytest.mark.parametrize("given", [Numbers(), Inheriting()], ids=["plain", "inheriting"])
def test_what_a_source_leaves_out_has_its_default(given: Any) -> None:
    source = as_source(given)
    assert (source.parts_open_max, source.lists_again_every_s, source.rows) == (256, None, None)
    assert (source.reads_new, source.reads_new_with, source.is_narrowing, source.ends_with_program) == (
        *(False, "", False, False),
    )
    assert not pins(source)
    assert not acknowledges(source)
    assert source.has_read(3)
    assert source.list_parts_after({}) == ["a"]
    assert mp.collect(mp.Job("docs").source("in", given)) == [1, 2]


def test_a_source_that_inherits_the_contract_is_used_itself() -> None:
    source, sink = Inheriting(), sinks.Memory()
    assert as_source(source) is source
    assert as_sink(sink) is sink


def test_an_attribute_of_the_class_or_of_the_object_replaces_a_default() -> None:
    class ByClass(Inheriting):
        parts_open_max = 3

    class ByObject(Inheriting):
        def __init__(self) -> None:
            self.parts_open_max = 3

    assert [kind().parts_open_max for kind in (ByClass, ByObject)] == [3, 3]


def test_members_of_a_plain_class_are_looked_up_at_each_use() -> None:
    given = Numbers(parts_open_max=3)
    source = as_source(given)
    given.__dict__["parts_open_max"] = 4
    assert source.parts_open_max == 4


class Pinned(Numbers):
    def pin(self, job: str, record: Any = None) -> None:
        self.__dict__["pinned"] = job

    def pin_record(self) -> Any:
        return 7


class PinnedWhole(Pinned):
    def unpin(self, *, keep: bool = False) -> None:
        self.__dict__["pinned"] = None


def test_members_that_belong_together_count_together_in_a_plain_class() -> None:
    assert not pins(as_source(Pinned()))
    source = as_source(PinnedWhole())
    assert pins(source)
    source.pin_next("docs", 7)  # which it lacks: it pins again
    assert source.pin_record() == 7
    assert not as_source(Numbers(reads_new=True)).reads_new


def test_an_overridden_acknowledge_is_called() -> None:
    class Acknowledging(Inheriting):
        def acknowledge(self, job: str, positions: Mapping[Part, Any]) -> None:
            """Forget them."""

    class Sometimes(Acknowledging):
        is_acknowledging = False

    assert acknowledges(Acknowledging())
    assert not acknowledges(Sometimes())
    assert acknowledges(as_source(Numbers(acknowledge=lambda job, positions: None)))
    assert not acknowledges(as_source(Numbers(acknowledge=True)))  # a value is not meant for the contract


@pytest.mark.parametrize(
    ("members", "wanted"),
    [
        ({"parts_open_max": 0}, "parts_open_max of Numbers must be a whole number of at least 1, got 0"),
        ({"parts_open_max": True}, "a whole number"),
        *(
            ({"lists_again_every_s": wrong}, "a number above 0, or None")
            for wrong in (0, -1.0, "5", True, float("inf"))
        ),
        ({"reads_new": 1}, "reads_new of Numbers must be True or False, got 1"),
        ({"reads_new_with": 1}, "a str or None"),
    ],
)
def test_a_wrong_value_is_an_error_when_the_step_is_added(members: dict[str, Any], wanted: str) -> None:
    with pytest.raises(PlanError, match=f"source 'in': .*{wanted}"):
        mp.Job("docs").source("in", Numbers(**members))


def test_a_misspelt_member_is_an_error_that_names_the_right_one() -> None:
    class Misspelt(Inheriting):
        lists_again_every = 5.0

    for given in (Numbers(lists_again_every=5.0), Misspelt()):
        with pytest.raises(PlanError, match="'lists_again_every', which nothing reads: write 'lists_again_every_s'"):
            mp.Job("docs").source("in", given)
    mp.Job("docs").source("in", Numbers(lists_again_every=5.0, lists_again_every_s=5.0))


def test_a_misspelt_member_of_one_object_is_an_error_after_others_of_its_class() -> None:
    for _ in range(2):
        mp.Job("docs").source("in", Numbers())
        with pytest.raises(PlanError, match="nothing reads: write 'lists_again_every_s'"):
            mp.Job("docs").source("in", Numbers(lists_again_every=5.0))


def test_what_a_part_leaves_out_has_its_default() -> None:
    class Ended:
        def poll(self, rows_max: int) -> list[int]:
            return []

        def is_finished(self) -> bool:
            return True

        def close(self) -> None:
            """Nothing is open."""

        def snapshot(self) -> int:
            return 0

    part = as_part(Ended(), Ended, "in", positions=True)
    assert (part.wait_max_s, part.lag_rows(), part.lag_bytes(), part.poll(1)) == (0.5, None, None, [])


class Lines:
    """A plain sink, with the optional members that a test gives it."""

    def __init__(self, **members: Any) -> None:
        self.__dict__ |= members

    def build(self, worker: sinks.WorkerInfo) -> Lines:
        return self

    def write(self, batch: Batch) -> None:
        """Forget it."""

    def close(self) -> None:
        """Nothing is open."""


def test_what_a_sink_leaves_out_has_its_default(tmp_path: Any) -> None:
    sink, worker = as_sink(Lines(takes_columns=True)), sinks.WorkerInfo("docs", "out", sinks.WorkerId(0))
    assert sink.takes_columns
    assert (sink.commits_in_driver, sink.ends_with_program, sink.takes_flat(worker)) == (False, False, False)
    as_writer(Lines(), Lines, "out", transactional=False).moved(3)
    versions: list[int] = []
    as_writer(Lines(moved=versions.append), Lines, "out", transactional=False).moved(3)
    assert versions == [3]
    target = Target(tmp_path, replaces=True)
    assert [target_of(Lines(target=given)) for given in (target, None, "a name")] == [target, None, None]


def test_a_wrong_value_of_a_sink_is_an_error_when_the_step_is_added() -> None:
    stream = mp.Job("docs").source("in", sources.Memory([1]))
    with pytest.raises(PlanError, match="sink 'out': takes_columns of Lines must be True or False, got 1"):
        stream.sink("out", Lines(takes_columns=1))
    with pytest.raises(PlanError, match="sink 'out': Lines has 'commits_in_drive', which nothing reads: write"):
        stream.sink("out", Lines(commits_in_drive=True))
