"""Wrong arguments of both ends of Kafka are found when they are made, and secrets are in no text."""

from __future__ import annotations

import copy
import sys
import traceback
from datetime import datetime
from typing import Any

import cloudpickle
import pytest

from malstrom_py import sinks, sources
from malstrom_py.connectors.kafka.client import Cluster
from malstrom_py.connectors.kafka.producing import Encoder
from malstrom_py.connectors.kafka.staging import Payload, Segment, packed, segments_of, unpacked
from malstrom_py.data.batch import Batch
from malstrom_py.errors import PlanError, SinkError, SourceError
from malstrom_py.sources.base import Part
from malstrom_py.testing.contracts.sinks import context_of

WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (sources.Kafka, {"bootstrap": ""}, "bootstrap must name"),
    (sources.Kafka, {"topics": []}, "names of one or more topics"),
    (sources.Kafka, {"topics": ["a", "a"]}, "each of them once"),
    (sources.Kafka, {"topics": "a/b"}, "is not the name of a topic"),
    (sources.Kafka, {"start": "end"}, "start must be"),
    (sources.Kafka, {"start": datetime(2024, 1, 1)}, "with a zone"),  # noqa: DTZ001
    (sources.Kafka, {"value": 3}, "value must be a function of bytes"),
    (sources.Kafka, {"key": len}, "add records=True"),
    (sources.Kafka, {"on_lost": "latest"}, "on_lost must be"),
    (sources.Kafka, {"group": ""}, "group must be"),
    (sources.Kafka, {"new_partitions_every_s": 0}, "above 0"),
    (sources.Kafka, {"options": {"group.id": "g"}}, "option 'group.id' is set by sources.Kafka itself"),
    (sinks.Kafka, {"topic": "a b"}, "is not the name of a topic"),
    (sinks.Kafka, {"key": 3}, "key must be a function of the value"),
    (sinks.Kafka, {"exactly_once": 1}, "exactly_once must be True or False"),
    (sinks.Kafka, {"staging": "s"}, "for exactly_once=True"),
    (sinks.Kafka, {"staging": "topic", "exactly_once": True}, "another topic"),
    (sinks.Kafka, {"options": {"acks": 0}}, "option 'acks' is set"),
]


@pytest.mark.parametrize(("kind", "arguments", "said"), WRONG)
def test_a_wrong_argument_is_refused(kind: Any, arguments: dict[str, Any], said: str) -> None:
    named = {"bootstrap": "b:9092", "topics" if kind is sources.Kafka else "topic": "topic", **arguments}
    with pytest.raises(PlanError, match=said):
        kind(**named)


def test_secrets_are_in_no_text() -> None:
    options = {"sasl.password": "secret-1", "no.such": "secret-2"}
    source = sources.Kafka("b:9092", "topic", options=options)
    assert "secret" not in repr(source) + repr(source._cluster) + repr(sinks.Kafka("b:9092", "t", options=options))
    with pytest.raises(PlanError, match=r"no\.such") as raised:
        source.build_part(Part("topic/0"), {"offset": 1})
    assert "secret" not in str(raised.value)
    assert Cluster("docs", "b", {"sasl.password": "secret-1"}).safe(ValueError("secret-1")) == "ValueError"


def test_secrets_are_in_no_traceback() -> None:
    source = sources.Kafka("b:9092", "topic", options={"isolation.level": "hunter-3"})
    with pytest.raises(PlanError, match=r"isolation\.level") as raised:
        source.build_part(Part("topic/0"), {"offset": 1})
    assert "hunter-3" not in "".join(traceback.format_exception(raised.value))


def test_a_topic_of_the_snapshot_that_is_left_out_is_not_read_silently() -> None:
    with pytest.raises(SourceError, match=r"reads topic 'left', which topics= leaves out: name it") as raised:
        sources.Kafka("b:9092", "kept").build_part(Part("left/0"), {"offset": 1})
    assert raised.value.lasting


def test_without_the_package_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(PlanError, match="pip install 'confluent-kafka"):
        sources.Kafka("b:9092", "topic")


def test_the_kind_of_sink_survives_a_copy() -> None:
    for exactly_once in (False, True):
        sink = sinks.Kafka("b:9092", "topic", exactly_once=exactly_once)
        for each in (sink, copy.deepcopy(sink), cloudpickle.loads(cloudpickle.dumps(sink))):
            assert isinstance(each, sinks.TransactionalSink) is exactly_once
            assert isinstance(each, sinks.Kafka)


def test_a_position_or_pin_of_another_source_is_an_error() -> None:
    source = sources.Kafka("b:9092", "topic")
    source.pin("docs", {"starts": {}, "stops": None})
    with pytest.raises(SourceError, match="has not written"):
        source.build_part(Part("topic/0"), {"row": 3})
    with pytest.raises(SourceError, match="is not a partition of this source"):
        source.build_part(Part("orders.csv"), None)
    with pytest.raises(SourceError, match="a record of another source"):
        source.pin("docs", {"folder": "x"})
    with pytest.raises(SourceError, match=r"another job is reading .* other rows"):
        source.pin("other", {"starts": {"topic/0": 3}, "stops": None})


def test_segments_are_ordered_by_the_versions_of_the_routing_table() -> None:
    import msgspec

    def payload(*versions: int, writer: str) -> bytes:
        return msgspec.json.encode(Payload([Segment(version, "s", 0, writer, 1, 1, 1) for version in versions]))

    found = segments_of([payload(0, 2, writer="a"), payload(1, 2, writer="b")], context_of(1))
    assert [(segment.version, segment.writer) for segment in found] == [(0, "a"), (1, "b"), (2, "a"), (2, "b")]
    pairs = [(b"k", None), (None, b"v")]
    assert unpacked(packed(pairs)) == pairs


def test_keys_of_a_stream_are_text_bytes_or_json() -> None:
    batch = Batch([1, 2, 3], keys=["text", b"bytes", (1, "a")])
    keys = [key for key, *_ in Encoder("docs").records(batch)]
    assert keys == [b"text", b"bytes", b'[1,"a"]']
    with pytest.raises(SinkError, match="key= returned int"):
        list(Encoder("docs", key=lambda row: row).records(batch))
