"""`sinks.JetStream` on a real server: order, subjects, and what fails."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.connectors import nats
from malstrom_py.data.batch import Batch
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.testing.contracts.sinks import worker_of
from tests.integration.connectors.patient import read
from tests.integration.connectors.streams import NatsStream, opened

pytestmark = pytest.mark.needs_nats


def test_a_job_publishes_all_rows_in_order(nats_stream: NatsStream) -> None:
    nats_stream.create()
    job = mp.Job("publish")
    job.source("in", sources.Memory(range(1_000))).sink(
        "out", sinks.JetStream(nats_stream.url, f"{nats_stream.name}.a")
    )
    mp.run(job)
    with opened(nats_stream.source()) as part:
        assert read(part, 1_000) == list(range(1_000))


def test_subjects_and_values_may_be_functions(nats_stream: NatsStream) -> None:
    nats_stream.create()
    name = nats_stream.name
    sink = sinks.JetStream(nats_stream.url, lambda n: f"{name}.{'ab'[n % 2]}", value=lambda n: f"{n * 10}")
    with closing(sink.build(worker_of())) as writer:
        writer.write(Batch([1, 2, 3]))
    with opened(nats_stream.source()) as part:
        assert read(part, 1) == [20]
    with opened(nats_stream.source(subject=f"{name}.b")) as part:
        assert read(part, 2) == [10, 30]


def test_a_writer_that_was_idle_connects_again(nats_stream: NatsStream, monkeypatch: pytest.MonkeyPatch) -> None:
    nats_stream.create()
    monkeypatch.setattr(nats, "_IDLE_MAX_S", 0.0)
    with closing(sinks.JetStream(nats_stream.url, f"{nats_stream.name}.a").build(worker_of())) as writer:
        writer.write(Batch([1]))
        first = writer._connection._client
        time.sleep(0.01)
        writer.write(Batch([2]))
        assert writer._connection._client is not first
    with opened(nats_stream.source()) as part:
        assert read(part, 2) == [1, 2]


def test_what_cannot_be_published_is_an_error(nats_stream: NatsStream) -> None:
    nats_stream.create()
    cases: list[tuple[Any, Any, str, bool]] = [
        ("nothing.takes.this", None, "no stream takes nothing.takes.this", False),
        (f"{nats_stream.name}.a", lambda n: 1 / 0, "failed: ZeroDivisionError", True),
        (f"{nats_stream.name}.a", lambda n: 7, "returns bytes or a str", True),
    ]
    for subject, value, why, is_lasting in cases:
        with closing(sinks.JetStream(nats_stream.url, subject, value=value).build(worker_of())) as writer:
            with pytest.raises(SinkError, match=why) as raised:
                writer.write(Batch([1]))
            assert raised.value.lasting is is_lasting
    with closing(sinks.JetStream("nats://user:secret@127.0.0.1:1", "a").build(worker_of())) as writer:
        with pytest.raises(SinkError, match=r"127\.0\.0\.1:1 has not stored a batch") as refused:
            writer.write(Batch([1]))
        assert "secret" not in str(refused.value)
        assert not refused.value.lasting


@pytest.mark.parametrize("subject", ["", "a.*", "a b", 7])
def test_a_wrong_subject_is_refused(subject: Any) -> None:
    with pytest.raises(PlanError, match="subject is a subject without wildcards"):
        sinks.JetStream("nats://localhost", subject)
