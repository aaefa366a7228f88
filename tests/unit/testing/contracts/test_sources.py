"""The contract of sources: each clause is named by a source that breaks it, and no earlier clause is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from malstrom_py.errors import MalformedRecord
from malstrom_py.sources.base import Part, PolledRows
from malstrom_py.testing import LawError
from malstrom_py.testing.contracts import check_source
from malstrom_py.worker_context import WorkerInfo


class Numbers:
    """A source of two parts that keeps its contract. Subclasses change one method."""

    def list_parts(self) -> Sequence[Any]:
        return ["even", "odd"]

    def build_part(self, part: Part, state: Any) -> Numbers:
        opened = type(self)()
        opened.part = part
        opened.at = self.position(state)
        return opened

    def build(self, worker: WorkerInfo) -> Numbers:
        return self.build_part(Part("even"), None)

    part = Part("even")
    at = 0
    size = 30

    def position(self, state: Any) -> int:
        return 0 if state is None else int(state["at"])

    def poll(self, rows_max: int) -> Any:
        rows = [2 * n + (self.part == "odd") for n in range(self.at, min(self.at + rows_max, self.size))]
        self.at += len(rows)
        return rows

    def is_finished(self) -> bool:
        return self.at >= self.size

    def snapshot(self) -> Any:
        return {"at": self.at}

    def close(self) -> None:
        """Do nothing: no resource is open."""


class Stateless:
    """A source without parts."""

    def build(self, worker: WorkerInfo) -> Numbers:
        return Numbers()


class Hesitant(Numbers):
    """Returns no rows in every other poll, and has records that cannot be read."""

    nothing = False

    def poll(self, rows_max: int) -> Any:
        self.nothing = not self.nothing
        if self.nothing:
            return None
        if self.at == 7:
            self.at += 1
            raise MalformedRecord("the eighth", record=b"8")
        return super().poll(min(rows_max, 1))


class Sifting(Numbers):
    """Returns all rows of a poll with those that cannot be read, once it is asked to."""

    sifts = False

    def set_polls(self, *, frames: bool, bad_rows: bool) -> None:
        self.sifts = bad_rows

    def poll(self, rows_max: int) -> Any:
        if not self.sifts and self.at == 7:
            self.at += 1
            raise MalformedRecord("the eighth", record=7)
        before = self.at
        rows = super().poll(rows_max if self.sifts else 1)
        bad = [MalformedRecord("the eighth", record=7)] if before <= 7 < self.at else []
        return PolledRows([row for row in rows if row // 2 != 7], len(bad), iter(bad)) if self.sifts else rows


class Hides(Sifting):
    def poll(self, rows_max: int) -> Any:
        polled = super().poll(rows_max)
        return polled._replace(bad=0, errors=iter(())) if self.sifts else polled


class Endless(Numbers):
    size = 10**9


class SameName(Numbers):
    def list_parts(self) -> Sequence[Any]:
        return ["even", "even"]


class NoName(Numbers):
    def list_parts(self) -> Sequence[Any]:
        return [1, 2]


class OtherNames(Numbers):
    count = 0

    def list_parts(self) -> Sequence[Any]:
        self.count += 1
        return [f"part {self.count}"]


class TooMany(Numbers):
    def poll(self, rows_max: int) -> Any:
        return super().poll(max(rows_max, 10))


class NotPlain(Numbers):
    def snapshot(self) -> Any:
        return {"at": self.at, "where": {self.at}}


class OneBehind(Numbers):
    def snapshot(self) -> Any:
        return {"at": max(0, self.at - 1)}


class FromTheStart(Numbers):
    """Returns its saved position, but reads from the start."""

    said: Any = None

    def build_part(self, part: Part, state: Any) -> Numbers:
        opened = super().build_part(part, None)
        opened.said = state  # type: ignore[attr-defined]
        return opened

    def snapshot(self) -> Any:
        said, self.said = self.said, None
        return said or {"at": self.at}


class Restarts(Numbers):
    def poll(self, rows_max: int) -> Any:
        if self.is_finished():
            self.at = 0
        return super().poll(rows_max)


class Moving(Numbers):
    """Its position advances when it is read."""

    asked = 0

    def snapshot(self) -> Any:
        self.asked += 1
        return {"at": self.at, "asked": self.asked}


class NeverAgain(Numbers):
    """Restored at its end, the part is never finished."""

    def build_part(self, part: Part, state: Any) -> Numbers:
        return super().build_part(part, state) if state != {"at": self.size} else _Waiting()


class _Waiting(Numbers):
    at = Numbers.size

    def poll(self, rows_max: int) -> Any:
        return None

    def is_finished(self) -> bool:
        return False


class Reuses(Numbers):
    """Returns the same list each time, with new rows."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def poll(self, rows_max: int) -> Any:
        self.rows[:] = super().poll(rows_max)
        return self.rows


class CannotClose(Numbers):
    def close(self) -> None:
        if not self.at:
            raise OSError("never opened")


@pytest.mark.parametrize(
    "source", [Numbers(), Hesitant(), Sifting(), Endless(), Stateless()], ids=lambda s: type(s).__name__
)
def test_a_source_that_keeps_the_contract_passes(source: Any) -> None:
    check_source(source)


@pytest.mark.parametrize(
    ("source", "clause"),
    [
        (SameName(), "stable parts"),
        (NoName(), "stable parts"),
        (OtherNames(), "stable parts"),
        (TooMany(), "poll obeys rows_max"),
        (NotPlain(), "plain position"),
        (OneBehind(), "exact position"),
        (FromTheStart(), "exact position"),
        (Moving(), "exact position"),
        (Restarts(), "finished stays finished"),
        (NeverAgain(), "finished stays finished"),
        (Reuses(), "polled rows stay unchanged"),
        (CannotClose(), "close at any time"),
        (Hides(), "the same rows by any poll"),
    ],
    ids=lambda thing: thing if isinstance(thing, str) else type(thing).__name__,
)
def test_a_source_that_breaks_a_clause_is_named_by_it(source: Any, clause: str) -> None:
    with pytest.raises(LawError) as caught:
        check_source(source)
    assert caught.value.law == clause
