"""`sources.JetStream` reads each message once, resumes exactly, and notices what was removed or replaced."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import nats as client_of_nats
import pytest
from nats.js.api import RetentionPolicy, StreamConfig

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.connectors import nats as module
from malstrom_py.errors import MalformedRecord, SourceError
from malstrom_py.sources.base import SourcePart
from malstrom_py.testing.contracts import check_source
from tests.integration.connectors.patient import PatientSource, read, wait_for_error
from tests.servers import Server, nats_server, wait_until

pytestmark = pytest.mark.needs_nats
_names = count()


@pytest.fixture
def name() -> str:
    return f"stream{next(_names)}"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is closed waits for the call that its thread is in."""
    monkeypatch.setattr(module, "_FETCH_S", 0.03)


def url(server: Server) -> str:
    return f"nats://127.0.0.1:{server.port}"


def on(server: Server, do: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    """Run ``do`` with a JetStream context."""

    async def run() -> Any:
        client = await client_of_nats.connect(url(server))
        try:
            return await do(client.jetstream())
        finally:
            await client.close()

    return asyncio.run(run())


def create(server: Server, name: str, **config: Any) -> None:
    on(server, lambda js: js.add_stream(StreamConfig(name=name, subjects=[f"{name}.>"], **config)))


def add(server: Server, name: str, numbers: range, subject: str = "n") -> None:
    async def publish(js: Any) -> None:
        for n in numbers:
            await js.publish(f"{name}.{subject}", str(n).encode())

    on(server, publish)


def source_of(server: Server, name: str, **options: Any) -> sources.JetStream[Any]:
    return sources.JetStream(url(server), name, **options)


def opened(source: sources.JetStream[Any], state: Any = None) -> closing[SourcePart[Any]]:
    return closing(source.build_part(source.list_parts()[0], state))


def position_after(server: Server, name: str, rows: int, **options: Any) -> Any:
    with opened(source_of(server, name, **options)) as part:
        read(part, rows)
        wait_until(lambda: not part.poll(1) and part.snapshot()["sequence"] is not None, "its position is known")
        return part.snapshot()


def test_a_stream_keeps_the_contract_of_sources(nats: Server, name: str) -> None:
    create(nats, name)
    add(nats, name, range(7))
    on(nats, lambda js: js.publish(f"{name}.n", b"not json"))
    add(nats, name, range(8, 20))
    source = source_of(nats, name)
    check_source(PatientSource(source, 20, lambda state: state["sequence"] or 0), cuts_max=4)


def test_a_message_is_json_or_what_value_makes_of_it(nats: Server, name: str) -> None:
    create(nats, name)
    on(nats, lambda js: js.publish(f"{name}.sensor.7", json.dumps({"celsius": 20}).encode()))
    with opened(source_of(nats, name)) as part:
        assert read(part, 1) == [{"celsius": 20}]
    with opened(source_of(nats, name, value=lambda subject, data: (subject, data))) as part:
        assert read(part, 1) == [(f"{name}.sensor.7", b'{"celsius": 20}')]


def test_what_value_does_not_take_is_malformed_after_the_rows_before_it(nats: Server, name: str) -> None:
    create(nats, name)
    for data in (b"1", b"secret", b"3"):
        on(nats, lambda js, data=data: js.publish(f"{name}.n", data))  # type: ignore[misc]
    with opened(source_of(nats, name)) as part:
        assert read(part, 1) == [1]
        with pytest.raises(MalformedRecord, match="message 2 of") as raised:
            wait_for_error(part)
        assert raised.value.record == b"secret"
        assert "JSONDecodeError: Expecting value" in str(raised.value)
        position = part.snapshot()
    with opened(source_of(nats, name), position) as part:
        assert read(part, 1) == [3]


def test_a_subject_is_a_part_whose_position_follows_the_stream(nats: Server, name: str) -> None:
    create(nats, name)
    for n in range(30):
        add(nats, name, range(n, n + 1), subject="ab"[n % 3 == 0])
    source = source_of(nats, name, subject=[f"{name}.a", f"{name}.b"])
    assert source.list_parts() == [f"{name}:{name}.a", f"{name}:{name}.b"]
    with opened(source) as part:
        assert read(part, 20) == [n for n in range(30) if n % 3]
    add(nats, name, range(30, 35), subject="a")
    with opened(source_of(nats, name, subject=f"{name}.b")) as part:
        assert read(part, 10) == list(range(0, 30, 3))
        wait_until(lambda: not part.poll(1) and part.snapshot()["sequence"] == 35, "it is past the messages of others")
        position = part.snapshot()
    on(nats, lambda js: js.purge_stream(name))
    add(nats, name, range(40, 43), subject="b")
    with opened(source_of(nats, name, subject=f"{name}.b"), position) as part:
        assert read(part, 3) == [40, 41, 42]


def test_many_messages_are_read_in_order_and_lag_is_what_is_left(nats: Server, name: str) -> None:
    create(nats, name)
    add(nats, name, range(1_000))
    with opened(source_of(nats, name)) as part:
        assert read(part, 300) == list(range(300))
        assert part.lag_rows() == 700  # type: ignore[attr-defined]  # optional
        assert read(part, 700) == list(range(300, 1_000))


def test_it_starts_where_it_is_asked_to(nats: Server, name: str) -> None:
    create(nats, name)
    add(nats, name, range(4))
    parts = [opened(source_of(nats, name, start=start)) for start in (3, "new", 99)]
    with parts[0] as third, parts[1] as new, parts[2] as late:
        assert read(third, 2) == [2, 3]
        assert new.snapshot()["sequence"] == 4
        wait_until(lambda: not late.poll(1) and late.snapshot()["sequence"] == 4, "it is at the newest")
        add(nats, name, range(4, 6))
        assert read(third, 2) == read(new, 2) == read(late, 2) == [4, 5]


@pytest.mark.parametrize("by", ["purge", "limit"])
def test_messages_that_were_removed_before_they_were_read_are_an_error(
    by: str, nats: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    create(nats, name, max_msgs=12 if by == "limit" else -1)
    add(nats, name, range(5))
    position = position_after(nats, name, 5)
    add(nats, name, range(5, 22 if by == "limit" else 12))
    if by == "purge":
        on(nats, lambda js: js.purge_stream(name, keep=2))
    left = range(10, 22 if by == "limit" else 12)
    with (
        opened(source_of(nats, name), position) as part,
        pytest.raises(SourceError, match=f"messages 6 to 10 of the stream '{name}' were removed"),
    ):
        wait_for_error(part)
    caplog.set_level(logging.WARNING)
    with opened(source_of(nats, name, on_gap="skip"), position) as part:
        assert read(part, len(left)) == list(left)
    assert "messages 6 to 10" in caplog.text


def test_messages_that_were_deleted_singly_are_not_missed(nats: Server, name: str) -> None:
    create(nats, name)
    add(nats, name, range(10))
    position = position_after(nats, name, 10)
    add(nats, name, range(10, 15))
    on(nats, lambda js: js.delete_msg(name, 13))
    with opened(source_of(nats, name), position) as part:
        assert read(part, 4) == [10, 11, 13, 14]


@pytest.mark.parametrize("after", [0, 20])
def test_a_stream_that_was_made_again_is_an_error(after: int, nats: Server, name: str) -> None:
    create(nats, name)
    add(nats, name, range(5))
    position = position_after(nats, name, 5)
    on(nats, lambda js: js.delete_stream(name))
    create(nats, name)
    add(nats, name, range(after))
    with (
        opened(source_of(nats, name, on_gap="skip"), position) as part,
        pytest.raises(SourceError, match="was deleted or made again"),
    ):
        wait_for_error(part)


def test_a_stream_that_is_missing_or_a_queue_is_an_error(nats: Server, name: str) -> None:
    with opened(source_of(nats, name)) as part, pytest.raises(SourceError, match="there is no stream"):
        wait_for_error(part)
    with pytest.raises(SourceError, match="there is no stream"):
        source_of(nats, name, start="new").build_part(source_of(nats, name).list_parts()[0], None)
    create(nats, name, retention=RetentionPolicy.WORK_QUEUE)
    with opened(source_of(nats, name)) as part, pytest.raises(SourceError, match="retention workqueue"):
        wait_for_error(part)


def test_a_consumer_that_the_server_forgets_is_made_again(nats: Server, name: str) -> None:
    create(nats, name)
    add(nats, name, range(3))

    async def forget(js: Any) -> None:
        for consumer in await js.consumers_info(name):
            await js.delete_consumer(name, consumer.name)

    with opened(source_of(nats, name)) as part:
        assert read(part, 3) == [0, 1, 2]
        on(nats, forget)
        add(nats, name, range(3, 6))
        assert read(part, 3) == [3, 4, 5]


def test_a_server_that_is_killed_is_read_on_when_it_is_back(name: str) -> None:
    with nats_server() as server:
        create(server, name)
        add(server, name, range(10))
        with opened(source_of(server, name)) as part:
            assert read(part, 10) == list(range(10))
            for begin in (10, 20):
                server.kill()
                server.start()
                wait_until(lambda: on(server, lambda js: js.stream_info(name)) is not None, "the stream is back")
                add(server, name, range(begin, begin + 10))
                assert read(part, 10) == list(range(begin, begin + 10))


def test_a_server_that_does_not_answer_is_an_error_without_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.2)
    with nats_server() as server:
        source: sources.JetStream[Any] = sources.JetStream(f"nats://me:hunter2@127.0.0.1:{server.port}", "s")
    assert "hunter2" not in repr(source)
    with opened(source) as part, pytest.raises(SourceError, match="cannot be read: NoServersError") as raised:
        wait_for_error(part)
    assert "hunter2" not in str(raised.value)


def test_a_job_resumes_and_rescales_with_each_message_once(nats: Server, name: str, tmp_path: Any) -> None:
    """Two subjects, read by 1 -> 3 -> 2 workers, stopped, and continued."""
    create(nats, name)

    def job() -> mp.Job:
        built = mp.Job("nats")
        source = source_of(nats, name, subject=[f"{name}.a", f"{name}.b"])
        rows = built.source("in", source).key_by("key", lambda n: n % 7)
        rows.sink("out", sinks.Files(tmp_path / "out", format="json"))
        return built

    def written() -> list[int]:
        files = (tmp_path / "out").glob("*.json")
        return [json.loads(line)["value"] for file in files for line in file.read_text().splitlines()]

    snapshots = mp.Snapshots(str(tmp_path / "snapshots"), interval_s=0.1)
    for begin in (0, 80):
        handle = mp.InProcess(workers=1, snapshots=snapshots).start(job())
        for size, more in ((3, begin), (2, begin + 40)):
            add(nats, name, range(more, more + 20), subject="a")
            add(nats, name, range(more + 20, more + 40), subject="b")
            handle.rescale(size)
        wait_until(lambda rows=begin + 80: len(written()) >= rows, "all rows are committed")  # type: ignore[misc]
        handle.stop()
    assert sorted(written()) == list(range(160))


def test_a_wrong_password_is_an_error_that_does_not_contain_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.2)
    with nats_server() as server:
        server.stop()
        server.command += ["--user", "me", "--pass", "right"]
        server.start()
        source: sources.JetStream[Any] = sources.JetStream(f"nats://me:hunter2@127.0.0.1:{server.port}", "s")
        with opened(source) as part, pytest.raises(SourceError, match="cannot be read: ") as raised:
            wait_for_error(part)
    assert "hunter2" not in str(raised.value)


