"""What `sources.PostgresChanges` knows of its slot and of its place in it, without a server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from malstrom_py.connectors.postgres import slots
from malstrom_py.connectors.postgres.pgoutput import Begin, Change, Commit
from malstrom_py.errors import SourceError
from malstrom_py.sources.polled import PolledChunk


class Events:
    """A decoder whose messages are events."""

    def decode(self, data: Any) -> Iterator[Any]:
        yield data


def chunks_of(position: tuple[int, int, int], *messages: list[Any]) -> list[PolledChunk[Any]]:
    transactions = slots._Transactions(*position)
    decoder: Any = Events()
    return [transactions.chunk(decoder, iter(each)) for each in messages]


def test_a_transaction_that_is_decoded_again_never_moves_the_position_back() -> None:
    begin, change = Begin(commit=50, at=None), Change("insert", "s", "t")  # type: ignore[arg-type]
    messages: list[list[Any]] = [[begin], [change] * 10, [change] * 10, [change] * 10, [Commit(50, 60)]]
    found = chunks_of((40, 50, 25), *messages)
    places = [(40, 50, 25), (40, 50, 25), (40, 50, 25), (40, 50, 30), (60, 0, 0)]
    assert [chunk.after for chunk in found] == list(map(slots.position_at, places))
    assert [len(chunk.records) for chunk in found] == [0, 0, 0, 5, 0]
    assert [found[3].position(number)["index"] for number in range(5)] == [26, 27, 28, 29, 30]


class Server:
    """A connection whose slot is in use in the first answers."""

    def __init__(self, *uses: tuple[int | None, bool]) -> None:
        self._answers = [(1,), *(("pgoutput", True, pid, "", "0/A", 0, sends) for pid, sends in uses)]

    def execute(self, *_: Any) -> Server:
        return self

    def fetchone(self) -> Any:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def test_a_slot_that_is_moved_right_now_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    server: Any = Server((7, False), (7, False), (None, False))
    assert slots.find_slot(server, "sales_slot", "pub") == slots.Slot("sales_slot", 10, 0)
    monkeypatch.setattr(slots, "_BUSY_S", 0)
    for uses in ([(7, False)], [(7, True)]):
        busy: Any = Server(*uses)
        with pytest.raises(SourceError, match="in use by the session with pid 7"):
            slots.find_slot(busy, "sales_slot", "pub")
