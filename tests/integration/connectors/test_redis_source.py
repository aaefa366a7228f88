"""`sources.RedisStream`: entries, starts and gaps, and what is an error; `test_streams.py` has what NATS does too."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import SourceError
from tests.integration.connectors.patient import read, wait_for_error
from tests.integration.connectors.streams import RedisStream, opened
from tests.servers import wait_until

pytestmark = pytest.mark.needs_redis


def test_entries_are_dicts_of_text_by_default(redis_stream: RedisStream) -> None:
    redis_stream.call(lambda client: client.xadd(redis_stream.name, {"item": "lämp", "pieces": 2}))
    with opened(sources.RedisStream(redis_stream.url, redis_stream.name)) as part:
        assert read(part, 1) == [{"item": "lämp", "pieces": "2"}]


def test_a_stream_is_read_once_it_exists(redis_stream: RedisStream) -> None:
    with opened(redis_stream.source()) as part:
        assert part.poll(10) in (None, [])
        wait_until(lambda: part.poll(1) is None and part.snapshot()["added"] == 0, "the source knows it is missing")
        redis_stream.add(range(3))
        assert read(part, 3) == [0, 1, 2]


def test_it_starts_where_it_is_asked_to(redis_stream: RedisStream) -> None:
    redis_stream.add(range(3))
    id = redis_stream.call(lambda client: client.xadd(redis_stream.name, {"n": 3})).decode()
    parts = [opened(redis_stream.source(start=start)) for start in (id, "new", "9999999999999")]
    with parts[0] as part, parts[1] as new, parts[2] as late:
        redis_stream.add(range(4, 6))
        assert read(part, 3) == [3, 4, 5]
        assert read(new, 2) == read(late, 2) == [4, 5]


@pytest.mark.parametrize("rows", [4, 0], ids=["read", "waiting"])
def test_entries_that_were_trimmed_before_they_were_read_are_an_error(
    rows: int, redis_stream: RedisStream, caplog: pytest.LogCaptureFixture
) -> None:
    redis_stream.add(range(rows))
    position = redis_stream.position_after(rows)
    redis_stream.add(range(rows, 20))
    redis_stream.call(lambda client: client.xtrim(redis_stream.name, maxlen=10, approximate=False))
    with opened(redis_stream.source(), position) as part, pytest.raises(SourceError, match=rf"{10 - rows} entries"):
        wait_for_error(part)
    caplog.set_level(logging.WARNING)
    with opened(redis_stream.source(on_gap="skip"), position) as part:
        assert read(part, 10) == list(range(10, 20))
        assert part.snapshot()["added"] == 20
    assert f"{10 - rows} entries" in caplog.text


def test_an_entry_that_was_deleted_before_it_was_read_is_an_error(redis_stream: RedisStream) -> None:
    redis_stream.add(range(2))
    position = redis_stream.position_after(2)
    redis_stream.add_unseen()
    redis_stream.add(range(3, 5))
    with opened(redis_stream.source(), position) as part, pytest.raises(SourceError, match="1 entries"):
        wait_for_error(part)


def test_entries_that_were_read_may_be_removed(redis_stream: RedisStream) -> None:
    def remove(*places: int) -> None:
        ids = [id for id, _ in redis_stream.call(lambda client: client.xrange(redis_stream.name))]
        redis_stream.call(lambda client: client.xdel(redis_stream.name, *(ids[place] for place in places)))

    redis_stream.add(range(6))
    remove(2)
    with opened(redis_stream.source()) as part:
        assert read(part, 3) == [0, 1, 3]
        position = part.snapshot()
    remove(1)
    with opened(redis_stream.source(), position) as part:
        assert read(part, 2) == [4, 5]
        position = part.snapshot()
    redis_stream.call(lambda client: client.xtrim(redis_stream.name, maxlen=0, approximate=False))
    redis_stream.add(range(6, 8))
    with opened(redis_stream.source(), position) as part:
        assert read(part, 2) == [6, 7]


def test_what_is_no_stream_is_an_error(redis_stream: RedisStream) -> None:
    redis_stream.call(lambda client: client.set(redis_stream.name, "text"))
    with opened(redis_stream.source()) as part, pytest.raises(SourceError, match="is not a stream"):
        wait_for_error(part)


def test_a_password_is_in_no_error(redis_stream: RedisStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malstrom_py.connectors.redis.client._TRIES", 1)
    url = f"redis://me:hunter2@127.0.0.1:{redis_stream.server.port}"
    source: sources.RedisStream[Any] = sources.RedisStream(url, redis_stream.name)
    with opened(source) as part, pytest.raises(SourceError, match="user or password") as raised:
        wait_for_error(part)
    assert "hunter2" not in f"{raised.value} {source!r}"


def test_a_stream_that_has_lost_what_a_finished_job_has_read_is_an_error(
    redis_stream: RedisStream, tmp_path: Path
) -> None:
    def read_again() -> mp.RunResult:
        job = mp.Job("again")
        job.source("in", redis_stream.source(follow=False)).sink("out", sinks.Memory())
        return mp.run(job, snapshots=mp.Snapshots(f"{tmp_path}/snapshots"))

    redis_stream.add(range(5))
    assert read_again().read == 5
    redis_stream.remove()
    redis_stream.call(lambda client: client.xadd(redis_stream.name, {"n": 1}, id="1-1"))
    with pytest.raises(SourceError, match="is not the one that was read"):
        read_again()
