"""Positions that earlier versions have stored are read, and those of now are read by the same rules."""

from __future__ import annotations

from typing import Any

import pytest

from malstrom_py import sources
from malstrom_py.connectors.postgres.slots import position_at
from malstrom_py.sources.base import Part
from malstrom_py.sources.polled.part import has_finished, position_in, stored

STORED: list[tuple[Any, Any, bool]] = [
    ({"offset": 7}, {"offset": 7}, False),
    ({"offset": 7, "finished": True}, {"offset": 7}, True),
    ({"id": "7-0", "added": None, "finished": True}, {"id": "7-0", "added": None}, True),
    ({"sequence": 7, "created": None}, {"sequence": 7, "created": None}, False),
    ({"lsn": 7, "commit": 0, "index": 0, "finished": False}, position_at((7, 0, 0)), False),
    ({"after": ["7"], "same": 2, "finished": False}, {"after": ["7"], "same": 2}, False),
    ({"position": 7, "finished": True}, 7, True),
    (None, None, False),
]


@pytest.mark.parametrize(("state", "position", "finished"), STORED)
def test_a_stored_position_is_read(state: Any, position: Any, finished: bool) -> None:
    assert position_in(state) == position
    assert has_finished(state) == finished
    assert position_in(stored(position, is_finished=finished)) == position
    assert has_finished(stored(position, is_finished=finished)) == finished


@pytest.mark.parametrize(
    ("source", "record", "position"),
    [
        (sources.RedisStream("redis://h", "s", follow=False), {"stops": {"s": "7-0"}}, {"id": "7-0", "added": 3}),
        (sources.JetStream("nats://h", "s", follow=False), {"stops": {"s": 7}}, {"sequence": 7, "created": "then"}),
        (sources.Kafka("h", "s", follow=False), {"starts": {}, "stops": {"s/0": 7}}, {"offset": 7}),
        (sources.PostgresChanges("host=h", "p", "s", follow=False), {"stops": {"s": 7}}, position_at((7, 0, 0))),
    ],
    ids=["redis", "nats", "kafka", "postgres"],
)
def test_a_pin_of_before_ends_a_part_where_it_ended(source: Any, record: Any, position: Any) -> None:
    source.pin("docs", record)
    part = Part(next(iter(record["stops"])))
    finished = {**position, "finished": True}
    assert not source.has_more(part, finished)
    opened = source.build_part(part, finished)
    assert opened.is_finished()
    assert opened.snapshot() == finished
    opened.close()
    source.unpin()