def test_follow_false_reads_up_to_the_message_that_is_the_newest_at_the_start(nats: Server, name: str) -> None:
    create(nats, name)
    add(nats, name, range(20))
    source = source_of(nats, name, subject=f"{name}.n", follow=False)
    check_source(PatientSource(source, 20, lambda state: state["sequence"] or 0), cuts_max=3)
    add(nats, name, range(3), subject="other")
    source.pin("docs")
    add(nats, name, range(30, 40))
    with opened(source) as part:
        assert read(part, 20) == list(range(20))
        wait_until(lambda: not part.poll(1) and part.is_finished(), "it ends before what was added later")
        position = part.snapshot()
    assert position["sequence"] == 23, "after what its subject leaves out"
    with opened(source, position) as part:
        assert part.is_finished()
    source.unpin()


@pytest.mark.parametrize("start", ["first", "new", 2, 7])
def test_a_finished_job_that_is_run_again_reads_what_is_new(
    nats: Server, name: str, tmp_path: Path, start: Any
) -> None:
    create(nats, name)
    out = sinks.Memory()

    def read_again() -> mp.RunResult:
        job = mp.Job("again")
        parts = [f"{name}.n", f"{name}.other"]
        source = source_of(nats, name, subject=parts, follow=False, start=start)
        job.source("in", source).key_by("all", lambda n: "all").sum("sum").sink("out", out)
        return mp.run(job, snapshots=mp.Snapshots(f"{tmp_path}/snapshots"))

    add(nats, name, range(1, 3))
    assert read_again().read == {"first": 2, 2: 1}.get(start, 0)
    add(nats, name, range(3, 5))
    add(nats, name, range(5, 6), subject="other")
    again = read_again()
    assert (again.read, again.resumed_finished) == (3, False)
    assert read_again().read == 0
    assert out.items[-1] == {"first": 15, 2: 14}.get(start, 12), "the state continues"
