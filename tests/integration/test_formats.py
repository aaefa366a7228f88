"""`formats`: values with and without a schema registry, over HTTP; with REGISTRY=…, a real one."""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from malstrom_py import formats
from malstrom_py.errors import PlanError, SinkError, SourceError
from tests.registry import Registry, running

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "item", "type": "string"},
        {"name": "pieces", "type": ["null", "long"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}
VALUE = {
    "item": "lamp",
    "pieces": 2,
    "at": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "day": date(2026, 1, 2),
    "price": Decimal("9.50"),
    "tags": {"a": "b"},
}


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running() as registry:
        yield registry


@pytest.fixture
def url(registry: Registry) -> str:
    return os.environ.get("REGISTRY", registry.url)


@pytest.fixture
def subject() -> str:
    return f"orders-{uuid.uuid4().hex[:8]}-value"


def test_avro_keeps_values_and_their_types(url: str, subject: str) -> None:
    for known in (formats.Avro(ORDER), formats.Avro(json.dumps(ORDER), registry=url, subject=subject)):
        copy = pickle.loads(pickle.dumps(known))
        assert copy.decode(known.encode(VALUE)) == VALUE


def test_avro_reads_with_the_schema_that_a_value_was_written_with(url: str, subject: str) -> None:
    first = formats.Avro(ORDER, registry=url, subject=subject)
    data = first.encode(VALUE)
    assert formats.Avro(registry=url).decode(data) == VALUE
    newer = {**ORDER, "fields": [*ORDER["fields"][:1], {"name": "colour", "type": "string", "default": "red"}]}
    assert formats.Avro(newer, registry=url).decode(data) == {"item": "lamp", "colour": "red"}


def test_the_registry_is_asked_once_per_schema(registry: Registry) -> None:
    known = formats.Avro(ORDER, registry=registry.url.replace("//", "//me:p%40ss@") + "/", subject="a/b")
    data = [known.encode(VALUE) for _ in range(3)]
    assert [known.decode(one) for one in data] == [VALUE] * 3
    assert registry.asked == ["POST /subjects/a%2Fb/versions", "GET /schemas/ids/1"]
    assert base64.b64decode((registry.logins[0] or "").removeprefix("Basic ")) == b"me:p@ss"
    assert "p%40ss" not in repr(known)


def test_a_schema_may_refer_to_others(registry: Registry) -> None:
    inner = {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]}
    outer = {"type": "record", "name": "Visit", "fields": [{"name": "at", "type": "Place"}]}
    registry.add("place", {"schema": json.dumps(inner)})
    references = [{"name": "Place", "subject": "place", "version": 1}]
    number = registry.add("visit", {"schema": json.dumps(outer), "references": references})
    whole = {**outer, "fields": [{"name": "at", "type": inner}]}
    body = formats.Avro(whole).encode({"at": {"city": "Rome"}})
    found = formats.Avro(registry=registry.url).decode(b"\0" + number.to_bytes(4, "big") + body)
    assert found == {"at": {"city": "Rome"}}


