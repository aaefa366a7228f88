"""Messages of pgoutput become events; what is damaged is an error without its bytes."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from malstrom_py.connectors.postgres.pgoutput import Begin, Change, Commit, Decoder, lsn_of, lsn_text
from malstrom_py.errors import SourceError

INT, TEXT = 23, 25


def decoder() -> Decoder:
    return Decoder(lambda oid: int if oid == INT else bytes.decode)


def relation(*columns: tuple[int, str, int], number: int = 7) -> bytes:
    described = b"".join(struct.pack("!B", key) + name.encode() + b"\0" + struct.pack("!Ii", oid, -1)
                         for key, name, oid in columns)  # fmt: skip
    return b"R" + struct.pack("!I", number) + b"public\0t\0d" + struct.pack("!H", len(columns)) + described


def row(*values: Any) -> bytes:
    parts = []
    for value in values:
        if value is None or value == "same":
            parts.append(b"n" if value is None else b"u")
        else:
            parts.append(b"t" + struct.pack("!I", len(value)) + value)
    return struct.pack("!H", len(values)) + b"".join(parts)


def change(kind: bytes, *parts: bytes) -> bytes:
    return kind + struct.pack("!I", 7) + b"".join(parts)


def test_a_transaction_with_every_kind_of_change() -> None:
    decode = decoder()
    messages = [
        b"B" + struct.pack("!QqI", 500, 1_000_000, 9),
        relation((1, "id", INT), (0, "name", TEXT)),
        change(b"I", b"N", row(b"1", b"a")),
        change(b"U", b"N", row(b"1", "same")),
        change(b"U", b"K", row(b"1", None), b"N", row(b"2", None)),
        change(b"U", b"O", row(b"2", b"old"), b"N", row(b"2", "same")),
        change(b"D", b"K", row(b"2", None)),
        b"T" + struct.pack("!IBI", 1, 0, 7),
        b"O" + struct.pack("!Q", 1) + b"origin\0",
        b"C" + struct.pack("!BQQq", 0, 500, 600, 1_000_000),
    ]
    begin, *changes, commit = [event for message in messages for event in decode.decode(message)]
    assert isinstance(begin, Begin)
    assert (begin.commit, begin.at.isoformat()) == (500, "2000-01-01T00:00:01+00:00")
    assert commit == Commit(500, 600)
    assert changes == [
        Change("insert", "public", "t", {"id": 1, "name": "a"}),
        Change("update", "public", "t", {"id": 1}, None, ("name",)),
        Change("update", "public", "t", {"id": 2, "name": None}, {"id": 1}),
        Change("update", "public", "t", {"id": 2, "name": "old"}, {"id": 2, "name": "old"}),
        Change("delete", "public", "t", None, {"id": 2}),
        Change("truncate", "public", "t"),
    ]


def test_a_table_that_was_altered_is_described_again() -> None:
    decode = decoder()
    list(decode.decode(relation((1, "id", INT))))
    list(decode.decode(relation((1, "id", TEXT), (0, "more", INT))))
    [event] = decode.decode(change(b"I", b"N", row(b"x", b"5")))
    assert event == Change("insert", "public", "t", {"id": "x", "more": 5})


def test_a_value_that_its_type_refuses_is_its_text() -> None:
    decode = decoder()
    list(decode.decode(relation((1, "id", INT))))
    [event] = decode.decode(change(b"I", b"N", row(b"no number")))
    assert isinstance(event, Change)
    assert event.new == {"id": "no number"}


@pytest.mark.parametrize(
    "message",
    [b"", b"B123", b"Zsecret", change(b"I", b"N", row(b"secret")), relation((1, "id", INT))[:-3]],
)
def test_a_damaged_message_is_an_error_without_its_bytes(message: bytes) -> None:
    with pytest.raises(SourceError, match="cannot be decoded") as raised:
        list(decoder().decode(message))
    assert "secret" not in str(raised.value)


def test_places_in_the_log_are_numbers_and_text() -> None:
    for lsn in (0, 1, 2**32 - 1, 2**32, 2**64 - 1):
        assert lsn_of(lsn_text(lsn)) == lsn
