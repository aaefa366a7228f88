"""`sources.RedisStream` reads each entry once, resumes exactly, and notices what was removed or replaced."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis as client_of_redis

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.connectors.redis import source as module
from malstrom_py.errors import MalformedRecord, SourceError
from malstrom_py.sources.base import SourcePart
from malstrom_py.testing.contracts import check_source
from tests.integration.connectors.patient import PatientSource, read, wait_for_error
from tests.servers import Server, redis_server, wait_until

pytestmark = pytest.mark.needs_redis
_names = count()


@pytest.fixture
def client(redis: Server) -> Iterator[Any]:
    with closing(client_of_redis.Redis(port=redis.port, protocol=2)) as opened:
        yield opened


@pytest.fixture
def name() -> str:
    return f"source-{next(_names)}"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is closed waits for the call that its thread is in."""
    monkeypatch.setattr(module, "_BLOCK_MS", 10)


def number(id: str, fields: dict[bytes, bytes]) -> int:
    return int(fields[b"n"])


def url(server: Server) -> str:
    return f"redis://127.0.0.1:{server.port}/0"


def source_of(redis: Server, name: str, **options: Any) -> sources.RedisStream[int]:
    return sources.RedisStream(url(redis), name, value=number, **options)


def add(client: Any, name: str, numbers: range) -> None:
    pipe = client.pipeline()
    for n in numbers:
        pipe.xadd(name, {"n": n})
    pipe.execute()


def opened(source: sources.RedisStream[Any], state: Any = None) -> closing[SourcePart[Any]]:
    return closing(source.build_part(source.list_parts()[0], state))


def test_a_stream_keeps_the_contract_of_sources(redis: Server, client: Any, name: str) -> None:
    for n in range(20):
        client.xadd(name, {"n": "x" if n == 7 else n})
    check_source(PatientSource(source_of(redis, name), 20, lambda state: state["added"] or 0), cuts_max=6)


def test_entries_are_dicts_of_text_by_default(redis: Server, client: Any, name: str) -> None:
    client.xadd(name, {"item": "lämp", "pieces": 2})
    with opened(sources.RedisStream(url(redis), name)) as part:
        assert read(part, 1) == [{"item": "lämp", "pieces": "2"}]


def test_what_value_does_not_take_is_malformed_after_the_rows_before_it(redis: Server, client: Any, name: str) -> None:
    for n in ("1", "secret", "3"):
        client.xadd(name, {"n": n})
    with opened(source_of(redis, name)) as part:
        assert read(part, 1) == [1]
        with pytest.raises(MalformedRecord, match="ValueError") as raised:
            wait_for_error(part)
        assert raised.value.record == {b"n": b"secret"}
        assert "secret" in str(raised.value)
        position = part.snapshot()
    with opened(source_of(redis, name), position) as part:
        assert read(part, 1) == [3]


def test_many_entries_are_read_in_order_and_lag_is_what_is_left(redis: Server, client: Any, name: str) -> None:
    add(client, name, range(5_000))
    with opened(source_of(redis, name)) as part:
        assert read(part, 1_200) == list(range(1_200))
        assert part.lag_rows() == 3_800  # type: ignore[attr-defined]  # optional
        assert read(part, 3_800) == list(range(1_200, 5_000))
        add(client, name, range(5_000, 5_003))
        assert read(part, 3) == [5_000, 5_001, 5_002]


def test_a_stream_is_read_once_it_exists(redis: Server, client: Any, name: str) -> None:
    with opened(source_of(redis, name)) as part:
        assert part.poll(10) in (None, [])
        wait_until(lambda: part.poll(1) is None and part.snapshot()["added"] == 0, "the source knows it is missing")
        add(client, name, range(3))
        assert read(part, 3) == [0, 1, 2]


def test_it_starts_where_it_is_asked_to(redis: Server, client: Any, name: str) -> None:
    add(client, name, range(3))
    id = client.xadd(name, {"n": 3}).decode()
    with opened(source_of(redis, name, start=id)) as part, opened(source_of(redis, name, start="new")) as new:
        late = source_of(redis, name, start="9999999999999")
        with opened(late) as after:
            add(client, name, range(4, 6))
            assert read(part, 3) == [3, 4, 5]
            assert read(new, 2) == read(after, 2) == [4, 5]


