"""`sources.JetStream`: messages, subjects, starts and errors; `test_streams.py` has what Redis does too."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from nats.js.api import RetentionPolicy

from malstrom_py import sources
from malstrom_py.connectors import nats as module
from malstrom_py.errors import SourceError
from tests.integration.connectors.patient import read, wait_for_error
from tests.integration.connectors.streams import NatsStream, opened
from tests.servers import nats_server, wait_until

pytestmark = pytest.mark.needs_nats


def test_a_message_is_json_or_what_value_makes_of_it(nats_stream: NatsStream) -> None:
    nats_stream.create()
    nats_stream.add([json.dumps({"celsius": 20})])
    with opened(nats_stream.source()) as part:
        assert read(part, 1) == [{"celsius": 20}]
    with opened(nats_stream.source(value=lambda subject, data: (subject, data))) as part:
        assert read(part, 1) == [(f"{nats_stream.name}.a", b'{"celsius": 20}')]


def test_a_subject_is_a_part_whose_position_follows_the_stream(nats_stream: NatsStream) -> None:
    name, of_b = nats_stream.name, f"{nats_stream.name}.b"
    nats_stream.create()
    for n in range(30):
        nats_stream.add([n], beside=n % 3 == 0)
    source = nats_stream.source(both=True)
    assert source.list_parts() == [f"{name}:{name}.a", f"{name}:{name}.b"]
    with opened(source) as part:
        assert read(part, 20) == [n for n in range(30) if n % 3]
    nats_stream.add(range(30, 35))
    with opened(nats_stream.source(subject=of_b)) as part:
        assert read(part, 10) == list(range(0, 30, 3))
        wait_until(lambda: not part.poll(1) and part.snapshot()["sequence"] == 35, "it is past the messages of others")
        position = part.snapshot()
    nats_stream.call(lambda js: js.purge_stream(name))
    nats_stream.add(range(40, 43), beside=True)
    with opened(nats_stream.source(subject=of_b), position) as part:
        assert read(part, 3) == [40, 41, 42]


def test_it_starts_where_it_is_asked_to(nats_stream: NatsStream) -> None:
    nats_stream.create()
    nats_stream.add(range(4))
    parts = [opened(nats_stream.source(start=start)) for start in (3, "new", 99)]
    with parts[0] as third, parts[1] as new, parts[2] as late:
        assert read(third, 2) == [2, 3]
        assert new.snapshot()["sequence"] == 4
        wait_until(lambda: not late.poll(1) and late.snapshot()["sequence"] == 4, "it is at the newest")
        nats_stream.add(range(4, 6))
        assert read(third, 2) == read(new, 2) == read(late, 2) == [4, 5]


@pytest.mark.parametrize("by", ["purge", "limit"])
def test_messages_that_were_removed_before_they_were_read_are_an_error(
    by: str, nats_stream: NatsStream, caplog: pytest.LogCaptureFixture
) -> None:
    name, end = nats_stream.name, 22 if by == "limit" else 12
    nats_stream.create(max_msgs=12 if by == "limit" else -1)
    nats_stream.add(range(5))
    position = nats_stream.position_after(5)
    nats_stream.add(range(5, end))
    if by == "purge":
        nats_stream.call(lambda js: js.purge_stream(name, keep=2))
    with (
        opened(nats_stream.source(), position) as part,
        pytest.raises(SourceError, match=f"messages 6 to 10 of the stream '{name}' were removed"),
    ):
        wait_for_error(part)
    caplog.set_level(logging.WARNING)
    with opened(nats_stream.source(on_gap="skip"), position) as part:
        assert read(part, end - 10) == list(range(10, end))
    assert "messages 6 to 10" in caplog.text


def test_messages_that_were_deleted_singly_are_not_missed(nats_stream: NatsStream) -> None:
    nats_stream.create()
    nats_stream.add(range(10))
    position = nats_stream.position_after(10)
    nats_stream.add(range(10, 15))
    nats_stream.call(lambda js: js.delete_msg(nats_stream.name, 13))
    with opened(nats_stream.source(), position) as part:
        assert read(part, 4) == [10, 11, 13, 14]


def test_a_stream_that_is_missing_or_a_queue_is_an_error(nats_stream: NatsStream) -> None:
    with opened(nats_stream.source()) as part, pytest.raises(SourceError, match="there is no stream"):
        wait_for_error(part)
    with pytest.raises(SourceError, match="there is no stream"):
        nats_stream.source(start="new").build_part(nats_stream.source().list_parts()[0], None)
    nats_stream.create(retention=RetentionPolicy.WORK_QUEUE)
    with opened(nats_stream.source()) as part, pytest.raises(SourceError, match="retention workqueue"):
        wait_for_error(part)


def test_a_consumer_that_the_server_forgets_is_made_again(nats_stream: NatsStream) -> None:
    nats_stream.create()
    nats_stream.add(range(3))

    async def forget(js: Any) -> None:
        for consumer in await js.consumers_info(nats_stream.name):
            await js.delete_consumer(nats_stream.name, consumer.name)

    with opened(nats_stream.source()) as part:
        assert read(part, 3) == [0, 1, 2]
        nats_stream.call(forget)
        nats_stream.add(range(3, 6))
        assert read(part, 3) == [3, 4, 5]


@pytest.mark.parametrize(("runs", "said"), [(False, "cannot be read: NoServersError"), (True, "cannot be read: ")])
def test_a_server_that_does_not_answer_or_refuses_the_password_is_an_error_without_it(
    runs: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.Reader, "patience_s", 0.2)
    with nats_server() as server:
        server.stop()
        if runs:
            server.command += ["--user", "me", "--pass", "right"]
            server.start()
        source: sources.JetStream[Any] = sources.JetStream(f"nats://me:hunter2@127.0.0.1:{server.port}", "s")
        with opened(source) as part, pytest.raises(SourceError, match=said) as raised:
            wait_for_error(part)
    assert "hunter2" not in f"{raised.value} {source!r}"