def test_an_unknown_schema_is_not_asked_for_at_each_record(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    known = formats.Avro(registry=registry.url)
    for _ in range(3):
        with pytest.raises(ValueError, match="does not have /schemas/ids/1"):
            known.decode(b"\0\0\0\0\x01\x08lamp")
    assert registry.asked == ["GET /schemas/ids/1"]
    registry.add("late", {"schema": '"string"'})
    monkeypatch.setattr("malstrom_py.formats.time.monotonic", lambda: time.monotonic_ns() / 1e9 + 31)
    assert known.decode(b"\0\0\0\0\x01\x08lamp") == "lamp"


def test_a_redirect_to_another_place_gets_no_login(registry: Registry) -> None:
    number = registry.add("orders", {"schema": '"string"'})
    data = b"\0" + number.to_bytes(4, "big") + b"\x08lamp"
    with running() as front:
        front.redirects_to = registry.url
        assert formats.Avro(registry=front.url.replace("//", "//me:secret@")).decode(data) == "lamp"
        assert (front.logins[0] or "").startswith("Basic ")
        assert registry.logins == [None]
        front.redirects_to = f"{front.url}/below"
        front.add("orders", {"schema": '"string"'})
        assert formats.Avro(registry=front.url.replace("//", "//me:secret@")).decode(data) == "lamp"
        assert front.logins[-2] == front.logins[-1] is not None


def test_a_registry_that_fails_is_asked_again_and_then_an_error(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("malstrom_py.formats._PAUSE_S", 0.0)
    known = formats.Avro(ORDER, registry=registry.url, subject="orders")
    registry.failures = 2
    data = known.encode(VALUE)
    registry.failures = 3
    with pytest.raises(SourceError, match="cannot be used: 500 Error in the backend") as raised:
        known.decode(data)
    assert not raised.value.lasting
    with pytest.raises(SinkError, match="refuses /subjects/strict/versions: 409 Schema being") as refused:
        formats.Avro(ORDER, registry=registry.url, subject="strict").encode(VALUE)
    assert refused.value.lasting
    gone = formats.Avro(registry="http://127.0.0.1:1")
    with pytest.raises(SourceError, match="cannot be used"):
        gone.decode(data)


@pytest.mark.parametrize(
    ("path", "why", "lasting"),
    [("other", "refuses", True), ("busy", "cannot be used: 429", False), ("cut", "cannot be used", False)],
)
def test_a_registry_that_answers_otherwise_makes_no_record_malformed(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, path: str, why: str, lasting: bool
) -> None:
    monkeypatch.setattr("malstrom_py.formats._PAUSE_S", 0.0)
    with pytest.raises(SourceError, match=why) as raised:
        formats.Avro(registry=f"{registry.url}/{path}").decode(b"\0\0\0\0\1")
    assert bool(raised.value.lasting) is lasting


def test_what_a_format_cannot_hold_is_not_written() -> None:
    fields = [{"name": "number", "type": "int"}, {"name": "part", "type": ["null", "long"], "default": None}]
    numbers = formats.Avro({"type": "record", "name": "Numbers", "fields": fields})
    assert numbers.decode(numbers.encode({"number": -(2**31), "part": 2**63 - 1})) == {
        "number": -(2**31),
        "part": 2**63 - 1,
    }
    for number in (2**31, 1.5, True, None):
        with pytest.raises(ValueError, match="number"):
            numbers.encode({"number": number, "part": 1})
    values = formats.JsonSchema({"type": "object"})
    with pytest.raises(ValueError, match="JSON"):
        values.encode({"number": float("nan")})
    with pytest.raises(ValueError, match="NaN is not JSON"):
        values.decode(b'{"number":NaN}')
    assert pickle.loads(pickle.dumps(values)).decode(b'{"number":1}') == {"number": 1}


def test_bytes_that_are_no_value_are_malformed(registry: Registry) -> None:
    known = formats.Avro(ORDER, registry=registry.url, subject="orders")
    data = known.encode(VALUE)
    for wrong, why in (
        (b"", "does not begin with the id of a schema"),
        (b"{}    ", "does not begin with the id of a schema"),
        (b"\0\0\0\0\x63" + data[5:], "does not have /schemas/ids/99"),
        (data + b"!", "bytes follow its last field"),
    ):
        with pytest.raises(ValueError, match=why):
            known.decode(wrong)
    formats.JsonSchema({"type": "object"}, registry=registry.url, subject="json").encode({})
    with pytest.raises(ValueError, match="schema 2 is one of JSON, not of AVRO"):
        known.decode(b"\0\0\0\0\x02{}")


def test_hostile_bytes_of_a_recursive_schema_are_malformed() -> None:
    """The reader in C would overflow its stack and end the process."""
    chain = formats.Avro({"type": "record", "name": "Chain", "fields": [{"name": "next", "type": ["null", "Chain"]}]})
    assert chain.decode(chain.encode({"next": {"next": None}})) == {"next": {"next": None}}
    with pytest.raises(RecursionError):
        chain.decode(b"\x02" * 3_000_000 + b"\0")
    tree = formats.Avro(
        {"type": "record", "name": "t.Tree", "fields": [{"name": "kids", "type": {"type": "array", "items": "Tree"}}]}
    )
    assert tree.decode(tree.encode({"kids": [{"kids": []}]})) == {"kids": [{"kids": []}]}
    with pytest.raises(RecursionError):
        tree.decode(b"\x02" * 100_000)


def test_a_negative_number_of_a_symbol_or_of_a_type_is_malformed() -> None:
    size = {"type": "enum", "name": "Size", "symbols": ["S", "M"]}
    fields = [
        {"name": "first", "type": size},
        {"name": "second", "type": "Size"},
        {"name": "any", "type": ["Size", "string"]},
    ]
    shirt: dict[str, Any] = {"type": "record", "name": "Shirt", "fields": fields}
    ring = {**shirt, "fields": [*fields, {"name": "next", "type": ["null", "Shirt"], "default": None}]}
    value = {"first": "M", "second": "S", "any": "x"}
    first = formats.Avro(shirt)
    for known, more in ((first, {}), (pickle.loads(pickle.dumps(first)), {}), (formats.Avro(ring), {"next": None})):
        data = known.encode(value | more)
        assert known.decode(data) == value | more
        for place in range(3):
            with pytest.raises(ValueError, match="number of a symbol, or of a type in a union, that"):
                known.decode(data[:place] + b"\x01" + data[place + 1 :])
    union = formats.Avro(["null", "string"])
    assert [union.decode(union.encode(value)) for value in (None, "x")] == [None, "x"]
    with pytest.raises(ValueError, match="of a type in a union"):
        union.decode(b"\x01\x02x")


def test_json_is_checked_against_its_schema(url: str, subject: str) -> None:
    schema = {"type": "object", "properties": {"pieces": {"type": "integer"}}, "required": ["item"]}
    known = formats.JsonSchema(schema, registry=url, subject=subject)
    data = known.encode({"item": "lamp", "pieces": 2})
    assert data[5:] == b'{"item":"lamp","pieces":2}'
    assert formats.JsonSchema(registry=url).decode(data) == {"item": "lamp", "pieces": 2}
    with pytest.raises(Exception, match="'item' is a required property"):
        known.encode({})
    with pytest.raises(Exception, match="'two' is not of type 'integer'"):
        known.decode(data[:5] + b'{"item": "lamp", "pieces": "two"}')


def messages() -> tuple[Any, Any]:
    """Return the classes of two messages, one of them inside another, as protoc would make them."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    colour = file.enum_type.add(name="Colour")
    colour.value.add(name="UNKNOWN", number=0)
    colour.value.add(name="RED", number=1)
    file.message_type.add(name="First")
    order = file.message_type.add(name="Order")
    line = order.nested_type.add(name="Line")
    line.field.add(name="item", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    counts = order.nested_type.add(name="CountsEntry")
    counts.options.map_entry = True
    counts.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    counts.field.add(name="value", number=2, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    for number, (name, kind, label, of) in enumerate(
        [
            ("id", kinds.TYPE_INT64, kinds.LABEL_OPTIONAL, ""),
            ("lines", kinds.TYPE_MESSAGE, kinds.LABEL_REPEATED, ".shop.Order.Line"),
            ("counts", kinds.TYPE_MESSAGE, kinds.LABEL_REPEATED, ".shop.Order.CountsEntry"),
            ("colour", kinds.TYPE_ENUM, kinds.LABEL_OPTIONAL, ".shop.Colour"),
            ("at", kinds.TYPE_MESSAGE, kinds.LABEL_OPTIONAL, ".google.protobuf.Timestamp"),
            ("raw", kinds.TYPE_BYTES, kinds.LABEL_OPTIONAL, ""),
            ("first", kinds.TYPE_MESSAGE, kinds.LABEL_OPTIONAL, ".shop.Order.Line"),
        ],
        start=1,
    ):
        order.field.add(name=name, number=number, type=kind, label=label, **({"type_name": of} if of else {}))
    from google.protobuf import timestamp_pb2  # the pool has to have it

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    found = message_factory.GetMessageClass
    return (
        found(pool.FindMessageTypeByName("shop.Order")),
        found(pool.FindMessageTypeByName("shop.Order.Line")),
    )


def test_protobuf_messages_are_dicts(url: str, subject: str) -> None:
    order, line = messages()
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    value = {
        "id": 1 << 40,
        "lines": [{"item": "lamp"}, {"item": "desk"}],
        "counts": {"a": 1},
        "colour": "RED",
        "at": at,
        "raw": b"\xff",
        "first": None,
    }
    assert formats.Protobuf(order).decode(formats.Protobuf(order).encode(value)) == value
    assert formats.Protobuf(order).decode(b"") == {
        "id": 0,
        "lines": [],
        "counts": {},
        "colour": "UNKNOWN",
        "at": None,
        "raw": b"",
        "first": None,
    }
    message = order(id=7)
    assert formats.Protobuf(order).encode(message) == message.SerializeToString()
    with pytest.raises(TypeError, match="a int is neither a dict nor a Order"):
        formats.Protobuf(order).encode(7)
    with pytest.raises(ValueError, match="does not begin with the place of its message"):
        formats.Protobuf(order, registry=url).decode(b"\0\0\0\0\1")
    if "REGISTRY" in os.environ:
        return  # a real one asks for the file that is imported first
    framed, inner = (formats.Protobuf(kind, registry=url, subject=subject) for kind in (order, line))
    data = framed.encode(value)
    assert data[5:7] == b"\x02\x02"  # one number follows: the message is the second of its file
    assert framed.decode(data) == value
    assert inner.decode(inner.encode({"item": "lamp"})) == {"item": "lamp"}
    with pytest.raises(ValueError, match=r"it is message \[1, 0\] of its file, and Order is \[1\]"):
        framed.decode(inner.encode({"item": "lamp"}))


def test_durations_and_structs_of_protobuf() -> None:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.struct_pb2 import Struct

    assert formats.Protobuf(Duration).decode(Duration(seconds=3).SerializeToString()) == timedelta(seconds=3)
    struct = Struct()
    struct.update({"a": [1, {"b": None}]})
    assert formats.Protobuf(Struct).decode(struct.SerializeToString()) == {"a": [1.0, {"b": None}]}


def test_wrong_arguments_are_refused() -> None:
    for make, why in (
        (formats.Avro, "formats.Avro needs a schema, or the registry= that has it"),
        (formats.JsonSchema, "formats.JsonSchema needs a schema"),
        (lambda: formats.Avro("{"), "formats.Avro: schema is not JSON"),
        (lambda: formats.Avro({"type": "thing"}), "formats.Avro: no schema of Avro"),
        (lambda: formats.JsonSchema({"type": "thing"}), "formats.JsonSchema: no JSON Schema"),
        (lambda: formats.Avro(ORDER, subject="a"), "subject is that of a registry"),
        (lambda: formats.Avro(registry="localhost:8081"), "registry is a URL"),
        (lambda: formats.Protobuf(cast("Any", dict)), "message is a class that protoc has made"),
    ):
        with pytest.raises(PlanError, match=why):
            make()
    with pytest.raises(SinkError, match="values are written with a schema"):
        formats.Avro(registry="http://localhost:1").encode(VALUE)
    with pytest.raises(SinkError, match="values are written under a subject="):
        formats.Avro(ORDER, registry="http://localhost:1").encode(VALUE)


@pytest.mark.parametrize("package", ["google", "google.protobuf"])
def test_without_protobuf_the_error_says_what_to_install(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PlanError, match=r"needs google.protobuf: pip install 'fastavro"):
        formats.Protobuf(descriptor_pb2.FieldDescriptorProto)