@pytest.mark.parametrize("state", ["read", "waiting"])
def test_entries_that_were_trimmed_before_they_were_read_are_an_error(
    state: str, redis: Server, client: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = 4 if state == "read" else 0
    add(client, name, range(rows))
    with opened(source_of(redis, name)) as part:
        assert read(part, rows) == list(range(rows))
        wait_until(lambda: part.poll(1) is None and part.snapshot()["added"] == rows, "its position is known")
        position = part.snapshot()
    add(client, name, range(rows, 20))
    client.xtrim(name, maxlen=10, approximate=False)
    with opened(source_of(redis, name), position) as part, pytest.raises(SourceError, match=rf"{10 - rows} entries"):
        wait_for_error(part)
    caplog.set_level(logging.WARNING)
    with opened(source_of(redis, name, on_gap="skip"), position) as part:
        assert read(part, 10) == list(range(10, 20))
        assert part.snapshot()["added"] == 20
    assert f"{10 - rows} entries" in caplog.text


def test_an_entry_that_was_deleted_before_it_was_read_is_an_error(redis: Server, client: Any, name: str) -> None:
    add(client, name, range(2))
    with opened(source_of(redis, name)) as part:
        read(part, 2)
        position = part.snapshot()
    id = client.xadd(name, {"n": 2})
    add(client, name, range(3, 5))
    client.xdel(name, id)
    with opened(source_of(redis, name), position) as part, pytest.raises(SourceError, match="1 entries"):
        wait_for_error(part)


def test_entries_that_were_read_may_be_removed(redis: Server, client: Any, name: str) -> None:
    ids = [client.xadd(name, {"n": n}) for n in range(6)]
    client.xdel(name, ids[2])
    with opened(source_of(redis, name)) as part:
        assert read(part, 3) == [0, 1, 3]
        position = part.snapshot()
    client.xdel(name, ids[1])
    with opened(source_of(redis, name), position) as part:
        assert read(part, 2) == [4, 5]
        position = part.snapshot()
    client.xtrim(name, maxlen=0, approximate=False)
    add(client, name, range(6, 8))
    with opened(source_of(redis, name), position) as part:
        assert read(part, 2) == [6, 7]


@pytest.mark.parametrize("after", [0, 2, 40])
def test_a_stream_that_was_made_again_is_an_error(after: int, redis: Server, client: Any, name: str) -> None:
    """Also when it has more entries than the one before, and larger ids."""
    add(client, name, range(5))
    with opened(source_of(redis, name, on_gap="skip")) as part:
        read(part, 5)
        position = part.snapshot()
    client.delete(name)
    add(client, name, range(after))
    with (
        opened(source_of(redis, name, on_gap="skip"), position) as part,
        pytest.raises(SourceError, match=rf"'{name}' .*was deleted or made again"),
    ):
        wait_for_error(part)


def test_what_is_no_stream_is_an_error(redis: Server, client: Any, name: str) -> None:
    client.set(name, "text")
    with opened(source_of(redis, name)) as part, pytest.raises(SourceError, match="is not a stream"):
        wait_for_error(part)


def test_a_password_is_in_no_error(redis: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malstrom_py.connectors.redis.client._TRIES", 1)
    source: sources.RedisStream[Any] = sources.RedisStream(f"redis://me:hunter2@127.0.0.1:{redis.port}", name)
    assert "hunter2" not in repr(source)
    with opened(source) as part, pytest.raises(SourceError, match="user or password") as raised:
        wait_for_error(part)
    assert "hunter2" not in str(raised.value)


def test_a_redis_that_is_killed_is_read_on_when_it_is_back() -> None:
    with redis_server() as server, closing(client_of_redis.Redis(port=server.port, protocol=2)) as client:
        add(client, "in", range(10))
        with opened(source_of(server, "in")) as part:
            assert read(part, 10) == list(range(10))
            server.kill()
            server.start()
            add(client, "in", range(10, 20))
            assert read(part, 10) == list(range(10, 20))


def test_a_job_resumes_and_rescales_with_each_entry_once(redis: Server, client: Any, name: str, tmp_path: Any) -> None:
    """Two streams, read by 1 -> 3 -> 2 workers, stopped, and continued; the sink is exactly once too."""
    streams, out = [f"{name}-a", f"{name}-b"], f"{name}-out"

    def job() -> mp.Job:
        built = mp.Job("redis")
        numbers = built.source("in", sources.RedisStream(url(redis), streams, value=number)).key_by(
            "key", lambda n: n % 7
        )
        rows = numbers.stateful_map("count", lambda key, n, seen: ({"n": n, "seen": (seen or 0) + 1}, (seen or 0) + 1))
        rows.sink("out", sinks.RedisStream(url(redis), out))
        return built

    snapshots = mp.Snapshots(str(tmp_path), interval_s=0.1)
    for begin in (0, 100):
        handle = mp.InProcess(workers=1, snapshots=snapshots).start(job())
        for size, more in ((3, begin), (2, begin + 50)):
            for stream in streams:
                add(client, stream, range(more, more + 50))
            handle.rescale(size)
        wait_until(lambda rows=2 * begin + 200: client.xlen(out) >= rows, "all rows are committed")  # type: ignore[misc]
        handle.stop()
    rows = [(int(fields[b"n"]), int(fields[b"seen"])) for _, fields in client.xrange(out)]
    assert sorted(n for n, _ in rows) == sorted([*range(200), *range(200)])
    for key in range(7):
        seen = [count for n, count in rows if n % 7 == key]
        assert seen == list(range(1, len(seen) + 1)), "the rows of a key are in order, each once"


def test_follow_false_reads_up_to_the_entry_that_is_the_newest_at_the_start(
    redis: Server, client: Any, name: str
) -> None:
    add(client, name, range(20))
    source = source_of(redis, name, follow=False)
    check_source(PatientSource(source, 20, lambda state: state["added"] or 0), cuts_max=3)
    client.xdel(name, client.xadd(name, {"n": 20}))
    source.pin("docs")
    add(client, name, range(30, 40))
    with opened(source) as part:
        assert read(part, 20) == list(range(20))
        wait_until(lambda: not part.poll(1) and part.is_finished(), "it ends before what was added later")
        position = part.snapshot()
    with opened(source, position) as part:
        wait_until(lambda: not part.poll(1) and part.is_finished(), "a finished part has nothing more")
    source.unpin()


@pytest.mark.parametrize("start", ["first", "new"])
def test_a_finished_job_that_is_run_again_reads_what_is_new(
    redis: Server, client: Any, name: str, tmp_path: Path, start: str
) -> None:
    out = sinks.Memory()

    def read_again() -> mp.RunResult:
        job = mp.Job("again")
        source = sources.RedisStream(url(redis), [name, f"{name}-b"], value=number, follow=False, start=start)
        job.source("in", source).key_by("all", lambda n: "all").sum("sum").sink("out", out)
        return mp.run(job, snapshots=mp.Snapshots(f"{tmp_path}/snapshots"))

    add(client, name, range(1, 3))
    assert read_again().read == (2 if start == "first" else 0)
    add(client, name, range(3, 5))
    add(client, f"{name}-b", range(5, 6))
    again = read_again()
    assert (again.read, again.resumed_finished) == (3, False)
    assert read_again().read == 0
    assert out.items[-1] == (15 if start == "first" else 12), "the state continues"


def test_a_stream_that_has_lost_what_a_finished_job_has_read_is_an_error(
    redis: Server, client: Any, name: str, tmp_path: Path
) -> None:
    def read_again() -> mp.RunResult:
        job = mp.Job("again")
        job.source("in", source_of(redis, name, follow=False)).sink("out", sinks.Memory())
        return mp.run(job, snapshots=mp.Snapshots(f"{tmp_path}/snapshots"))

    add(client, name, range(5))
    assert read_again().read == 5
    client.delete(name)
    client.xadd(name, {"n": 1}, id="1-1")
    with pytest.raises(SourceError, match="is not the one that was read"):
        read_again()
